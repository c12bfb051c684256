"""OSQP: convex quadratic programs by operator splitting, polished. Solving again reuses the factorization."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import osqp

from smle.solvers.conversion import scipy_columns
from smle.solvers.problems import QuadraticProgram
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["Adaptor"]

Array = npt.NDArray[np.float64]

_NATIVE = osqp.SolverStatus
_STATUS = MappingProxyType(
    {
        int(_NATIVE.OSQP_SOLVED): Status.OPTIMAL,
        int(_NATIVE.OSQP_SOLVED_INACCURATE): Status.NUMERICAL,
        int(_NATIVE.OSQP_PRIMAL_INFEASIBLE): Status.INFEASIBLE,
        int(_NATIVE.OSQP_PRIMAL_INFEASIBLE_INACCURATE): Status.NUMERICAL,
        int(_NATIVE.OSQP_DUAL_INFEASIBLE): Status.UNBOUNDED,
        int(_NATIVE.OSQP_DUAL_INFEASIBLE_INACCURATE): Status.NUMERICAL,
        int(_NATIVE.OSQP_MAX_ITER_REACHED): Status.LIMIT,
        int(_NATIVE.OSQP_TIME_LIMIT_REACHED): Status.LIMIT,
        int(_NATIVE.OSQP_SIGINT): Status.LIMIT,
        int(_NATIVE.OSQP_NON_CVX): Status.ERROR,
        int(_NATIVE.OSQP_UNSOLVED): Status.ERROR,
    }
)


class Adaptor(Session):
    """A quadratic program loaded into one OSQP solver; bounds become rows."""

    def __init__(self, problem: QuadraticProgram, *, time_limit: float | None = None) -> None:
        from scipy import sparse

        self._problem = problem
        n = problem.size[1]
        bounded = np.isfinite(problem.lower) | np.isfinite(problem.upper)
        self._bounded = bounded
        eye = sparse.identity(n, format="csr")[bounded]
        settings: dict[str, Any] = {
            "verbose": False,
            "eps_abs": 1e-9,
            "eps_rel": 1e-9,
            "max_iter": 20_000,
            "polishing": True,
        }
        if time_limit is not None:
            settings["time_limit"] = float(time_limit)
        self._solver = osqp.OSQP()
        self._solver.setup(
            sparse.triu(scipy_columns(problem.P)).tocsc(),
            problem.q,
            sparse.vstack([scipy_columns(problem.A), eye]).tocsc(),
            np.concatenate([problem.row_lower, problem.lower[bounded]]),
            np.concatenate([problem.row_upper, problem.upper[bounded]]),
            **settings,
        )

    def solve(self, objective: Array | None = None) -> Solution:
        """Run OSQP from the last point, with another linear objective if given."""
        if objective is not None:
            self._solver.update(q=np.asarray(objective, dtype=np.float64))
        found = self._solver.solve(raise_error=False)
        status = _STATUS.get(int(found.info.status_val), Status.ERROR)
        message = f"OSQP: {found.info.status}"
        x = np.array(found.x, dtype=np.float64)
        if status is not Status.OPTIMAL or not np.isfinite(x).all():
            failed = Status.NUMERICAL if status is Status.OPTIMAL else status
            return Solution(failed, message=message, backend="osqp")
        m, n = self._problem.size
        columns = np.zeros(n)
        columns[self._bounded] = -np.array(found.y[m:])
        return Solution(
            status,
            x=x,
            objective=float(found.info.obj_val),
            row_duals=-np.array(found.y[:m]),
            column_duals=columns,
            message=message,
            backend="osqp",
        )
