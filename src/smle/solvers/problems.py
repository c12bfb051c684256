"""Optimization problems as data: linear, mixed-integer linear, quadratic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

__all__ = ["LinearProgram", "Matrix", "MixedIntegerProgram", "Problem", "QuadraticProgram"]

Array = npt.NDArray[np.float64]
Matrix = Any
"""A dense array, or a SciPy sparse matrix."""


def _vector(values: npt.ArrayLike, size: int, name: str, *, finite: bool = False) -> Array:
    result = np.array(values, dtype=np.float64).reshape(-1)
    if len(result) == 1 != size:
        result = np.full(size, result[0])
    if result.shape != (size,):
        raise ValueError(f"{name}: expected {size} numbers. Got {result.shape[0]}.")
    if np.isnan(result).any() or (finite and not np.isfinite(result).all()):
        raise ValueError(f"{name}: expected {'finite numbers' if finite else 'numbers'}. Got NaN or infinity.")
    return result


def _matrix(values: Any, columns: int, name: str) -> Matrix:
    """Return an array, or a CSR matrix with repeated positions added up."""
    if sparse.issparse(values):
        result = sparse.csr_matrix(values, dtype=np.float64)
        result.sum_duplicates()
        numbers = result.data
    else:
        result = numbers = np.asarray(values, dtype=np.float64)
    if result.ndim != 2 or result.shape[1] != columns:
        raise ValueError(f"{name}: expected a matrix with {columns} columns. Got shape {result.shape}.")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite coefficients. Got NaN or infinity.")
    return result


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """A linear program: minimize `objective . x` subject to `row_lower <= A x <= row_upper`, `lower <= x <= upper`.

    Shapes: objective (n,), A (m, n) dense or sparse, row bounds (m,), bounds (n,). Sides may be infinite;
    a single number stands for all entries.

    Raises:
        ValueError: If shapes do not fit, or a number is NaN, or a coefficient is not finite.

    """

    objective: Array
    A: Matrix
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        n = np.size(self.objective)
        _set_linear(self, n)
        object.__setattr__(self, "objective", _vector(self.objective, n, "objective", finite=True))

    @property
    def size(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.row_lower), len(self.lower)


def _set_linear(problem: LinearProgram | QuadraticProgram, n: int) -> None:
    object.__setattr__(problem, "A", _matrix(problem.A, n, "A"))
    m = problem.A.shape[0]
    for name, size in (("row_lower", m), ("row_upper", m), ("lower", n), ("upper", n)):
        object.__setattr__(problem, name, _vector(getattr(problem, name), size, name))


@dataclass(frozen=True, eq=False)
class MixedIntegerProgram(LinearProgram):
    """A linear program in which the columns marked in `integrality` (n,) take whole numbers."""

    integrality: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        super().__post_init__()
        mask, n = np.array(self.integrality, dtype=bool).reshape(-1), len(self.lower)
        if mask.shape != (n,):
            raise ValueError(f"integrality: expected {n} marks. Got {mask.shape[0]}.")
        object.__setattr__(self, "integrality", mask)


@dataclass(frozen=True, eq=False)
class QuadraticProgram:
    """A quadratic program: minimize `1/2 x' P x + q . x` over a region as in `LinearProgram`, with P symmetric, convex.

    Shapes: P (n, n) dense or sparse (both triangles), q (n,), A (m, n).

    Raises:
        ValueError: If shapes do not fit, a number is NaN, or P is not symmetric.

    """

    P: Matrix
    q: Array
    A: Matrix
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        n = np.size(self.q)
        _set_linear(self, n)
        object.__setattr__(self, "q", _vector(self.q, n, "q", finite=True))
        P = _matrix(self.P, n, "P")
        if P.shape != (n, n):
            raise ValueError(f"P: expected shape {(n, n)}. Got {P.shape}.")
        lopsided = np.abs(P - P.T).max() if n else 0.0
        if lopsided > 1e-9 * (np.abs(P).max() if n else 0.0) + 1e-12:
            raise ValueError("P: expected a symmetric matrix. Got one that is not.")
        object.__setattr__(self, "P", P)

    @property
    def size(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.row_lower), len(self.lower)


Problem = LinearProgram | MixedIntegerProgram | QuadraticProgram
