"""The robust counterpart: all heads that satisfy given combinations of literals, as finitely many linear rows.

For one combination (g, s, h) over a region, with the box z = c(x) +- r(x), r >= 0, affine in x, the requirement

    g.(W z + V x + b) + s.x <= h - margin    for all x in the region, all z in the box

holds if and only if some p >= |g W| and multipliers mu >= 0 satisfy

    g.(W c0 + b) + p.r0 + mu.a + max over the box of e.x <= h - margin,   e = g W C + g V + s + p R - A' mu.

Rows that differ by a factor in g share p. Without dependence on x one row remains.

For bounds by a network, C and R belong to its last hidden units h, relaxed over the region's box. With any q+, q- >= 0

    q+ - q- = g W C + p R    and so    (g W C + p R).h <= (above q+ - below q-).(A x + a) + lift.q+,

which is again linear in the unknowns; an earlier hidden layer replaces x in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.regions.geometry import Region
from smle.solvers import LinearProgram, Matrix, Status, solve

__all__ = ["Layout", "RobustRow", "RobustRows", "robust_rows", "roomy_center"]

Array = npt.NDArray[np.float64]
Columns = npt.NDArray[np.intp]
Block = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""(rows, columns, values) of a part of the matrix."""


class Envelope(Protocol):
    """The box of the embedding: [lower + lower_slope x, upper + upper_slope x]; slopes are None for constant bounds.

    `by_network`: the box in terms of hidden units if bounds are networks, else None.
    """

    @property
    def lower(self) -> Array: ...

    @property
    def upper(self) -> Array: ...

    @property
    def lower_slope(self) -> Array | None: ...

    @property
    def upper_slope(self) -> Array | None: ...

    @property
    def by_network(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class RobustRow:
    """One combination of literals over one region: g.y + s.x <= h - margin. Shapes: g (m,), s (d,).

    `envelope` is the box of the embedding over this region, if it differs from the common one. A center keeps room in
    rows that are `roomy`.
    """

    g: Array
    s: Array
    h: float
    region: Region
    margin: float = 0.0
    envelope: Envelope | None = None
    roomy: bool = True


@dataclass(frozen=True)
class Layout:
    """Positions of a head's parameters in the vector of unknowns: per output W (n), V (d, if any), b."""

    outputs: int
    width: int
    inputs: int
    passthrough: bool

    @property
    def stride(self) -> int:
        """Unknowns per output."""
        return self.width + (self.inputs if self.passthrough else 0) + 1

    @property
    def size(self) -> int:
        """Unknowns of the head."""
        return self.outputs * self.stride

    def unpack(self, theta: Array) -> tuple[Array, Array | None, Array]:
        """Return (W, V, b)."""
        table = theta[: self.size].reshape(self.outputs, self.stride)
        V = table[:, self.width : -1] if self.passthrough else None
        return table[:, : self.width], V, table[:, -1]


@dataclass(frozen=True, eq=False)
class RobustRows:
    """`row_lower <= A (theta, auxiliary) <= row_upper` and `lower <= ... <= upper`: the safe heads.

    `required`: the positions of the rows that state a requirement, in order.
    """

    A: Matrix
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array
    required: Columns


@dataclass(eq=False)
class _Builder:
    columns: int
    rows: int = 0
    triplets: list[Block] = field(default_factory=list)
    sides: list[tuple[Array, Array]] = field(default_factory=list)
    column_lower: list[Array] = field(default_factory=list)
    required: list[int] = field(default_factory=list)

    def variables(self, count: int, lower: float) -> Columns:
        start = self.columns
        self.columns += count
        self.column_lower.append(np.full(count, lower))
        return np.arange(start, start + count, dtype=np.intp)

    def add(self, blocks: Sequence[Block], lower: Array, upper: Array) -> None:
        """Append rows; blocks hold (row within this call, column, value)."""
        for row, column, value in blocks:
            self.triplets.append((np.asarray(row) + self.rows, np.asarray(column), np.asarray(value)))
        self.sides.append((np.asarray(lower, dtype=float), np.asarray(upper, dtype=float)))
        self.rows += len(upper)

    def finish(self, size: int) -> RobustRows:
        rows, columns, values = (
            np.concatenate([np.broadcast_to(t[i], np.shape(t[2])).reshape(-1) for t in self.triplets])
            if self.triplets
            else np.zeros(0)
            for i in range(3)
        )
        nonzero = values != 0
        places = rows[nonzero].astype(np.intp), columns[nonzero].astype(np.intp)
        matrix = sparse.csr_matrix((values[nonzero], places), (self.rows, self.columns))
        lower = np.concatenate([np.full(size, -np.inf), *self.column_lower])
        return RobustRows(
            matrix,
            np.concatenate([s[0] for s in self.sides]) if self.sides else np.zeros(0),
            np.concatenate([s[1] for s in self.sides]) if self.sides else np.zeros(0),
            lower,
            np.full(self.columns, np.inf),
            np.array(self.required, dtype=np.intp),
        )


def robust_rows(rows: Sequence[RobustRow], envelope: Envelope | None, layout: Layout) -> RobustRows:
    """Return the linear description of all heads that satisfy every row."""
    builder = _Builder(layout.size)
    magnitudes: dict[bytes, Columns] = {}
    for row in rows:
        factor, p = float(np.abs(row.g).max()), np.zeros(0, dtype=np.intp)
        if layout.width:
            direction = row.g / factor
            if direction[np.flatnonzero(direction)[0]] < 0:
                direction = -direction
            key = np.round(direction, 12).tobytes()
            if key not in magnitudes:
                magnitudes[key] = _magnitude(builder, direction, layout)
            p = magnitudes[key]
        common = envelope if row.envelope is None else row.envelope
        _requirement(builder, row, common, layout, p=p, factor=factor)
    return builder.finish(layout.size)


def roomy_center(
    rows: Sequence[RobustRow], layout: Layout, *, room: tuple[float, float], gain: float = 1.0,
    near: Array | None = None, cost: Array | float = 1.0, fixed: npt.NDArray[np.bool_] | None = None,
) -> tuple[Array, float] | None:  # fmt: skip
    """Return the answer b + V x with the most room t in all rows, and t; with `near`, trade room for nearness.

    Maximizes gain t - cost.|parameters - near|, with t between the two numbers of `room`, kept by rows that are
    `roomy`. `layout` is that of a head without embedding, whose vector is returned. `fixed` parameters equal `near`.
    """
    safe = robust_rows(rows, None, layout)
    total, size = safe.A.shape[1], layout.size
    column = np.zeros((safe.A.shape[0], 1))
    column[safe.required, 0] = [row.roomy for row in rows]
    lower, upper = np.append(safe.lower, room[0]), np.append(safe.upper, room[1])
    A: Matrix = sparse.hstack([safe.A, column], format="csr")
    objective = np.append(np.zeros(total), -gain)
    sides = safe.row_lower, safe.row_upper
    if near is not None:
        if fixed is not None:
            lower[:size][fixed] = upper[:size][fixed] = near[fixed]
        # Further unknowns: |parameter - near|.
        parameters, eye = sparse.eye(size, total + 1), sparse.identity(size)
        A = sparse.bmat([[A, None], [parameters, eye], [parameters, -eye]], format="csr")
        free = np.full(size, np.inf)
        sides = np.concatenate([safe.row_lower, near, -free]), np.concatenate([safe.row_upper, free, near])
        lower, upper = np.append(lower, np.zeros(size)), np.append(upper, free)
        objective = np.append(objective, np.broadcast_to(cost, size))
    found = solve(LinearProgram(objective, A, *sides, lower, upper), time_limit=10.0)
    if found.status is not Status.OPTIMAL or found.x is None:
        return None
    return found.x[:size], float(found.x[total])


def _magnitude(builder: _Builder, direction: Array, layout: Layout) -> Columns:
    """Add p >= |direction . W|, one unknown per embedding unit; return their columns."""
    n = layout.width
    p = builder.variables(n, 0.0)
    used = np.flatnonzero(direction)
    unit = np.arange(n)
    for sign in (1.0, -1.0):
        blocks: list[Block] = [(unit, j * layout.stride + unit, np.full(n, sign * direction[j])) for j in used]
        blocks.append((unit, p, np.full(n, -1.0)))
        builder.add(blocks, np.full(n, -np.inf), np.zeros(n))
    return p


def _requirement(
    builder: _Builder, row: RobustRow, envelope: Envelope | None, layout: Layout, *, p: Columns, factor: float
) -> None:
    n, used = layout.width, np.flatnonzero(row.g)
    hidden, slopes = None, None
    lower = upper = np.zeros(0)
    if envelope is not None and n > 0:
        hidden, lower, upper = envelope.by_network, envelope.lower, envelope.upper
        if envelope.lower_slope is not None and envelope.upper_slope is not None:
            slopes = envelope.lower_slope, envelope.upper_slope
    if hidden is not None:
        lower, upper = hidden.base_lower, hidden.base_upper
    center, half = (lower + upper) / 2, (upper - lower) / 2
    main: list[Block] = []
    for j in used:
        start = j * layout.stride
        main.append((np.zeros(n), start + np.arange(n), row.g[j] * center))
        main.append((np.zeros(1), np.array([start + layout.stride - 1]), np.array([row.g[j]])))
    main.append((np.zeros(n), p, factor * half))
    right = row.h - row.margin
    low, high, oblique = row.region.tight_box()
    sloped = layout.passthrough or slopes is not None
    if not sloped and not len(oblique):
        right -= float(np.maximum(row.s * low, row.s * high).sum())
        builder.required.append(builder.rows)
        builder.add(main, np.array([-np.inf]), np.array([right]))
        return
    d = len(low)
    e, q = builder.variables(d, -np.inf), builder.variables(d, 0.0)
    mu = builder.variables(len(oblique), 0.0)
    A, a = row.region.A[oblique], row.region.a[oblique]
    middle, reach = (high + low) / 2, (high - low) / 2
    zeros = np.zeros(d)
    main += [(zeros, e, middle), (zeros, q, np.ones(d)), (np.zeros(len(oblique)), mu, a)]
    rows, table = np.arange(d), _direct_rows(row, layout)
    if hidden is not None:
        constant, through = _hidden_rows(builder, row, hidden, layout, p=p, factor=factor)
        main, table = main + constant, table + through
    elif slopes is not None:
        table += _bound_rows(row, slopes, layout, p=p, factor=factor)
    builder.required.append(builder.rows)
    builder.add(main, np.array([-np.inf]), np.array([right]))
    table.append((rows, e, -np.ones(d)))
    table.append((np.repeat(rows, len(oblique)), np.tile(mu, d), -A.T.reshape(-1)))
    builder.add(table, -row.s, -row.s)
    for sign in (1.0, -1.0):
        builder.add([(rows, e, sign * reach), (rows, q, -np.ones(d))], np.full(d, -np.inf), np.zeros(d))


def _direct_rows(row: RobustRow, layout: Layout) -> list[Block]:
    """Return the terms of g V, one row per input."""
    rows = np.arange(layout.inputs)
    if not layout.passthrough:
        return []
    starts = {j: j * layout.stride + layout.width for j in np.flatnonzero(row.g)}
    return [(rows, start + rows, np.full(len(rows), row.g[j])) for j, start in starts.items()]


def _bound_rows(
    row: RobustRow, slopes: tuple[Array, Array], layout: Layout, *, p: Columns, factor: float
) -> list[Block]:
    """Return the terms of g W C + p R, one row per argument of the bounds; slopes of l and u are (n, arguments)."""
    C, R = (slopes[1] + slopes[0]) / 2, (slopes[1] - slopes[0]) / 2
    n, count = C.shape
    rows = np.repeat(np.arange(count), n)
    blocks: list[Block] = [(rows, np.tile(p, count), factor * R.T.reshape(-1))]
    for j in np.flatnonzero(row.g):
        blocks.append((rows, np.tile(j * layout.stride + np.arange(n), count), row.g[j] * C.T.reshape(-1)))
    return blocks


def _hidden_rows(
    builder: _Builder, row: RobustRow, envelope: Any, layout: Layout, *, p: Columns, factor: float
) -> tuple[list[Block], list[Block]]:
    """Add q+ and q- with their rows; return their terms in the main row, and in the slope, one row per input."""
    table = _bound_rows(row, (envelope.lower_map, envelope.upper_map), layout, p=p, factor=factor)
    main: list[Block] = []
    for hidden in reversed(envelope.hidden.chain):
        k, count = hidden.weight.shape
        plus, minus = builder.variables(k, 0.0), builder.variables(k, 0.0)
        units, one, rows = np.arange(k), np.ones(k), np.repeat(np.arange(count), k)
        builder.add([*table, (units, plus, -one), (units, minus, one)], np.zeros(k), np.zeros(k))
        below, above = hidden.slopes.T.astype(np.float64)
        main.append((np.zeros(k), plus, above * hidden.bias + hidden.lift))
        main.append((np.zeros(k), minus, -below * hidden.bias))
        table = [
            (rows, np.tile(plus, count), (above[:, None] * hidden.weight).T.reshape(-1)),
            (rows, np.tile(minus, count), (-below[:, None] * hidden.weight).T.reshape(-1)),
        ]
    return main, table
