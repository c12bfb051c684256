"""Derivatives of nearest points: tight rows stay tight, and move with their bounds.

y = the point nearest to t, in outputs divided by their units, with N y = b(x) for the tight rows N
dy = dt - N' u,   (N N') u = N dt - db
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.nearest.blocks import Block
from smle.nearest.polyhedra import tight_multipliers

__all__ = ["Faces"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_RIDGE = 1e-12  # keeps sets of dependent rows solvable


@dataclass(frozen=True, eq=False)
class Faces:
    """Nearest points of a block, in `rows` (r,), on the faces of their tight rows `on` (r, J).

    `weight` (r,): the share of the point that is served; the rest is a safe answer.
    """

    block: Block
    rows: Numbers
    on: Mask
    weight: Array

    @property
    def _slopes(self) -> Array:
        """By how much bounds fall as inputs rise (J, d); 0 for members of one-hot groups."""
        return np.where(self.block.looked_up, 0.0, self.block.slope)

    def _multipliers(self, over: Array) -> Array:
        gram = self.block.N @ self.block.N.T
        ridged = gram + _RIDGE * np.eye(len(gram))
        u = tight_multipliers(ridged, over, self.on)
        return u + tight_multipliers(ridged, over - u @ gram, self.on)  # corrects for the ridge

    def pull(self, v: Array, by_inputs: Array, by_answers: Array) -> None:
        """Add the gradients of outputs weighted by v (n, m) to `by_inputs` (n, d) and `by_answers` (n, m)."""
        block, at = self.block, np.ix_(self.rows, self.block.outputs)
        w = v[at] * block.unit * self.weight[:, None]
        u = self._multipliers(w @ block.N.T)
        by_answers[at] += (w - u @ block.N) / block.unit
        by_inputs[self.rows] -= u @ self._slopes

    def push(self, inputs: Array, answers: Array, outputs: Array) -> None:
        """Add to outputs (n, m) how they move with inputs (n, d) and answers (n, m)."""
        block, at = self.block, np.ix_(self.rows, self.block.outputs)
        w = answers[at] / block.unit
        u = self._multipliers(w @ block.N.T + inputs[self.rows] @ self._slopes.T)
        outputs[at] += (w - u @ block.N) * block.unit * self.weight[:, None]
