"""Measures what rules cost: moves targets to the nearest that each rule allows, and compares with the targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.nearest.oracle import nearest_outputs
from smle.rules import Categorical, Choice, Label, Number, Specification

__all__ = ["Profile", "RuleCost", "lost_scores", "rule_costs", "score_text"]

Array = npt.NDArray[np.float64]
_BINS = 4  # bins of a number, to find where the cost is
_DRAWN = 8  # bins of a number, for a picture
_MOST = 0.5  # share of the cost that makes a place worth naming
_LIFT = 1.5  # least ratio of its share of the cost to its share of the rows


@dataclass(frozen=True)
class Profile:
    """Rows to which a rule applies, and those that break it, by parts of one input."""

    input: str
    parts: tuple[str, ...]
    rows: tuple[int, ...]
    broken: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RuleCost:
    """What one rule alone does to the targets of a table.

    * `rows`: rows to which it applies; `broken`: those whose targets break it.
    * `lost`: for every output that it moves, the score lost: 1 - R2 for numbers, the share of changed rows for labels
      and choices.
    * `moves`: for every number that it moves, how far: nearest allowed target minus target, one per moved row.
    * `where`: the inputs with most of the cost, as part of a sentence; "" if it is spread out.
    * `profile`: rows and broken rows along the input that explains them best; None if no row breaks the rule.
    """

    rule: str
    rows: int
    broken: int
    lost: dict[str, float]
    moves: dict[str, Array] = field(repr=False)
    where: str = ""
    profile: Profile | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "rule": self.rule,
            "rows": self.rows,
            "broken": self.broken,
            "lost": dict(self.lost),
            "moved_on_average": {name: float(np.abs(values).mean()) for name, values in self.moves.items()},
            "moved_at_most": {name: float(np.abs(values).max()) for name, values in self.moves.items()},
            "where": self.where,
        }


def score_text(lost: float) -> str:
    """Format a lost score with four digits, capped at 1."""
    if lost > 1:
        return "more than 1"
    return f"{lost:.4f}" if lost >= 5e-5 else "less than 0.0001"


def rule_costs(
    spec: Specification,
    X: npt.NDArray[np.floating[Any]],
    Y: Array,
    *,
    active: npt.NDArray[np.bool_],
    wrong: npt.NDArray[np.bool_],
) -> tuple[RuleCost, ...]:
    """Return what each rule alone costs. Shapes: X (n, d), Y (n, m), active and wrong (n, rules)."""
    result = []
    for index, rule in enumerate(spec.rules):
        rows = np.flatnonzero(wrong[:, index])
        best = Y.copy()
        best[rows] = nearest_outputs(replace(spec, rules=(rule,)), X[rows], Y[rows])
        best = np.where(np.isnan(best), Y, best)  # none was found; `unsatisfiable` counts these
        lost, moves, weight = {}, {}, np.zeros(len(Y))
        for (item, place), (name, value, by_row) in zip(spec.output_slices, lost_scores(spec, Y, best), strict=True):
            weight += by_row
            if value > 0:
                lost[name] = value
            moved = best[:, place.start] - Y[:, place.start]
            if isinstance(item, Number) and (moved != 0).any():
                moves[name] = moved[moved != 0]
        on = active[:, index]
        where = _place(spec, X[on], weight[on]) if lost else ""
        profile = _profile(spec, X[on], wrong[on, index])
        result.append(RuleCost(rule.name, int(on.sum()), len(rows), lost, moves, where, profile))
    return tuple(result)


def lost_scores(spec: Specification, Y: Array, best: Array) -> Iterator[tuple[str, float, Array]]:
    """Yield the name of every output, the score lost, and the contribution of each row (n,)."""
    for item, place in spec.output_slices:
        old, new = Y[:, place], best[:, place]
        if isinstance(item, Choice):
            pick = np.argmax if item.pick == "max" else np.argmin
            by_row = (pick(old, axis=1) != pick(new, axis=1)) / max(len(Y), 1)
        elif isinstance(item, Label):
            by_row = ((old >= 0.5) != (new >= 0.5))[:, 0] / max(len(Y), 1)
        else:
            error = ((old - new) ** 2)[:, 0]
            # Without spread, as in scikit-learn, the score is 1 if nothing moves and else 0.
            whole = float((error if (old == old[:1]).all() else (old - old.mean()) ** 2).sum())
            by_row = error / whole if whole > 0 else np.zeros(len(error))
        yield item.name, float(by_row.sum()), by_row


def _parts(
    spec: Specification, X: npt.NDArray[np.floating[Any]], bins: int
) -> Iterator[tuple[str, list[str], npt.NDArray[np.intp]]]:
    """Yield every input with the names of its parts (categories, ranges of values) and the part of each row (n,)."""
    for item, place in spec.input_slices:
        if isinstance(item, Categorical):
            yield item.name, list(item.categories), X[:, place].argmax(axis=1)
            continue
        values = X[:, place.start].astype(np.float64)
        ends = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1], method="lower"))
        part = np.searchsorted(ends, values, side="left")
        _, part = np.unique(part, return_inverse=True)
        part = part.reshape(-1)
        inside = [values[part == b] for b in range(part.max() + 1)]
        texts = [(item.text(v.min()), item.text(v.max())) for v in inside]
        yield item.name, [low if low == high else f"{low} to {high}" for low, high in texts], part


def _place(spec: Specification, X: npt.NDArray[np.floating[Any]], cost: Array) -> str:
    """Name the value of one input where a cost (n,) concentrates far more than the rows do, or return ""."""
    total = cost.sum()
    if not np.isfinite(total) or total <= 0:
        return ""
    found: list[tuple[float, str]] = []
    for name, texts, part in _parts(spec, X, _BINS):
        for index, text in enumerate(texts):
            mask = part == index
            share, rows = float(cost[mask].sum() / total), float(mask.mean())
            if share >= _MOST and share >= _LIFT * rows:
                found.append((share - rows, f"{share:.0%} of it where {name} is {text} ({rows:.0%} of its rows)"))
    return max(found)[1] if found else ""


def _profile(spec: Specification, X: npt.NDArray[np.floating[Any]], wrong: npt.NDArray[np.bool_]) -> Profile | None:
    """Return the input along which the share of broken rows differs most, or None if nothing is broken."""
    best, most = None, -1.0
    for name, texts, part in _parts(spec, X, _DRAWN) if wrong.any() else ():
        rows = np.bincount(part, minlength=len(texts))
        broken = np.bincount(part[wrong], minlength=len(texts))
        shares = broken / np.maximum(rows, 1)
        differs = float((rows * (shares - wrong.mean()) ** 2).sum())
        if differs > most and len(texts) > 1:
            most, best = differs, Profile(name, tuple(texts), tuple(rows.tolist()), tuple(broken.tolist()))
    return best
