"""One table of scores: a plain model, targets or answers made to obey, the safe model, the best that rules allow."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.baselines import QuickModel
from smle.estimators.class_tasks import task_of
from smle.estimators.tasks import Held, Task, TrainingRows
from smle.nearest.oracle import nearest_outputs, to_scores
from smle.rules import Specification
from smle.rules.membership import broken
from smle.tables import encode_inputs

if TYPE_CHECKING:
    from smle.estimators.base import SafeEstimator

__all__ = [
    "ScoreTable", "balanced", "compare", "compare_held_out", "compare_models", "encode_targets", "quick_baseline",
]  # fmt: skip

Array = npt.NDArray[np.float64]
_ROWS = 500  # rows that `fit` compares on; each nearest allowed answer may be a small optimization
_RARE = 0.4  # a side is rare below this share over the number of sides
_LISTED = 100  # outputs with an entry


def encode_targets(spec: Specification, table: Any) -> Array:
    """Return the true outputs (rows, m) as rules and scores read them; the chosen option gets the winning score."""
    task = task_of(spec)
    return task.truth(task.encode(table))


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Losses (rows, outputs) of several methods on the same rows, and the share of rows that break a rule.

    * `loss`, `violations`: by method, `plain`, `preprocess` (a plain model of targets that obey), `postprocess` (the
      nearest allowed answers to the plain ones), `safe`, `oracle`; `violations` also for the `data`.
    * `plain`: what the plain model is: `network`, `quick`, or `estimator`, the one inside.
    """

    task: Task
    X: npt.NDArray[Any]
    truth: Array
    loss: dict[str, Array]
    violations: dict[str, float]
    weight: Array | None
    plain: str

    @classmethod
    def of(
        cls,
        spec: Specification,
        X: npt.NDArray[Any],
        truth: Array,
        outputs: Mapping[str, Array],
        *,
        weight: Array | None = None,
        plain: str = "network",
    ) -> ScoreTable:
        """Measure outputs (n, m) by method: numbers, logits of labels, scores of options."""
        task = task_of(spec)
        raw = {**outputs, "data": to_scores(spec, truth)}
        violations = {name: _violations(spec, X, rows) for name, rows in raw.items()}
        loss = {name: task.losses(truth, task.answers(rows), weight) for name, rows in outputs.items() if len(X)}
        return cls(task, X, truth, loss, violations, weight, plain)

    @property
    def spec(self) -> Specification:
        """The rules."""
        return self.task.spec

    def scores(self) -> dict[str, float]:
        """Return the mean score of all outputs, by method."""
        return {
            name: 1.0 - float(np.average(rows.mean(axis=1), weights=self.weight)) for name, rows in self.loss.items()
        }

    def output_scores(self, j: int, weight: Array | None = None) -> dict[str, float]:
        """Return the score of one output by method, optionally with its own row weights."""
        weight = self.weight if weight is None else weight
        return {name: 1.0 - float(np.average(rows[:, j], weights=weight)) for name, rows in self.loss.items()}

    def summary(self, where: str, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return the entry of model.json."""
        return {
            "metric": self.task.metric,
            "rows": len(self.X),
            "where": where,
            "plain": self.plain,
            "score": self.scores(),
            "violations": self.violations,
            "outputs": self.entries(),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }

    def entries(self) -> list[dict[str, Any]]:
        """Return an entry per output: its `score` by method and, if a side is rare, `rare` with two more scores.

        Of more than 100 outputs, it keeps the 100 on which the safe model does worst.
        """
        if not len(self.X):
            return []
        items, sides = self.spec.outputs, self.task.sides(self.truth)
        shown = np.arange(len(items))
        if len(shown) > _LISTED:
            shown = np.sort(np.argsort(-self.loss["safe"].mean(axis=0), kind="stable")[:_LISTED])
        entries = []
        for j in shown.tolist():
            entry = {"name": items[j].name, "metric": self.task.metric, "score": _no_oracle(self.output_scores(j))}
            side = sides[j]
            rare = None if side is None else self._rare(j, *side)
            entries.append(entry if rare is None else {**entry, "rare": rare})
        return entries

    def _rare(self, j: int, side: npt.NDArray[np.int64], names: tuple[str, ...]) -> dict[str, Any] | None:
        """Return recall and balanced accuracy if a side that occurs is rare, else None."""
        counts = np.bincount(side, minlength=len(names))
        there = np.flatnonzero(counts)
        rarest = int(there[counts[there].argmin()])
        if len(there) < 2 or counts[rarest] / len(side) >= _RARE / len(names):
            return None
        weight = np.ones(len(side)) if self.weight is None else self.weight
        return {
            "side": names[rarest],
            "rows": int(counts[rarest]),
            "recall": _no_oracle(self.output_scores(j, weight * (side == rarest))),
            "balanced_accuracy": _no_oracle(self.output_scores(j, balanced(side, weight))),
        }


def _no_oracle(scores: dict[str, float]) -> dict[str, float]:
    """Drop the oracle: it is the best only on average over outputs."""
    return {name: value for name, value in scores.items() if name != "oracle"}


def balanced(side: npt.NDArray[np.int64], weight: Array) -> Array:
    """Return weights (n,), adding up to 1, under which every side that occurs counts the same."""
    there = np.unique(side)
    result = np.zeros(len(side))
    for k in there:
        rows = side == k
        result[rows] = weight[rows] / weight[rows].sum() / len(there)
    return result


def compare(
    spec: Specification,
    X: npt.NDArray[Any],
    truth: Array,
    outputs: Mapping[str, Array],
    *,
    weight: Array | None = None,
    plain: str = "network",
) -> ScoreTable:
    """Compare outputs of models, `safe` and optionally `plain`, with the truth and the nearest allowed answers.

    Nearest means in the score shown, so errors of numbers are in units of their spread. Rows without an allowed answer
    are left out. Shapes: X (n, d) encoded; truth (n, m) as from `encode_targets`; outputs (n, m) by method; weight
    (n,). `plain` says what the plain model is: `network`, `quick` or `estimator`.
    """
    task = task_of(spec)
    scale = task.scale(truth, weight)
    found = {"oracle": nearest_outputs(spec, X, truth, scale=scale)}
    if "plain" in outputs:
        found["postprocess"] = nearest_outputs(spec, X, task.probable(outputs["plain"]), scale=scale)
    known = ~np.any([np.isnan(rows).any(axis=1) for rows in found.values()], axis=0)
    every = {**outputs, **{name: to_scores(spec, rows) for name, rows in found.items()}}
    rows = {name: values[known] for name, values in every.items()}
    weight = None if weight is None else weight[known]
    return ScoreTable.of(spec, X[known], truth[known], rows, weight=weight, plain=plain)


def _violations(spec: Specification, encoded: npt.NDArray[Any], outputs: Array) -> float:
    return float(broken(spec, encoded, outputs).any(axis=1).mean()) if spec.rules and len(encoded) else 0.0


def quick_baseline(spec: Specification, X: Any, y: Any, *, seed: int = 0, preprocess: bool = False) -> QuickModel:
    """Fit a quick plain model on a table and its targets, for `compare_models` if no baseline was trained.

    With `preprocess`, it learns the nearest targets that obey the rules.
    """
    encoded, targets = encode_inputs(spec, X), encode_targets(spec, y)
    if preprocess:
        targets = nearest_outputs(spec, encoded, targets)
    return QuickModel.fit(spec, encoded, targets, seed=seed)


def compare_models(
    safe: SafeEstimator,
    X: Any,
    y: Any,
    *,
    plain: SafeEstimator | QuickModel | None = None,
    preprocess: SafeEstimator | QuickModel | None = None,
) -> dict[str, Any]:
    """Compare a safe model with baselines on rows that none of them was trained on.

    Args:
        safe: The model with rules.
        X: Table with the input columns.
        y: Table with the output columns.
        plain: A model without rules, or a `quick_baseline`. By default the model inside, if the head corrects answers;
            otherwise none.
        preprocess: A model without rules, trained on targets that obey them, such as `quick_baseline(...,
            preprocess=True)`.

    Returns:
        `metric`, `rows`, and for each of plain, preprocess, postprocess, safe and oracle (the allowed answers with the
        best score) the `score` and the share of rows that break a rule (`violations`, exact, also for `data`, the true
        outputs). `outputs`: scores per output, with recall and balanced accuracy if a side is rare. `seconds`: training
        time, and for postprocess the time for these rows. `concern`: if the safe model is far behind, the likely cause
        and what to do. `cost`: what the rules cost and the rule that most rows break, if that is much.
    """
    spec = safe.specification_
    encoded, truth = encode_inputs(spec, X), encode_targets(spec, y)
    outputs = {"safe": safe.raw_outputs(X)}
    seconds = _seconds("safe", safe)
    kind = "quick" if isinstance(plain, QuickModel) else "network"
    if isinstance(plain, QuickModel):
        outputs["plain"] = plain.raw_outputs(encoded)
    elif plain is not None:
        outputs["plain"] = plain.raw_outputs(X)
        seconds |= _seconds("plain", plain)
    elif safe.has_head_of_rules:
        outputs["plain"], kind = safe.own_answers(X), safe.deployed_.front.kind
    if preprocess is not None:
        rows = encoded if isinstance(preprocess, QuickModel) else X
        outputs["preprocess"] = preprocess.raw_outputs(rows)
    started = time.monotonic()
    found = compare(spec, encoded, truth, outputs, plain=kind)
    if "plain" in outputs:
        seconds["postprocess"] = time.monotonic() - started
    return {**found.summary("test", seconds), **_remarks(found, safe, "test")}


def compare_held_out(
    safe: SafeEstimator, rows: TrainingRows, weight: Array | None, *, held_out: Held, seed: int
) -> dict[str, Any]:
    """Compare as `compare_models` does, on rows that `fit` held out, with a quick plain model.

    Also return `advice`: by how much trees would beat the network, if they clearly would. Early stopping and the refit
    have seen these rows, and final epochs have learned from them.
    """
    spec, X = rows.spec, rows.encoded
    truth = task_of(spec).truth(rows.targets)
    whole = weight = None if weight is None else np.asarray(weight, dtype=np.float64)
    kept = np.setdiff1d(np.arange(len(X)), held_out.rows)
    held = np.sort(held_out.rows[:_ROWS])
    started = time.monotonic()
    quick = QuickModel.fit(spec, X[kept], truth[kept], weight=None if weight is None else weight[kept], seed=seed)
    model = safe.deployed_
    served = model.answer(model.reader.opened(rows.frame.iloc[held], X[held]), "clip", count=False).served
    outputs = {"safe": served.astype(np.float64), "plain": quick.raw_outputs(X[held])}
    trained = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a search that did not end only makes the comparison milder
        weight = None if weight is None else weight[held]
        found = compare(spec, X[held], truth[held], outputs, weight=weight, plain="quick")
    seconds = {"plain": trained - started, "postprocess": time.monotonic() - trained, **_seconds("safe", safe)}
    from smle.estimators.concerns import better_trees

    # The quick plain model uses trees.
    promise = (found.loss["safe"] - found.loss["plain"]).mean(axis=0) if found.loss else np.zeros(0)
    advice = better_trees(safe, rows, whole, held_out, promise, seed) if len(promise) else ""
    return {**found.summary("validation", seconds), **_remarks(found, safe, "validation"), "advice": advice}


def _seconds(name: str, model: SafeEstimator) -> dict[str, float]:
    """Return the training time from model.json."""
    seconds = model.description_["history"].get("seconds")
    return {} if seconds is None else {name: seconds}


def _remarks(found: ScoreTable, safe: SafeEstimator, where: str) -> dict[str, str]:
    from smle.estimators.concerns import concern_about, cost_of_rules

    return {"concern": concern_about(found, safe, where=where), "cost": cost_of_rules(found)}
