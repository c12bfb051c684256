"""The paper's counterexample problems as printed, for scipy's own MILP solver: nothing of smle's mathematics is used.

Columns x, z, y and one binary B_i per unit for the clip max(l, min(u, z)), whose values are [l, max(l, u)]:

    z >= l(x),    z <= u(x) + M B,    z <= l(x) + M (1 - B),    l(x) - u(x) >= -M (1 - B),    u(x) - l(x) >= -M B.

B = 1 is the degenerate case l >= u, where z = l. All is over real numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

Array = np.ndarray


@dataclass
class Problem:
    """What a counterexample is looked for in.

    Shapes: low, high (d,); Q x <= q; lower, upper (n,), lower_slope, upper_slope (n, d); W (m, n), b (m,).
    """

    low: Array
    high: Array
    Q: Array
    q: Array
    lower: Array
    upper: Array
    lower_slope: Array
    upper_slope: Array
    W: Array
    b: Array
    columns: list[tuple[float, float, int]] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        d, (m, n) = len(self.low), self.W.shape
        self.x = [self.column(a, b) for a, b in zip(self.low, self.high, strict=True)]
        for row, right in zip(self.Q, self.q, strict=True):
            self.row(dict(zip(self.x, row, strict=True)), -np.inf, right)
        reach = np.maximum(np.abs(self.low), np.abs(self.high))
        size = (
            np.maximum(
                np.abs(self.lower) + np.abs(self.lower_slope) @ reach,
                np.abs(self.upper) + np.abs(self.upper_slope) @ reach,
            )
            + 1.0
        )
        self.z = [self.column(-s, s) for s in size]
        self.y_size = np.abs(self.W) @ size + np.abs(self.b) + 1.0
        for i in range(n):
            big, B = 2 * float(size[i]) + 1.0, self.column(0, 1, 1)
            lower = {self.x[k]: float(self.lower_slope[i, k]) for k in range(d)}
            upper = {self.x[k]: float(self.upper_slope[i, k]) for k in range(d)}
            gap = {k: upper[k] - lower[k] for k in upper}
            turned_lower, turned_upper = ({k: -v for k, v in side.items()} for side in (lower, upper))
            self.row({self.z[i]: 1.0, **turned_lower}, self.lower[i], np.inf)
            self.row({self.z[i]: 1.0, **turned_upper, B: -big}, -np.inf, self.upper[i])
            self.row({self.z[i]: 1.0, **turned_lower, B: big}, -np.inf, self.lower[i] + big)
            between = float(self.upper[i] - self.lower[i])
            self.row({**gap, B: big}, -np.inf, big - between)  # B = 1: u <= l
            self.row({**gap, B: big}, -between, np.inf)  # B = 0: u >= l
        self.y = [self.column(-s, s) for s in self.y_size]
        for j in range(m):
            form = {self.y[j]: 1.0} | {self.z[i]: -float(self.W[j, i]) for i in range(n)}
            self.row(form, self.b[j], self.b[j])

    def column(self, low: float, high: float, whole: int = 0) -> int:
        self.columns.append((float(low), float(high), whole))
        return len(self.columns) - 1

    def row(self, form: dict[int, float], low: float, high: float) -> None:
        self.rows.append((form, float(low), float(high)))

    def solved(self, objective: dict[int, float]) -> tuple[float, Array, Array]:
        """Maximize; return the optimum, x and z."""
        cost, matrix = np.zeros(len(self.columns)), np.zeros((len(self.rows), len(self.columns)))
        for column, value in objective.items():
            cost[column] = -value
        for r, (form, _, _) in enumerate(self.rows):
            for column, value in form.items():
                matrix[r, column] += value
        low, high, whole = (np.array(part) for part in zip(*self.columns, strict=True))
        sides = np.array([row[1:] for row in self.rows])
        for presolve in (True, False):  # HiGHS ends some with a solve error behind its presolve
            found = milp(
                cost, constraints=LinearConstraint(matrix, sides[:, 0], sides[:, 1]), bounds=Bounds(low, high),
                integrality=whole, options={"mip_rel_gap": 0.0, "presolve": presolve},
            )  # fmt: skip
            if found.status == 0:
                break
        assert found.status == 0, found.message
        return -float(found.fun), found.x[self.x], found.x[self.z]


def strongest_linear(problem: Problem, R: Array, r: Array) -> tuple[float, Array, Array]:
    """Maximize sum_k max(0, R_k y - r_k): equation polytopes_counter."""
    objective = {}
    for row, right in zip(R, r, strict=True):
        big = float(np.abs(row) @ problem.y_size + abs(right)) + 1.0
        part, counts = problem.column(0, big), problem.column(0, 1, 1)
        form = {y: -float(v) for y, v in zip(problem.y, row, strict=True)}
        problem.row({part: 1.0, **form, counts: big}, -np.inf, big - right)
        problem.row({part: 1.0, counts: -big}, -np.inf, 0.0)
        objective[part] = 1.0
    return problem.solved(objective)


def strongest_pair(problem: Problem, pairs: Array) -> tuple[float, Array, Array]:
    """Maximize I_hk min(y_h, y_k), one pair chosen: equation mutex_counter."""
    big = 2 * float(problem.y_size.max()) + 1.0
    t = problem.column(-big, big)
    chosen = [problem.column(0, 1, 1) for _ in pairs]
    problem.row(dict.fromkeys(chosen, 1.0), 1.0, 1.0)
    for (h, k), one in zip(pairs.tolist(), chosen, strict=True):
        for label in (h, k):
            problem.row({t: 1.0, problem.y[label]: -1.0, one: big}, -np.inf, big)
    return problem.solved({t: 1.0})
