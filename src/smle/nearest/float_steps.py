"""Finds points that obey in float32, where its steps are wider than the room that rules leave.

`abs(total - (north + south)) <= 0.01` leaves 0.02, while float32 numbers around a million are 0.06 apart: only points
whose sums come out almost exactly obey. Row by row, the output with the finest steps makes up the difference; in sums
of sums that is a part, then a part of that part.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["on_float_steps"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_MOST = 64  # rounds
_AGAIN = 4.0
_SUMS = 2.0**-44  # relative to the terms of a sum: more than what the check takes off


def on_float_steps(y: Array, over: Array, b: Array, imposed: Mask) -> Array:
    """Return float32 numbers near y (n, k), with over y <= b in the imposed rows (n, J) as far as the search succeeds.

    Shapes: over (J, k), b (J,) or (n, J).
    """
    y = y.astype(np.float32).astype(np.float64)
    b, twin = np.broadcast_to(b, imposed.shape), _twins(over)
    rows = np.flatnonzero(np.isfinite(y).all(axis=1))
    moved = np.ones(y.shape)  # prefer outputs not moved before, or two rows would push one back and forth
    for _ in range(min(_MOST, 4 * len(over))):
        excess = np.where(
            imposed[rows], y[rows] @ over.T - b[rows] + _SUMS * (np.abs(y[rows]) @ np.abs(over.T)), -np.inf
        )
        worst = excess.argmax(axis=1)
        left = excess[np.arange(len(rows)), worst] > 0
        rows, worst = rows[left], worst[left]
        if not len(rows):
            break
        a, own = over[worst], y[rows]
        steps = np.where(a != 0, np.spacing(np.abs(own).astype(np.float32)) * moved[rows], np.inf)
        place, at = steps.argmin(axis=1), np.arange(len(rows))
        moved[rows, place] *= _AGAIN
        slope, value, noise = a[at, place], own[at, place], _SUMS * (np.abs(own) * np.abs(a)).sum(axis=1)
        rest = (a * own).sum(axis=1) - slope * value
        other = twin[worst]
        paired = (other >= 0) & imposed[rows, other]
        ends = np.stack(
            [
                (b[rows, worst] - noise - rest) / slope,
                np.where(paired, (-b[rows, other] + noise - rest) / slope, np.where(slope > 0, -np.inf, np.inf)),
            ]
        )
        y[rows, place] = _inside(value, ends.min(axis=0), ends.max(axis=0))
    return y


def _twins(over: Array) -> npt.NDArray[np.intp]:
    """Return, for each row, the one that limits the same sum from the other side, or -1."""
    place = {row.tobytes(): j for j, row in enumerate(over + 0.0)}
    return np.array([place.get((-row + 0.0).tobytes(), -1) for row in over], dtype=np.intp)


def _inside(value: Array, lower: Array, upper: Array) -> Array:
    """Return the float32 numbers in [lower, upper] nearest to values, or one next to the middle if there is none."""
    nearest = np.clip(value, lower, np.maximum(lower, upper)).astype(np.float32)
    down, up = np.nextafter(nearest, np.float32(-np.inf)), np.nextafter(nearest, np.float32(np.inf))
    return np.where(nearest > upper, down, np.where(nearest < lower, up, nearest)).astype(np.float64)
