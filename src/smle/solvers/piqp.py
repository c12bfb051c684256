"""PIQP: convex quadratic programs by a proximal interior-point method.

Dense problems use the dense solver. Solving again with another objective keeps the scaling and the symbolic
factorization.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import piqp
from scipy import sparse

from smle.solvers.problems import Matrix, QuadraticProgram
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["Adaptor"]

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


class Adaptor(Session):
    """A quadratic program loaded into one PIQP solver."""

    def __init__(self, problem: QuadraticProgram, *, time_limit: float | None = None) -> None:
        self._problem = problem
        self._equal = problem.row_lower == problem.row_upper
        m, n = problem.size
        given = isinstance(problem.A, np.ndarray)
        dense = n <= _DENSE_LIMIT and (given or problem.A.nnz > _DENSE_SHARE * max(1, m * n))
        self._solver: Any = piqp.DenseSolver() if dense else piqp.SparseSolver()
        settings = self._solver.settings
        settings.eps_abs = settings.eps_rel = _TOLERANCE
        settings.eps_duality_gap_abs = settings.eps_duality_gap_rel = _TOLERANCE
        settings.max_iter = 500
        rows, hessian = (_dense(part) if dense else sparse.csc_matrix(part) for part in (problem.A, problem.P))
        self._solver.setup(
            hessian,
            problem.q,
            rows[self._equal],
            problem.row_lower[self._equal],
            rows[~self._equal],
            problem.row_lower[~self._equal],
            problem.row_upper[~self._equal],
            problem.lower,
            problem.upper,
        )

    def solve(self, objective: Array | None = None) -> Solution:
        """Run PIQP, with another linear objective if given."""
        if objective is not None:
            self._solver.update(c=np.asarray(objective, dtype=np.float64))
        native = self._solver.solve()
        status = _STATUS.get(native, Status.ERROR)
        message = f"PIQP: {native}"
        result = self._solver.result
        x = np.array(result.x)
        if status is not Status.OPTIMAL or not np.isfinite(x).all():
            failed = Status.NUMERICAL if status is Status.OPTIMAL else status
            return Solution(failed, message=message, backend="piqp")
        duals = np.zeros(len(self._equal))
        duals[self._equal] = -np.array(result.y)
        duals[~self._equal] = np.array(result.z_l) - np.array(result.z_u)
        return Solution(
            status,
            x=x,
            objective=float(result.info.primal_obj),
            row_duals=duals,
            column_duals=np.array(result.z_bl) - np.array(result.z_bu),
            message=message,
            backend="piqp",
        )


def _dense(matrix: Matrix) -> Array:
    """Return a dense matrix in column-major order."""
    return np.asfortranarray(matrix.toarray() if sparse.issparse(matrix) else matrix)
