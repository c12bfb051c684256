"""Long lists of exclusions in float64 with a rigorous error bound: the same verdicts as the exact checker, sooner.

For constant bounds, with a = half-width x head row and top = logit at the center plus rounding error (both taken from
the exact checker's `Head`), a pair with weights (p, q) is proved if

    sum_j |p a_hj + q a_kj| + p top_h + q top_k  +  gamma_k (p size_h + q size_k) + tiny  <  0,

where size = sum_j |a_j| + |top| and gamma_k = k u / (1 - k u), u = 2^-53, k = the roundings that a term passes through.
What is not negative with this deduction is handed to the exact checker. Never used by the checker itself.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.certificates import checker

__all__ = ["exclusion_margin"]

Array = npt.NDArray[np.float64]

_CHUNK_NUMBERS = 1 << 19
_TINY = 2.0**-1000
"""More than all underflow: fewer than 2^20 operations, each wrong by 2^-1074 at most."""


def exclusion_margin(head: checker.Head, pairs: list[tuple[int, int]], weights: tuple[float, ...]) -> Fraction:
    """Prove all pairs as `checker.Head.exclusion_margin` does; return a lower bound of the least margin.

    Raises:
        checker.Rejected: If a pair is not proved in exact arithmetic either, or a weight is not a number >= 0.
    """
    if head.bounds.affine or head.V or not pairs:
        return head.exclusion_margin(pairs, weights)
    members, lam = np.array(pairs, dtype=np.intp), np.array(weights, dtype=np.float64).reshape(-1, 2)
    usable = np.isfinite(lam).all(axis=1) & (lam >= 0).all(axis=1) & (lam.sum(axis=1) > 0)
    checker.require(bool(usable.all()), "exclusions: multipliers")
    rows, tops, sizes = _numbers(head)
    n = rows.shape[1]
    roundings = (n + 12) * 2.0**-53
    growth = roundings / (1 - roundings) * (1 + 1e-6)
    margins = np.empty(len(members))
    chunk = max(1, _CHUNK_NUMBERS // max(1, n))
    for start in range(0, len(members), chunk):
        (h, k), (p, q) = members[start : start + chunk].T, lam[start : start + chunk].T
        v = p[:, None] * rows[h] + q[:, None] * rows[k]
        bound = np.abs(v).sum(axis=1) + p * tops[h] + q * tops[k]
        error = growth * (p * sizes[h] + q * sizes[k]) + _TINY
        margins[start : start + chunk] = -(bound + error) / (p + q)
    open_ = np.flatnonzero(~(margins > 0))
    least = Fraction(float(margins[margins > 0].min(initial=np.inf))) if len(open_) < len(margins) else None
    # The last operations above are wrong by a few units in the last place, too.
    found = [] if least is None else [least * (1 - Fraction(1, 2**40))]
    if len(open_):
        found.append(head.exclusion_margin([pairs[i] for i in open_], tuple(float(w) for w in lam[open_].reshape(-1))))
    return min(found)


def _numbers(head: checker.Head) -> tuple[Array, Array, Array]:
    """Return half-width x W (m, n), tops (m,) and sizes (m,), each within one rounding of the exact number."""
    # Weights are float32 numbers, exact in float64; half-widths and tops are rounded to nearest.
    W = np.ldexp(np.array(head.W, dtype=object).astype(np.float64), -head.grid)
    half = np.array([float(Fraction(v, 1 << head.bounds.half_grid)) for v in head.bounds.half], dtype=np.float64)
    rows = W * half
    tops = np.array([float(y + e) for y, e in zip(head.middle, head.errors, strict=True)], dtype=np.float64)
    return rows, tops, np.abs(rows).sum(axis=1) + np.abs(tops)
