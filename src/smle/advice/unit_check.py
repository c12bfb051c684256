"""Finds targets that seem to be in other units than the rules: scaled, in thousands, or with absurd values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import AccuracyWarning, DataError
from smle.rules import Literals, Number, Specification
from smle.rules.membership import active

__all__ = ["require_units", "target_doubts"]

Array = npt.NDArray[np.float64]
_ENOUGH = 20  # rows
_FAR, _ABSURD = 1e3, 1e6  # multiples of the range of nine tenths of the rows
_OTHER = 20.0  # ratio of sizes
_NARROW = 0.01  # share of what the rules allow


def require_units(spec: Specification, X: npt.NDArray[np.floating[Any]], Y: Array) -> None:
    """Warn about targets in other units; raise DataError for outliers that prevent learning.

    Shapes: X (n, d), Y (n, m).
    """
    rows = np.arange(len(Y))
    for name, column in _number_columns(spec):
        found = _outliers(name, Y[:, column], rows, times=_ABSURD)
        if found:
            raise DataError(found)
    for text in target_doubts(spec, X, Y, rows=rows, narrow=False):  # wide limits are fine
        warnings.warn(text, AccuracyWarning, stacklevel=4)


def target_doubts(
    spec: Specification, X: npt.NDArray[np.floating[Any]], Y: Array, *, rows: npt.NDArray[np.intp], narrow: bool = True
) -> Iterator[str]:
    """Yield a sentence for each number whose targets seem to be in other units. Shapes: X (n, d), Y (n, m), rows (n,).

    `rows` are the positions of the rows in their table, from 0. With `narrow`, also mention targets that are tiny
    compared to their limits.
    """
    for name, column in _number_columns(spec):
        values = Y[:, column]
        text = _outliers(name, values, rows, times=_FAR)
        if not text and len(values) >= _ENOUGH:
            text = _other_units(name, values, *_limits(spec, X, column), narrow)
        if text:
            yield text


def _number_columns(spec: Specification) -> Iterator[tuple[str, int]]:
    return ((item.name, place.start) for item, place in spec.output_slices if isinstance(item, Number))


def _outliers(name: str, values: Array, rows: npt.NDArray[np.intp], *, times: float) -> str:
    """Describe targets far from all others, if they are at most a hundredth; else return ""."""
    if len(values) < _ENOUGH:
        return ""
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    far = np.flatnonzero(np.abs(values - middle) > times * (high - low))
    if high == low or not 0 < len(far) <= max(1, len(values) // 100):
        return ""
    worst = far[np.abs(values[far] - middle).argmax()]
    more = f" ({len(far) - 1} more rows are as far off)" if len(far) > 1 else ""
    return (
        f"Target '{name}' is {values[worst]:g} in row {rows[worst] + 1}{more}, while nine tenths of the rows lie in "
        f"{low:g} to {high:g}. A typing error, or another unit? Correct or drop it: otherwise a model learns little "
        "else."
    )


def _limits(spec: Specification, X: npt.NDArray[np.floating[Any]], column: int) -> tuple[Array, Array]:
    """Return the lowest and highest value by row that limits on one output alone allow; infinite if there is none."""
    lower, upper = np.full(len(X), -np.inf), np.full(len(X), np.inf)
    for rule in spec.rules:
        single = [c for c in rule.requirement.clauses if len(c.literals) == 1]
        own = [clause for clause in single if [i for i, _ in clause.literals[0].outputs] == [column]]
        if not own:
            continue
        on, literals = active(rule, X), Literals.of_clauses(own, len(spec.targets), len(spec.columns))
        for factor, bound in zip(literals.g[:, column], (literals.bounds(X) / literals.g[:, column]).T, strict=True):
            if factor > 0:
                upper[on] = np.minimum(upper, bound)[on]
            else:
                lower[on] = np.maximum(lower, bound)[on]
    return lower, upper


def _other_units(name: str, values: Array, lower: Array, upper: Array, narrow: bool) -> str:
    """Describe targets whose size does not fit the limits on them; else return ""."""
    low, high = np.quantile(values, (0.05, 0.95))
    bound = np.isfinite(lower) | np.isfinite(upper)
    if high == low or not bound.any():
        return ""
    allowed = np.clip(values, lower, upper)[bound]
    outside = float((allowed != values[bound]).mean())
    room = np.where(np.isfinite(lower) & np.isfinite(upper), upper - lower, np.nan)
    width = float(np.nanmedian(room)) if np.isfinite(room).any() else np.nan
    mean, spread = float(values.mean()), float(values.std())
    seen = f"nine tenths of the targets lie in {low:.4g} to {high:.4g}"
    advice = "State rules and targets in the same units"
    standard = abs(mean) < 0.2 and abs(spread - 1.0) < 0.2
    if standard and (outside > 0.05 or spread < width / _OTHER):
        return (
            f"Target '{name}' looks scaled (mean {mean:.2f}, standard deviation {spread:.2f}), but the rules are not: "
            f"{outside:.0%} of the targets break a limit on it. {advice}: give the model the targets as they are, not "
            "through TransformedTargetRegressor; it scales them by itself."
        )
    size, nearest = float(np.median(np.abs(values[bound]))), float(np.median(np.abs(allowed)))
    if outside > 0.5 and (size * _OTHER < nearest or nearest * _OTHER < size):
        return (
            f"Target '{name}': {outside:.0%} of the rows lie far beyond the limits on it: {seen}, and the "
            f"nearest allowed values are near {nearest:.4g}. Different units? {advice}."
        )
    if narrow and high - low < _NARROW * width and max(abs(low), abs(high)) * _OTHER < width:
        return (
            f"Target '{name}': {seen}, {100 * (high - low) / width:.1g} % of what the rules allow (a range of "
            f"{width:.4g}). Different units, or a logarithm? {advice}."
        )
    return ""
