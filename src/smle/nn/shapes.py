"""Where bounds that move with x start: as wide as the rules leave room, so that no input has to pay for the others.

With constant bounds the step of the gauge is that of the input with the least room. If the half-width of a unit is
proportional to the room r(x) of a clause, the same step uses all of the room at every x. Each clause whose room moves
with x is a shape for some of the units, and others start constant, for the cells that want them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from smle.nn.head_parameters import CellConstraints, DataScale

__all__ = ["fitness", "moving_shapes"]

Array = npt.NDArray[np.float64]
_MOST_SHAPES = 7
_LEAST_WIDTH = 1e-3  # of a shape, as a share of its width in the middle of the domain
_LEAST_FITNESS = 0.02
_HALVINGS = 40


def _rooms(cell: CellConstraints, frame: DataScale) -> Array:
    """Return the room that the center leaves to each clause, in x': offset first, then slopes (k, 1 + d)."""
    offset = cell.slack_offset + cell.slack_slope @ frame.x_shift
    both = np.concatenate([offset[..., None], cell.slack_slope * frame.x_scale], axis=2)
    return np.asarray((cell.weights[..., None] * both).sum(axis=1))


def moving_shapes(cells: Sequence[CellConstraints], frame: DataScale, low: Array, high: Array) -> Array:
    """Return the distinct rooms that move with x', 1 in the middle of the domain [low, high]: (shapes, 1 + d).

    A room that is not positive on all of the domain, because its clause applies to a part of it, is lifted.
    """
    middle = np.append(1.0, (low + high) / 2)
    found: list[Array] = []
    for cell in cells:
        for room in _rooms(cell, frame):
            size = float(np.abs(room[1:]) @ (high - low)) / 2
            if size <= _LEAST_WIDTH * abs(room[0]):
                continue
            least = float(room @ middle) - size
            shape = room.copy()
            shape[0] += max(0.0, _LEAST_WIDTH * 2 * size - least)
            shape /= float(shape @ middle)
            if not any(np.allclose(shape, other, rtol=0.05, atol=0.05) for other in found):
                found.append(shape)
    return np.array(found[:_MOST_SHAPES]).reshape(-1, len(middle))


def fitness(cell: CellConstraints, frame: DataScale, half: Array) -> Array:
    """Return, for half-widths (n, 1 + d) in x', how much of each unit the cell has room for: (n,), at most 1.

    That is the least ratio of room to half-width over the clauses and their boxes, against the best unit's.
    """
    least = np.full(len(half), np.inf)
    lower, upper = ((end - frame.x_shift) / frame.x_scale for end in (cell.lower, cell.upper))
    for room, low, high in zip(_rooms(cell, frame), lower, upper, strict=True):
        middle, side = np.append(1.0, (low + high) / 2), (high - low) / 2
        # The largest t with room - t half >= 0 on the box, by bisection.
        start = np.maximum(room @ middle, 0.0) / np.maximum(half @ middle, 1e-300)
        safe, unsafe = np.zeros(len(half)), start
        for _ in range(_HALVINGS):
            t = (safe + unsafe) / 2
            rest = room - t[:, None] * half
            holds = rest @ middle - np.abs(rest[:, 1:]) @ side >= 0
            safe, unsafe = np.where(holds, t, safe), np.where(holds, unsafe, t)
        least = np.minimum(least, safe)
    best = float(least.max(initial=0.0))
    if not (0 < best < np.inf):
        return np.ones(len(half))
    return np.asarray(np.clip(least / best, _LEAST_FITNESS, 1.0))
