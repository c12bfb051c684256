"""Gurobi, optional and never needed: all four kinds of problems through the same door.

Not tested in this repository (it needs a license).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import gurobipy
import numpy as np
import numpy.typing as npt

from smle.solvers.conversion import scipy_columns
from smle.solvers.problems import MixedIntegerProgram, MixedIntegerQuadraticProgram, Problem, QuadraticProgram
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["Adaptor"]

Array = npt.NDArray[np.float64]

_GRB = gurobipy.GRB
_STATUS = MappingProxyType(
    {
        _GRB.OPTIMAL: Status.OPTIMAL,
        _GRB.INFEASIBLE: Status.INFEASIBLE,
        _GRB.UNBOUNDED: Status.UNBOUNDED,
        _GRB.CUTOFF: Status.LIMIT,
        _GRB.ITERATION_LIMIT: Status.LIMIT,
        _GRB.NODE_LIMIT: Status.LIMIT,
        _GRB.TIME_LIMIT: Status.LIMIT,
        _GRB.SOLUTION_LIMIT: Status.LIMIT,
        _GRB.INTERRUPTED: Status.LIMIT,
        _GRB.USER_OBJ_LIMIT: Status.LIMIT,
        _GRB.NUMERIC: Status.NUMERICAL,
        _GRB.SUBOPTIMAL: Status.NUMERICAL,
    }
)
"""Everything else (INF_OR_UNBD, LOADED, INPROGRESS, future codes) reads as ERROR."""


class Adaptor(Session):
    """A problem loaded into one Gurobi model; solving again starts from its last basis."""

    def __init__(self, problem: Problem, *, time_limit: float | None = None) -> None:
        self._problem = problem
        n = problem.size[1]
        model: Any = gurobipy.Model()
        model.Params.OutputFlag = 0
        model.Params.Threads = 1
        model.Params.FeasibilityTol = 1e-9
        model.Params.OptimalityTol = 1e-9
        model.Params.MIPGap = 0.0
        model.Params.DualReductions = 0
        if time_limit is not None:
            model.Params.TimeLimit = float(time_limit)
        kinds = np.full(n, _GRB.CONTINUOUS)
        if isinstance(problem, MixedIntegerProgram | MixedIntegerQuadraticProgram):
            kinds[problem.integrality] = _GRB.INTEGER
        self._x = model.addMVar(n, lb=problem.lower, ub=problem.upper, vtype=kinds)
        matrix = scipy_columns(problem.A).tocsr()
        self._rows = []
        for sides, sense in ((problem.row_upper, "<"), (problem.row_lower, ">")):
            used = np.flatnonzero(np.isfinite(sides))
            rows = model.addMConstr(matrix[used], self._x, sense, sides[used]) if len(used) else None
            self._rows.append((used, rows))
        self._model = model
        self._linear: Array = problem.q if isinstance(problem, QuadraticProgram) else problem.objective

    def solve(self, objective: Array | None = None) -> Solution:
        """Run Gurobi, with another linear objective if given."""
        if objective is not None:
            self._linear = np.asarray(objective, dtype=np.float64)
        cost = self._linear @ self._x
        if isinstance(self._problem, QuadraticProgram):
            cost = cost + 0.5 * (self._x @ scipy_columns(self._problem.P) @ self._x)
        self._model.setObjective(cost, _GRB.MINIMIZE)
        self._model.optimize()
        status = _STATUS.get(self._model.Status, Status.ERROR)
        message = f"Gurobi: status {self._model.Status}"
        if status is not Status.OPTIMAL and not (status is Status.LIMIT and self._model.SolCount):
            return Solution(status, message=message, backend="gurobi")
        duals = None
        if not isinstance(self._problem, MixedIntegerProgram | MixedIntegerQuadraticProgram):
            duals = np.zeros(self._problem.size[0])
            for used, rows in self._rows:
                if rows is not None:
                    duals[used] += rows.Pi
        return Solution(
            status,
            x=np.array(self._x.X),
            objective=float(self._model.ObjVal),
            row_duals=duals,
            message=message,
            backend="gurobi",
        )
