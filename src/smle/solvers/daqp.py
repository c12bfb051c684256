"""DAQP: small dense quadratic programs by a dual active-set method, with binaries by branch and bound.

Its Hessian must be positive definite; where it is only semidefinite DAQP adds proximal iterations. Binary columns
must have bounds 0 and 1. Time limits are not offered. Each solve starts afresh.
"""

from __future__ import annotations

from ctypes import c_int
from types import MappingProxyType
from typing import Any

import daqp
import numpy as np
import numpy.typing as npt

from smle.solvers.conversion import dense_columns
from smle.solvers.problems import MixedIntegerQuadraticProgram, QuadraticProgram
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["Adaptor"]

Array = npt.NDArray[np.float64]

_STATUS = MappingProxyType(
    {
        1: Status.OPTIMAL,
        2: Status.INFEASIBLE,  # a soft constraint gave way; none of ours is soft
        -1: Status.INFEASIBLE,
        -2: Status.NUMERICAL,
        -3: Status.UNBOUNDED,
        -4: Status.LIMIT,
        -5: Status.ERROR,
        -6: Status.ERROR,
    }
)
_EQUALITY, _BINARY = 5, 16
_INFINITE = 1e30


class Adaptor(Session):
    """A quadratic program, perhaps with binary columns, in DAQP's form."""

    def __init__(self, problem: QuadraticProgram, *, time_limit: float | None = None) -> None:
        self._problem, self._q = problem, problem.q
        self._H = np.array(dense_columns(problem.P), order="C")
        self._shift = np.zeros(len(problem.q))
        self._A = np.ascontiguousarray(dense_columns(problem.A))
        upper = np.concatenate([problem.upper, problem.row_upper])
        lower = np.concatenate([problem.lower, problem.row_lower])
        self._upper = np.clip(upper, -_INFINITE, _INFINITE)
        self._lower = np.clip(lower, -_INFINITE, _INFINITE)
        sense = np.where(lower == upper, _EQUALITY, 0)
        if isinstance(problem, MixedIntegerQuadraticProgram):
            marked = np.flatnonzero(problem.integrality)
            if not ((problem.lower[marked] == 0) & (problem.upper[marked] == 1)).all():
                raise ValueError("DAQP: expected binary columns with bounds 0 and 1. Got other integers.")
            sense[marked] = _BINARY
            # b * b = b for binaries: curvature that costs nothing makes the Hessian definite.
            curvature = max(1.0, float(np.abs(np.diag(self._H)).max(initial=0.0)))
            self._H[marked, marked] += curvature
            self._shift[marked] = -0.5 * curvature
        self._sense = sense.astype(c_int)

    def solve(self, objective: Array | None = None) -> Solution:
        """Run DAQP, with another linear objective if given."""
        if objective is not None:
            self._q = np.asarray(objective, dtype=np.float64)
        x, value, flag, info = daqp.solve(
            self._H, self._q + self._shift, self._A, self._upper, self._lower, self._sense, primal_tol=1e-10
        )
        status = _STATUS.get(int(flag), Status.ERROR)
        message = f"DAQP: exit flag {flag}"
        point = np.array(x)
        if status is not Status.OPTIMAL or not np.isfinite(point).all():
            failed = Status.NUMERICAL if status is Status.OPTIMAL else status
            return Solution(failed, message=message, backend="daqp")
        rows: Any = None
        columns: Any = None
        if not isinstance(self._problem, MixedIntegerQuadraticProgram):
            duals, n = -np.array(info["lam"]), self._problem.size[1]
            rows, columns = duals[n:], duals[:n]
        return Solution(
            status,
            x=point,
            objective=float(value),
            row_duals=rows,
            column_duals=columns,
            message=message,
            backend="daqp",
        )
