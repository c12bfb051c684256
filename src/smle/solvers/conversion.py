"""Matrices in the forms that back-ends ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smle.solvers.problems import Sparse

__all__ = ["dense_columns", "scipy_columns"]


def dense_columns(matrix: npt.NDArray[np.float64] | Sparse) -> npt.NDArray[np.float64]:
    """Return a dense matrix in column-major order."""
    return np.asfortranarray(matrix.dense() if isinstance(matrix, Sparse) else matrix)


def scipy_columns(matrix: npt.NDArray[np.float64] | Sparse) -> Any:
    """Return a scipy matrix by columns."""
    from scipy import sparse

    if isinstance(matrix, Sparse):
        return sparse.csc_matrix((matrix.values, (matrix.rows, matrix.columns)), shape=matrix.shape)
    return sparse.csc_matrix(matrix)
