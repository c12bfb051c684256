"""Nearest points that satisfy clauses over some outputs: a search over literals for many points at once.

The nearest point under the literals chosen so far bounds the distance from below, and the clause it breaks most is
branched on. Points pass through the levels of the search together; each keeps the most promising nodes of a level. How
many it keeps does not depend on the other points. If there were more, the search is marked as cut short.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.nearest.float_steps import on_float_steps
from smle.nearest.polyhedra import TINY, Polyhedron, SingleRows

__all__ = ["AT", "KEPT", "Block", "NearestPoints"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

KEPT = 3  # points for each row
_PIECES = 4  # up to this many choices of a literal per clause are tried at once
_BEAM, _WIDE_BEAM = 16, 256  # nodes of a level for each row: at first, and if these were too few
_NODES = 4_000  # of a level, for all rows of one wide search
_LEVELS = 60
_ROOM = 2.0**-21
AT = 2.0**-30  # tolerance for equal numbers, relative to the largest output in its unit
_FAR = 4096.0  # units; answers farther away need no more room


class NearestPoints:
    """What was found for n points: up to `KEPT` allowed points each, nearest first.

    `place` (n, ranks) has their positions among the nodes, -1 if there are fewer; None if each point has its own node.
    `cut` (n,): whether the search for a nearer point was cut short; None if for no row.
    """

    def __init__(
        self, block: Block, b: Array, active: Mask, nodes: _Nodes, place: Numbers | None = None, cut: Mask | None = None
    ) -> None:
        self._block, self._b, self._active, self._nodes, self._place = block, b, active, nodes, place
        self.cut = cut

    def first(self) -> Array:
        """Return the nearest points, NaN where none was found. Shape (n, k).

        Rows at their limits have room for a cast to float32. Others nearly always do.
        """
        if self._place is None:
            return self._block.moved_in(self._nodes, self._b)
        place = self._place[:, 0]
        y = self._block.moved_in(self._nodes.take(place), self._b)
        if place.min(initial=0) < 0:
            y[place < 0] = np.nan
        return y

    def points(self, rank: int, rows: Numbers) -> Array:
        """Return points of a rank (the best if there are fewer) at which every literal has room for a cast."""
        place, b = self._places(rank, rows)
        y = self._block.moved_in(self._nodes.take(place), b, self._active[rows])
        y[place < 0] = np.nan
        return y

    def on_float_steps(self, rank: int, rows: Numbers) -> Array:
        """Return points of a rank as float32 numbers, for rules that leave less room than a cast needs."""
        place, b = self._places(rank, rows)
        y = self._block.on_float_steps(self._nodes.take(place), b)
        y[place < 0] = np.nan
        return y

    def _places(self, rank: int, rows: Numbers) -> tuple[Numbers, Array]:
        place, b = rows, self._b if self._b.ndim == 1 else self._b[rows]
        if self._place is not None:
            ranks = self._place[rows]
            place = ranks[:, min(rank, ranks.shape[1] - 1)]
            place = np.where(place < 0, ranks[:, 0], place)
        return place, b

    def tight(self, y: Array) -> tuple[Array, Mask]:
        """Return the points (n, k) nearest to answers y (n, k), NaN where none was found, and their tight rows."""
        if self._place is None:
            return self._nodes.z, self._block.tight(self._nodes, self._b)
        points = np.where(self._place[:, :, None] < 0, np.nan, self._nodes.z[self._place])
        far = np.abs((points - y[:, None]) / self._block.unit).max(axis=2)
        best = np.where(np.isnan(far), np.inf, far).argmin(axis=1)[:, None]
        place = np.take_along_axis(self._place, best, axis=1)[:, 0]
        return points[np.arange(len(y)), best[:, 0]], self._block.tight(self._nodes.take(place), self._b)

    def holds(self, y: Array, rows: Numbers) -> Mask:
        """Return a mask of the answers (rows, m) that obey, in float64."""
        return self._block.holds(y, self._b if self._b.ndim == 1 else self._b[rows], self._active[rows])


class _Nodes(NamedTuple):
    """Points found: z (N, k), the rows imposed on them (N, J), and their states (N, ...)."""

    z: Array
    imposed: Mask
    state: Any

    def take(self, place: Numbers) -> _Nodes:
        return _Nodes(self.z[place], self.imposed[place], self.state[place])


class Block:
    """Clauses that share outputs with each other and with no other clause.

    Shapes: g (J, k) over `outputs` (k,), s (J, d), h (J,): distinct literals; `clauses`: the rows of each; `parts`: the
    column of each in the mask of binding parts; scale (k,). With `likely`, distances are in log-likelihood. `group`
    (d,): the one-hot group of each input, -1 for a number; None if all are numbers.

    Attributes:
        pins: Pairs of rows that leave one output a single number: (rows, output, number).
        unpinned: 0 for these rows, 1 for others.
        looked_up: A mask of inputs that are members of one-hot groups (d,).
        is_quiet: Whether points are found without overflows or divisions by zero.
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
        likely: bool = False,
        group: Numbers | None = None,
    ) -> None:
        self.outputs, own = outputs, g
        self.looked_up = np.zeros(s.shape[1], dtype=bool) if group is None else group >= 0
        self._columns = _slice(self.outputs)
        self.parts, self._parts = parts, _slice(parts)
        single = (own != 0).sum(axis=1) == 1
        self.is_box = bool(single.all())
        scaled = own if self.is_box else own * scale
        norm = np.abs(own).sum(axis=1) if self.is_box else np.sqrt((scaled**2).sum(axis=1))
        self._rows = (
            SingleRows(np.abs(own).argmax(axis=1), np.sign(own.sum(axis=1)), own.shape[1])
            if self.is_box
            else Polyhedron(scaled / norm[:, None], scale)
        )
        self.unit = np.ones(len(scale)) if self.is_box else scale
        self.N = scaled / norm[:, None]  # over outputs divided by their unit
        self._over = own / norm[:, None]  # the same over outputs: an excess is a distance in units
        self.weight = scale**-2.0
        self.is_likely = self.is_box and likely  # logits: cost in log-likelihood
        self._sizes = np.abs(self.N.T)
        self._more = self.weight[np.abs(own).argmax(axis=1)] if self.is_box else np.ones(len(own))
        self._shifts = s / norm[:, None]
        self._numbers = np.flatnonzero(s.any(axis=0) & ~self.looked_up)
        self._slope = self._shifts[:, self._numbers]
        # What is looked up in a group, by the position of its 1: (K, J).
        named = [] if group is None else [np.flatnonzero(group == g) for g in range(group.max(initial=-1) + 1)]
        self._tables = [(_slice(own), self._shifts[:, own].T.copy()) for own in named if s[:, own].any()]
        # A sum over one group without a bound is one number of the table.
        members = np.full(s.shape[1], -1) if group is None else group
        table = [
            not b and len(set(members[row != 0])) == 1 and members[row != 0][0] >= 0
            for row, b in zip(s, h, strict=True)
        ]
        self._noise = np.where(table, 0.0, 2.0**-46)
        exact = single & (np.abs(own).sum(axis=1) == 1)
        self._bound = (h - np.where(exact, 0.0, 2.0**-48 * np.abs(h))) / norm
        if not self.is_box:
            self._bound -= TINY * np.abs(self._over).sum(axis=1)
        self.pins = [] if self.is_box else _pins(own, h, single & ~s.any(axis=1))
        self.unpinned = np.ones(len(own))
        self.unpinned[[row for rows, *_ in self.pins for row in rows]] = 0.0
        lengths = np.array([len(clause) for clause in clauses], dtype=np.intp)
        self._members = np.concatenate([np.asarray(clause, dtype=np.intp) for clause in clauses])
        self._lengths = lengths
        self._starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.intp)
        self._pieces = prod(lengths.tolist()) if lengths.max() <= _PIECES else _PIECES + 1
        chosen = (
            list(product(*clauses)) if self._pieces <= _PIECES else [[c[0] if len(c) == 1 else -1 for c in clauses]]
        )
        imposes = np.zeros((len(clauses), len(chosen), len(own)), dtype=np.float32)
        for i, piece in enumerate(chosen):
            for c, row in enumerate(piece):
                if row >= 0:
                    imposes[c, i, row] = 1.0
        self._imposes = imposes.reshape(len(clauses), -1)  # [clause, piece and row]; without pieces, of single literals
        self._several = np.flatnonzero(lengths > 1)
        self.is_quiet = self._pieces == 1 and not self.is_box
        self._direct = len(chosen) == 1 and np.array_equal(self._imposes, np.eye(len(own)))

    def members(self, clause: int) -> list[int]:
        """Return the rows of a clause, one of which must hold."""
        start = self._starts[clause]
        return [int(row) for row in self._members[start : start + self._lengths[clause]]]

    def affine_bounds(self) -> tuple[Array, Array]:
        """Return the bounds of the rows, `bound - slope.x`: bound (J,), slope (J, d)."""
        return self._bound, self._shifts

    def bounds(self, X: Array) -> Array:
        """Return b (n, J), or (J,), with N z <= b, reduced by the possible rounding of the inputs' terms."""
        found = self._bound
        if len(self._numbers):
            x = X[:, self._numbers]
            found = found - x @ self._slope.T - self._noise * (np.abs(x) @ np.abs(self._slope).T)
        for columns, table in self._tables:
            values = table[X[:, columns].argmax(axis=1)]
            found = found - values - self._noise * np.abs(values)
        return np.asarray(found)

    def holds(self, y: Array, b: Array, active: Mask) -> Mask:
        """Return a mask of the answers (n, m) that satisfy the active clauses, in float64: (n,)."""
        excess = y[:, self._columns] @ self._over.T - b
        return np.asarray((~active | (self._least(excess) <= 0)).all(axis=1))

    def solve(self, active: Mask, X: Array, t: Array) -> NearestPoints:
        """Return allowed points near answers t (n, m), given which parts of the rules are active."""
        self._rows.trim()
        p, b, active = t[:, self._columns], self.bounds(X), active[:, self._parts]
        imposed = active if self._direct else (active @ self._imposes) > 0
        if self._pieces == 1:
            z, _, state = self._rows.nearest(p, b, imposed, may_be_empty=False)
            return NearestPoints(self, b, active, _Nodes(z, imposed, state))
        b = np.broadcast_to(b, (len(p), len(self.N)))
        if self.is_box:
            return NearestPoints(self, b, active, *self._parts_of(p, b, active, imposed))
        # Ask for a little room first: without it, contradicting literals nearly agree.
        room = _ROOM * (1.0 + np.abs(b) + np.minimum(np.abs(p / self.unit), _FAR) @ self._sizes)
        tight = b - room * self.unpinned
        nodes, place, cut = self._parts_of(p, tight, active, imposed)
        missing = np.flatnonzero(place[:, 0] < 0)
        if len(missing):
            more, found, short = self._parts_of(p[missing], b[missing], active[missing], imposed[missing])
            if cut is not None and short is not None:
                cut[missing] |= short
            place[missing] = -1
            place[missing, : found.shape[1]] = np.where(found < 0, -1, found + len(nodes.z))
            nodes = _Nodes(*(np.concatenate(both) for both in zip(nodes, more, strict=True)))
        return NearestPoints(self, b, active, nodes, place, cut)

    def _parts_of(self, p: Array, b: Array, active: Mask, imposed: Mask) -> tuple[_Nodes, Numbers, Mask | None]:
        """Return nearest points of the parts of what is allowed, and the positions of the nearest of them (n, ranks).

        The last value marks searches that were cut short (n,), or is None.
        """
        n, P = len(p), self._pieces
        if P > _PIECES:
            return self._search(p, b, active, imposed)
        imposed = imposed.reshape(n * P, -1)
        z, short, state = self._rows.nearest(np.repeat(p, P, axis=0), np.repeat(b, P, axis=0), imposed)
        cost = self._cost(z, np.repeat(p, P, axis=0))
        cost[short < 0] = np.inf
        order = cost.reshape(n, P).argsort(axis=1, kind="stable")[:, :KEPT] + P * np.arange(n)[:, None]
        return _Nodes(z, imposed, state), np.where(short[order] < 0, -1, order), None

    def moved_in(self, nodes: _Nodes, b: Array, active: Mask | None = None) -> Array:
        """Return points in the outputs' own units, moved inward to survive a cast to float32.

        With `active`, every literal that a clause needs gets this room, not only rows at their limits.
        """
        z, imposed, state = nodes
        if active is not None and self._pieces > _PIECES:
            imposed = imposed.copy()
            excess = (z @ self._over.T - b)[:, self._members]
            for c in self._several:  # the literal that holds most clearly
                start, end = self._starts[c], self._starts[c] + self._lengths[c]
                on = np.flatnonzero(active[:, c])
                imposed[on, self._members[start + excess[on, start:end].argmin(axis=1)]] = True
        y = self._rows.tighten(z, b, imposed, state, thorough=active is not None)
        for _, column, value in self.pins:  # a pinned output must be exactly that number
            noise = AT * (self.unit[column] * np.abs(y / self.unit).max(axis=1) + abs(value))
            y[np.abs(y[:, column] - value) <= noise, column] = value
        return y

    def tight(self, nodes: _Nodes, b: Array) -> Mask:
        """Return a mask of the rows that hold points in place (n, J)."""
        return self._rows.tight(nodes.state, nodes.z, b, nodes.imposed)

    @property
    def slopes(self) -> Array:
        """By how much bounds fall as inputs rise (J, d); 0 for members of one-hot groups."""
        return np.where(self.looked_up, 0.0, self._shifts)

    def on_float_steps(self, nodes: _Nodes, b: Array) -> Array:
        """Return points as float32 numbers that obey the rows imposed on them, where such are found."""
        return on_float_steps(nodes.z, self._over, b, nodes.imposed)

    def _least(self, excess: Array) -> Array:
        """Return the excess of each clause's best literal. Shapes: (n, J) -> (n, C)."""
        return np.asarray(np.minimum.reduceat(excess[:, self._members], self._starts, axis=1))

    def _cost(self, z: Array, p: Array) -> Array:
        move = np.abs(z - p)
        return np.asarray(move.sum(axis=1) if self.is_likely else move**2 @ self.weight)

    def _search(self, p: Array, b: Array, active: Mask, imposed: Mask) -> tuple[_Nodes, Numbers, Mask]:
        """Search all rows narrowly, then those for which that was too narrow again, widely."""
        nodes, place, cut = self._levels(p, b, active, imposed, _BEAM)
        rows, most = np.flatnonzero(cut), _NODES // _WIDE_BEAM
        for part in (rows[i : i + most] for i in range(0, len(rows), most)):
            more, found, cut[part] = self._levels(p[part], b[part], active[part], imposed[part], _WIDE_BEAM)
            costs = [
                np.where(first < 0, np.inf, self._cost(own.z[first], p[part]))
                for own, first in ((nodes, place[part, 0]), (more, found[:, 0]))
            ]
            better = costs[1] <= costs[0]
            place[part[better]] = np.where(found < 0, -1, found + len(nodes.z))[better]
            nodes = _Nodes(*(np.concatenate(both) for both in zip(nodes, more, strict=True)))
        return nodes, place, cut

    def _levels(self, p: Array, b: Array, active: Mask, imposed: Mask, beam: int) -> tuple[_Nodes, Numbers, Mask]:
        """Search level by level with at most `beam` nodes for each row."""
        n = len(p)
        row, best, dropped = np.arange(n), np.full(n, np.inf), np.full(n, np.inf)
        leaves: list[tuple[Numbers, Array, _Nodes]] = []
        state: Any = None
        for _ in range(_LEVELS):
            z, short, state = self._rows.nearest(p[row], b[row], imposed, state)
            cost = self._cost(z, p[row])
            keep = np.flatnonzero((short >= 0) & (cost < best[row]))
            row, cost, nodes = row[keep], cost[keep], _Nodes(z, imposed, state).take(keep)
            excess = nodes.z @ self._over.T - b[row]
            excess[nodes.imposed] = np.minimum(excess[nodes.imposed], 0.0)
            least = np.where(active[row], self._least(excess), 0.0)
            worst = least.argmax(axis=1)
            open_ = least[np.arange(len(row)), worst] > 0
            ends, open_ = np.flatnonzero(~open_), np.flatnonzero(open_)
            if len(ends):
                leaves.append((row[ends], cost[ends], nodes.take(ends)))
                np.minimum.at(best, row[ends], cost[ends])
            if not len(open_):
                break
            # One child for each literal of the clause broken most.
            lengths = self._lengths[worst[open_]]
            parent = np.repeat(open_, lengths)
            offset = np.arange(len(parent)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            literal = self._members[self._starts[worst[parent]] + offset]
            more = excess[parent, literal]
            bound = cost[parent] + (more if self.is_likely else more**2 * self._more[literal])
            kept, left = _promising(row[parent], bound, best, beam)
            np.minimum.at(dropped, row[parent[left]], bound[left])
            parent, literal = parent[kept], literal[kept]
            row, imposed, state = row[parent], nodes.imposed[parent], nodes.state[parent]
            imposed[np.arange(len(row)), literal] = True
        else:
            dropped[row] = -np.inf
        if not leaves:
            nothing = np.zeros(b.shape, dtype=bool)
            z, _, state = self._rows.nearest(p, b, nothing)
            return _Nodes(z, nothing, state), np.full((n, KEPT), -1), dropped < best
        row, cost = (np.concatenate([leaf[i] for leaf in leaves]) for i in (0, 1))
        nodes = _Nodes(*(np.concatenate(part) for part in zip(*(leaf[2] for leaf in leaves), strict=True)))
        order = np.lexsort((cost, row))
        rank = np.arange(len(order)) - np.searchsorted(row[order], row[order], side="left")
        order, rank = order[rank < KEPT], rank[rank < KEPT]
        place = np.full((n, KEPT), -1)
        place[row[order], rank] = order
        return nodes, place, dropped < best


def _pins(g: Array, h: Array, constant: Mask) -> list[tuple[tuple[int, int], int, float]]:
    """Return pairs of rows that leave one output a single float32 number: (rows, output, number)."""
    ends = [(int(np.abs(g[row]).argmax()), float(g[row].sum()), row) for row in np.flatnonzero(constant).tolist()]
    upper = {(column, h[row] / slope): row for column, slope, row in ends if slope > 0}
    lower = {(column, h[row] / slope): row for column, slope, row in ends if slope < 0}
    both = [key for key in upper.keys() & lower.keys() if float(np.float32(key[1])) == key[1]]
    return [((upper[key], lower[key]), *key) for key in sorted(both)]


def _promising(row: Numbers, bound: Array, best: Array, beam: int) -> tuple[Numbers, Numbers]:
    """Return the nodes that may beat the best known, at most `beam` for each row, and those left out."""
    order = np.lexsort((bound, row))
    order = order[bound[order] < best[row[order]]]
    rank = np.arange(len(order)) - np.searchsorted(row[order], row[order], side="left")
    return order[rank < beam], order[rank >= beam]


def _slice(columns: Numbers) -> Numbers | slice:
    """Return consecutive columns as a slice, which NumPy reads faster."""
    if len(columns) and (np.diff(columns) == 1).all():
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
