"""SCIP: mixed-integer linear and convex quadratic programs, for the paper's own formulations. Starts afresh."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyscipopt

from smle.solvers.problems import MixedIntegerProgram, MixedIntegerQuadraticProgram, Sparse
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["Adaptor"]

Array = npt.NDArray[np.float64]

_STATUS = MappingProxyType(
    {
        "optimal": Status.OPTIMAL,
        "gaplimit": Status.LIMIT,
        "infeasible": Status.INFEASIBLE,
        "unbounded": Status.UNBOUNDED,
        "timelimit": Status.LIMIT,
        "nodelimit": Status.LIMIT,
        "totalnodelimit": Status.LIMIT,
        "stallnodelimit": Status.LIMIT,
        "memlimit": Status.LIMIT,
        "sollimit": Status.LIMIT,
        "bestsollimit": Status.LIMIT,
        "restartlimit": Status.LIMIT,
        "primallimit": Status.LIMIT,
        "duallimit": Status.LIMIT,
        "userinterrupt": Status.LIMIT,
    }
)
"""Everything else ("inforunbd", "terminate", "unknown", future words) reads as ERROR."""


class Adaptor(Session):
    """A mixed-integer problem, written down anew for each solve."""

    def __init__(
        self, problem: MixedIntegerProgram | MixedIntegerQuadraticProgram, *, time_limit: float | None = None
    ) -> None:
        self._problem, self._time_limit = problem, time_limit
        quadratic = isinstance(problem, MixedIntegerQuadraticProgram)
        self._linear: Array = problem.q if quadratic else problem.objective  # type: ignore[union-attr]

    def solve(self, objective: Array | None = None) -> Solution:
        """Run SCIP, with another linear objective if given."""
        if objective is not None:
            self._linear = np.asarray(objective, dtype=np.float64)
        problem, model = self._problem, pyscipopt.Model()
        model.hideOutput()
        model.setParam("limits/gap", 1e-9)
        model.setParam("numerics/feastol", 1e-7)
        if self._time_limit is not None:
            model.setParam("limits/time", float(self._time_limit))
        x = [
            model.addVar(
                vtype="I" if problem.integrality[i] else "C",
                lb=float(problem.lower[i]) if np.isfinite(problem.lower[i]) else None,
                ub=float(problem.upper[i]) if np.isfinite(problem.upper[i]) else None,
            )
            for i in range(problem.size[1])
        ]
        self._add_rows(model, x)
        cost = pyscipopt.quicksum(float(c) * v for c, v in zip(self._linear, x, strict=True) if c)
        if isinstance(problem, MixedIntegerQuadraticProgram):
            # SCIP wants a linear objective: the quadratic part moves into a constraint.
            above = model.addVar(vtype="C", lb=None, ub=None)
            model.addCons(_quadratic(problem.hessian, x) <= above)
            cost = cost + above
        model.setObjective(cost, "minimize")
        model.optimize()
        return self._read(model, x)

    def _add_rows(self, model: Any, x: list[Any]) -> None:
        problem = self._problem
        starts, columns, values = problem.matrix.compressed(by_column=False)
        for r in range(problem.size[0]):
            part = slice(starts[r], starts[r + 1])
            terms = zip(values[part], columns[part], strict=True)
            expression = pyscipopt.quicksum(float(v) * x[c] for v, c in terms)
            low, high = float(problem.row_lower[r]), float(problem.row_upper[r])
            if low == high:
                model.addCons(expression == low)
                continue
            if np.isfinite(high):
                model.addCons(expression <= high)
            if np.isfinite(low):
                model.addCons(expression >= low)

    def _read(self, model: Any, x: list[Any]) -> Solution:
        native = str(model.getStatus())
        status = _STATUS.get(native, Status.ERROR)
        message = f"SCIP: {native}"
        usable = status is Status.OPTIMAL or (status is Status.LIMIT and model.getNSols() > 0)
        if not usable:
            return Solution(status, message=message, backend="scip")
        point = np.array([model.getVal(v) for v in x], dtype=np.float64)
        return Solution(status, x=point, objective=float(model.getObjVal()), message=message, backend="scip")


def _quadratic(hessian: Sparse, x: list[Any]) -> Any:
    terms = zip(hessian.rows, hessian.columns, hessian.values, strict=True)
    return pyscipopt.quicksum(0.5 * float(v) * x[i] * x[j] for i, j, v in terms if v)
