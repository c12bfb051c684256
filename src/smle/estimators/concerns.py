"""Warnings about a model that obeys but predicts poorly: how far behind, where, the likely cause, and what to do.

For a network, one more asks whether trees would do better: a small booster runs behind the same head on held-out rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from smle.estimators.scores import ScoreTable, balanced
from smle.heads.box.box_program import Box
from smle.nearest.oracle import to_scores
from smle.regions.cells import binding_rules
from smle.rules import Specification, label_columns
from smle.rules.membership import broken
from smle.serving.fronts import answers_of
from smle.serving.perceptron import Perceptron

if TYPE_CHECKING:
    from smle.estimators.base import SafeEstimator
    from smle.estimators.fitted import FittedModel
    from smle.estimators.tasks import Held, TrainingRows

__all__ = ["better_trees", "concern_about", "cost_of_rules"]

Array = npt.NDArray[np.float64]
_FAR = {"R2": 0.1, "accuracy": 0.05, "balanced accuracy": 0.1}  # a gap that is worth a warning
_SURE = 3.0  # standard errors; half of one more for ten times as many outputs
_ENOUGH = 8  # rows
_FEW = 30  # training rows of a region
_NAMES = 4  # rules that a sentence lists
_ROWS_LEARNED, _ROWS_HELD = 3000, 500  # rows that trees learn from, and are compared on
_OUTPUTS = 3  # outputs that the booster learns: those on which trees look best
_COLUMNS = 8  # options of a choice; with more it takes too long
_TREES = 120  # for all columns together: about a tenth of a second
_CLEAR = 0.02  # of R2 or accuracy: on 17 training tables, cut twice, a gap beyond it was never wrong
_PLAIN = {
    "network": "the plain network",
    "estimator": "the estimator inside",
    "quick": "a quick plain model (ridge regression and trees)",
}
_ROWS = {"validation": "validation rows", "test": "held-out rows", "table": "rows of the table"}


@dataclass(frozen=True, eq=False)
class _Gap:
    """How far one output of the safe model is behind; `share` (n,) is the contribution of each row."""

    output: int
    metric: str
    scores: dict[str, float]
    share: Array

    @property
    def size(self) -> float:
        return self.scores["postprocess"] - self.scores["safe"]

    @property
    def much(self) -> float:
        """The gap that counts as far; larger if the rules forbid so much that even the mean would predict better."""
        return _FAR[self.metric] * max(1.0, 1.0 - self.scores["postprocess"])


def concern_about(found: ScoreTable, model: FittedModel, *, where: str = "validation") -> str:
    """Say how far a safe model is behind the post-processed plain one, the likely cause and a remedy, or return "".

    Far means a tenth of the variance of a number, a twentieth of accuracy, or a tenth of balanced accuracy, unless that
    may be chance.
    """
    if "postprocess" not in found.loss or len(found.X) < _ENOUGH:
        return ""
    far = [gap for gap in _gaps(found) if gap.size > gap.much]
    net = float(np.average((found.loss["safe"] - found.loss["postprocess"]).sum(axis=1), weights=found.weight))
    if not far or net <= 0:  # other outputs may gain what one loses
        return ""
    gap = max(far, key=lambda gap: gap.size / gap.much)
    name = found.spec.outputs[gap.output].name
    others = len({other.output for other in far} - {gap.output})
    text = (
        f"The safe model is far behind a plain one, though it is proved to obey: {gap.metric} of '{name}' is "
        f"{gap.scores['safe']:.2f} on {len(found.X)} {_ROWS[where]}. {_PLAIN[found.plain].capitalize()} has "
        f"{gap.scores['plain']:.2f}, and {gap.scores['postprocess']:.2f} if each answer is moved to the nearest "
        "allowed one."
    )
    if others:
        text += f" {others} more output{'s are' if others > 1 else ' is'} far behind as well."
    if model.has_head_of_rules and found.plain != "quick":
        return f"{text} Its head moves answers further than that, or answers with a stored safe one."
    return f"{text} {_explained(gap, found, model)}"


def cost_of_rules(found: ScoreTable) -> str:
    """Say what the rules cost and which rule most rows break, if no model that obeys comes close; else return ""."""
    if "postprocess" not in found.loss or len(found.X) < _ENOUGH:
        return ""
    total, metric = found.scores(), found.task.metric
    lost = found.loss["postprocess"].mean(axis=1) - found.loss["plain"].mean(axis=1)
    far = _FAR[metric]
    much = total["plain"] - total["postprocess"] > far and 1.0 - total["oracle"] > far
    if not much or not _certain(lost, found.weight, 1):
        return ""
    wrong = broken(found.spec, found.X, to_scores(found.spec, found.truth)).mean(axis=0)
    worst = int(wrong.argmax())
    return (
        f"The rules forbid much of what the data show: {metric} of {_PLAIN[found.plain]} falls from "
        f"{total['plain']:.2f} to {total['postprocess']:.2f} when its answers are made to obey. Rule "
        f"'{found.spec.rules[worst].name}' is broken by {wrong[worst]:.0%} of the rows, more than any other. If the "
        "rows are right, relax it."
    )


# --- how far


def _gaps(found: ScoreTable) -> Iterator[_Gap]:
    """Yield how far each output is behind, by each score, unless that may be chance."""
    loss, n = found.loss, len(found.X)
    weight = np.ones(n) if found.weight is None else found.weight
    columns = found.task.columns()
    for j, side in enumerate(found.task.sides(found.truth)):
        behind = loss["safe"][:, j] - loss["postprocess"][:, j]
        true = found.truth[:, columns[j]]
        if not behind.any() or (true == true[0]).all():  # nothing to explain
            continue
        if _certain(behind, weight, len(found.spec.outputs)):
            yield _Gap(j, found.task.metric, found.output_scores(j), behind * weight / weight.sum())
        if side is not None:
            balance = balanced(side[0], weight)
            if _certain(behind, balance, len(found.spec.outputs)):
                yield _Gap(j, "balanced accuracy", found.output_scores(j, balance), balance * behind)


def _certain(behind: Array, weight: Array | None, outputs: int) -> bool:
    """Return whether the mean difference of rows is too many standard errors above zero to be chance.

    The more outputs were searched, the more standard errors it takes.
    """
    weight = np.ones(len(behind)) if weight is None else weight
    mean = float(np.average(behind, weights=weight))
    error = float(np.sqrt((weight**2) @ (behind - mean) ** 2) / weight.sum())
    return mean > (_SURE + 0.5 * float(np.log10(outputs))) * error


# --- where, and why


def _explained(gap: _Gap, found: ScoreTable, model: FittedModel) -> str:
    """Say where most is lost, the likely cause, and a remedy."""
    spec = found.spec
    head, cells = model.deployed_.head, model.deployed_.cells
    cell = head.cell_of(found.X) if isinstance(head, Box) else np.zeros(len(found.X), dtype=np.intp)
    lost = np.bincount(cell, weights=gap.share, minlength=len(cells))
    worst = int(lost.argmax())
    rules = _rules_of(model, worst)
    columns = found.task.columns()[gap.output]
    concerned = [r for r in rules if _mentions(spec, r, columns)] or rules
    text = ""
    if len(cells) > 1:
        part = min(1.0, lost[worst] / gap.share.sum())
        text = f"{part:.0%} of the loss is {_place(model, worst)} ({(cell == worst).mean():.0%} of the rows). "
    causes = [*_structural(found, model, concerned), *_of_training(model, worst, len(cells))]
    if not causes and model.deployed_.reads_answers:
        causes = [
            "the network itself, since its answers are moved only where they break a rule. Change its size, epochs or "
            "learning rate, or give it more rows"
        ]
    if not causes:
        causes = [
            "unknown. Compare with a plain network (`smle train` does, or a model without rules). If that is no "
            "better, change its size, epochs or learning rate. If it is, try another seed, or use "
            "smle.baselines.nearest_allowed"
        ]
    return f"{text}Likely cause: {'. Or: '.join(causes[:2])}."


def _place(model: FittedModel, cell: int) -> str:
    """Describe a cell by the rules that apply there and not everywhere."""
    spec, rules = model.specification_, _rules_of(model, cell)
    local = [r for r in rules if spec.rules[r].when]
    if local:
        return f"where {_named(spec, local)} appl{'y' if len(local) > 1 else 'ies'}"
    return (
        f"where only {_named(spec, rules)} appl{'y' if len(rules) > 1 else 'ies'}" if rules else "where no rule applies"
    )


def _rules_of(model: FittedModel, cell: int) -> list[int]:
    """Return the rules that bind in all of a cell."""
    cells = model.deployed_.cells
    bound = binding_rules(cells, model.specification_, cell)
    return sorted({rule for rule, region in bound if region is None or not cells.regions[region]})


def _mentions(spec: Specification, rule: int, columns: Sequence[int]) -> bool:
    requirement = spec.rules[rule].requirement
    named = {j for clause in requirement.clauses for literal in clause.literals for j, _ in literal.outputs}
    return bool(named & set(columns)) or bool(np.isin(requirement.exclusions, columns).any())


def _named(spec: Specification, rules: Sequence[int]) -> str:
    names = [f"'{spec.rules[r].name}'" for r in rules[:_NAMES]]
    if len(rules) > _NAMES:
        return f"{', '.join(names)} and {len(rules) - _NAMES} more rules"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _structural(found: ScoreTable, model: FittedModel, rules: Sequence[int]) -> Iterator[str]:
    """Yield causes in the form of learned heads. Corrected answers have none: they can be anything allowed."""
    if model.deployed_.reads_answers:
        return
    cells = model.deployed_.cells
    if not cells.gated and any(cells.regions):
        yield "one head serves all regions (gate=False). Train with gate=True"
    if rules:
        yield (
            f"learned heads keep to one convex part of what {_named(found.spec, rules)} allow"
            f"{'s' if len(rules) == 1 else ''}, with one straight limit on either side. Use "
            "SafeRegressor or SafeClassifier: their head uses all that is allowed, and moves only answers that break a "
            "rule"
        )


def _of_training(model: FittedModel, cell: int, cells: int) -> Iterator[str]:
    """Yield causes in the data and in the training."""
    description: dict[str, Any] = model.description_
    counts = description.get("training", {}).get("cells", [])
    if len(counts) == cells > 1 and counts[cell] < _FEW:
        yield f"only {counts[cell]} training rows are in that region. Add rows there"
    history = description.get("history", {})
    if history.get("stopped") == "max_epochs" and history.get("best_epoch", 0) > 0.8 * history.get("epochs", 0):
        epochs = history["epochs"]
        yield (
            f"training ended after {epochs} epoch{'s' if epochs > 1 else ''} and was still getting better. Allow more"
        )


# --- whether trees would do better


def better_trees(
    safe: SafeEstimator, rows: TrainingRows, weight: Array | None, held_out: Held, promise: Array, seed: int
) -> str:
    """Say by how much a small booster beats the network inside, if it clearly does, or return "".

    Clearly means by 0.02 of R2 or accuracy, on average over the outputs it learned, and by three standard errors
    (somewhat more for many outputs). The booster reads the same columns as the network, and learns the few outputs with
    most `promise` from the rows not held out. Both answer the held-out rows through the same head; the network answers
    as it did before its final epochs. Networks that ran out of epochs, or were tuned for another score, are skipped.
    """
    served = safe.deployed_
    front, head, task = served.front, served.head, safe._task
    # Accuracy is not what was asked for, or the network could still improve.
    other = getattr(rows.task, "class_weight", None) is not None or getattr(task, "thresholds", None) is not None
    other = other or safe.description_["history"].get("stopped") == "max_epochs"
    if head is None or not head.reads_answers or not isinstance(front, Perceptron) or other:
        return ""
    truth, held = task.truth(rows.targets), held_out.rows
    kept = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(truth)), held))[:_ROWS_LEARNED]
    held = held[:_ROWS_HELD]
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
    return _advice(found, learned, type(safe).__name__)


def _boosters(X: npt.NDArray[Any], targets: Array, weight: Array | None, seed: int) -> list[Any]:
    """Fit a booster for each column (n, k), in one thread: on a busy machine, several wait for each other."""
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


def _advice(found: ScoreTable, learned: list[int], name: str) -> str:
    behind = (found.loss["safe"] - found.loss["trees"])[:, learned].mean(axis=1)
    clear = np.average(behind, weights=found.weight) > _CLEAR
    if not clear or not _certain(behind, found.weight, len(found.spec.outputs)):
        return ""
    several = [(found.output_scores(j), j) for j in learned]
    scores, most = max(several, key=lambda one: one[0]["trees"] - one[0]["safe"])
    return (
        f"Trees would do better than the network here: {found.task.metric} of '{found.spec.outputs[most].name}' is "
        f"{scores['safe']:.2f} on {len(behind)} validation rows, and {scores['trees']:.2f} with a small booster behind "
        f"the same head. Try {name}(spec, HistGradientBoosting{name.removeprefix('Safe')}()), or `smle train "
        "--estimator auto`."
    )
