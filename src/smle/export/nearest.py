"""Nearest allowed points as nodes of ONNX, for many rows at once; one row per output, (k, rows)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from math import comb, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.export.writer import Writer
from smle.programs.alternatives import AT, KEPT, Block
from smle_check.onnx.graph import DOUBLE, FLOAT, INT64

__all__ = ["number_points"]

Array = npt.NDArray[Any]
_OFF, _FAR = -1e15, 1e200  # excess of a row that is not imposed, in units of the outputs; a bound that binds nothing
_ROUNDING, _TINY = 2.0**-23, 2.0**-125  # twice that of a float32, and near zero
_PIECES, _SETS, _NUMBERS = 16, 1000, 300_000  # what is prepared: pieces, sets of rows, their tables
_AT_ONCE, _SMALL = 64, 1 << 21  # up to so many sets, or so many numbers in all, every set is tried
_DEPENDENT, _CLOSE = 1e-9, 1e-11  # rows that depend on others; what is no excess
_SPLITTING, _RHO, _RELAXED = 200, 3.0, 1.6  # steps of the splitting method, its weight and relaxation


def number_points(w: Writer, block: Block, given: str, on: str | None, rules: Array, d: int) -> list[str]:
    """Return allowed points (k, rows) near the given answers (m, rows), nearest first, in the outputs' own units.

    `on` (rules, rows): which rules are on; None: all are, always. `rules`: the rule of each part of the rules. `d`: how
    many inputs there are.
    """
    J, k = block.N.shape
    z = w.rows(given, block.outputs.tolist())
    z = z if block.is_box else w.add("Mul", [z, w.column(1 / block.unit)])
    b = _bounds(w, block, d)
    clauses = [block.members(c) for c in range(len(block.parts))]
    switch = np.zeros((len(clauses), int(rules.max()) + 1), dtype=np.float32)
    switch[np.arange(len(clauses)), rules[block.parts]] = 1
    several = [clause for clause in clauses if len(clause) > 1]
    tried = sum(comb(J, i) for i in range(min(J, k) + 1)) if J < 64 else _SETS + 1
    few = tried <= _SETS and tried * J * J <= _NUMBERS
    nearest = _box if block.is_box else _polyhedron if few else _split
    if prod(map(len, several[:_PIECES])) <= _PIECES:
        imposed, P = _every_piece(w, clauses, switch, on, J)
        points, cost = nearest(w, block, z, b, imposed, P)
    else:
        imposed, P = _likely_pieces(w, block, clauses, switch, on, z, b)
        points, cost = nearest(w, block, z, b, imposed, P)
        # Literals that look best from the answer may not go together: choose again from the point that was found.
        (found,) = _ranked(w, points, cost, 1, k)
        # onnxruntime before 1.31 joins a transposition and a product in float64 to an operator that it lacks.
        found = w.add("Max", [found, w.number(-_FAR)])
        imposed, P = _likely_pieces(w, block, clauses, switch, on, found, b)
        more = nearest(w, block, z, b, imposed, P)
        points, cost = (w.add("Concat", list(pair), axis=0) for pair in zip((points, cost), more, strict=True))
        P = 2 * P
    alone = [w.add("Transpose", [w.shaped(points, -1, k)])] if P == 1 else []
    ranked = alone or _ranked(w, points, cost, min(P, KEPT), k)
    if block.is_box:
        return ranked
    return [_pinned(w, block, w.add("Mul", [point, w.column(block.unit)])) for point in ranked]


def _pinned(w: Writer, block: Block, point: str) -> str:
    """Return points with numbers in the place of what is nearly one where no other is allowed."""
    for _, column, value in block.pins:
        own = np.arange(len(block.unit))[:, None] == column
        largest = w.reduced("ReduceMax", w.add("Abs", [w.add("Mul", [point, w.column(AT / block.unit)])]), 0, keep=True)
        noise = w.add("Mul", [w.add("Add", [largest, w.number(AT * abs(value))]), w.number(block.unit[column])])
        away = w.add("Abs", [w.add("Sub", [point, w.number(value)])])
        near = w.add("And", [w.constant(own), w.add("LessOrEqual", [away, noise])])
        point = w.add("Where", [near, w.number(value), point])
    return point


def _every_piece(w: Writer, clauses: Sequence[Sequence[int]], switch: Array, on: str | None, J: int) -> tuple[str, int]:
    """Return the rows that each choice of one literal per clause imposes (P, J, rows), and how many there are."""
    chosen = list(product(*clauses))
    imposes = np.zeros((len(chosen), J, len(clauses)), dtype=np.float32)
    for i, piece in enumerate(chosen):
        imposes[i, list(piece), range(len(clauses))] = 1
    if on is None:
        return w.constant(imposes.max(axis=2, keepdims=True) > 0), len(chosen)
    count = w.add("MatMul", [w.constant((imposes @ switch).reshape(len(chosen) * J, -1)), on])
    return w.shaped(w.add("Greater", [count, w.constant(np.float32(0.5))]), len(chosen), J, -1), len(chosen)


def _likely_pieces(
    w: Writer, block: Block, clauses: Sequence[Sequence[int]], switch: Array, on: str | None, at: str, b: str
) -> tuple[str, int]:
    """Impose of each clause the literal that is broken least at a point; in further pieces the second of one clause."""
    J = len(block.N)
    excess = w.add("Sub", [w.add("MatMul", [w.constant(block.N), at]), b])
    several = [c for c, clause in enumerate(clauses) if len(clause) > 1][: 64 * _PIECES]
    swapped = several[: 2 * _PIECES]
    most, C = max(len(clauses[c]) for c in several), len(several)
    members = [[*clauses[c], *[J] * (most - len(clauses[c]))] for c in several]
    padded = w.add("Concat", [excess, w.add("Add", [w.rows(excess, [0]), w.number(-_OFF)])], axis=0)
    listed = w.shaped(w.rows(padded, [row for own in members for row in own]), C, most, -1)
    two = w.several("TopK", [listed, w.constant(np.array([2], dtype=np.int64))], 2, axis=1, largest=0)[1]
    span = w.constant(np.arange(most, dtype=np.int64)[None, :, None])
    first, second = (
        w.shaped(w.add("Cast", [w.add("Equal", [w.rows(two, [i], 1), span])], to=FLOAT), C * most, -1) for i in (0, 1)
    )
    place = np.zeros((J + 1, C * most), dtype=np.float32)
    place[[row for own in members for row in own], range(C * most)] = 1
    place = place[:J]
    active = w.constant(np.ones((switch.shape[1], 1), dtype=np.float32)) if on is None else on
    binds = w.add("MatMul", [w.constant(np.repeat(switch[several], most, axis=0)), active])
    first, second = w.add("Mul", [first, binds]), w.add("Mul", [second, binds])
    single = np.zeros((J, len(clauses)), dtype=np.float32)
    for c, clause in enumerate(clauses):
        if len(clause) == 1:
            single[clause[0], c] = 1
    fixed = w.add("MatMul", [w.constant(single @ switch), active])
    P = 1 + len(swapped)
    keeps, turns = np.tile(place, (P, 1, 1)), np.zeros((P, *place.shape), dtype=np.float32)
    for i, c in enumerate(swapped):
        own = slice(most * several.index(c), most * (several.index(c) + 1))
        keeps[i + 1, :, own], turns[i + 1, :, own] = 0, place[:, own]
    count = w.add("Add", [w.add("MatMul", [w.constant(keeps), first]), w.add("MatMul", [w.constant(turns), second])])
    return w.add("Greater", [w.add("Add", [count, fixed]), w.constant(np.float32(0.5))]), P


def _bounds(w: Writer, block: Block, d: int) -> str:
    """Return b (J, rows) or (J, 1): N z <= b."""
    bound, slope = block.affine_bounds(d)
    if not slope.any():
        return w.column(bound)
    used = np.flatnonzero(slope.any(axis=0)).tolist()
    x = w.rows("repair/wide", used)
    sums = w.add("MatMul", [w.constant(slope[:, used]), x])
    lost = w.add("MatMul", [w.constant(2.0**-46 * np.abs(slope[:, used])), w.add("Abs", [x])])
    return w.add("Sub", [w.add("Sub", [w.column(bound), sums]), lost])


def _ranked(w: Writer, points: str, cost: str, count: int, k: int) -> list[str]:
    """Return the points of least cost (k, rows), from points (P, rows, k) and costs (P, rows)."""
    best = w.several("TopK", [cost, w.constant(np.array([count], dtype=np.int64))], 2, axis=0, largest=0)[1]
    index = w.add("Add", [w.shaped(best, count, -1, 1), w.constant(np.zeros((1, 1, k), dtype=np.int64))])
    chosen = w.add("GatherElements", [points, index], axis=0)
    listed = [chosen] if count == 1 else [w.rows(chosen, [rank]) for rank in range(count)]
    return [w.add("Transpose", [w.shaped(point, -1, k)]) for point in listed]


def _polyhedron(w: Writer, block: Block, z: str, b: str, imposed: str, P: int) -> tuple[str, str]:
    """Try every set of tight rows in every piece; of each piece the set with multipliers >= 0 and no row broken.

    Which set it is, is found in float32. Points are moved inward by what a cast to float32 may do. Returns points
    (P, rows, k) and their costs (P, rows), as do the functions below; of one piece the cost is not asked for.
    """
    N, (J, k) = block.N, block.N.shape
    sets, tables, pulls = _sets(N)
    excess = w.add("Sub", [w.add("MatMul", [w.constant(N), z]), b])
    masked = w.add("Where", [imposed, excess, w.number(_OFF)])  # (P, J, rows)

    def tried(inner: Writer) -> str:
        stacked = w.constant(tables.reshape(-1, J).astype(np.float32))
        trial = inner.add("MatMul", [stacked, inner.add("Cast", [masked], to=FLOAT)])
        least = inner.reduced("ReduceMin", inner.shaped(trial, P, len(sets), J, -1), 2)  # (P, sets, rows)
        return inner.add("ArgMax", [least], axis=1, keepdims=0)

    def climbed(inner: Writer) -> str:
        left = inner.shaped(inner.add("Transpose", [masked], perm=[0, 2, 1]), -1, J)
        return inner.shaped(_climbed(w, inner, N, sets, left), P, -1)

    if len(sets) <= _AT_ONCE:
        number = tried(w)
    else:
        size = w.add("Size", [masked])
        many = w.add("Greater", [size, w.constant(np.int64(_SMALL // len(sets)))])
        number = w.either(many, climbed, tried, INT64)
    sizes = w.add("MatMul", [w.constant(2 * _ROUNDING * np.abs(N)), w.add("Abs", [z])])
    floor = w.add("Add", [sizes, w.add("Mul", [w.add("Abs", [b]), w.number(2 * _ROUNDING)])])
    floor = w.add("Add", [floor, w.column(np.abs(N) @ (_TINY / block.unit))])
    if block.pins:
        floor = w.add("Mul", [floor, w.column(block.unpinned)])
    left = w.add("Transpose", [w.add("Add", [masked, floor])], perm=[0, 2, 1])
    pull = w.add("Gather", [w.constant(pulls), number], axis=0)  # (P, rows, k, J)
    shift = w.shaped(w.add("MatMul", [pull, w.shaped(left, P, -1, J, 1)]), P, -1, k)
    points = w.add("Sub", [w.add("Transpose", [z]), shift])
    if P == 1:
        return points, ""
    cost = w.reduced("ReduceSum", w.add("Mul", [shift, shift]), 2)
    over = w.add("Sub", [left, w.add("MatMul", [shift, w.constant(np.ascontiguousarray(N.T))])])
    fine = w.add("Less", [w.reduced("ReduceMax", over, 2), w.number(1e-6)])
    return points, w.add("Where", [fine, cost, w.number(_FAR)])


def _sets(N: Array) -> tuple[list[tuple[int, ...]], Array, Array]:
    """Return the sets of independent rows, and for each a table (J, J) and its pulls (k, J), from what rows exceed.

    The table gives multipliers of the rows in the set, and by how much the others are kept: at the nearest point all
    are >= 0.
    """
    J, k = N.shape
    gram = N @ N.T
    sets: list[tuple[int, ...]] = [()]
    tables, pulls = [-np.eye(J)], [np.zeros((k, J))]
    for size in range(1, min(J, k) + 1):
        for rows in combinations(range(J), size):
            own = gram[np.ix_(rows, rows)]
            if np.linalg.eigvalsh(own)[0] <= _DEPENDENT:
                continue
            inverse, tight = np.linalg.inv(own), list(rows)
            table, pull = -np.eye(J), np.zeros((k, J))
            table[:, tight] += gram[:, tight] @ inverse
            table[tight] = 0.0
            table[np.ix_(tight, tight)] = inverse
            pull[:, tight] = N[tight].T @ inverse
            sets.append(rows)
            tables.append(table)
            pulls.append(pull)
    return sets, np.stack(tables), np.stack(pulls)


def _climbed(w: Writer, inner: Writer, N: Array, sets: list[tuple[int, ...]], left: str) -> str:
    """Find the sets of tight rows one row at a time, from what rows exceed (n, J): the method of Goldfarb and Idnani.

    The row that is broken most joins; a row whose multiplier would become negative leaves first. Returns (n, 1).
    """
    J, gram = len(N), N @ N.T
    numbers = {rows: i for i, rows in enumerate(sets)}
    steps, turned = np.zeros((len(sets), J, J)), np.full((len(sets), J), -1.0)
    for i, rows in enumerate(sets):
        for r in range(J):
            turned[i, r] = numbers.get(tuple(sorted({*rows} ^ {r})), -1)
            if r not in rows:
                steps[i, r, r] = 1.0
                steps[i, r, list(rows)] = -np.linalg.solve(gram[np.ix_(rows, rows)], gram[list(rows), r])
    directions, turns, products = w.constant(steps.reshape(-1, J)), w.constant(turned.reshape(-1)), w.constant(gram)
    span, off, far, zero = (
        w.constant(np.arange(J, dtype=np.float64)[None]),
        w.number(_OFF),
        w.number(_FAR),
        w.number(0.0),
    )

    def highest(part: Writer, values: str) -> str:
        return part.add("Cast", [part.add("ArgMax", [values], axis=1, keepdims=1)], to=DOUBLE)

    def body(part: Writer, names: list[str]) -> tuple[list[str], str]:
        u, rest, number, row = names
        own = part.add("Equal", [span, row])  # the row that is to join
        most = part.reduced("ReduceMax", part.add("Where", [own, rest, off]), 1, keep=True)
        goes = part.add("Greater", [most, w.number(_CLOSE)])
        place = part.add("Add", [part.add("Mul", [number, w.number(J)]), row])
        way = part.add("Gather", [directions, part.shaped(part.add("Cast", [place], to=INT64), -1)], axis=0)
        change = part.add("MatMul", [way, products])
        slope = part.reduced("ReduceMax", part.add("Where", [own, change, off]), 1, keep=True)
        steep = part.add("Greater", [slope, w.number(_DEPENDENT)])
        whole = part.add("Where", [steep, part.add("Div", [most, slope]), far])
        falls = part.add("Less", [way, w.number(-1e-12)])
        ratio = part.add("Where", [falls, part.add("Div", [u, part.add("Neg", [way])]), far])
        least = part.reduced("ReduceMin", ratio, 1, keep=True)
        blocking = part.add("Cast", [part.add("ArgMin", [ratio], axis=1, keepdims=1)], to=DOUBLE)
        joins = part.add("LessOrEqual", [whole, least])
        step = part.add("Min", [whole, least])
        place = part.add("Add", [part.add("Mul", [number, w.number(J)]), part.add("Where", [joins, row, blocking])])
        following = part.add("Gather", [turns, part.shaped(part.add("Cast", [place], to=INT64), -1)], axis=0)
        following = part.shaped(following, -1, 1)
        known = part.add("GreaterOrEqual", [following, zero])
        fine = part.add("And", [goes, part.add("And", [known, part.add("Less", [step, w.number(_FAR / 2)])])])
        step = part.add("Where", [fine, step, zero])
        u = part.add("Add", [u, part.add("Mul", [step, way])])
        leaves = part.add("And", [part.add("Equal", [span, blocking]), part.add("Not", [joins])])
        u = part.add("Where", [part.add("And", [leaves, fine]), zero, u])
        rest = part.add("Sub", [rest, part.add("Mul", [step, change])])
        rest = part.add(
            "Where", [part.add("And", [goes, part.add("Not", [fine])]), off, rest]
        )  # no point satisfies all
        number = part.add("Where", [fine, following, number])
        row = part.add("Where", [part.add("And", [joins, fine]), highest(part, rest), row])
        more = part.add("Greater", [part.add("ReduceMax", [rest], keepdims=0), w.number(_CLOSE)])
        return [u, rest, number, row], more

    none = inner.add("Sub", [left, left])
    start = inner.reduced("ReduceMin", none, 1, keep=True)
    found = inner.loop(5 * J + 10, [none, left, start, highest(inner, left)], body)[2]
    return inner.add("Cast", [found], to=INT64)


def _box(w: Writer, block: Block, z: str, b: str, imposed: str, P: int) -> tuple[str, str]:
    """Rows over one output each: the nearest point between two ends."""
    k = block.N.shape[1]
    bounds = w.add("Where", [imposed, b, w.number(_FAR)])  # (P, J, rows)
    ends = []
    for sign in (1, -1):
        own = [np.flatnonzero(block.N[:, i] * sign > 0).tolist() for i in range(k)]
        found = [w.reduced("ReduceMin", w.rows(bounds, rows, 1), 1, keep=True) if rows else "" for rows in own]
        some = next((node for node in found if node), "")
        if not some:
            ends.append(w.constant(np.full((1, k, 1), _FAR)))
            continue
        none = w.add("Add", [w.add("Abs", [some]), w.number(_FAR)]) if "" in found else ""
        listed = [node or none for node in found]
        ends.append(listed[0] if k == 1 else w.add("Concat", listed, axis=1))
    low, high = w.add("Neg", [ends[1]]), ends[0]
    room = w.add("Sub", [high, low])
    inner = []
    for end, op in ((low, "Add"), (high, "Sub")):
        slack = w.add("Add", [w.add("Mul", [w.add("Abs", [end]), w.number(_ROUNDING)]), w.number(_TINY)])
        inner.append(w.add(op, [end, slack]))
    points = w.add("Min", [w.add("Max", [z, inner[0]]), inner[1]])  # (P, k, rows)
    turned = w.add("Transpose", [points], perm=[0, 2, 1])
    if P == 1:
        return turned, ""
    far = w.add("Sub", [points, z])
    cost = w.add("Abs", [far]) if block.is_likely else w.add("Mul", [w.add("Mul", [far, far]), w.column(block.weight)])
    total = w.reduced("ReduceSum", cost, 1)
    fine = w.add("GreaterOrEqual", [w.reduced("ReduceMin", room, 1), w.number(0.0)])
    return turned, w.add("Where", [fine, total, w.number(_FAR)])


def _split(w: Writer, block: Block, z: str, b: str, imposed: str, P: int) -> tuple[str, str]:
    """Many rows: steps of the alternating direction method; then the point at which the rows that bind are tight."""
    N, (J, k) = block.N, block.N.shape
    sizes = w.add("MatMul", [w.constant(2 * _ROUNDING * np.abs(N)), w.add("Abs", [z])])
    floor = w.add("Add", [sizes, w.add("Mul", [w.add("Abs", [b]), w.number(2 * _ROUNDING)])])
    aim = w.add("Sub", [b, floor])
    limit = w.add("Where", [imposed, aim, w.number(_FAR)])  # (P, J, rows)
    value = w.add("MatMul", [w.constant(N), z])
    start = w.add("Min", [value, limit])
    inverse = np.linalg.inv(np.eye(k) + _RHO * N.T @ N)

    def step(inner: Writer, names: list[str]) -> tuple[list[str], None]:
        _, slack, dual = names
        pulled = inner.add("MatMul", [w.constant(_RHO * N.T), inner.add("Sub", [slack, dual])])
        point = inner.add("MatMul", [w.constant(inverse), inner.add("Add", [z, pulled])])
        mixed = inner.add("Mul", [inner.add("MatMul", [w.constant(N), point]), w.number(_RELAXED)])
        mixed = inner.add("Add", [mixed, inner.add("Mul", [slack, w.number(1 - _RELAXED)])])
        summed = inner.add("Add", [mixed, dual])
        following = inner.add("Min", [summed, limit])
        return [point, following, inner.add("Sub", [summed, following])], None

    zero = w.add("Sub", [start, start])
    around = w.add("Add", [z, w.constant(np.zeros((P, k, 1)))])
    rough, _, dual = w.loop(_SPLITTING, [around, start, zero], step)
    tight = w.add("Cast", [w.add("Greater", [dual, w.number(1e-9)])], to=DOUBLE)
    excess = w.add("Mul", [w.add("Sub", [value, aim]), tight])
    gram = N @ N.T

    def descent(inner: Writer, names: list[str]) -> tuple[list[str], None]:
        """Conjugate gradients: multipliers at which the tight rows are so."""
        multipliers, rest, way = names
        curved = inner.add("Mul", [inner.add("MatMul", [w.constant(gram), way]), tight])
        axes = w.constant(np.array([1], dtype=np.int64))

        def dot(first: str, second: str) -> str:
            return inner.add("ReduceSum", [inner.add("Mul", [first, second]), axes], keepdims=1)

        before, small = dot(rest, rest), w.number(1e-300)
        length = inner.add("Div", [before, inner.add("Add", [dot(way, curved), small])])
        following = inner.add("Sub", [rest, inner.add("Mul", [length, curved])])
        share = inner.add("Div", [dot(following, following), inner.add("Add", [before, small])])
        moved = inner.add("Add", [multipliers, inner.add("Mul", [length, way])])
        return [moved, following, inner.add("Add", [following, inner.add("Mul", [share, way])])], None

    multipliers = w.loop(min(J, k) + 2, [zero, excess, excess], descent)[0]
    exact = w.add("Sub", [z, w.add("MatMul", [w.constant(N.T), multipliers])])

    def broken(points: str) -> str:
        over = w.add("Sub", [w.add("MatMul", [w.constant(N), points]), limit])
        return w.reduced("ReduceMax", over, 1, keep=True)  # (P, 1, rows)

    over = broken(exact)
    better = w.add("LessOrEqual", [over, w.add("Max", [broken(rough), w.number(1e-9)])])
    points = w.add("Where", [better, exact, rough])
    turned = w.add("Transpose", [points], perm=[0, 2, 1])
    if P == 1:
        return turned, ""
    far = w.add("Sub", [points, z])
    cost = w.reduced("ReduceSum", w.add("Mul", [far, far]), 1)
    fine = w.shaped(w.add("Less", [broken(points), w.number(1e-4)]), P, -1)
    return turned, w.add("Where", [fine, cost, w.number(_FAR)])
