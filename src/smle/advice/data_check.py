"""Checks rules against data: coverage, violations, cost, and targets that look like other units."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.advice.costs import RuleCost, lost_scores, rule_costs, score_text
from smle.advice.unit_check import target_doubts
from smle.nearest.oracle import nearest_outputs, to_scores
from smle.rules import Number, NumericInput, Specification
from smle.rules.membership import active_rules, broken
from smle.tables import in_domain

__all__ = ["DataCheck", "check_data"]

Array = npt.NDArray[np.float64]
_LISTED = 6  # outputs that the text names, most expensive first
_NARROW = Fraction(1, 100)  # share of a stated range
_ENOUGH = 10  # rows
_MATTERS = 0.0005  # loss of score that is worth a line


@dataclass(frozen=True)
class DataCheck:
    """Figures of one table.

    * `rows`; `outside_rows`: those outside the domain; `outside`: how many per input column that has any.
    * `narrow`: lowest and highest value of columns that use less than a hundredth of their range, with no value
      outside.
    * `active`: share of rows to which each rule applies; `broken`: share of rows that break each rule, or None.
    * `unsatisfiable`: rows for which no allowed output was found.
    * `price`: per output, the score of the nearest allowed targets against the given ones: R2 for numbers, accuracy for
      labels and choices. None without targets.
    * `costs`: the same for each rule alone, with how far it moves targets and where. None without targets.
    * `doubts`: sentences about targets that seem to be in other units than the rules.
    """

    rows: int
    outside_rows: int
    outside: dict[str, int]
    narrow: dict[str, tuple[float, float]]
    active: tuple[float, ...]
    broken: tuple[float, ...] | None
    unsatisfiable: int
    price: dict[str, float] | None
    metrics: dict[str, str]
    costs: tuple[RuleCost, ...] | None = None
    doubts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "rows": self.rows,
            "rows_outside_the_domain": self.outside_rows,
            "outside_the_domain": dict(self.outside),
            "active": list(self.active),
            "broken": None if self.broken is None else list(self.broken),
            "rows_without_allowed_output": self.unsatisfiable,
            "price": None if self.price is None else {name: _finite(value) for name, value in self.price.items()},
            "costs": None if self.costs is None else [cost.to_json() for cost in self.costs],
            "doubts": list(self.doubts),
        }

    def text(self) -> str:
        """Return the figures as text."""
        lines = ["1 row of data." if self.rows == 1 else f"{self.rows} rows of data."]
        if self.outside:
            listed = ", ".join(f"{name} {count}" for name, count in self.outside.items())
            lines.append(f"  Rows outside the domain: {self.outside_rows} ({listed}).")
        if self.unsatisfiable:
            lines.append(f"  Rows for which no allowed output was found: {self.unsatisfiable}.")
        if self.price is not None:
            worst = sorted(self.price.items(), key=lambda item: item[1])[:_LISTED]
            listed = ", ".join(f"{name} {value:.4f}" for name, value in worst)
            mean = sum(self.price.values()) / len(self.price)
            lines.append(
                "  Score of the nearest allowed targets (R2 or accuracy; 1 means that obeying costs nothing): "
                f"{mean:.4f} on average; {listed}"
            )
        return "\n".join([*lines, *self._costs()])

    def _costs(self) -> list[str]:
        """Return a line for each rule that costs something alone, most expensive first."""
        dear = [cost for cost in self.costs or () if max(cost.lost.values(), default=0.0) >= _MATTERS]
        if not dear:
            return ["  No rule costs accuracy on these rows."] if self.costs else []
        lines = ["  What each rule costs alone, most first:"]
        for cost in sorted(dear, key=lambda cost: -max(cost.lost.values())):
            parts = [
                f"{score_text(value)} of the {self.metrics[name]} of {name}"
                for name, value in sorted(cost.lost.items(), key=lambda item: -item[1])[:_LISTED]
                if value >= _MATTERS
            ]
            moves = [
                f"{name} moves by {np.abs(values).mean():.4g} on average, {np.abs(values).max():.4g} at most"
                for name, values in cost.moves.items()
                if name in cost.lost
            ]
            where = f"; {cost.where}" if cost.where else ""
            rows = "1 row" if cost.broken == 1 else f"{cost.broken} rows"
            lines.append(f"    '{cost.rule}': {', '.join(parts)} ({'; '.join([rows, *moves[:_LISTED]])}){where}")
        return lines


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def check_data(spec: Specification, X: npt.NDArray[np.floating[Any]], Y: npt.ArrayLike | None) -> DataCheck:
    """Check a table against the rules. Shapes: X (n, d) in the order of `spec.columns`, Y (n, m) or None."""
    outside = ~in_domain(spec, X)
    inside = ~outside.any(axis=1)
    n = max(len(X), 1)
    on = active_rules(spec, X)
    violated, price, missing, costs = None, None, 0, None
    doubts: tuple[str, ...] = ()
    if Y is not None:
        targets = np.asarray(Y, dtype=np.float64).reshape(len(X), len(spec.targets))
        wrong = broken(spec, X, to_scores(spec, targets), on)
        violated = tuple(float(v) for v in wrong.sum(axis=0) / n)
        best = targets.copy()
        rows = np.flatnonzero(inside & wrong.any(axis=1))  # the others are allowed as they are
        best[rows] = nearest_outputs(spec, X[rows], targets[rows])
        known = inside & ~np.isnan(best).any(axis=1)
        missing = int((inside & ~known).sum())
        if known.any():
            lost = lost_scores(spec, targets[known], best[known])
            price = {name: 1.0 - value for name, value, _ in lost}
            costs = rule_costs(spec, X[inside], targets[inside], active=on[inside], wrong=wrong[inside])
            doubts = tuple(target_doubts(spec, X[inside], targets[inside], rows=np.flatnonzero(inside)))
    counts = {spec.columns[i]: int(outside[:, i].sum()) for i in np.flatnonzero(outside.any(axis=0))}
    return DataCheck(
        rows=len(X),
        outside_rows=int((~inside).sum()),
        outside=counts,
        narrow=_narrow(spec, X, skip=counts),
        active=tuple(float(v) for v in on.sum(axis=0) / n),
        broken=violated,
        unsatisfiable=missing,
        price=price,
        metrics={item.name: "R2" if isinstance(item, Number) else "accuracy" for item in spec.outputs},
        costs=costs,
        doubts=doubts,
    )


def _narrow(
    spec: Specification, X: npt.NDArray[np.floating[Any]], *, skip: Collection[str]
) -> dict[str, tuple[float, float]]:
    """Return the extent of columns that use little of their range, unless rows are too few to tell."""
    result: dict[str, tuple[float, float]] = {}
    if len(X) < _ENOUGH:
        return result
    for item, place in spec.input_slices:
        if isinstance(item, NumericInput) and item.name not in skip:
            low, high = float(X[:, place].min()), float(X[:, place].max())
            if Fraction(high) - Fraction(low) < _NARROW * (item.upper - item.lower):
                result[item.name] = (low, high)
    return result
