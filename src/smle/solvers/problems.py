"""Optimization problems as data: linear, mixed-integer linear, quadratic, mixed-integer quadratic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "LinearProgram",
    "MixedIntegerProgram",
    "MixedIntegerQuadraticProgram",
    "Problem",
    "QuadraticProgram",
    "Sparse",
]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sparse:
    """A sparse matrix as triplets (row, column, value); repeated positions add up.

    Raises:
        ValueError: If lengths differ, a position is outside the shape, or a value is not finite.

    """

    rows: npt.NDArray[np.intp]
    columns: npt.NDArray[np.intp]
    values: Array
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        rows = np.asarray(self.rows, dtype=np.intp).reshape(-1)
        columns = np.asarray(self.columns, dtype=np.intp).reshape(-1)
        values = np.asarray(self.values, dtype=np.float64).reshape(-1)
        if not len(rows) == len(columns) == len(values):
            raise ValueError(f"Expected triplets of equal length. Got {len(rows)}, {len(columns)}, {len(values)}.")
        m, n = self.shape
        if len(rows) and (rows.min() < 0 or rows.max() >= m or columns.min() < 0 or columns.max() >= n):
            raise ValueError(f"Expected positions inside a {m} x {n} matrix. Got one outside.")
        if not np.isfinite(values).all():
            raise ValueError("Expected finite coefficients. Got NaN or infinity.")
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "values", values)

    @classmethod
    def from_dense(cls, matrix: npt.ArrayLike) -> Sparse:
        """Collect the nonzero entries of a dense matrix."""
        dense = np.asarray(matrix, dtype=np.float64)
        rows, columns = np.nonzero(dense)
        return cls(rows, columns, dense[rows, columns], (dense.shape[0], dense.shape[1]))

    def dense(self) -> Array:
        """Return the matrix as a dense array."""
        result = np.zeros(self.shape)
        np.add.at(result, (self.rows, self.columns), self.values)
        return result

    def times(self, x: Array) -> Array:
        """Return A x."""
        sums: Array = np.bincount(self.rows, weights=self.values * x[self.columns], minlength=self.shape[0]).astype(
            np.float64
        )
        return sums

    def transpose_times(self, y: Array) -> Array:
        """Return A' y."""
        sums: Array = np.bincount(self.columns, weights=self.values * y[self.rows], minlength=self.shape[1]).astype(
            np.float64
        )
        return sums

    def compressed(self, *, by_column: bool) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Array]:
        """Return (starts, indices, values) by row or by column, repeated positions added up."""
        major, minor = (self.columns, self.rows) if by_column else (self.rows, self.columns)
        size = self.shape[1] if by_column else self.shape[0]
        order = np.lexsort((minor, major))
        major, minor, values = major[order], minor[order], self.values[order]
        if len(values):
            new = np.empty(len(values), dtype=bool)
            new[0] = True
            new[1:] = (major[1:] != major[:-1]) | (minor[1:] != minor[:-1])
            values = np.add.reduceat(values, np.flatnonzero(new))
            major, minor = major[new], minor[new]
        starts = np.zeros(size + 1, dtype=np.int32)
        np.cumsum(np.bincount(major, minlength=size), out=starts[1:])
        return starts, minor.astype(np.int32), values


def _vector(values: npt.ArrayLike, size: int, name: str, *, finite: bool = False) -> Array:
    result = np.array(values, dtype=np.float64).reshape(-1)
    if len(result) == 1 != size:
        result = np.full(size, result[0])
    if result.shape != (size,):
        raise ValueError(f"{name}: expected {size} numbers. Got {result.shape[0]}.")
    if np.isnan(result).any() or (finite and not np.isfinite(result).all()):
        raise ValueError(f"{name}: expected {'finite numbers' if finite else 'numbers'}. Got NaN or infinity.")
    return result


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Minimize `objective . x` subject to `row_lower <= A x <= row_upper` and `lower <= x <= upper`.

    Shapes: objective (n,), A (m, n) dense or `Sparse`, row bounds (m,), bounds (n,). Sides may be infinite;
    a single number stands for all entries.

    Raises:
        ValueError: If shapes do not fit, or a number is NaN, or a coefficient is not finite.

    """

    objective: Array
    A: Array | Sparse
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        n = np.size(self.objective)
        _set_linear(self, n)
        object.__setattr__(self, "objective", _vector(self.objective, n, "objective", finite=True))

    @property
    def matrix(self) -> Sparse:
        """The rows as triplets."""
        return self.A if isinstance(self.A, Sparse) else Sparse.from_dense(self.A)

    @property
    def size(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.row_lower), len(self.lower)


def _set_linear(problem: LinearProgram | QuadraticProgram, n: int) -> None:
    if not isinstance(problem.A, Sparse):
        dense = np.asarray(problem.A, dtype=np.float64)
        if dense.ndim != 2:
            raise ValueError(f"A: expected a matrix with {n} columns. Got {dense.ndim} dimensions.")
        if not np.isfinite(dense).all():
            raise ValueError("A: expected finite coefficients. Got NaN or infinity.")
        object.__setattr__(problem, "A", dense)
    m, columns = problem.A.shape
    if columns != n:
        raise ValueError(f"A: expected {n} columns. Got {columns}.")
    for name, size in (("row_lower", m), ("row_upper", m), ("lower", n), ("upper", n)):
        object.__setattr__(problem, name, _vector(getattr(problem, name), size, name))


@dataclass(frozen=True, eq=False)
class MixedIntegerProgram(LinearProgram):
    """A linear program in which the columns marked in `integrality` (n,) take whole numbers."""

    integrality: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "integrality", _mask(self.integrality, len(self.lower)))


def _mask(values: npt.ArrayLike, n: int) -> npt.NDArray[np.bool_]:
    mask = np.array(values, dtype=bool).reshape(-1)
    if mask.shape != (n,):
        raise ValueError(f"integrality: expected {n} marks. Got {mask.shape[0]}.")
    return mask


@dataclass(frozen=True, eq=False)
class QuadraticProgram:
    """Minimize `1/2 x' P x + q . x` over the same kind of region as `LinearProgram`; P is symmetric, convex.

    Shapes: P (n, n) dense or `Sparse` (both triangles), q (n,), A (m, n).

    Raises:
        ValueError: If shapes do not fit, a number is NaN, or P is not symmetric.

    """

    P: Array | Sparse
    q: Array
    A: Array | Sparse
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        n = np.size(self.q)
        _set_linear(self, n)
        object.__setattr__(self, "q", _vector(self.q, n, "q", finite=True))
        if isinstance(self.P, Sparse):
            if self.P.shape != (n, n):
                raise ValueError(f"P: expected shape {(n, n)}. Got {self.P.shape}.")
            return
        P = np.asarray(self.P, dtype=np.float64)
        if P.shape != (n, n) or not np.isfinite(P).all():
            raise ValueError(f"P: expected finite numbers of shape {(n, n)}. Got {P.shape}.")
        if not np.allclose(P, P.T, rtol=1e-9, atol=1e-12 * max(1.0, float(np.abs(P).max(initial=0.0)))):
            raise ValueError("P: expected a symmetric matrix. Got one that is not.")
        object.__setattr__(self, "P", P)

    @property
    def matrix(self) -> Sparse:
        """The rows as triplets."""
        return self.A if isinstance(self.A, Sparse) else Sparse.from_dense(self.A)

    @property
    def hessian(self) -> Sparse:
        """P as triplets."""
        return self.P if isinstance(self.P, Sparse) else Sparse.from_dense(self.P)

    @property
    def size(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.row_lower), len(self.lower)

    def value(self, x: Array) -> float:
        """Return 1/2 x' P x + q . x."""
        product = self.P.times(x) if isinstance(self.P, Sparse) else self.P @ x
        return float(0.5 * (x @ product) + self.q @ x)


@dataclass(frozen=True, eq=False)
class MixedIntegerQuadraticProgram(QuadraticProgram):
    """A quadratic program in which the columns marked in `integrality` (n,) take whole numbers."""

    integrality: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "integrality", _mask(self.integrality, len(self.lower)))


Problem = LinearProgram | MixedIntegerProgram | QuadraticProgram | MixedIntegerQuadraticProgram
