"""The lean check: linear clauses of one region under constant bounds, prepared once, then priced for head after head.

Without slopes nothing depends on x. With u, l the box, S_i = sum_j |W_ij| max|z_j| + |b_i| and R_i = sum_j |W_ij|, the
bound of `smle.guarantees.proof.worst_case` for a row g.y <= h is

    g.(W l + b) + max(g W, 0).(u - l) - h + |g|.(k1 S + k2 (R + const))

whose constants k1 (rounding of the deployed program and of this computation) and k2 (underflow) are known
beforehand. What is left is a handful of small matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.frozen_heads import Head
from smle.guarantees.proof.rounding import LARGEST, gamma
from smle.guarantees.proof.worst_case import WidenedBox
from smle.guarantees.regions.geometry import TINY, Region
from smle.rules import Literals

__all__ = ["ClosedForm"]

Array = npt.NDArray[np.float64]

_UP = (1.0 + 1e-9) ** 2
_EPS = 2.0**-52
_SAFE = LARGEST / 4
"""Sums of magnitudes below this cannot overflow float32, whatever the order."""


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Rows g.y <= h under constant bounds. Shapes: g (k, m), columns (n + 1, 2), lower and widths (n + 1,).

    The last unit is the constant 1 that multiplies the head's offset. `weights` (2,) and `constant` (k,) price S and R;
    `sizes` (k,) is |h|.
    """

    g: Array
    magnitude: Array
    columns: Array
    lower: Array
    widths: Array
    weights: Array
    constant: Array
    sizes: Array

    @classmethod
    def of(cls, rows: Literals, envelope: WidenedBox, region: Region) -> ClosedForm | None:
        """Prepare rows (single literals); None where something depends on x."""
        n = len(envelope.lower)
        growth = gamma(n + 1)
        if envelope.lower_slope is not None or rows.s.any() or not np.isfinite(growth):
            return None
        terms = n + 2 * len(region.domain.low) + len(region.numbers) + rows.g.shape[1] + 16
        own = 2 * terms * _EPS
        magnitude = np.abs(rows.g)
        tiny = TINY * (1 + growth) * _UP
        underflow = tiny * (2 * n + 1 + envelope.sizes.sum()) * magnitude.sum(axis=1)
        return cls(
            rows.g,
            magnitude,
            np.stack([np.append(envelope.sizes, 1.0), np.append(np.ones(n), 0.0)], axis=1),
            np.append(envelope.lower, 1.0),
            np.append(envelope.upper - envelope.lower, 0.0),
            np.array([growth * _UP + own, tiny]),
            underflow + own * np.abs(rows.h) - rows.h,
            np.abs(rows.h),
        )

    def __call__(self, head: Head) -> tuple[Array, Array, Array] | None:
        """Return (bound, size of the terms, direction in z), shapes (k,), (k,), (k, n); None if it might overflow."""
        W, b = head.W, head.b
        m, n = W.shape
        table = np.empty((m, n + 1))
        table[:, :n] = W
        table[:, n] = b
        sums = np.abs(table) @ self.columns
        if not sums.max() < _SAFE:
            return None
        v = self.g @ table
        total = self.magnitude @ sums
        bound = np.maximum(v, 0.0) @ self.widths + v @ self.lower + total @ self.weights + self.constant
        return bound, total[:, 0] + self.sizes, v[:, :n]
