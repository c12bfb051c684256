"""Proposals of the grid head: whole numbers of steps near a model's answers that obey the rules. Nothing is proved.

Outputs that no rule ties together are separate problems (`blocks.py`). Where what they propose does not pass, real
points move toward the safe answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smle.heads.grid.blocks import Asked, GridBlock
from smle.heads.grid.reduction import reduce
from smle.nearest.clauses import tied_together

if TYPE_CHECKING:
    from smle.heads.grid.program import GridProgram

__all__ = ["GridProposals"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_MOVES = (2.0**-6, 2.0**-3, 0.25, 0.5)  # toward the safe answer
_FAR = 2.0**52


class GridProposals:
    """Proposes candidates for rows whose answers do not pass."""

    def __init__(self, program: GridProgram) -> None:
        spec, self._program = program.lattice, program
        self.reduction = reduce(spec, program.listed)
        steps = np.array([float(own.step) for own in spec.output_steps])
        weight = steps / program.stored["check.scale"]
        C = program.stored["check.outputs"]
        self._T, self._t = self.reduction.T.astype(np.float64), self.reduction.t.astype(np.float64)
        self._moves, self._always = bool(self._T.any()), all(program.always)
        ties = [{i, *self.reduction.free[np.flatnonzero(row)].tolist()} for i, row in enumerate(self.reduction.B)]
        ties += [set(np.flatnonzero(C[list(own)].any(axis=0)).tolist()) for own in program.clauses]
        groups = tied_together(ties, [], len(steps))
        self.blocks = [GridBlock(program, self.reduction, C, weight, outputs) for outputs in groups]
        first = self.blocks[0]
        counts = len(groups), len(first.literals), len(first.clauses)
        self._is_one = counts == (1, len(C), len(program.clauses))

    def candidates(self, p: Array, read: Array | None, right: Array, bits: Mask | None) -> Iterator[Array]:
        """Yield candidates (n, m) for targets p in steps, nearest first."""
        near = np.abs(p) <= _FAR
        if not near.all():
            p = np.where(near, p, self._program.safe(read, bits, len(p)))
        c = self._t + read @ self._T.T if self._moves and read is not None else self._t[None]
        right = right if right.ndim == 2 else right[None]
        on = None if self._always else self._program.on(bits, len(p))
        if self._is_one:
            k, real = self.blocks[0].nearest(Asked(p, c, right, on))  # without copies
        else:
            k, real = np.empty_like(p), np.empty_like(p)
            for block in self.blocks:
                outputs, own = block.outputs, None if on is None else on[:, block.clauses]
                asked = Asked(p[:, outputs], c[:, outputs], right[:, block.literals], own)
                k[:, outputs], real[:, outputs] = block.nearest(asked)
        yield k
        safe, k = self._program.safe(read, bits, len(p)), k.copy()
        for share in _MOVES:
            moved = real + share * (safe - real)
            for block in self.blocks:
                k[:, block.outputs] = block.rounded(moved[:, block.outputs], c[:, block.outputs])
            yield k
