"""What a head can reach, as a mixed-integer program: the reference for everything that is decided faster elsewhere.

Columns for x, z and y = W z + V x + b. Constant bounds are column bounds. Free affine bounds need one binary per unit
where the sign of u - l is open (the deployed clip gives u where l > u):

    z <= u(x),    z >= l(x) - M B,    z >= u(x) - M (1 - B).

Networks need one binary per ReLU whose sign is open after bound tightening.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.overapproximation import AffineBounds, Bounds, ConstantBounds, Head, Layer, NetworkBounds
from smle.guarantees.proof.relaxation import Affine, unit_intervals
from smle.guarantees.proof.worst_case import Literals
from smle.guarantees.regions.geometry import Region
from smle.solvers import MixedIntegerProgram, Solution, Sparse, solve

__all__ = ["ReachModel", "worst_clause_milp"]

Array = npt.NDArray[np.float64]
Columns = npt.NDArray[np.intp]


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
            Sparse(rows, columns, values, (self._row_count, self.count)),
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
        if isinstance(bounds, ConstantBounds) and self._as_printed:
            flat = np.zeros((bounds.width, len(self.x)), dtype=np.float32)
            return self._embedding(AffineBounds(bounds.lower, flat, bounds.upper, flat))
        if isinstance(bounds, ConstantBounds):
            upper = bounds.upper.astype(np.float64)
            lower = np.minimum(bounds.lower.astype(np.float64), upper)
            return self.variables(lower, upper), lower, upper
        if isinstance(bounds, AffineBounds):
            slopes = [bounds.lower_slope.astype(np.float64), bounds.upper_slope.astype(np.float64)]
            offsets = [bounds.lower.astype(np.float64), bounds.upper.astype(np.float64)]
            sides = [(self.x, slope, offset) for slope, offset in zip(slopes, offsets, strict=True)]
            gap = Affine(slopes[0] - slopes[1], offsets[0] - offsets[1])
            highest = gap.over(self.low, self.high)
            lowest = -Affine(-gap.slope, -gap.offset).over(self.low, self.high)
            ends = [
                (-Affine(-s, -o).over(self.low, self.high), Affine(s, o).over(self.low, self.high))
                for s, o in zip(slopes, offsets, strict=True)
            ]
            return self._between(sides[0], sides[1], lowest, highest, ends)
        assert isinstance(bounds, NetworkBounds)
        (lower_side, lower_ends), (upper_side, upper_ends) = (
            self._network(layers) for layers in (bounds.lower, bounds.upper)
        )
        return self._between(
            lower_side,
            upper_side,
            lower_ends[0] - upper_ends[1],
            lower_ends[1] - upper_ends[0],
            [lower_ends, upper_ends],
        )

    def _between(
        self, lower: tuple[Columns, Array, Array], upper: tuple[Columns, Array, Array], lowest: Array, highest: Array,
        ends: Sequence[tuple[Array, Array]],
    ) -> tuple[Columns, Array, Array]:  # fmt: skip
        """Add z between two sides (columns, matrix, offset), u where l > u; l - u lies in [lowest, highest]."""
        (low_columns, L, l0), (high_columns, U, u0) = lower, upper
        z_low, z_high = np.minimum(ends[0][0], ends[1][0]), ends[1][1]
        z = self.variables(z_low, z_high)
        eye = np.eye(len(z))
        self.rows([(z, eye), (high_columns, -U)], -np.inf, u0)
        if self._as_printed:
            highest, lowest = np.maximum(highest, 1e-6), np.minimum(lowest, -1e-6)
        crossed = highest > 0
        never = np.flatnonzero(~crossed)
        if len(never):
            self.rows([(z, eye[never]), (low_columns, -L[never])], l0[never], np.inf)
        always = np.flatnonzero(crossed & (lowest >= 0))
        if len(always):
            self.rows([(z, eye[always]), (high_columns, -U[always])], u0[always], np.inf)
        some = np.flatnonzero(crossed & (lowest < 0))
        if len(some):
            binary = self.variables(np.zeros(len(some)), np.ones(len(some)), binary=True)
            big, other = np.diag(highest[some]), np.diag(-lowest[some])
            self.rows([(z, eye[some]), (low_columns, -L[some]), (binary, big)], l0[some], np.inf)
            right = u0[some] + lowest[some]
            self.rows([(z, eye[some]), (high_columns, -U[some]), (binary, -other)], right, np.inf)
        return z, z_low, z_high

    def _network(self, layers: Sequence[Layer]) -> tuple[tuple[Columns, Array, Array], tuple[Array, Array]]:
        """Add the hidden units of a network; return its outputs as (columns, matrix, offset) and their interval."""
        intervals = unit_intervals(layers, self.low, self.high)
        below = self.x
        for layer, (lowest, highest) in zip(layers[:-1], intervals[:-1], strict=True):
            weight, bias = layer.weight.astype(np.float64), layer.bias.astype(np.float64)
            unit = self.variables(np.maximum(lowest, 0.0), np.maximum(highest, 0.0))
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
        last = layers[-1]
        return (below, last.weight.astype(np.float64), last.bias.astype(np.float64)), intervals[-1]

    def _outputs(self, head: Head) -> tuple[Columns, Array, Array]:
        W, b = head.W.astype(np.float64), head.b.astype(np.float64)
        positive, negative = np.maximum(W, 0), np.minimum(W, 0)
        low = positive @ self.z_low + negative @ self.z_high + b
        high = positive @ self.z_high + negative @ self.z_low + b
        blocks = [(self.z, -W)]
        if head.V is not None:
            V = head.V.astype(np.float64)
            low = low - Affine(-V, np.zeros(len(b))).over(self.low, self.high)
            high = high + Affine(V, np.zeros(len(b))).over(self.low, self.high)
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
