"""The paper's mixed-integer programs, and what a head can reach as one: references for what smle decides faster.

Columns for x, z and y = W z + V x + b. Constant bounds are column bounds. Free affine bounds need one binary per unit
where the sign of u - l is open (the clip gives l where l > u):

    z >= l(x),    z <= u(x) + M B,    z <= l(x) + M (1 - B).

Networks need one binary per ReLU whose sign is open.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.heads.box.algorithms.counterexample import Counterexample, Search, counterexample_at
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import (
    Memory,
    memory_clauses,
    memory_features,
    memory_projection,
    strongest_counterexample,
)
from smle.heads.box.proof.frozen_heads import Bounds, Head, Layer
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox
from smle.regions.geometry import Domain, Region
from smle.rules import Literals
from smle.solvers import MixedIntegerProgram, Solution, Status, solve

from .scip import solve_miqp

__all__ = [
    "ReachModel",
    "exclusion_counterexample_milp",
    "exclusion_sum_ascent",
    "exclusion_sum_milp",
    "label_search",
    "linear_counterexample_milp",
    "memory_projection_miqp",
    "plain_envelope",
    "scaled_projection",
    "worst_clause_milp",
]

Array = npt.NDArray[np.float64]
Columns = npt.NDArray[np.intp]
Pairs = npt.NDArray[np.int32]


def plain_envelope(bounds: Bounds, domain: Domain) -> WidenedBox:
    """Return the box as stated, over real numbers: no rounding, and l <= u is expected."""
    lower, upper = bounds.lower.astype(np.float64), bounds.upper.astype(np.float64)
    slopes = bounds.slopes
    if slopes is None:
        return WidenedBox(lower, upper, None, None, np.maximum(np.abs(lower), np.abs(upper)))
    sizes = np.maximum(upper + domain.over(slopes[1]), -lower + domain.over(-slopes[0]))
    return WidenedBox(lower, upper, *slopes, sizes)


def _interval(slope: Array, offset: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the least and the greatest value of slope.v + offset over a box. Shapes: slope (k, d) -> (k,), (k,)."""
    positive, negative = np.maximum(slope, 0.0), np.minimum(slope, 0.0)
    return positive @ low + negative @ high + offset, positive @ high + negative @ low + offset


class ReachModel:
    """A mixed-integer program over (x, z, y), to which callers add an objective and further rows."""

    def __init__(self, bounds: Bounds, head: Head, region: Region, *, as_printed: bool = False) -> None:
        """Write the program down; `as_printed` keeps a binary for every unit, as the paper does."""
        self._as_printed = as_printed
        self._columns: list[tuple[Array, Array, npt.NDArray[np.bool_]]] = []
        self._rows: list[tuple[Columns, Columns, Array]] = []
        self._sides: list[tuple[Array, Array]] = []
        self.count = self._row_count = 0
        low, high, oblique = region.tight_box()
        self.low, self.high = low, high
        self.x = self.variables(low, high)
        if len(oblique):
            self.rows([(self.x, region.A[oblique])], -np.inf, region.a[oblique])
        self.z, self.z_low, self.z_high = self._embedding(bounds)
        self.y, self.y_low, self.y_high = self._outputs(head)

    def variables(self, lower: npt.ArrayLike, upper: npt.ArrayLike, *, binary: bool = False) -> Columns:
        """Add columns; return their positions."""
        low, high = np.broadcast_arrays(np.asarray(lower, dtype=float), np.asarray(upper, dtype=float))
        size = low.size
        self._columns.append((low.reshape(-1), high.reshape(-1), np.full(size, binary)))
        self.count += size
        return np.arange(self.count - size, self.count, dtype=np.intp)

    def rows(self, blocks: Sequence[tuple[Columns, Array]], lower: npt.ArrayLike, upper: npt.ArrayLike) -> None:
        """Add rows: sum over blocks of matrix @ columns, between lower and upper. Matrices: (r, len(columns))."""
        height = len(blocks[0][1])
        for columns, matrix in blocks:
            row, column = np.nonzero(matrix)
            self._rows.append((row + self._row_count, columns[column], matrix[row, column]))
        self._sides.append((np.broadcast_to(lower, height) * 1.0, np.broadcast_to(upper, height) * 1.0))
        self._row_count += height

    def solve(self, objective: dict[int, float], *, time_limit: float | None = None) -> Solution:
        """Maximize a sparse linear objective; the solution's `objective` is the maximum."""
        cost = np.zeros(self.count)
        for column, value in objective.items():
            cost[column] -= value
        rows, columns, values = (np.concatenate([r[i] for r in self._rows]) for i in range(3))
        program = MixedIntegerProgram(
            cost,
            sparse.csr_matrix((values, (rows, columns)), (self._row_count, self.count)),
            np.concatenate([s[0] for s in self._sides]),
            np.concatenate([s[1] for s in self._sides]),
            np.concatenate([c[0] for c in self._columns]),
            np.concatenate([c[1] for c in self._columns]),
            np.concatenate([c[2] for c in self._columns]),
        )
        found = solve(program, time_limit=time_limit)
        return Solution(
            found.status, x=found.x, objective=-found.objective, message=found.message, backend=found.backend
        )

    def _embedding(self, bounds: Bounds) -> tuple[Columns, Array, Array]:
        lower, upper = bounds.lower.astype(np.float64), bounds.upper.astype(np.float64)
        flat = np.zeros((bounds.width, len(self.x)))
        if bounds.slopes is None and not self._as_printed:
            return self.variables(lower, upper), lower, upper
        L, U = (flat, flat) if bounds.slopes is None else bounds.slopes
        hidden, low, high = self._hidden(bounds.hidden)
        ends = [_interval(L, lower, low, high), _interval(U, upper, low, high)]
        lowest, highest = _interval(L - U, lower - upper, low, high)
        return self._between((hidden, L, lower), (hidden, U, upper), lowest, highest, ends)

    def _between(
        self, lower: tuple[Columns, Array, Array], upper: tuple[Columns, Array, Array], lowest: Array, highest: Array,
        ends: Sequence[tuple[Array, Array]],
    ) -> tuple[Columns, Array, Array]:  # fmt: skip
        """Add z between two sides (columns, matrix, offset), l where l > u; l - u lies in [lowest, highest]."""
        (low_columns, L, l0), (high_columns, U, u0) = lower, upper
        z_low, z_high = ends[0][0], np.maximum(ends[0][1], ends[1][1])
        z = self.variables(z_low, z_high)
        eye = np.eye(len(z))
        self.rows([(z, eye), (low_columns, -L)], l0, np.inf)
        if self._as_printed:
            highest, lowest = np.maximum(highest, 1e-6), np.minimum(lowest, -1e-6)
        crossed = highest > 0
        never = np.flatnonzero(~crossed)
        if len(never):
            self.rows([(z, eye[never]), (high_columns, -U[never])], -np.inf, u0[never])
        always = np.flatnonzero(crossed & (lowest >= 0))
        if len(always):
            self.rows([(z, eye[always]), (low_columns, -L[always])], -np.inf, l0[always])
        some = np.flatnonzero(crossed & (lowest < 0))
        if len(some):
            binary = self.variables(np.zeros(len(some)), np.ones(len(some)), binary=True)
            big, other = np.diag(highest[some]), np.diag(-lowest[some])
            self.rows([(z, eye[some]), (high_columns, -U[some]), (binary, -big)], -np.inf, u0[some])
            right = l0[some] - lowest[some]
            self.rows([(z, eye[some]), (low_columns, -L[some]), (binary, other)], -np.inf, right)
        return z, z_low, z_high

    def _hidden(self, layers: Sequence[Layer]) -> tuple[Columns, Array, Array]:
        """Add the units of hidden layers; return those of the last, and their interval."""
        below, bottom, top = self.x, self.low, self.high
        for layer in layers:
            weight, bias = layer.weight.astype(np.float64), layer.bias.astype(np.float64)
            lowest, highest = _interval(weight, bias, bottom, top)
            bottom, top = np.maximum(lowest, 0.0), np.maximum(highest, 0.0)
            unit = self.variables(bottom, top)
            eye = np.eye(len(unit))
            on, open_ = np.flatnonzero(lowest >= 0), np.flatnonzero((lowest < 0) & (highest > 0))
            if len(on):
                self.rows([(unit, eye[on]), (below, -weight[on])], bias[on], bias[on])
            if len(open_):
                active = self.variables(np.zeros(len(open_)), np.ones(len(open_)), binary=True)
                self.rows([(unit, eye[open_]), (below, -weight[open_])], bias[open_], np.inf)
                self.rows(
                    [(unit, eye[open_]), (below, -weight[open_]), (active, np.diag(-lowest[open_]))],
                    -np.inf,
                    bias[open_] - lowest[open_],
                )
                self.rows([(unit, eye[open_]), (active, np.diag(-highest[open_]))], -np.inf, 0.0)
            below = unit
        return below, bottom, top

    def _outputs(self, head: Head) -> tuple[Columns, Array, Array]:
        W, b = head.W.astype(np.float64), head.b.astype(np.float64)
        positive, negative = np.maximum(W, 0), np.minimum(W, 0)
        low = positive @ self.z_low + negative @ self.z_high + b
        high = positive @ self.z_high + negative @ self.z_low + b
        blocks = [(self.z, -W)]
        if head.V is not None:
            V = head.V.astype(np.float64)
            direct = _interval(V, np.zeros(len(b)), self.low, self.high)
            low, high = low + direct[0], high + direct[1]
            blocks.append((self.x, -V))
        y = self.variables(low, high)
        self.rows([(y, np.eye(len(y))), *blocks], b, b)
        return y, low, high

    def literal_range(self, literals: Literals) -> tuple[Array, Array]:
        """Return the interval of every literal's left side minus its bound, by interval arithmetic."""
        g, s = literals.g, literals.s
        low = np.minimum(g * self.y_low, g * self.y_high).sum(axis=1) + np.minimum(s * self.low, s * self.high).sum(
            axis=1
        )
        high = np.maximum(g * self.y_low, g * self.y_high).sum(axis=1) + np.maximum(s * self.low, s * self.high).sum(
            axis=1
        )
        return low - literals.h, high - literals.h


def worst_clause_milp(
    literals: Literals, bounds: Bounds, head: Head, region: Region, *, time_limit: float | None = None
) -> tuple[Solution, Array | None, Array | None]:
    """Maximize min_j literal_j over what the head reaches, without rounding; return (solution, x, z)."""
    model = ReachModel(bounds, head, region)
    low, high = model.literal_range(literals)
    t = model.variables([low.min()], [high.min()])
    model.rows(
        [(t, np.ones((len(literals.h), 1))), (model.y, -literals.g), (model.x, -literals.s)], -np.inf, -literals.h
    )
    found = model.solve({int(t[0]): 1.0}, time_limit=time_limit)
    if found.x is None:
        return found, None, None
    return found, found.x[model.x], found.x[model.z]


def linear_counterexample_milp(
    rows: Literals, bounds: Bounds, head: Head, region: Region, *,
    margin: float = 0.0, time_limit: float | None = None, as_printed: bool = False,
) -> Search:  # fmt: skip
    """Maximize the sum of positive violations as the paper's MILP, one binary per row and per unit that may cross.

    With `as_printed` every unit has its binary, as in the paper; otherwise only those where the sign of u - l is open.
    """
    model = ReachModel(bounds, head, region, as_printed=as_printed)
    shifted = Literals(rows.g, rows.s, rows.h - margin, rows.strict)
    low, high = model.literal_range(shifted)
    k = len(rows.h)
    reach, drop = np.maximum(high, 0.0), np.maximum(-low, 0.0)
    part = model.variables(np.zeros(k), reach)
    chosen = model.variables(np.zeros(k), np.ones(k), binary=True)
    eye = np.eye(k)
    model.rows(
        [(part, eye), (model.y, -shifted.g), (model.x, -shifted.s), (chosen, np.diag(drop))], -np.inf, drop - shifted.h
    )
    model.rows([(part, eye), (chosen, np.diag(-reach))], -np.inf, 0.0)
    found = model.solve({int(c): 1.0 for c in part}, time_limit=time_limit)
    if found.x is None:
        return Search(None, found.status if found.status is not Status.OPTIMAL else Status.ERROR, found.message)
    point = counterexample_at(shifted, HeadNumbers.exact(head), found.x[model.x], found.x[model.z])
    # Violations within the solver's tolerance are no counterexamples.
    if point is not None and found.objective <= 1e-9:
        point = None
    return Search(point, found.status, found.message)


def exclusion_counterexample_milp(
    pairs: Pairs, bounds: Bounds, head: Head, region: Region, *, margin: float = 0.0, time_limit: float | None = None
) -> Search:
    """Maximize I_hk min(y_h, y_k) as the paper's MILP: `M I - M <= y` (the sign of its main text), one pair chosen."""
    model = ReachModel(bounds, head, region)
    m, f = len(model.y), len(pairs)
    big = max(1.0, float(np.abs(np.concatenate([model.y_low, model.y_high])).max()))
    positive = model.variables(np.zeros(m), np.ones(m), binary=True)
    both = model.variables(np.zeros(f), np.ones(f), binary=True)
    t = model.variables([-big], [big])
    eye = np.eye(m)
    # M I_k - M <= y_k + margin, and I_hk <= (I_h + I_k) / 2.
    model.rows([(model.y, eye), (positive, -(big + margin) * eye)], -(big + margin) - margin, np.inf)
    incidence = np.zeros((f, m))
    incidence[np.arange(f), pairs[:, 0]] = incidence[np.arange(f), pairs[:, 1]] = 0.5
    model.rows([(both, np.eye(f)), (positive, -incidence)], -np.inf, 0.0)
    model.rows([(both, np.ones((1, f)))], 1.0, 1.0)
    for side in (0, 1):
        chosen = np.zeros((f, m))
        chosen[np.arange(f), pairs[:, side]] = 1.0
        model.rows([(t, np.ones((f, 1))), (model.y, -chosen), (both, 2 * big * np.eye(f))], -np.inf, 2 * big)
    found = model.solve({int(t[0]): 1.0}, time_limit=time_limit)
    if found.status is Status.INFEASIBLE:
        # No pair can be positive at once: the requirement that one is chosen has no solution.
        return Search(None, Status.OPTIMAL, found.message)
    if found.x is None:
        return Search(None, found.status if found.status is not Status.OPTIMAL else Status.ERROR, found.message)
    h, k = (int(v) for v in pairs[int(np.argmax(found.x[both]))])
    strength = float(min(found.x[model.y[h]], found.x[model.y[k]]))
    return Search(Counterexample(found.x[model.x], found.x[model.z], strength, (h, k)), found.status, found.message)


def exclusion_sum_milp(
    pairs: Pairs, bounds: Bounds, head: Head, region: Region, *, time_limit: float | None = None
) -> Search:
    """Maximize the sum over pairs of I_hk min(y_h, y_k), as the paper's published code does; the text has one pair."""
    model = ReachModel(bounds, head, region)
    f, m = len(pairs), len(model.y)
    reach = np.maximum(np.minimum(model.y_high[pairs[:, 0]], model.y_high[pairs[:, 1]]), 0.0)
    part = model.variables(np.zeros(f), reach)
    chosen = model.variables(np.zeros(f), np.ones(f), binary=True)
    model.rows([(part, np.eye(f)), (chosen, np.diag(-reach))], -np.inf, 0.0)
    for side in (0, 1):
        own = np.zeros((f, m))
        own[np.arange(f), pairs[:, side]] = 1.0
        drop = np.maximum(-model.y_low[pairs[:, side]], 0.0)
        model.rows([(part, np.eye(f)), (model.y, -own), (chosen, np.diag(drop))], -np.inf, drop)
    found = model.solve({int(c): 1.0 for c in part}, time_limit=time_limit)
    if found.x is None:
        return Search(None, found.status if found.status is not Status.OPTIMAL else Status.ERROR, found.message)
    low = np.minimum(*(found.x[model.y[pairs[:, side]]] for side in (0, 1)))
    strength, worst = float(np.maximum(low, 0.0).sum()), pairs[int(np.argmax(low))]
    if not strength > 0:
        return Search(None, found.status, found.message)
    point = Counterexample(found.x[model.x], found.x[model.z], strength, (int(worst[0]), int(worst[1])))
    return Search(point, found.status, found.message, strongest=found.status is Status.OPTIMAL)


def exclusion_sum_ascent(pairs: Pairs, bounds: Bounds, head: Head, region: Region, start: Array) -> Search:
    """Look for the same by turns: which pairs are on at z, then the z with the largest sum over these (an LP)."""
    best: Counterexample | None = None
    W, b = head.W.astype(np.float64), head.b.astype(np.float64)
    z = start
    for _ in range(10):
        low = np.minimum(*((W @ z + b)[pairs[:, side]] for side in (0, 1)))
        strength = float(np.maximum(low, 0.0).sum())
        if best is not None and strength <= best.strength * (1 + 1e-9):
            break
        x = best.x if best is not None else (region.domain.low + region.domain.high) / 2
        worst = pairs[int(np.argmax(low))]
        best = Counterexample(x, z, strength, (int(worst[0]), int(worst[1])))
        on = pairs[low > 0]
        if not len(on):
            break
        model = ReachModel(bounds, head, region)
        part = model.variables(np.full(len(on), -np.inf), np.full(len(on), np.inf))
        for side in (0, 1):
            own = np.zeros((len(on), len(b)))
            own[np.arange(len(on)), on[:, side]] = 1.0
            model.rows([(part, np.eye(len(on))), (model.y, -own)], -np.inf, 0.0)
        found = model.solve({int(c): 1.0 for c in part})
        if found.x is None:
            break
        z = found.x[model.z]
    return Search(best, Status.OPTIMAL, strongest=False)


def label_search(head: Head, problem: HeadProblem, *, sums: bool = False, least: float = 0.0) -> tuple[Search, int]:
    """Search for a counterexample to exclusions as the published code does; to other rules as ever.

    With `sums` by the sum over pairs, by ascent from the best pair, so that a run ends with no counterexample left; for
    heads that see z alone. A pair counts from `least` on.
    """
    search, p = strongest_counterexample(head, problem)
    if search.found is None or not len(problem.parts[p].exclusions):
        return search, p
    if search.found.strength < least:
        return Search(None, Status.OPTIMAL), p
    if not sums or problem.bounds.hidden:
        return search, p
    part = problem.parts[p]
    return exclusion_sum_ascent(part.exclusions, problem.bounds, head, part.region, search.found.z), p


def scaled_projection(
    head: Head, points: Memory, problem: HeadProblem, *, share: float, otherwise: float = 1e-6, cost: str = "squared"
) -> Solution:
    """Project over the memory; exclusive labels stay below 0 by a share of M, the largest number that the head reaches.

    What is left free where there are no exclusions is `otherwise`. For heads that see z alone.
    """
    tolerance = otherwise
    if any(len(part.exclusions) for part in problem.parts):
        offset, slope = problem.envelope.worst(head.W.astype(np.float64))
        ends = offset + head.b + (0.0 if slope is None else problem.domain.over(slope))
        tolerance = share * max(float(ends.max()), 0.0)
    return memory_projection(head, points, problem, like=head, tolerance=tolerance, cost=cost)


def memory_projection_miqp(
    head: Head, points: Memory, problem: HeadProblem, *, tolerance: float, big: float, time_limit: float | None = None
) -> Solution:
    """Solve the same problem as the paper's MIQP: `g.y <= right + M (1 - I)`, one of the I of a clause must be 1.

    Single literals have no binary. `x` of the solution are the parameters.
    """
    features, theta = memory_features(points, head), head.vector()
    required = memory_clauses(points, problem, like=head, tolerance=tolerance)
    size, binaries = len(theta), sum(len(right) for *_, right in required if len(right) > 1)
    rows: list[Array] = []
    lower: list[float] = []
    upper: list[float] = []
    at = size
    for i, g, right in required:
        block = np.zeros((len(right), size + binaries))
        block[:, :size] = np.einsum("km,s->kms", g, features[i]).reshape(len(right), size)
        several = len(right) > 1
        if several:
            block[np.arange(len(right)), at + np.arange(len(right))] = big
            choice = np.zeros(size + binaries)
            choice[at : at + len(right)] = 1.0
            at += len(right)
        rows.extend(block)
        lower.extend([-np.inf] * len(right))
        upper.extend(right + (big if several else 0.0))
        if several:
            rows.append(choice)
            lower.append(1.0)
            upper.append(np.inf)
    found = solve_miqp(
        np.concatenate([np.ones(size), np.zeros(binaries)]),
        np.concatenate([-theta, np.zeros(binaries)]),
        (np.array(rows), np.array(lower), np.array(upper)),
        np.concatenate([np.full(size, -np.inf), np.zeros(binaries)]),
        np.concatenate([np.full(size, np.inf), np.ones(binaries)]),
        np.arange(size + binaries) >= size,
        time_limit=time_limit,
    )
    constant = 0.5 * float(theta @ theta)
    return Solution(
        found.status,
        x=None if found.x is None else found.x[:size],
        objective=found.objective + constant,
        message=found.message,
        backend=found.backend,
    )
