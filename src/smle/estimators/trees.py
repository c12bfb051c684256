"""Asks whether trees would beat the network: a small booster behind the same head, on the rows held out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from smle.estimators.concerns import errors_needed
from smle.estimators.scores import ScoreTable
from smle.rules import label_columns
from smle.serving.fronts import answers_of
from smle.serving.perceptron import Perceptron

if TYPE_CHECKING:
    from smle.estimators.base import SafeEstimator
    from smle.estimators.tasks import Held, TrainingRows

__all__ = ["better_trees"]

Array = npt.NDArray[np.float64]
_ROWS = 3000  # rows to learn from
_HELD = 500  # rows to compare on
_OUTPUTS = 3  # outputs that the booster learns: those on which trees look best
_COLUMNS = 8  # options of a choice; with more it takes too long
_TREES = 120  # for all columns together: about a tenth of a second
_CLEAR = 0.02  # of R2 or accuracy: on 17 training tables, cut twice, a gap beyond it was never wrong


def better_trees(
    safe: SafeEstimator, rows: TrainingRows, weight: Array | None, held_out: Held, promise: Array, seed: int
) -> str:
    """Say by how much a small booster beats the network inside, if it clearly does, or return "".

    Clearly means by 0.02 of R2 or accuracy, on average over the outputs it learned, and by three standard errors
    (somewhat more for many outputs). The booster reads the columns that the network reads, and learns the few outputs
    with most `promise` from the rows not held out. Both are served by the same head and compared on the rows held out,
    where the network answers as it did before its final epochs. Networks that were stopped by `max_epochs`, or tuned
    for another score, are skipped.
    """
    served = safe.deployed_
    front, head, task = served.front, served.head, safe._task
    # Another score was requested, or the network could still improve.
    other = getattr(rows.task, "class_weight", None) is not None or getattr(task, "thresholds", None) is not None
    other = other or safe.description_["history"].get("stopped") == "max_epochs"
    if head is None or not head.reads_answers or not isinstance(front, Perceptron) or other:
        return ""
    truth, held = task.truth(rows.targets), held_out.rows
    kept = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(truth)), held))[:_ROWS]
    held = held[:_HELD]
    table, encoded = rows.frame.iloc[held], rows.encoded[held]
    weights = (None, None) if weight is None else (weight[kept], weight[held])

    def own(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found = held_out.outputs[: len(held)] if x is encoded else front.answers(table, x)
        return answers_of(rows.spec, found, len(x))

    now = head.serve(encoded, own).outputs.astype(np.float64)
    learned = np.sort(np.argsort(-promise, kind="stable")[:_OUTPUTS]).tolist()
    columns = [column for output in learned for column in task.columns()[output]]
    if len(columns) > _COLUMNS:
        return ""
    known = front.features(rows.frame.iloc[kept], rows.encoded[kept])
    boosters = _boosters(known, truth[np.ix_(kept, columns)], weights[0], seed)
    labels = label_columns(rows.spec)[columns]

    def boosted(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found, features = own(x), front.features(table, x)
        with threadpool_limits(1, "openmp"):
            values = np.stack([booster.predict(features) for booster in boosters], axis=1)
        chance = np.clip(values, 1e-6, 1 - 1e-6)
        found[:, columns] = np.where(labels, np.log(chance / (1 - chance)), values)
        return found

    outputs = {"safe": now, "trees": head.serve(encoded, boosted).outputs.astype(np.float64)}
    found = ScoreTable.of(rows.spec, encoded, truth[held], outputs, weight=weights[1])
    return _words(found, learned, type(safe).__name__)


def _boosters(X: npt.NDArray[Any], targets: Array, weight: Array | None, seed: int) -> list[Any]:
    """Fit a booster for each column (n, k), with one thread, since several wait for each other on a busy machine."""
    rounds = min(40, _TREES // targets.shape[1])
    made = [
        HistGradientBoostingRegressor(
            max_iter=rounds, learning_rate=min(0.3, 6 / rounds), max_leaf_nodes=15, max_bins=63,
            early_stopping=False, random_state=seed,
        )
        for _ in targets.T
    ]  # fmt: skip
    with threadpool_limits(1, "openmp"):
        return [booster.fit(X, column, sample_weight=weight) for booster, column in zip(made, targets.T, strict=True)]


def _words(found: ScoreTable, learned: list[int], name: str) -> str:
    behind = (found.loss["safe"] - found.loss["trees"])[:, learned].mean(axis=1)
    weight = np.ones(len(behind)) if found.weight is None else found.weight
    gap = float(np.average(behind, weights=weight))
    error = float(np.sqrt((weight**2) @ (behind - gap) ** 2) / weight.sum())
    if gap <= _CLEAR or gap <= errors_needed(len(found.spec.outputs)) * error:
        return ""
    most = max(learned, key=lambda j: _difference(found.output_scores(j)))
    scores = found.output_scores(most)
    return (
        f"Trees would do better than the network here: {found.task.metric} of '{found.spec.outputs[most].name}' is "
        f"{scores['safe']:.2f} on {len(behind)} validation rows, and {scores['trees']:.2f} with a small booster behind "
        f"the same head. Try {name}(spec, HistGradientBoosting{name.removeprefix('Safe')}()), or `smle train "
        "--estimator auto`."
    )


def _difference(scores: dict[str, float]) -> float:
    return scores["trees"] - scores["safe"]
