"""PIQP: convex quadratic programs by a proximal interior-point method, with its dense solver for dense problems."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import piqp
from scipy import sparse

from smle.solvers.problems import Matrix, QuadraticProgram
from smle.solvers.solution import Solution, Status

__all__ = ["solve"]

Array = npt.NDArray[np.float64]

_STATUS = MappingProxyType(
    {
        piqp.PIQP_SOLVED: Status.OPTIMAL,
        piqp.PIQP_MAX_ITER_REACHED: Status.LIMIT,
        piqp.PIQP_PRIMAL_INFEASIBLE: Status.INFEASIBLE,
        piqp.PIQP_DUAL_INFEASIBLE: Status.UNBOUNDED,
        piqp.PIQP_NUMERICS: Status.NUMERICAL,
        piqp.PIQP_UNSOLVED: Status.ERROR,
        piqp.PIQP_INVALID_SETTINGS: Status.ERROR,
    }
)
_TOLERANCE = 1e-9
_DENSE_LIMIT = 400
_DENSE_SHARE = 0.3


def solve(problem: QuadraticProgram, *, time_limit: float | None = None) -> Solution:
    """Solve a quadratic program. PIQP has only an iteration limit, so `time_limit` is ignored."""
    equal = problem.row_lower == problem.row_upper
    m, n = problem.size
    given = isinstance(problem.A, np.ndarray)
    dense = n <= _DENSE_LIMIT and (given or problem.A.nnz > _DENSE_SHARE * max(1, m * n))
    solver: Any = piqp.DenseSolver() if dense else piqp.SparseSolver()
    settings = solver.settings
    settings.eps_abs = settings.eps_rel = _TOLERANCE
    settings.eps_duality_gap_abs = settings.eps_duality_gap_rel = _TOLERANCE
    settings.max_iter = 500
    rows, hessian = (_dense(part) if dense else sparse.csc_matrix(part) for part in (problem.A, problem.P))
    sides = problem.row_lower[~equal], problem.row_upper[~equal]
    equations = rows[equal], problem.row_lower[equal]
    solver.setup(hessian, problem.q, *equations, rows[~equal], *sides, problem.lower, problem.upper)
    native = solver.solve()
    status, result = _STATUS.get(native, Status.ERROR), solver.result
    x = np.array(result.x)
    if status is not Status.OPTIMAL or not np.isfinite(x).all():
        failed = Status.NUMERICAL if status is Status.OPTIMAL else status
        return Solution(failed, message=f"PIQP: {native}", backend="piqp")
    duals = np.zeros(m)
    duals[equal] = -np.array(result.y)
    duals[~equal] = np.array(result.z_l) - np.array(result.z_u)
    return Solution(
        status,
        x=x,
        objective=float(result.info.primal_obj),
        row_duals=duals,
        column_duals=np.array(result.z_bl) - np.array(result.z_bu),
        message=f"PIQP: {native}",
        backend="piqp",
    )


def _dense(matrix: Matrix) -> Array:
    return np.asfortranarray(matrix.toarray() if sparse.issparse(matrix) else matrix)
