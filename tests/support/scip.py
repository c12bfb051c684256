"""SCIP for the paper's mixed-integer quadratic programs, which no solver of smle takes. Needs pyscipopt."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import MissingDependencyError
from smle.solvers import Solution, Status

Array = npt.NDArray[np.float64]

_STATUS = MappingProxyType(
    {
        "optimal": Status.OPTIMAL,
        "infeasible": Status.INFEASIBLE,
        "unbounded": Status.UNBOUNDED,
        "gaplimit": Status.LIMIT,
        "timelimit": Status.LIMIT,
        "memlimit": Status.LIMIT,
        "userinterrupt": Status.LIMIT,
    }
)
"""Everything else reads as ERROR."""


def solve_miqp(
    curvature: Array,
    q: Array,
    rows: tuple[Array, Array, Array],
    lower: Array,
    upper: Array,
    integrality: npt.NDArray[np.bool_],
    *,
    time_limit: float | None = None,
) -> Solution:
    """Minimize `1/2 sum_i curvature_i x_i^2 + q . x` over `rows` (A, least, greatest) and `lower <= x <= upper`.

    Columns marked in `integrality` take whole numbers. Sides may be infinite.

    Raises:
        MissingDependencyError: If pyscipopt is not installed.
    """
    try:
        import pyscipopt
    except ImportError as error:
        raise MissingDependencyError("SCIP is not installed. Install it with: pip install pyscipopt") from error
    model = pyscipopt.Model()
    model.hideOutput()
    model.setParam("limits/gap", 1e-9)
    model.setParam("numerics/feastol", 1e-7)
    if time_limit is not None:
        model.setParam("limits/time", float(time_limit))

    def finite(end: float) -> float | None:
        return float(end) if np.isfinite(end) else None

    x = [
        model.addVar(vtype="I" if whole else "C", lb=finite(low), ub=finite(high))
        for low, high, whole in zip(lower, upper, integrality, strict=True)
    ]
    for row, least, greatest in zip(*rows, strict=True):
        expression = pyscipopt.quicksum(float(row[i]) * x[i] for i in np.flatnonzero(row))
        if np.isfinite(greatest):
            model.addCons(expression <= float(greatest))
        if np.isfinite(least):
            model.addCons(expression >= float(least))
    # SCIP wants a linear objective: the quadratic part moves into a constraint.
    above = model.addVar(vtype="C", lb=None, ub=None)
    squares = (0.5 * float(c) * v * v for c, v in zip(curvature, x, strict=True) if c)
    model.addCons(pyscipopt.quicksum(squares) <= above)
    model.setObjective(above + pyscipopt.quicksum(float(c) * v for c, v in zip(q, x, strict=True) if c), "minimize")
    model.optimize()
    return _read(model, x)


def _read(model: Any, x: list[Any]) -> Solution:
    native = str(model.getStatus())
    status = _STATUS.get(native, Status.ERROR)
    message = f"SCIP: {native}"
    if not (status is Status.OPTIMAL or (status is Status.LIMIT and model.getNSols() > 0)):
        return Solution(status, message=message, backend="scip")
    point = np.array([model.getVal(v) for v in x], dtype=np.float64)
    return Solution(status, x=point, objective=float(model.getObjVal()), message=message, backend="scip")
