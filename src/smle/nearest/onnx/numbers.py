"""Nearest allowed points as ONNX nodes, for many rows at once; one row per output, (k, rows)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.nearest.blocks import Block
from smle.nearest.onnx.faces import Piece
from smle.nearest.onnx.stacks import Stack
from smle.nearest.onnx.writer import Writer
from smle.nearest.polyhedra import steps_of
from smle_check.onnx.graph import DOUBLE, FLOAT

__all__ = ["number_points"]

Array = npt.NDArray[Any]
_OFF, _FAR = -1e15, 1e200  # excess of a row that is not imposed, in units of the outputs; a bound that never binds
_ROUNDING, _TINY = 2.0**-23, 2.0**-125  # twice the rounding of a float32, and near zero
_LIKELY, _MOST_CLAUSES = 32, 1024  # further pieces if not all are tried; clauses considered for them
_SHORT = 1e-5  # tolerance of an excess, in float32
_DENSE = 256  # outputs, or rows, beyond which matrices are not multiplied or inverted in advance
_SPLITTING, _RHO, _RELAXED = 200, 3.0, 1.6  # steps of the splitting method, its weight and relaxation


def number_points(w: Writer, stack: Stack, given: str, ranks: int) -> list[str]:
    """Return allowed points (k x blocks, rows) near the given answers (m, rows), nearest first."""
    block, clauses = stack.block, stack.clauses
    if stack.pieces:
        return [stack.values(point) for point in _polyhedra(w, stack, stack.pieces, given, ranks)]
    k = block.N.shape[1]
    z, b, (on, rules) = stack.answers(given), _bounds(w, stack), stack.rules()
    nearest = _box if block.is_box else _split
    if stack.tries_all:
        imposed, P = _every_piece(w, clauses, rules, on, len(block.N))
        points, cost = nearest(w, block, z, b, imposed, P)
    else:
        imposed, P = _likely_pieces(w, block, clauses, rules, on, z, b)
        points, cost = nearest(w, block, z, b, imposed, P)
        # Literals that look best from the answer may conflict: choose again from the point found.
        (found,) = _ranked(w, points, cost, 1, k)
        # onnxruntime before 1.31 fuses a transposition and a float64 product into an operator it lacks.
        found = w.add("Max", [w.add("Transpose", [found]), w.number(-_FAR)])
        imposed, P = _likely_pieces(w, block, clauses, rules, on, found, b)
        more = nearest(w, block, z, b, imposed, P)
        points, cost = (w.add("Concat", list(pair), axis=0) for pair in zip((points, cost), more, strict=True))
        P = 2 * P
    ranked = [w.shaped(points, -1, k)] if P == 1 else _ranked(w, points, cost, min(P, ranks), k)
    return [stack.values(w.add("Transpose", [point])) for point in ranked]


def _every_piece(
    w: Writer, clauses: Sequence[Sequence[int]], rules: Sequence[int], on: str | None, J: int
) -> tuple[str, int]:
    """Return the rows that each choice of one literal per clause imposes (P, J, rows), and how many there are."""
    chosen = list(product(*clauses))
    if on is None:
        imposed = np.zeros((len(chosen), J, 1), dtype=bool)
        for i, piece in enumerate(chosen):
            imposed[i, list(piece)] = True
        return w.constant(imposed), len(chosen)
    lists: list[list[int]] = [[] for _ in range(len(chosen) * J)]
    for i, piece in enumerate(chosen):
        for row, rule in zip(piece, rules, strict=True):
            lists[i * J + row].append(rule)
    held = w.add("Greater", [w.any_of(on, lists), w.constant(np.float32(0.5))])
    return w.shaped(held, len(chosen), J, -1), len(chosen)


def _likely_pieces(
    w: Writer, block: Block, clauses: Sequence[Sequence[int]], rules: Sequence[int], on: str | None, at: str, b: str
) -> tuple[str, int]:
    """Impose the literal of each clause broken least at a point; further pieces use the second best of one clause."""
    J = len(block.N)
    excess = w.add("Sub", [w.product(block.N, at), b])
    several = [c for c, clause in enumerate(clauses) if len(clause) > 1][:_MOST_CLAUSES]
    most, C, P = max(len(clauses[c]) for c in several), len(several), 1 + min(len(several), _LIKELY)
    members = [[*clauses[c], *[J] * (most - len(clauses[c]))] for c in several]
    padded = w.add("Concat", [excess, w.add("Add", [w.rows(excess, [0]), w.number(-_OFF)])], axis=0)
    listed = w.shaped(w.rows(padded, [row for own in members for row in own]), C, most, -1)
    two = w.several("TopK", [listed, w.constant(np.array([2], dtype=np.int64))], 2, axis=1, largest=0)[1]
    span = w.constant(np.arange(most, dtype=np.int64)[None, :, None])
    first, second = (
        w.shaped(w.add("Cast", [w.add("Equal", [w.rows(two, [i], 1), span])], to=FLOAT), C * most, -1) for i in (0, 1)
    )
    if on is not None:
        binds = w.rows(on, [rules[c] for c in several for _ in range(most)])
        first, second = w.add("Mul", [first, binds]), w.add("Mul", [second, binds])
    turned = np.zeros((P, C, most), dtype=bool)
    turned[range(1, P), range(P - 1)] = True
    picked = w.add("Where", [w.constant(turned.reshape(P, C * most, 1)), second, first])  # (P, C x most, rows)
    slots: list[list[int]] = [[] for _ in range(J + 1)]
    for slot, row in enumerate(row for own in members for row in own):
        slots[row].append(slot)
    imposed = w.add("Greater", [w.any_of(picked, slots[:J], 1), w.constant(np.float32(0.5))])
    single = [(clause[0], rule) for clause, rule in zip(clauses, rules, strict=True) if len(clause) == 1]
    if on is None:
        fixed = w.constant(np.isin(np.arange(J), [row for row, _ in single])[:, None])
    else:
        lists: list[list[int]] = [[] for _ in range(J)]
        for row, rule in single:
            lists[row].append(rule)
        fixed = w.add("Greater", [w.any_of(on, lists), w.constant(np.float32(0.5))])
    return w.add("Or", [imposed, fixed]), P


def _bounds(w: Writer, stack: Stack) -> str:
    """Return b (J, rows) or (J, 1), with N z <= b."""
    bound, slope = stack.affine_bounds()
    if not slope.any():
        return stack.spread(bound)
    x, slope = _inputs(w, stack.block, slope)
    sums = w.add("MatMul", [w.constant(slope), x])
    lost = w.add("MatMul", [w.constant(2.0**-46 * np.abs(slope)), w.add("Abs", [x])])
    return stack.beside(w.add("Sub", [w.add("Sub", [w.column(bound), sums]), lost]), len(stack.block.N))


def _inputs(w: Writer, block: Block, slope: Array) -> tuple[str, Array]:
    """Return what rows add to their bounds: values (r, rows) of inputs, and their coefficients (J, r).

    A numeric input is a value itself. What a row looks up by category is one value.
    """
    used = slope.any(axis=0)
    numbers, members = np.flatnonzero(used & ~block.looked_up), np.flatnonzero(used & block.looked_up)
    rows = np.flatnonzero(slope[:, members].any(axis=1))
    if len(members) <= len(rows):
        every = np.flatnonzero(used)
        return w.rows("repair/wide", every.tolist()), slope[:, every]
    found = w.add("MatMul", [w.constant(slope[np.ix_(rows, members)]), w.rows("repair/wide", members.tolist())])
    taken = np.eye(len(slope))[:, rows]
    if not len(numbers):
        return found, taken
    x = w.add("Concat", [w.rows("repair/wide", numbers.tolist()), found], axis=0)
    return x, np.concatenate([slope[:, numbers], taken], axis=1)


def _ranked(w: Writer, points: str, cost: str, count: int, k: int) -> list[str]:
    """Return the points of least cost (rows, k), from points (P, rows, k) and costs (P, rows)."""
    if count == 1:
        best = w.add("ArgMin", [cost], axis=0, keepdims=1)
    else:
        best = w.several("TopK", [cost, w.constant(np.array([count], dtype=np.int64))], 2, axis=0, largest=0)[1]
    index = w.add("Add", [w.shaped(best, count, -1, 1), w.constant(np.zeros((1, 1, k), dtype=np.int64))])
    chosen = w.add("GatherElements", [points, index], axis=0)
    listed = [chosen] if count == 1 else [w.rows(chosen, [rank]) for rank in range(count)]
    return [w.shaped(point, -1, k) for point in listed]


def _polyhedra(w: Writer, stack: Stack, pieces: list[Piece], given: str, ranks: int) -> list[str]:
    """Try the sets of rows that can be tight in each piece, and take the one that gives its nearest point.

    The set is found in float32, the point in float64. Rows are moved inward to survive a cast to float32.
    """
    block, z = stack.block, stack.answers(given)
    N, (J, k), P = block.N, block.N.shape, len(pieces)
    # The excess of rows with room for a cast: by answers and their sizes, by inputs and theirs.
    room = np.where(block.unpinned > 0, 2 * _ROUNDING, 0.0)[:, None]
    bound, slope = stack.affine_bounds()
    share = np.repeat(room, len(bound) // J, axis=0)
    tiny = block.unpinned[:, None] * (np.abs(N) @ (_TINY / stack.unit.reshape(k, -1)))
    constant = share[:, 0] * np.abs(bound) - bound + tiny.reshape(-1)
    weights = w.constant(np.concatenate([N, room * np.abs(N)], axis=1))
    if slope.any():
        x, slope = _inputs(w, block, slope)
        both = w.constant(np.concatenate([slope, share * np.abs(slope)], axis=1))
        moved = w.add("Gemm", [both, w.add("Concat", [x, w.add("Abs", [x])], axis=0), w.column(constant)])
        moved = stack.beside(moved, J)
    else:
        moved = stack.spread(constant)
    excess = w.add("Gemm", [weights, w.add("Concat", [z, w.add("Abs", [z])], axis=0), moved])
    masked = stack.imposed(w.add("Cast", [excess], to=FLOAT))
    # Sets and rows of all pieces, padded to the longest.
    S, R = (max(len(own) for own in listed) for listed in ([p.sets for p in pieces], [p.rows for p in pieces]))
    tables, pulls = np.zeros((P, S, R, J), dtype=np.float32), np.zeros((P, S, k, J))
    for i, piece in enumerate(pieces):
        for j in range(S):
            own = piece.rows + piece.rows[:1] * (R - len(piece.rows))
            table, pulls[i, j] = _solution(N, piece.sets[j] if j < len(piece.sets) else piece.sets[0])
            tables[i, j] = table[own]
    trial = w.shaped(w.add("MatMul", [w.constant(tables.reshape(-1, J)), masked]), P * S, R, -1)
    least = w.reduced("ReduceMin", trial, 1)
    if P == 1:
        number = w.add("ArgMax", [least], axis=0, keepdims=0)
    else:
        least = w.shaped(least, P, S, -1)
        starts = w.constant(S * np.arange(P, dtype=np.int64)[:, None])
        number = w.add("Add", [w.add("ArgMax", [least], axis=1, keepdims=0), starts])
    pull = w.add("Gather", [w.constant(pulls.reshape(P * S, k * J)), number], axis=0)
    repeated = excess if k == 1 else w.rows(excess, [*range(J)] * k)
    shares = w.add("Mul", [pull, w.add("Transpose", [repeated])])  # (P, rows, k x J)
    if P == 1:
        moves, back = [shares], np.repeat(-np.eye(k), J, axis=1)
    else:
        move = w.add("MatMul", [shares, w.constant(np.repeat(np.eye(k), J, axis=0))])
        cost = w.reduced("ReduceSum", w.add("Mul", [move, move]), 2)
        fine = w.add("Greater", [w.reduced("ReduceMax", least, 1), w.constant(np.float32(-_SHORT))])
        moves = _ranked(w, move, w.add("Where", [fine, cost, w.number(_FAR)]), min(P, ranks), k)
        back = -np.eye(k)
    return [w.add("Gemm", [w.constant(back), move, z], transB=1) for move in moves]


def _solution(N: Array, tight: tuple[int, ...]) -> tuple[Array, Array]:
    """Return for a set of tight rows a table (J, J) and its pull (k, J), applied to the excess of the rows.

    The table gives multipliers of the rows in the set, and the slack of the others; at the nearest point all are >= 0.
    """
    J, k = N.shape
    own = np.array(tight, dtype=np.intp)
    table, inverse = steps_of(N @ N.T, own)
    table -= np.diag(np.where(np.isin(np.arange(J), own), 0.0, 1.0))
    pull = np.zeros((k, J))
    pull[:, own] = N[own].T @ inverse
    return table, pull


def _box(w: Writer, block: Block, z: str, b: str, imposed: str, P: int) -> tuple[str, str]:
    """Solve rows over one output each: the nearest point between two ends."""
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
        ends.append(w.joined(listed, 1))
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
    """Solve many rows by a splitting method; then return the point at which the binding rows are tight."""
    N, (J, k) = block.N, block.N.shape
    sizes = w.product(2 * _ROUNDING * np.abs(N), w.add("Abs", [z]))
    floor = w.add("Add", [sizes, w.add("Mul", [w.add("Abs", [b]), w.number(2 * _ROUNDING)])])
    aim = w.add("Sub", [b, floor])
    limit = w.add("Where", [imposed, aim, w.number(_FAR)])  # (P, J, rows)
    value = w.product(N, z)
    start = w.add("Min", [value, limit])
    zero = w.add("Sub", [start, start])
    around = w.add("Add", [z, w.constant(np.zeros((P, k, 1)))])
    rough, dual = (_alternated if k <= _DENSE else _ascended)(w, N, z, limit, start, around)
    tight = w.add("Cast", [w.add("Greater", [dual, w.number(1e-9)])], to=DOUBLE)
    excess = w.add("Mul", [w.add("Sub", [value, aim]), tight])
    inner_product = partial(_gram, N)

    def descent(inner: Writer, names: list[str]) -> tuple[list[str], None, list[str]]:
        """Find the multipliers at which the tight rows are tight, by conjugate gradients."""
        multipliers, rest, way = names
        curved = inner.add("Mul", [inner_product(inner, way), tight])
        axes = w.constant(np.array([1], dtype=np.int64))

        def dot(first: str, second: str) -> str:
            return inner.add("ReduceSum", [inner.add("Mul", [first, second]), axes], keepdims=1)

        before, small = dot(rest, rest), w.number(1e-300)
        length = inner.add("Div", [before, inner.add("Add", [dot(way, curved), small])])
        following = inner.add("Sub", [rest, inner.add("Mul", [length, curved])])
        share = inner.add("Div", [dot(following, following), inner.add("Add", [before, small])])
        moved = inner.add("Add", [multipliers, inner.add("Mul", [length, way])])
        return [moved, following, inner.add("Add", [following, inner.add("Mul", [share, way])])], None, []

    multipliers = w.loop(min(J, k) + 2, [zero, excess, excess], descent)[0]
    exact = w.add("Sub", [z, w.product(N.T, multipliers)])

    def broken(points: str) -> str:
        over = w.add("Sub", [w.product(N, points), limit])
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


def _gram(N: Array, w: Writer, value: str) -> str:
    """Return N N' value."""
    if len(N) <= _DENSE:
        return w.add("MatMul", [w.constant(N @ N.T), value])
    return w.product(N, w.product(N.T, value))


def _alternated(w: Writer, N: Array, z: str, limit: str, start: str, around: str) -> tuple[str, str]:
    """Return points (P, k, rows) near z with N point <= limit, and multipliers, by alternating directions."""
    inverse = np.linalg.inv(np.eye(N.shape[1]) + _RHO * N.T @ N)

    def step(inner: Writer, names: list[str]) -> tuple[list[str], None, list[str]]:
        _, slack, dual = names
        pulled = inner.add("MatMul", [w.constant(_RHO * N.T), inner.add("Sub", [slack, dual])])
        point = inner.add("MatMul", [w.constant(inverse), inner.add("Add", [z, pulled])])
        mixed = inner.add("Mul", [inner.add("MatMul", [w.constant(N), point]), w.number(_RELAXED)])
        mixed = inner.add("Add", [mixed, inner.add("Mul", [slack, w.number(1 - _RELAXED)])])
        summed = inner.add("Add", [mixed, dual])
        following = inner.add("Min", [summed, limit])
        return [point, following, inner.add("Sub", [summed, following])], None, []

    rough, _, dual = w.loop(_SPLITTING, [around, start, w.add("Sub", [start, start])], step)
    return rough, dual


def _ascended(w: Writer, N: Array, z: str, limit: str, start: str, around: str) -> tuple[str, str]:
    """Like `_alternated`, by Nesterov's steps on the multipliers, which only multiply by N: no inverse is stored."""
    length = w.number(1 / float(np.linalg.norm(N, 2)) ** 2)

    def step(inner: Writer, names: list[str]) -> tuple[list[str], None, list[str]]:
        before, ahead = names
        point = inner.add("Sub", [around, inner.product(N.T, ahead)])
        over = inner.add("Sub", [inner.product(N, point), limit])
        following = inner.add("Max", [inner.add("Add", [ahead, inner.add("Mul", [over, length])]), w.number(0.0)])
        count = inner.add("Cast", [inner.step], to=DOUBLE)
        share = inner.add("Div", [count, inner.add("Add", [count, w.number(3.0)])])
        return (
            [
                following,
                inner.add("Add", [following, inner.add("Mul", [inner.add("Sub", [following, before]), share])]),
            ],
            None,
            [],
        )

    zero = w.add("Sub", [start, start])
    dual, _ = w.loop(_SPLITTING, [zero, zero], step)
    return w.add("Sub", [around, w.product(N.T, dual)]), dual
