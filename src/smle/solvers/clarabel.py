"""Clarabel: convex quadratic programs by a homogeneous interior-point method. Each solve starts afresh."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import clarabel
import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.solvers.problems import QuadraticProgram
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["Adaptor"]

Array = npt.NDArray[np.float64]

_NATIVE = clarabel.SolverStatus
_STATUS = MappingProxyType(
    {
        str(_NATIVE.Solved): Status.OPTIMAL,
        str(_NATIVE.AlmostSolved): Status.NUMERICAL,
        str(_NATIVE.PrimalInfeasible): Status.INFEASIBLE,
        str(_NATIVE.AlmostPrimalInfeasible): Status.NUMERICAL,
        str(_NATIVE.DualInfeasible): Status.UNBOUNDED,
        str(_NATIVE.AlmostDualInfeasible): Status.NUMERICAL,
        str(_NATIVE.MaxIterations): Status.LIMIT,
        str(_NATIVE.MaxTime): Status.LIMIT,
        str(_NATIVE.CallbackTerminated): Status.LIMIT,
        str(_NATIVE.NumericalError): Status.NUMERICAL,
        str(_NATIVE.InsufficientProgress): Status.NUMERICAL,
        str(_NATIVE.Unsolved): Status.ERROR,
    }
)


class Adaptor(Session):
    """A quadratic program in Clarabel's form: A x + s = b with s in a product of cones."""

    def __init__(self, problem: QuadraticProgram, *, time_limit: float | None = None) -> None:
        self._problem, self._q = problem, problem.q
        n = problem.size[1]
        rows, eye = sparse.csr_matrix(problem.A), sparse.identity(n, format="csr")
        equal = problem.row_lower == problem.row_upper
        self._parts = [
            (equal, 1.0, rows, problem.row_upper),
            (~equal & np.isfinite(problem.row_upper), 1.0, rows, problem.row_upper),
            (~equal & np.isfinite(problem.row_lower), -1.0, rows, problem.row_lower),
            (np.isfinite(problem.upper), 1.0, eye, problem.upper),
            (np.isfinite(problem.lower), -1.0, eye, problem.lower),
        ]
        stacked = [sign * matrix[mask] for mask, sign, matrix, _ in self._parts]
        self._A = sparse.vstack(stacked).tocsc() if stacked else sparse.csc_matrix((0, n))
        self._b = np.concatenate([sign * side[mask] for mask, sign, _, side in self._parts])
        count = int(equal.sum())
        self._cones: list[Any] = [clarabel.ZeroConeT(count)] if count else []
        if len(self._b) > count:
            self._cones.append(clarabel.NonnegativeConeT(len(self._b) - count))
        self._P = sparse.triu(problem.P).tocsc()
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_threads = 1
        settings.tol_feas = settings.tol_gap_abs = settings.tol_gap_rel = 1e-9
        if time_limit is not None:
            settings.time_limit = float(time_limit)
        self._settings = settings

    def solve(self, objective: Array | None = None) -> Solution:
        """Run Clarabel, with another linear objective if given."""
        if objective is not None:
            self._q = np.asarray(objective, dtype=np.float64)
        solver = clarabel.DefaultSolver(self._P, self._q, self._A, self._b, self._cones, self._settings)
        found = solver.solve()
        status = _STATUS.get(str(found.status), Status.ERROR)
        message = f"Clarabel: {found.status}"
        x = np.array(found.x)
        if status is not Status.OPTIMAL or not np.isfinite(x).all():
            failed = Status.NUMERICAL if status is Status.OPTIMAL else status
            return Solution(failed, message=message, backend="clarabel")
        rows, columns = np.zeros(self._problem.size[0]), np.zeros(self._problem.size[1])
        z, start = np.array(found.z), 0
        for part, (mask, sign, _, _) in enumerate(self._parts):
            target = rows if part < 3 else columns
            count = int(mask.sum())
            target[mask] -= sign * z[start : start + count]
            start += count
        return Solution(
            status,
            x=x,
            objective=float(found.obj_val),
            row_duals=rows,
            column_duals=columns,
            message=message,
            backend="clarabel",
        )
