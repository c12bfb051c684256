"""Rigorous bounds on the rounding errors of the deployed float32 program (docs/soundness.md).

All bounds hold for every order of summation, with and without fused multiply-add, with gradual underflow
and with flush-to-zero, for round to nearest.
"""

from collections.abc import Sequence
from fractions import Fraction

from smle.exact.floats import BINARY32, Binary

__all__ = ["affine_error", "gamma", "guard_slack"]


def gamma(roundings: int, fmt: Binary = BINARY32) -> Fraction:
    """Return k u / (1 - k u): the relative error of a term that passes through k roundings."""
    accumulated = roundings * fmt.unit_roundoff
    if accumulated >= 1:
        raise ValueError(f"A sum with {roundings} roundings has no error bound in {fmt.name}.")
    return accumulated / (1 - accumulated)


def affine_error(
    weights: Sequence[Fraction], magnitudes: Sequence[Fraction], offset: Fraction, fmt: Binary = BINARY32
) -> Fraction:
    """Bound |fl(w.v + c) - (w.v + c)| for |v_j| <= magnitudes_j.

    gamma_(n+1) (sum_j |w_j| |v_j| + |c|) + underflow, with n products.
    """
    n = len(weights)
    growth = gamma(n + 1, fmt)
    size = abs(offset) + sum((abs(w) * m for w, m in zip(weights, magnitudes, strict=True)), Fraction(0))
    spread = sum((abs(w) + m for w, m in zip(weights, magnitudes, strict=True)), Fraction(0))
    tiny = fmt.smallest_normal * (2 * n + 1 + spread) * (1 + growth)
    if (1 + growth) * size + tiny > fmt.largest:
        raise OverflowError(f"The affine map may overflow {fmt.name}.")
    return growth * size + tiny


def guard_slack(
    coefficients: Sequence[Fraction], stored: Sequence[Fraction], magnitudes: Sequence[Fraction]
) -> Fraction:
    """Bound |fl(stored . cast(x)) - coefficients . x| for |x_j| <= magnitudes_j and x as passed.

    Three parts: the stored float32 coefficients, the cast of x to float32, products and sums.
    """
    u = BINARY32.unit_roundoff
    cast = [u * m + BINARY32.smallest_normal for m in magnitudes]
    grown = [m + c for m, c in zip(magnitudes, cast, strict=True)]
    stored_part = sum((abs(q - f) * m for q, f, m in zip(coefficients, stored, magnitudes, strict=True)), Fraction(0))
    cast_part = sum((abs(f) * c for f, c in zip(stored, cast, strict=True)), Fraction(0))
    return stored_part + cast_part + affine_error(stored, grown, Fraction(0))
