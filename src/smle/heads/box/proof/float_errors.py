"""The rounding bounds of `smle_check.floats`, vectorized in float64 and rounded up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from smle.regions.geometry import TINY, U

__all__ = ["LARGEST", "affine_errors", "gamma"]

Array = npt.NDArray[np.float64]

LARGEST = float(np.finfo(np.float32).max)
_UP = 1.0 + 1e-9


def gamma(roundings: int) -> float:
    """Return k u / (1 - k u) for float32, rounded up; inf if there is no bound."""
    accumulated = roundings * U
    return accumulated / (1 - accumulated) * _UP if accumulated < 1 else np.inf


def affine_errors(weights: Array, sizes: Array, offsets: Array) -> Array:
    """Bound |fl(w.v + c) - (w.v + c)| for |v| <= sizes; inf where float32 may overflow.

    Shapes: weights (k, n), sizes (n,), offsets (k,) -> (k,).
    """
    n = weights.shape[1]
    growth = gamma(n + 1)
    magnitude = np.abs(weights)
    size = np.abs(offsets) + magnitude @ sizes
    tiny = TINY * (2 * n + 1 + magnitude.sum(axis=1) + sizes.sum()) * (1 + growth)
    error: Array = (growth * size + tiny) * _UP
    return np.where((1 + growth) * size + tiny < LARGEST / _UP, error, np.inf)
