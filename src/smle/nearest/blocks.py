"""Blocks: what is prepared to find nearest answers, for each group of outputs that rules tie together.

Labels that only rules among labels tie together become a `LabelBlock`. Any other group becomes a `Block`, rows and
bounds in floats, which `alternatives` searches in NumPy and `onnx` prints as nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod

import numpy as np
import numpy.typing as npt

from smle.nearest.clauses import Clauses, tied_together
from smle.nearest.labels import LabelBlock
from smle.nearest.polyhedra import TINY, Polyhedron, SingleRows, upward

__all__ = ["AT", "Block", "blocks_of"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
Pairs = npt.NDArray[np.int32]

AT = 2.0**-30  # tolerance for equal numbers, relative to the largest output in its unit
_PIECES = 4  # up to this many choices are tried at once
_SMALLEST = 2.0**-126  # a label that is off is at most minus this
_MOST_PAIRS = 20_000  # exclusions that become clauses if labels are tied to other outputs


class Block:
    """Clauses that share outputs with each other and with no other clause.

    Shapes: g (J, k) over `outputs` (k,), s (J, d), h (J,): distinct literals; `clauses`: the rows of each; `parts`: the
    column of each in the mask of binding parts; scale (k,). With `likely`, distances are in log-likelihood. `group`
    (d,): the one-hot group of each input, -1 for a number.

    Attributes:
        N, over: The literals (J, k), of norm 1: over outputs divided by their `unit` (k,), and over outputs, so that an
            excess is a distance in units.
        bound, slope: The bounds of the literals, `bound - slope.x`: (J,), (J, d).
        rows: What finds the nearest points under literals; `is_box` if each is about one output.
        pieces: How many choices of a literal per clause there are.
        imposes: The literals of each choice, by clause (C, pieces x J). If there are too many choices to try, there is
            one piece, with the clauses of a single literal.
        pins: Pairs of rows that leave one output a single number: (rows, output, number).
        unpinned: 0 for these rows, 1 for others.
        looked_up: A mask of inputs that are members of one-hot groups (d,).
    """

    def __init__(
        self,
        outputs: Numbers,
        g: Array,
        s: Array,
        h: Array,
        clauses: Sequence[Sequence[int]],
        parts: Numbers,
        scale: Array,
        *,
        likely: bool,
        group: Numbers,
    ) -> None:
        self.outputs, self.columns = outputs, _slice(outputs)
        self.parts, self.read_parts = parts, _slice(parts)
        scale = scale / scale[0] * 2.0 ** np.round(np.log2(scale[0]))  # alike in blocks of one form
        single, column = (g != 0).sum(axis=1) == 1, np.abs(g).argmax(axis=1)
        self.is_box = bool(single.all())
        scaled = g if self.is_box else g * scale
        norm = np.abs(g).sum(axis=1) if self.is_box else np.sqrt((scaled**2).sum(axis=1))
        self.unit = np.ones(len(scale)) if self.is_box else scale
        self.over = _short(g / norm[:, None])  # ties look the same in sums of any order
        self.N = self.over * self.unit
        self.rows = (
            SingleRows(column, np.sign(g.sum(axis=1)), len(scale)) if self.is_box else Polyhedron(self.over, scale)
        )
        self.weight = scale**-2.0
        self.is_likely = self.is_box and likely  # logits: cost in log-likelihood
        self.row_weight = self.weight[column] if self.is_box else np.ones(len(g))
        self.slope, self.looked_up = s / norm[:, None], group >= 0
        self._numbers = np.flatnonzero(s.any(axis=0) & ~self.looked_up)
        self._slope = self.slope[:, self._numbers]
        # What is looked up in a group, by the position of its 1: (K, J).
        named = [np.flatnonzero(group == number) for number in range(group.max(initial=-1) + 1)]
        self._tables = [(_slice(own), self.slope[:, own].T.copy()) for own in named if s[:, own].any()]
        # A sum over one group without a bound is one number of the table.
        table = [
            not b and len(set(group[row != 0])) == 1 and group[row != 0][0] >= 0 for row, b in zip(s, h, strict=True)
        ]
        self._noise = np.where(table, 0.0, 2.0**-46)
        exact = single & (np.abs(g).sum(axis=1) == 1)
        self.bound = (h - np.where(exact, 0.0, 2.0**-48 * np.abs(h))) / norm
        if not self.is_box:
            self.bound -= TINY * np.abs(self.over).sum(axis=1)
        self.pins = [] if self.is_box else _pins(g, h, single & ~s.any(axis=1))
        self.unpinned = np.ones(len(g))
        self.unpinned[[row for rows, *_ in self.pins for row in rows]] = 0.0
        self.clauses = [list(clause) for clause in clauses]
        self.lengths = np.array([*map(len, clauses)], dtype=np.intp)
        self.members = np.concatenate([np.asarray(clause, dtype=np.intp) for clause in clauses])
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.pieces = prod(self.lengths.tolist())
        self.tries_all = self.pieces <= _PIECES
        chosen = list(product(*clauses)) if self.tries_all else [[c[0] if len(c) == 1 else -1 for c in clauses]]
        imposes = np.zeros((len(clauses), len(chosen), len(g)), dtype=np.float32)
        for i, piece in enumerate(chosen):
            for c, row in enumerate(piece):
                if row >= 0:
                    imposes[c, i, row] = 1.0
        self.imposes = imposes.reshape(len(clauses), -1)
        self.is_direct = len(chosen) == 1 and np.array_equal(self.imposes, np.eye(len(g)))  # each clause is its row

    def bounds(self, X: Array) -> Array:
        """Return b (n, J), or (J,), with N z <= b, reduced by the possible rounding of the inputs' terms."""
        found = self.bound
        if len(self._numbers):
            x = X[:, self._numbers]
            found = found - x @ self._slope.T - self._noise * (np.abs(x) @ np.abs(self._slope).T)
        for columns, table in self._tables:
            values = table[X[:, columns].argmax(axis=1)]
            found = found - values - self._noise * np.abs(values)
        return np.asarray(found)

    def holds(self, y: Array, b: Array, active: Mask) -> Mask:
        """Return a mask of the answers (n, m) that satisfy the active clauses, in float64: (n,)."""
        excess = y[:, self.columns] @ self.over.T - b
        return np.asarray((~active | (self.least(excess) <= 0)).all(axis=1))

    def least(self, excess: Array) -> Array:
        """Return the excess of each clause's best literal. Shapes: (n, J) -> (n, C)."""
        return np.asarray(np.minimum.reduceat(excess[:, self.members], self.starts, axis=1))


def blocks_of(clauses: Clauses, h_checked: Array, scale: Array) -> list[Block | LabelBlock]:
    """Return a block for each group of outputs tied together by clauses and exclusions.

    Outputs with nothing but limits on themselves are left to the head's clips.
    """
    m, count = len(clauses.labels), len(clauses.rule)
    ends = np.searchsorted(clauses.clause, np.arange(count + 1))
    ties = [{i for form in clauses.outputs[a:b] for i in form} for a, b in pairwise(ends.tolist())]
    groups = tied_together(ties, [pairs for _, pairs in clauses.exclusions], m)
    group = np.full(m, -1)
    for number, columns in enumerate(groups):
        group[columns] = number
    own: list[list[int]] = [[] for _ in groups]
    for c, tie in enumerate(ties):
        if tie:
            own[group[next(iter(tie))]].append(c)
    made: list[Block | LabelBlock] = []
    for number, columns in enumerate(groups):
        lists = [(count + e, pairs[group[pairs[:, 0]] == number]) for e, (_, pairs) in enumerate(clauses.exclusions)]
        stated = [(c, [i for i in range(ends[c], ends[c + 1]) if clauses.outputs[i]]) for c in own[number]]
        listed = [(part, pairs) for part, pairs in lists if len(pairs)]
        if len(columns) == 1 and not listed and all(ends[c + 1] - ends[c] == 1 for c in own[number]):
            continue
        said = {clauses.signs[i] for _, literals in stated for i in literals}
        if clauses.labels[columns].all() and None not in said:
            made.append(_labels(clauses, columns, stated, listed, h_checked))
        else:
            made.append(_numbers(clauses, columns, stated, listed, h_checked, scale))
    return made


Stated = Sequence[tuple[int, Sequence[int]]]  # the number of each clause, and its literals
Listed = Sequence[tuple[int, Pairs]]  # the part of each list of exclusions, and its pairs


def _labels(clauses: Clauses, columns: Numbers, stated: Stated, lists: Listed, h_checked: Array) -> LabelBlock:
    position = {int(column): i for i, column in enumerate(columns)}
    least, most = np.zeros(len(columns)), np.full(len(columns), -_SMALLEST)
    words = []
    for _, literals in stated:
        clause = []
        for i in literals:
            label, on = clauses.signs[i]  # type: ignore[misc]
            at = position[label]
            clause.append((at, on))
            if on:
                least[at] = max(least[at], -h_checked[i])
            else:
                most[at] = min(most[at], h_checked[i])
        words.append(clause)
    pairs = [np.searchsorted(columns, own).astype(np.int32) for _, own in lists]
    parts = np.array([*(c for c, _ in stated), *(part for part, _ in lists)], dtype=np.intp)
    rules = clauses.parts[parts]
    gates = np.where(clauses.always[rules], -1, rules)
    return LabelBlock(columns, words, pairs, parts, gates, upward(least), -upward(-most))


def _numbers(
    clauses: Clauses, columns: Numbers, stated: Stated, lists: Listed, h_checked: Array, scale: Array
) -> Block:
    literals = [i for _, own in stated for i in own]
    pairs = np.concatenate([np.empty((0, 2), dtype=np.int32), *(own for _, own in lists)])
    if len(pairs) > _MOST_PAIRS:
        pairs, lists = pairs[:0], ()
    tied = np.unique(pairs)
    k, position = len(columns), {int(column): i for i, column in enumerate(columns)}
    rows = np.zeros((len(literals) + len(tied), k + clauses.width + 1))
    for row, i in enumerate(literals):
        for output, value in clauses.outputs[i].items():
            rows[row, position[output]] = value
        for column, value in clauses.inputs[i].items():
            rows[row, k + column] = value
        rows[row, -1] = h_checked[i]
    rows[np.arange(len(literals), len(rows)), np.searchsorted(columns, tied)] = 1.0
    rows[len(literals) :, -1] = -_SMALLEST
    # Keep distinct literals: rules often repeat them, and a label has two.
    distinct, first, place = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    # In the stated order.
    distinct, place = distinct[np.argsort(first)], np.argsort(np.argsort(first))[place.reshape(-1)]
    row_of = dict(zip(literals, place.tolist(), strict=False))
    off = dict(zip(tied.tolist(), place[len(literals) :].tolist(), strict=True))
    listed = [[row_of[i] for i in own] for _, own in stated]
    listed += [[off[a], off[b]] for _, own in lists for a, b in own.tolist()]
    parts = [*(c for c, _ in stated), *(part for part, own in lists for _ in own)]
    g, s, h = distinct[:, :k], distinct[:, k:-1], distinct[:, -1]
    likely = bool(clauses.labels[columns].all())
    places = np.array(parts, dtype=np.intp)
    return Block(columns, g, s, h, listed, places, scale[columns], likely=likely, group=clauses.group)


def _pins(g: Array, h: Array, constant: Mask) -> list[tuple[tuple[int, int], int, float]]:
    """Return pairs of rows that leave one output a single float32 number: (rows, output, number)."""
    ends = [(int(np.abs(g[row]).argmax()), float(g[row].sum()), row) for row in np.flatnonzero(constant).tolist()]
    upper = {(column, h[row] / slope): row for column, slope, row in ends if slope > 0}
    lower = {(column, h[row] / slope): row for column, slope, row in ends if slope < 0}
    both = [key for key in upper.keys() & lower.keys() if float(np.float32(key[1])) == key[1]]
    return [((upper[key], lower[key]), *key) for key in sorted(both)]


def _short(values: Array) -> Array:
    """Round to 29 bits, so that products with float32 numbers are exact."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**29), exponent - 29))


def _slice(columns: Numbers) -> Numbers | slice:
    """Return consecutive columns as a slice, which NumPy reads faster."""
    if len(columns) and (np.diff(columns) == 1).all():
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
