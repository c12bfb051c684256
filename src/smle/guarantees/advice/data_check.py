"""Rules against data: coverage, violations, and the price of the nearest allowed targets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.guarantees.answers.membership import active, broken
from smle.guarantees.answers.nearest import label_columns, nearest_outputs, to_scores
from smle.rules import Choice, NumericInput, Specification
from smle_check.floats import BINARY32, BINARY64, nearest

__all__ = ["DataCheck", "check_data"]

Array = npt.NDArray[np.float64]
_LISTED = 6  # outputs that the text names, those with the highest price
_NARROW = Fraction(1, 100)  # share of a stated range
_ENOUGH = 10  # rows


@dataclass(frozen=True)
class DataCheck:
    """Figures of one table.

    * `rows`; `outside_rows`: those outside the domain; `outside`: how many per input column that has any.
    * `narrow`: lowest and highest value of columns whose values, all inside, take less than a hundredth of their range.
    * `active`: share of rows on which each rule is active; `broken`: share of rows that break each rule, or None.
    * `unsatisfiable`: rows for which no allowed output was found.
    * `price`: per output, the score of the nearest allowed targets against the
      given ones: R2 for numbers, accuracy for labels and choices. None without targets.
    """

    rows: int
    outside_rows: int
    outside: dict[str, int]
    narrow: dict[str, tuple[float, float]]
    active: tuple[float, ...]
    broken: tuple[float, ...] | None
    unsatisfiable: int
    price: dict[str, float] | None

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "rows": self.rows,
            "rows_outside_the_domain": self.outside_rows,
            "outside_the_domain": dict(self.outside),
            "active": list(self.active),
            "broken": None if self.broken is None else list(self.broken),
            "rows_without_allowed_output": self.unsatisfiable,
            "price": None if self.price is None else dict(self.price),
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
                "  Score of the nearest allowed targets (R2 or accuracy; 1 means no price): "
                f"{mean:.4f} on average; {listed}"
            )
        return "\n".join(lines)


def check_data(spec: Specification, X: npt.NDArray[np.floating[Any]], Y: npt.ArrayLike | None) -> DataCheck:
    """Hold a table against the rules. Shapes: X (n, d) in the order of `spec.columns`, Y (n, m) or None."""
    fmt = BINARY32 if X.dtype == np.float32 else BINARY64
    lower = np.array([float(nearest(v, fmt)) for v in spec.lower])
    upper = np.array([float(nearest(v, fmt)) for v in spec.upper])
    outside = ~((lower <= X) & (upper >= X))
    inside = ~outside.any(axis=1)
    n = max(len(X), 1)
    shares = tuple(float(active(rule, X).sum() / n) for rule in spec.rules)
    violated, price, missing = None, None, 0
    if Y is not None:
        targets = np.asarray(Y, dtype=np.float64).reshape(len(X), len(spec.targets))
        wrong = broken(spec, X, to_scores(spec, targets))
        violated = tuple(float(v) for v in wrong.sum(axis=0) / n)
        best = nearest_outputs(spec, X[inside], targets[inside])
        known = ~np.isnan(best).any(axis=1)
        missing = int((~known).sum())
        price = _price(spec, targets[inside][known], best[known]) if known.any() else None
    counts = {spec.columns[i]: int(outside[:, i].sum()) for i in np.flatnonzero(outside.any(axis=0))}
    return DataCheck(
        rows=len(X),
        outside_rows=int((~inside).sum()),
        outside=counts,
        narrow=_narrow(spec, X, skip=counts),
        active=shares,
        broken=violated,
        unsatisfiable=missing,
        price=price,
    )


def _narrow(
    spec: Specification, X: npt.NDArray[np.floating[Any]], *, skip: Collection[str]
) -> dict[str, tuple[float, float]]:
    """Return the extent of columns that use little of their range; a few rows may do so by chance."""
    result: dict[str, tuple[float, float]] = {}
    if len(X) < _ENOUGH:
        return result
    numbers = {item.name for item in spec.inputs if isinstance(item, NumericInput)}
    for i, name in enumerate(spec.columns):
        if name not in numbers or name in skip:
            continue
        low, high = float(X[:, i].min()), float(X[:, i].max())
        if Fraction(high) - Fraction(low) < _NARROW * (spec.upper[i] - spec.lower[i]):
            result[name] = (low, high)
    return result


def _price(spec: Specification, Y: Array, best: Array) -> dict[str, float]:
    labels = label_columns(spec)
    result: dict[str, float] = {}
    column = 0
    for item in spec.outputs:
        width = len(item.options) if isinstance(item, Choice) else 1
        old, new = Y[:, column : column + width], best[:, column : column + width]
        if isinstance(item, Choice):
            pick = np.argmax if item.pick == "max" else np.argmin
            result[item.name] = float((pick(old, axis=1) == pick(new, axis=1)).mean())
        elif labels[column]:
            result[item.name] = float(((old >= 0.5) == (new >= 0.5)).mean())
        else:
            spread = float(((old - old.mean()) ** 2).sum())
            error = float(((old - new) ** 2).sum())
            result[item.name] = 1.0 if error == 0 else (1 - error / spread if spread > 0 else float("-inf"))
        column += width
    return result
