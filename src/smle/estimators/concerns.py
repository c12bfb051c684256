"""When a model that obeys is no good: how far it is behind, where, the likely cause, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.estimators.scores import ScoreTable, balanced
from smle.heads.box.program import Box
from smle.nearest.oracle import to_scores
from smle.regions.cells import binding_rules
from smle.rules import Specification
from smle.rules.membership import broken

if TYPE_CHECKING:
    from smle.estimators.fitted import FittedModel

__all__ = ["concern_about", "cost_of_rules", "errors_needed"]

Array = npt.NDArray[np.float64]
_FAR = {"R2": 0.1, "accuracy": 0.05, "balanced accuracy": 0.1}  # a gap that is worth a warning
_SURE = 3.0  # standard errors; half of one more for ten times the outputs
_ENOUGH = 8  # rows
_FEW = 30  # training rows of a region
_NAMES = 4  # rules that a sentence lists
_PLAIN = {
    "network": "the plain network",
    "estimator": "the estimator inside",
    "quick": "a quick plain model (ridge regression and trees)",
}
_ROWS = {"validation": "validation rows", "test": "held-out rows", "table": "rows of the table"}


@dataclass(frozen=True, eq=False)
class _Gap:
    """How far one output of the safe model is behind; `share` (n,) is what each row adds to the gap."""

    output: int
    metric: str
    scores: dict[str, float]
    share: Array

    @property
    def size(self) -> float:
        return self.scores["postprocess"] - self.scores["safe"]

    @property
    def much(self) -> float:
        """How much is far; where rules forbid so much that the mean would be better, it grows with the error."""
        return _FAR[self.metric] * max(1.0, 1.0 - self.scores["postprocess"])


def concern_about(found: ScoreTable, model: FittedModel, *, where: str = "validation") -> str:
    """Return how far a safe model is behind the post-processed plain one, the likely cause and a remedy; or nothing.

    Far is a tenth of the variance of a number, a twentieth of accuracy, or a tenth of balanced accuracy, where that is
    not by chance.
    """
    if "postprocess" not in found.loss or len(found.X) < _ENOUGH:
        return ""
    far = [gap for gap in _gaps(found) if gap.size > gap.much]
    net = float(np.average((found.loss["safe"] - found.loss["postprocess"]).sum(axis=1), weights=found.weight))
    if not far or net <= 0:  # what one output loses, others may gain
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
    """Return which rules forbid what the data show, if no model that obeys them can be nearly as good; or nothing."""
    if "postprocess" not in found.loss or len(found.X) < _ENOUGH:
        return ""
    total, metric = found.scores(), found.task.metric
    lost = found.loss["postprocess"].mean(axis=1) - found.loss["plain"].mean(axis=1)
    far = _FAR[metric]
    if total["plain"] - total["postprocess"] <= far or 1.0 - total["oracle"] <= far or not _certain(found, lost, 1):
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
    """Yield how far each output is behind, by each score, where it is not by chance."""
    loss, n = found.loss, len(found.X)
    weight = np.ones(n) if found.weight is None else found.weight
    columns = found.task.columns()
    for j, side in enumerate(found.task.sides(found.truth)):
        behind = loss["safe"][:, j] - loss["postprocess"][:, j]
        true = found.truth[:, columns[j]]
        if not behind.any() or (true == true[0]).all():  # nothing to explain
            continue
        if _certain(found, behind, len(found.spec.outputs)):
            yield _Gap(j, found.task.metric, found.output_scores(j), behind * weight / weight.sum())
        if side is not None:
            balance = balanced(side[0], weight)
            mean = float(balance @ behind)
            error = float(np.sqrt((balance**2) @ (behind - mean) ** 2))
            if mean > errors_needed(len(found.spec.outputs)) * error:
                yield _Gap(j, "balanced accuracy", found.output_scores(j, balance), balance * behind)


def _certain(found: ScoreTable, behind: Array, outputs: int) -> bool:
    """Return whether a mean difference by row is so many standard errors above zero that it is hardly chance."""
    weight = np.ones(len(behind)) if found.weight is None else found.weight
    mean = float(np.average(behind, weights=weight))
    error = float(np.sqrt((weight**2) @ (behind - mean) ** 2) / weight.sum())
    return mean > errors_needed(outputs) * error


def errors_needed(outputs: int) -> float:
    """Return how many standard errors a difference needs that was found among so many outputs."""
    return _SURE + 0.5 * float(np.log10(outputs))


# --- where, and why


def _explained(gap: _Gap, found: ScoreTable, model: FittedModel) -> str:
    """Return where most is lost, the likely cause, and a remedy."""
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
            "the network itself, for its answers are moved only where they break a rule. Change its size, epochs or "
            "learning rate, or give it more rows"
        ]
    if not causes:
        causes = [
            "none that is known. Compare with a plain network (`smle train` does, or a model without rules). If that "
            "is no better, change its size, epochs or learning rate. If it is, try another seed, or use "
            "smle.baselines.nearest_allowed"
        ]
    return f"{text}Likely cause: {'. Or: '.join(causes[:2])}."


def _place(model: FittedModel, cell: int) -> str:
    """Return where a cell is, by the rules that apply there and not everywhere."""
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
    """Yield causes that lie in the form of learned heads. Corrected answers have none: all that is allowed serves."""
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
    """Yield causes that lie in the data and the training."""
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
