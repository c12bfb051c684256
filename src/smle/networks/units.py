"""Units of networks, so that they compute with numbers of order one whatever units the user has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.rules import Specification
from smle.rules.formula import Literal

__all__ = ["DataScale"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DataScale:
    """Units of raw parameters: x = x_shift + x_scale * x', y = y_shift + y_scale * y'."""

    x_shift: Array
    x_scale: Array
    y_shift: Array
    y_scale: Array

    @classmethod
    def identity(cls, inputs: int, outputs: int) -> DataScale:
        """Return the user's own units."""
        return cls(np.zeros(inputs), np.ones(inputs), np.zeros(outputs), np.ones(outputs))

    @classmethod
    def of_rules(cls, spec: Specification) -> DataScale:
        """Derive units from the rules: from ranges of inputs, and limits on numbers.

        An output between limits a and b gets its origin in the middle, and as its unit a quarter of the width, but at
        least an eighth of the larger limit. With a single limit it gets 0 and the size of the limit. Labels and scores
        of choices keep their own units.
        """
        low, high = spec.ends()
        wide = np.where(high > low, high - low, 1.0)
        m = len(spec.targets)
        shift, scale = np.zeros(m), np.ones(m)
        if spec.output_kind == "numbers":
            for i, found in enumerate(_limits(spec, low, high)):
                size = max((abs(v) for v in found), default=0.0)
                if size > 0 and np.isfinite(size):
                    width = max(found) - min(found)
                    shift[i] = (max(found) + min(found)) / 2 if width > 0 else 0.0
                    scale[i] = max(width / 4, size / 8) if width > 0 else size
        return cls((low + high) / 2, wide / 4, shift, scale)

    @classmethod
    def of_data(cls, spec: Specification, X: Array, y: Array | None) -> DataScale:
        """Return means and standard deviations of features (..., d) and of numeric targets (..., m).

        For constant columns, or without targets, units come from the rules.
        """
        known = cls.of_rules(spec)
        inputs = _spread(X, known.x_shift, known.x_scale)
        if y is None or spec.output_kind != "numbers":
            return cls(*inputs, known.y_shift, known.y_scale)
        return cls(*inputs, *_spread(y, known.y_shift, known.y_scale))


def _spread(values: Array, shift: Array, scale: Array) -> tuple[Array, Array]:
    rows = np.asarray(values, dtype=np.float64).reshape(-1, len(shift))
    with np.errstate(all="ignore"):
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    mean = np.where(np.isfinite(mean), mean, shift)
    return mean, np.where(np.isfinite(deviation) & (deviation > 1e-7 * np.abs(mean)), deviation, scale)


def _limits(spec: Specification, low: Array, high: Array) -> list[list[float]]:
    """Return, for each output, the range of the limits that rules state for it.

    Rules that couple outputs count only if there are no others, by the size that they leave an output.
    """
    own: list[list[float]] = [[] for _ in spec.targets]
    coupled: list[list[float]] = [[] for _ in spec.targets]
    clauses = (clause for rule in spec.rules for clause in rule.requirement.clauses)
    for literal in (literal for clause in clauses for literal in clause.literals):
        ends = _ends(literal, low, high)
        for output, g in literal.outputs:
            if len(literal.outputs) == 1:
                own[output] += [end / float(g) for end in ends]
            else:
                size = max(abs(end) for end in ends) / abs(float(g))
                coupled[output] += [-size, size]
    return [alone or others for alone, others in zip(own, coupled, strict=True)]


def _ends(literal: Literal, low: Array, high: Array) -> tuple[float, float]:
    """Return the least and the largest value of bound - s.x over the domain."""
    least = largest = float(literal.bound)
    for column, s in literal.inputs:
        products = (float(s) * low[column], float(s) * high[column])
        least, largest = least - max(products), largest - min(products)
    return least, largest
