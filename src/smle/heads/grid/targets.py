"""Moves targets to the nearest numbers that satisfy every equality, before anything is fitted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from smle.rules import Specification

__all__ = ["reconciled"]

Array = npt.NDArray[np.float64]
_CLOSE = 1e-6  # of the spread: what sums of decimal numbers may miss


def reconciled(spec: Specification, X: npt.NDArray[np.floating], targets: Array) -> tuple[Array, int, float]:
    """Return targets (n, m) that satisfy the equalities of the rules, how many rows moved, and by how much at most.

    Each row moves as little as possible, measured in the spread of the outputs: all outputs of an equality share the
    difference, and those that vary most take most. Limits are ignored.
    """
    grid = spec.grid
    equalities = [] if grid is None else [e.literal for e in grid.equalities if e.everywhere]
    if not equalities or not len(targets):
        return targets, 0, 0.0
    E, right = np.zeros((len(equalities), targets.shape[1])), np.empty((len(targets), len(equalities)))
    for row, literal in enumerate(equalities):
        for i, g in literal.outputs:
            E[row, i] = float(g)
        moved = sum((float(v) * X[:, j].astype(np.float64) for j, v in literal.inputs), np.zeros(len(targets)))
        right[:, row] = float(literal.bound) - moved
    spread = targets.std(axis=0)
    spread = np.where(spread > 0, spread, max(float(spread.max()), 1.0) * 1e-3)
    missing = right - targets @ E.T
    share = (E * spread**2) @ E.T
    step = missing @ np.linalg.pinv(share) @ (E * spread**2)
    far = np.abs(step / spread).max(axis=1)
    rows = np.flatnonzero(far > _CLOSE)
    if not len(rows):
        return targets, 0, 0.0
    result = targets.copy()
    result[rows] += step[rows]
    return result, len(rows), float(np.abs(step[rows]).max())
