"""HiGHS: linear, mixed-integer linear and (active-set) convex quadratic programs.

HiGHS drops coefficients below 1e-9 and accepts points that violate rows by its tolerance (1e-9 here, by default 1e-7),
so its answers are never treated as proofs. Solving again with another objective starts from the last basis.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.solvers.problems import LinearProgram, Matrix, MixedIntegerProgram, QuadraticProgram
from smle.solvers.solution import Solution, Status, farkas_gap

__all__ = ["Session", "solve"]

Array = npt.NDArray[np.float64]

_MODEL = highspy.HighsModelStatus
_STATUS = MappingProxyType(
    {
        _MODEL.kOptimal: Status.OPTIMAL,
        _MODEL.kModelEmpty: Status.OPTIMAL,
        _MODEL.kInfeasible: Status.INFEASIBLE,
        _MODEL.kUnbounded: Status.UNBOUNDED,
        _MODEL.kTimeLimit: Status.LIMIT,
        _MODEL.kIterationLimit: Status.LIMIT,
        _MODEL.kSolutionLimit: Status.LIMIT,
        _MODEL.kMemoryLimit: Status.LIMIT,
        _MODEL.kObjectiveBound: Status.LIMIT,
        _MODEL.kObjectiveTarget: Status.LIMIT,
        _MODEL.kInterrupt: Status.LIMIT,
        _MODEL.kUnknown: Status.NUMERICAL,
    }
)
"""Any other status (load, model, presolve, solve, postsolve errors, not set, future codes) reads as ERROR."""

_TOLERANCE = 1e-9


def solve(
    problem: LinearProgram | MixedIntegerProgram | QuadraticProgram,
    *,
    time_limit: float | None = None,
    node_limit: int | None = None,
) -> Solution:
    """Solve a problem once."""
    return Session(problem, time_limit=time_limit, node_limit=node_limit).solve()


class Session:
    """A problem loaded into one `highspy.Highs` instance, which can be solved again."""

    def __init__(
        self,
        problem: LinearProgram | MixedIntegerProgram | QuadraticProgram,
        *,
        time_limit: float | None = None,
        node_limit: int | None = None,
    ) -> None:
        self._problem = problem
        highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs = highs
        options: dict[str, float | int | bool] = {
            "output_flag": False,
            "threads": 1,
            "primal_feasibility_tolerance": _TOLERANCE,
            "dual_feasibility_tolerance": _TOLERANCE,
            "mip_feasibility_tolerance": _TOLERANCE,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": 1e-9,
        }
        if time_limit is not None:
            options["time_limit"] = float(time_limit)
        if node_limit is not None:
            options["mip_max_nodes"] = node_limit
        for name, value in options.items():
            highs.setOptionValue(name, value)
        self._loaded = highs.passModel(_model(problem))

    def solve(self, objective: Array | None = None) -> Solution:
        """Run HiGHS from the last basis, with another linear objective if given."""
        highs = self._highs
        if self._loaded == highspy.HighsStatus.kError:
            return Solution(Status.ERROR, message="HiGHS refused the model", backend="highs")
        if objective is not None:
            n = len(objective)
            highs.changeColsCost(n, np.arange(n, dtype=np.int32), np.asarray(objective, dtype=np.float64))
        returned = highs.run()
        native = highs.getModelStatus()
        if native == _MODEL.kUnboundedOrInfeasible:
            highs.setOptionValue("presolve", "off")
            returned = highs.run()
            native = highs.getModelStatus()
            highs.setOptionValue("presolve", "choose")
        message = f"HiGHS: {highs.modelStatusToString(native)}"
        if returned == highspy.HighsStatus.kError:
            return Solution(Status.ERROR, message=f"{message} (run returned an error)", backend="highs")
        return self._read(_STATUS.get(native, Status.ERROR), message)

    def _read(self, status: Status, message: str) -> Solution:
        highs, integer = self._highs, isinstance(self._problem, MixedIntegerProgram)
        found = highs.getSolution()
        feasible = highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        x = objective = rows = columns = None
        if status is Status.OPTIMAL or (status is Status.LIMIT and feasible):
            x = np.array(found.col_value, dtype=np.float64)
            if x.shape != (self._problem.size[1],) or not np.isfinite(x).all():
                return Solution(Status.ERROR, message=f"{message} (no finite point)", backend="highs")
            objective = float(highs.getInfo().objective_function_value)
        if status is Status.OPTIMAL and not integer and found.dual_valid:
            rows, columns = np.array(found.row_dual), np.array(found.col_dual)
        farkas = self._farkas() if status is Status.INFEASIBLE and not integer else None
        return Solution(
            status,
            x=x,
            objective=float("nan") if objective is None else objective,
            row_duals=rows,
            column_duals=columns,
            farkas=farkas,
            message=message,
            backend="highs",
        )

    def _farkas(self) -> Array | None:
        problem = self._problem
        if not isinstance(problem, LinearProgram):
            return None
        _, exists, ray = self._highs.getDualRay()
        if not exists:
            # Presolve found the infeasibility without a basis: solve again without presolve.
            self._highs.setOptionValue("presolve", "off")
            self._highs.clearSolver()
            self._highs.run()
            _, exists, ray = self._highs.getDualRay()
            self._highs.setOptionValue("presolve", "choose")
        if not exists:
            return None
        candidates = [np.array(ray, dtype=np.float64), -np.array(ray, dtype=np.float64)]
        best = max(candidates, key=lambda y: farkas_gap(problem, y))
        return best if farkas_gap(problem, best) > 0 else None


def _model(problem: LinearProgram | MixedIntegerProgram | QuadraticProgram) -> highspy.HighsModel:
    model = highspy.HighsModel()
    lp = model.lp_
    m, n = problem.size
    lp.num_col_, lp.num_row_ = n, m
    lp.col_cost_ = problem.q if isinstance(problem, QuadraticProgram) else problem.objective
    lp.col_lower_, lp.col_upper_ = problem.lower, problem.upper
    lp.row_lower_, lp.row_upper_ = problem.row_lower, problem.row_upper
    starts, indices, values = _by_rows(problem.A)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, indices, values
    if isinstance(problem, MixedIntegerProgram):
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(mark)] for mark in problem.integrality]
    if isinstance(problem, QuadraticProgram):
        model.hessian_.dim_ = n
        model.hessian_.format_ = highspy.HessianFormat.kTriangular
        # HiGHS wants the lower triangle by columns, which for a symmetric P is the upper one by rows.
        starts, indices, values = _by_rows(sparse.triu(problem.P).tocsr())
        model.hessian_.start_, model.hessian_.index_, model.hessian_.value_ = starts, indices, values
    return model


def _by_rows(matrix: Matrix) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Array]:
    """Return (starts, columns, values) of the nonzero entries, row by row."""
    if sparse.issparse(matrix):
        return matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data
    rows, columns = np.nonzero(matrix)
    starts = np.zeros(len(matrix) + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows, minlength=len(matrix)), out=starts[1:])
    return starts, columns.astype(np.int32), matrix[rows, columns]
