"""Proposals: answers that obey the rules, as near to a model's answers as possible. Nothing here is proved.

The head checks proposals before it serves them (`smle_check.heads.candidates`), and serves the stored safe answer if
none passes. Clauses that share no output are separate problems (blocks):

* labels tied together only by rules among labels: `labels`;
* all others: the nearest points of the parts of what is allowed, in outputs divided by their scale: `alternatives`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np
import numpy.typing as npt

from smle.nearest.alternatives import KEPT, NearestPoints, nearest_points
from smle.nearest.blocks import Block, blocks_of
from smle.nearest.clauses import Clauses
from smle.nearest.labels import LabelBlock, Turned
from smle_check.heads.sums import WIDE

__all__ = ["BlockPoints", "Proposals"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

TINY = 2.0**-126
_FIRST_MOVES = (2.0**-18, 2.0**-12, 2.0**-7)  # toward the safe answer, directly after a point
_ON_STEPS = -1.0  # instead of a move: the point itself, on float32 numbers that obey
_FAR_MOVE = 2.0**-7  # after a move this far or farther, an answer no longer counts as the nearest
_LAST_MOVES = (2.0**-4, 0.25, 0.5, 1.0)  # after all points
_NEAR = float(WIDE) ** 2


class BlockPoints:
    """What was found for each block at given answers. A block is solved on demand."""

    def __init__(self, parts: Sequence[Block | LabelBlock], active: Mask, X: Array, p: Array) -> None:
        self._parts, self._asked = parts, (active, X, p)
        self._solved: dict[int, NearestPoints | Turned] = {}

    def of(self, number: int) -> NearestPoints | Turned:
        """Return what was found for a block, solving it if needed."""
        if number not in self._solved:
            part = self._parts[number]
            own = nearest_points(part, *self._asked) if isinstance(part, Block) else part.solve(*self._asked)
            self._solved[number] = own
        return self._solved[number]

    @property
    def cut(self) -> list[Mask]:
        """Masks (n,) of the rows whose search was cut short, for each block that has any."""
        return [own.cut for own in self._solved.values() if own.cut is not None and own.cut.any()]


class Proposals:
    """Candidates for rows whose answers break an active clause, nearest first.

    Args:
        clauses: The rules' clauses.
        scale: Spread of each output (m,), the unit of distances.
        h_checked: The bounds (L,) with which the head compares `g.y + s.x`.
        default: What replaces answers that are NaN, infinite or far too large, (m,).
    """

    def __init__(self, clauses: Clauses, scale: Array, h_checked: Array, default: Array) -> None:
        self._default = default
        self.rules = clauses.parts
        self.parts = blocks_of(clauses, h_checked, scale)
        self.reads_inputs = any(clauses.inputs)

    def first(self, active: Mask, X: Array, t: Array, passed: Mask | None = None) -> tuple[Array, BlockPoints]:
        """Return candidates (n, m), and what was found. Shapes: active (n, parts), X (n, d), t (n, m).

        `active` has the columns of `Clauses.parts`. Candidates are NaN where none was found. `passed` (n, blocks):
        where answers stay as they are; None: nowhere.
        """
        flat, p = t.ravel(), t
        if not flat.dot(flat) <= _NEAR:  # no square exceeds the sum of all
            p = np.where(np.abs(t) <= float(WIDE), t, self._default)
        found = BlockPoints(self.parts, active, X, p)
        if len(self.parts) == 1 and len(self.parts[0].outputs) == p.shape[1]:
            return found.of(0).first(), found
        y = p.copy()
        asked = range(len(self.parts)) if passed is None else np.flatnonzero(~passed.all(axis=0)).tolist()
        for number in asked:
            outputs, own = self.parts[number].outputs, found.of(number).first()
            y[:, outputs] = own if passed is None else np.where(passed[:, [number]], p[:, outputs], own)
        return y, found

    def further(
        self, y: Array, found: BlockPoints, safe: Array | Callable[[], Array]
    ) -> Generator[tuple[Array, int], Mask | None, None]:
        """Yield the first candidates again, then others on the way to safe answers (n, m).

        Safe answers are rarely needed, so `safe` may be a function. Blocks that obey stay as they are.

        Each array comes with its kind: 1 nearest answers, 3 answers that are only near, 2 the safe answers of the
        blocks that do not obey. An array has one candidate per row, to be cast to float32. `send(open)` tells which
        rows of the last array are still open, and the next array has only these rows; after `next` all stay open. It
        ends when there is nothing left to propose.
        """
        open_ = yield y, 1
        solved = [found.of(number) for number in range(len(self.parts))]
        rows, goals = np.arange(len(y)), safe() if callable(safe) else safe
        steps = [(rank, move) for rank in range(KEPT) for move in (0.0, _ON_STEPS, *_FIRST_MOVES)]
        steps += [(rank, move) for move in _LAST_MOVES for rank in range(KEPT) if move < 1 or rank == 0]
        for rank, move in steps:
            rows, y = (rows, y) if open_ is None else (rows[open_], y[open_])
            if not len(rows):
                return
            rounded = _rounded(y)
            held = np.stack([own.holds(rounded, rows) for own in solved])
            # Parts that obey stay. If all seem to obey, the head sees something this check does not, so all move.
            for part, own, left in zip(self.parts, solved, ~held | held.all(axis=0), strict=True):
                goal = goals[np.ix_(rows[left], part.outputs)]
                if move == _ON_STEPS and isinstance(own, NearestPoints):
                    y[np.ix_(left, part.outputs)] = own.on_float_steps(rank, rows[left])
                    continue
                point, share = own.points(rank, rows[left]), max(move, 0.0)
                y[np.ix_(left, part.outputs)] = point + share * (goal - point) if share < 1 else goal
            open_ = yield y, 2 if move >= 1 else 3 if move >= _FAR_MOVE else 1


def _rounded(y: Array) -> Array:
    """Round to float32, as float64; subnormal numbers become 0."""
    result = y.astype(np.float32).astype(np.float64)
    result[np.abs(result) < TINY] = 0.0
    return result
