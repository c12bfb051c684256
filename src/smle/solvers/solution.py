"""The answer of a solver: a status with its meaning and remedy, and its numbers.

Solvers work in floating point with tolerances: an answer is evidence, never a proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from smle.solvers.problems import LinearProgram

__all__ = ["Solution", "Status"]

Array = npt.NDArray[np.float64]


class Status(Enum):
    """How a solve ended. Every native status maps to one of these; unknown ones map to ERROR."""

    OPTIMAL = ("an optimum within the solver's tolerances", "")
    INFEASIBLE = ("the solver says that no point satisfies the constraints", "Relax a constraint.")
    UNBOUNDED = ("the solver says that the objective is unbounded", "Bound the variables.")
    LIMIT = ("a time, iteration or memory limit was reached", "Raise the limit or shrink the problem.")
    NUMERICAL = ("the solver ran into numerical trouble", "Rescale the problem or try another back-end.")
    ERROR = ("the solver failed or said something unknown", "See the message; try another back-end.")

    def __init__(self, message: str, remedy: str) -> None:
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.name}: {self.message}." + (f" {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, eq=False)
class Solution:
    """The outcome of `solve`.

    * `x`: the point, or None. With LIMIT it may be the best point so far.
    * `objective`: its objective value (NaN without a point).
    * `row_duals` (m,): derivative of the optimum with respect to the active side of each row (>= 0 at a
      lower side, <= 0 at an upper side when minimizing); `column_duals` (n,) likewise for the bounds.
      None where the back-end gives none (mixed-integer problems).
    * `farkas` (m,): for an infeasible LP, a ray y with
      max over the column box of (A'y).x < min over the row sides of y.r, in floats; or None.
    """

    status: Status
    x: Array | None = None
    objective: float = float("nan")
    row_duals: Array | None = None
    column_duals: Array | None = None
    farkas: Array | None = None
    message: str = ""
    backend: str = ""

    def __bool__(self) -> bool:
        raise TypeError("A solution has no truth value; compare its status, for example with Status.OPTIMAL.")


def farkas_gap(problem: LinearProgram, ray: Array) -> float:
    """Return min over row sides of y.r minus max over the box of (A'y).x: positive proves infeasibility.

    The value is computed in floats; rays with an infinite part give -inf.
    """
    direction = problem.A.T @ ray
    side = np.where(ray > 0, problem.row_lower, problem.row_upper)
    corner = np.where(direction > 0, problem.upper, problem.lower)
    used, moved = ray != 0, direction != 0
    if not (np.isfinite(side[used]).all() and np.isfinite(corner[moved]).all()):
        return -np.inf
    return float(ray[used] @ side[used] - direction[moved] @ corner[moved])
