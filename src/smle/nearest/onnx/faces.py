"""Pieces of what is allowed, and the sets of rows that can be tight at a nearest point of each."""

from __future__ import annotations

from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.nearest.blocks import Block
from smle.nearest.onnx.gates import Gates
from smle.nearest.polyhedra import independent_sets
from smle.solvers import LinearProgram, Status, solve

__all__ = ["Piece", "pieces_of"]

Array = npt.NDArray[Any]
_SETS, _NUMBERS = 500, 300_000  # limits on what is prepared: sets of all pieces, numbers in their tables
_FEW = 16  # up to this many sets are all tried, without asking which can be tight
_NEAR = 1e-6  # tolerance for tight rows


class Piece(NamedTuple):
    """One literal for each clause: its rows, and the sets of them that can be tight."""

    rows: list[int]
    sets: list[tuple[int, ...]]


def pieces_of(block: Block, gates: Gates) -> list[Piece] | None:
    """Return the pieces of a block that are not empty, or None if they or their sets are too many."""
    J = len(block.N)
    needed = gates.of_rows(block)
    if None in needed or J > 64:
        return None
    chosen = {tuple(sorted(set(rows))) for rows in product(*block.clauses)}
    pieces, total = [], 0
    for rows in sorted(chosen):
        piece = _piece(block, gates, list(rows), needed)
        if piece is None:
            return None
        total += len(piece.sets)
        if total > _SETS or total * J * J > _NUMBERS:
            return None
        pieces.append(piece)
    return [piece for piece in pieces if len(piece.sets) > 1] or None


def _piece(block: Block, gates: Gates, rows: list[int], needed: list[tuple[int, ...] | None]) -> Piece | None:
    """Find the sets of independent rows that a point can have tight while it keeps the rows imposed with them."""

    def meets(tight: tuple[int, ...]) -> bool:
        kept = [r for r in rows if not needed[r] or needed[r] in [needed[t] for t in tight]]
        return 2 ** len(rows) <= _FEW or _meets(block, gates, kept, tight)

    sets = [*islice(independent_sets(block.N @ block.N.T, rows, block.N.shape[1], meets), _SETS + 1)]
    return Piece(rows, sets) if len(sets) <= _SETS else None


def _meets(block: Block, gates: Gates, kept: list[int], tight: tuple[int, ...]) -> bool:
    """Return whether an answer at some input has these rows tight, and keeps the others."""
    bound, slope = block.bound, block.slope
    used = np.flatnonzero(slope.any(axis=0))
    free = np.full(len(block.outputs), np.inf)
    A = np.concatenate([block.N, slope[:, used]], axis=1)[kept]
    loose = _NEAR * (1 + np.abs(bound[kept]))
    low = np.where(np.isin(kept, tight), bound[kept] - loose, -np.inf)
    ends = np.concatenate([-free, gates.lower[used]]), np.concatenate([free, gates.upper[used]])
    problem = LinearProgram(np.zeros(A.shape[1]), A, low, bound[kept] + loose, *ends)
    return solve(problem).status is not Status.INFEASIBLE
