"""Stacks blocks of the same form, so that the same nodes find the nearest points of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.nearest.blocks import AT, Block
from smle.nearest.onnx.faces import Piece, pieces_of
from smle.nearest.onnx.gates import Gates
from smle.nearest.onnx.writer import Writer

__all__ = ["Stack", "stacks_of"]

Array = npt.NDArray[Any]
_PIECES = 16  # up to this many choices of a literal per clause are all tried


class Stack:
    """Blocks with the same literals and clauses, up to bounds and conditions, side by side along the rows of a batch.

    Attributes:
        block: The first of them.
        tries_all: Whether all its pieces, choices of a literal per clause, are tried.
        pieces: The pieces with their tight sets, or None if there are too many or they are not needed.
        clauses: The rows of each clause.
        outputs: Output by output, the positions in all blocks.
    """

    def __init__(self, w: Writer, blocks: Sequence[Block], gates: Gates, pieces: list[Piece] | None) -> None:
        self._w, self._blocks, self._gates, self.pieces = w, blocks, gates, pieces
        self.block = block = blocks[0]
        self.clauses = block.clauses
        self.tries_all = block.pieces <= _PIECES
        self.outputs = np.stack([own.outputs for own in blocks], axis=1).reshape(-1)
        self.unit = np.stack([own.unit for own in blocks], axis=1).reshape(-1)

    def beside(self, values: str, size: int) -> str:
        """Put values (size x blocks, rows) side by side: (size, blocks x rows)."""
        return values if len(self._blocks) == 1 else self._w.shaped(values, size, -1)

    def answers(self, given: str) -> str:
        """Return the outputs (k, blocks x rows) of answers (m, rows), in their units."""
        values = self._w.rows(given, self.outputs.tolist())
        if (self.unit != 1).any():
            values = self._w.add("Mul", [values, self._w.column(1 / self.unit)])
        return self.beside(values, len(self.block.unit))

    def values(self, points: str) -> str:
        """Return points (k, blocks x rows) in units as outputs (k x blocks, rows)."""
        w, several = self._w, len(self._blocks) > 1
        points = w.shaped(points, len(self.outputs), -1) if several else points
        if (self.unit != 1).any():
            points = w.add("Mul", [points, w.column(self.unit)])
        if not self.block.pins:
            return points
        pinned = self._pinned(self.beside(points, len(self.block.unit)))
        return w.shaped(pinned, len(self.outputs), -1) if several else pinned

    def _pinned(self, point: str) -> str:
        """Return outputs (k, blocks x rows) with pinned ones set to their number if it is near."""
        w, block = self._w, self.block
        for _, column, value in block.pins:
            own = np.arange(len(block.unit))[:, None] == column
            sizes = w.add("Abs", [w.add("Mul", [point, w.column(AT / block.unit)])])
            sum_ = w.add("Add", [w.reduced("ReduceMax", sizes, 0, keep=True), w.number(AT * abs(value))])
            away = w.add("Abs", [w.add("Sub", [point, w.number(value)])])
            close = w.add("LessOrEqual", [away, w.add("Mul", [sum_, w.number(block.unit[column])])])
            point = w.add("Where", [w.add("And", [w.constant(own), close]), w.number(value), point])
        return point

    def affine_bounds(self) -> tuple[Array, Array]:
        """Return the bounds of the rows, `bound - slope.x`: bound (J x blocks,), slope (J x blocks, d)."""
        bounds, slopes = (
            np.stack(own, axis=1) for own in zip(*((b.bound, b.slope) for b in self._blocks), strict=True)
        )
        return bounds.reshape(-1), slopes.reshape(-1, slopes.shape[2])

    def spread(self, numbers: Array) -> str:
        """Return numbers (J x blocks,) as (J, blocks x rows), or (J, 1) for a single block."""
        w = self._w
        if len(self._blocks) == 1:
            return w.column(numbers)
        rows = w.rows(w.add("Shape", ["repair/chosen"]), [0])
        shape = w.add("Concat", [w.constant(np.array([len(numbers)], dtype=np.int64)), rows], axis=0)
        return self.beside(w.add("Expand", [w.column(numbers), shape]), len(self.block.N))

    def rules(self) -> tuple[str | None, list[int]]:
        """Return which rules apply (rules, blocks x rows), and the position of each clause's rule there."""
        on, listed = self._gates.on(), [self._gates.of_clauses(block) for block in self._blocks]
        if on is None or len(listed) == 1:
            return on, listed[0]
        places = np.array(listed).T
        return self._w.shaped(self._w.rows(on, places.reshape(-1).tolist()), len(places), -1), [*range(len(places))]

    def imposed(self, excess: str) -> str:
        """Return the excess (J, blocks x rows) in float32, far below 0 for rows that are not imposed."""
        off = self._gates.off(self._blocks)
        return excess if off is None else self._w.add("Add", [excess, self.beside(off, len(self.block.N))])


def stacks_of(w: Writer, blocks: Sequence[Block], gates: Gates) -> list[Stack]:
    """Stack the blocks, and find the tight sets of blocks with few pieces."""
    found: dict[Any, list[Block]] = {}
    sets: dict[Any, list[Piece] | None] = {}
    for block in blocks:
        clauses = tuple(map(tuple, block.clauses))
        own = pieces_of(block, gates) if not block.is_box and block.pieces <= _PIECES else None
        arrays = [np.round(block.N, 13) + 0.0, block.unpinned]  # without -0
        arrays += [block.weight / block.weight.max()] if block.is_box else [block.unit] if block.pins else []
        key = (clauses, *(a.tobytes() for a in arrays), str(block.pins), block.is_box, block.is_likely, str(own))
        found.setdefault(key, []).append(block)
        sets[key] = own
    return [Stack(w, own, gates, sets[key]) for key, own in found.items()]
