"""Nearest points that satisfy clauses over some outputs: a search over literals for many points at once.

The nearest point under the literals chosen so far bounds the distance from below, and the clause it breaks most is
branched on. Points pass through the levels of the search together; each keeps the most promising nodes of a level. How
many it keeps does not depend on the other points. If there were more, the search is marked as cut short.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.nearest.blocks import AT, Block
from smle.nearest.float_steps import on_float_steps

__all__ = ["KEPT", "NearestPoints", "nearest_points"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

KEPT = 3  # points for each row
_BEAM, _WIDE_BEAM = 16, 256  # nodes of a level for each row: at first, and if these were too few
_NODES = 4_000  # of a level, for all rows of one wide search
_LEVELS = 60
_ROOM = 2.0**-21
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
            return self._moved_in(self._nodes, self._b)
        return self._found(self._place[:, 0], self._b)

    def points(self, rank: int, rows: Numbers) -> Array:
        """Return points of a rank (the best if there are fewer) at which every literal has room for a cast."""
        return self._found(self._places(rank, rows), self._bounds(rows), self._active[rows])

    def on_float_steps(self, rank: int, rows: Numbers) -> Array:
        """Return points of a rank as float32 numbers, for rules that leave less room than a cast needs."""
        place = self._places(rank, rows)
        nodes = self._nodes.take(place)
        y = on_float_steps(nodes.z, self._block.over, self._bounds(rows), nodes.imposed)
        y[place < 0] = np.nan
        return y

    def tight(self, y: Array) -> tuple[Array, Mask]:
        """Return the points (n, k) nearest to answers y (n, k), NaN where none was found, and their tight rows."""
        places = np.arange(len(y))[:, None] if self._place is None else self._place
        points = np.where(places[:, :, None] < 0, np.nan, self._nodes.z[places])
        far = np.abs((points - y[:, None]) / self._block.unit).max(axis=2)
        best = np.where(np.isnan(far), np.inf, far).argmin(axis=1)[:, None]
        nodes = self._nodes.take(np.take_along_axis(places, best, axis=1)[:, 0])
        on = self._block.rows.tight(nodes.state, nodes.z, self._b, nodes.imposed)
        return points[np.arange(len(y)), best[:, 0]], on

    def holds(self, y: Array, rows: Numbers) -> Mask:
        """Return a mask of the answers (rows, m) that obey, in float64."""
        return self._block.holds(y, self._bounds(rows), self._active[rows])

    def _bounds(self, rows: Numbers) -> Array:
        return self._b if self._b.ndim == 1 else self._b[rows]

    def _places(self, rank: int, rows: Numbers) -> Numbers:
        if self._place is None:
            return rows
        ranks = self._place[rows]
        place = ranks[:, min(rank, ranks.shape[1] - 1)]
        return np.where(place < 0, ranks[:, 0], place)

    def _found(self, place: Numbers, b: Array, active: Mask | None = None) -> Array:
        y = self._moved_in(self._nodes.take(place), b, active)
        y[place < 0] = np.nan
        return y

    def _moved_in(self, nodes: _Nodes, b: Array, active: Mask | None = None) -> Array:
        """Return points in the outputs' own units, moved inward to survive a cast to float32.

        With `active`, every literal that a clause needs gets this room, not only rows at their limits.
        """
        block, (z, imposed, state) = self._block, nodes
        if active is not None and not block.tries_all:
            excess = z @ block.over.T - b
            for c, clause in enumerate(block.clauses):
                if len(clause) > 1:  # the literal that holds most clearly
                    on = np.flatnonzero(active[:, c])
                    imposed[on, np.array(clause)[excess[on][:, clause].argmin(axis=1)]] = True
        y = block.rows.tighten(z, b, imposed, state, thorough=active is not None)
        for _, column, value in block.pins:  # a pinned output must be exactly that number
            noise = AT * (block.unit[column] * np.abs(y / block.unit).max(axis=1) + abs(value))
            y[np.abs(y[:, column] - value) <= noise, column] = value
        return y


class _Nodes(NamedTuple):
    """Points found: z (N, k), the rows imposed on them (N, J), and their states (N, ...)."""

    z: Array
    imposed: Mask
    state: Any

    def take(self, place: Numbers) -> _Nodes:
        return _Nodes(self.z[place], self.imposed[place], self.state[place])


def nearest_points(block: Block, active: Mask, X: Array, t: Array) -> NearestPoints:
    """Return allowed points near answers t (n, m), given which parts of the rules are active."""
    block.rows.trim()
    p, b, active = t[:, block.columns], block.bounds(X), active[:, block.read_parts]
    imposed = active if block.is_direct else (active @ block.imposes) > 0
    if block.pieces == 1:
        z, _, state = block.rows.nearest(p, b, imposed, may_be_empty=False)
        return NearestPoints(block, b, active, _Nodes(z, imposed, state))
    b = np.broadcast_to(b, (len(p), len(block.N)))
    if block.is_box:
        return NearestPoints(block, b, active, *_parts_of(block, p, b, active, imposed))
    # Ask for a little room first: without it, contradicting literals nearly agree.
    room = _ROOM * (1.0 + np.abs(b) + np.minimum(np.abs(p / block.unit), _FAR) @ np.abs(block.N).T)
    tight = b - room * block.unpinned
    nodes, place, cut = _parts_of(block, p, tight, active, imposed)
    missing = np.flatnonzero(place[:, 0] < 0)
    if len(missing):
        more, found, short = _parts_of(block, p[missing], b[missing], active[missing], imposed[missing])
        if cut is not None and short is not None:
            cut[missing] |= short
        place[missing] = -1
        place[missing, : found.shape[1]] = np.where(found < 0, -1, found + len(nodes.z))
        nodes = _Nodes(*(np.concatenate(both) for both in zip(nodes, more, strict=True)))
    return NearestPoints(block, b, active, nodes, place, cut)


def _parts_of(block: Block, p: Array, b: Array, active: Mask, imposed: Mask) -> tuple[_Nodes, Numbers, Mask | None]:
    """Return the nearest points of the parts of what is allowed, and the positions of the best ones (n, ranks).

    The last value marks searches that were cut short (n,), or is None.
    """
    n, P = len(p), block.pieces
    if not block.tries_all:
        return _search(block, p, b, active, imposed)
    imposed = imposed.reshape(n * P, -1)
    z, short, state = block.rows.nearest(np.repeat(p, P, axis=0), np.repeat(b, P, axis=0), imposed)
    cost = _cost(block, z, np.repeat(p, P, axis=0))
    cost[short < 0] = np.inf
    order = cost.reshape(n, P).argsort(axis=1, kind="stable")[:, :KEPT] + P * np.arange(n)[:, None]
    return _Nodes(z, imposed, state), np.where(short[order] < 0, -1, order), None


def _cost(block: Block, z: Array, p: Array) -> Array:
    move = np.abs(z - p)
    return np.asarray(move.sum(axis=1) if block.is_likely else move**2 @ block.weight)


def _search(block: Block, p: Array, b: Array, active: Mask, imposed: Mask) -> tuple[_Nodes, Numbers, Mask]:
    """Search all rows narrowly, then search widely where that was too narrow."""
    nodes, place, cut = _levels(block, p, b, active, imposed, _BEAM)
    rows, most = np.flatnonzero(cut), _NODES // _WIDE_BEAM
    for part in (rows[i : i + most] for i in range(0, len(rows), most)):
        more, found, cut[part] = _levels(block, p[part], b[part], active[part], imposed[part], _WIDE_BEAM)
        costs = [
            np.where(first < 0, np.inf, _cost(block, own.z[first], p[part]))
            for own, first in ((nodes, place[part, 0]), (more, found[:, 0]))
        ]
        better = costs[1] <= costs[0]
        place[part[better]] = np.where(found < 0, -1, found + len(nodes.z))[better]
        nodes = _Nodes(*(np.concatenate(both) for both in zip(nodes, more, strict=True)))
    return nodes, place, cut


def _levels(block: Block, p: Array, b: Array, active: Mask, imposed: Mask, beam: int) -> tuple[_Nodes, Numbers, Mask]:
    """Search level by level with at most `beam` nodes for each row."""
    n = len(p)
    row, best, dropped = np.arange(n), np.full(n, np.inf), np.full(n, np.inf)
    leaves: list[tuple[Numbers, Array, _Nodes]] = []
    state: Any = None
    for _ in range(_LEVELS):
        z, short, state = block.rows.nearest(p[row], b[row], imposed, state)
        cost = _cost(block, z, p[row])
        keep = np.flatnonzero((short >= 0) & (cost < best[row]))
        row, cost, nodes = row[keep], cost[keep], _Nodes(z, imposed, state).take(keep)
        excess = nodes.z @ block.over.T - b[row]
        excess[nodes.imposed] = np.minimum(excess[nodes.imposed], 0.0)
        least = np.where(active[row], block.least(excess), 0.0)
        worst = least.argmax(axis=1)
        open_ = least[np.arange(len(row)), worst] > 0
        ends, open_ = np.flatnonzero(~open_), np.flatnonzero(open_)
        if len(ends):
            leaves.append((row[ends], cost[ends], nodes.take(ends)))
            np.minimum.at(best, row[ends], cost[ends])
        if not len(open_):
            break
        # One child for each literal of the clause broken most.
        lengths = block.lengths[worst[open_]]
        parent = np.repeat(open_, lengths)
        offset = np.arange(len(parent)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        literal = block.members[block.starts[worst[parent]] + offset]
        more = excess[parent, literal]
        bound = cost[parent] + (more if block.is_likely else more**2 * block.row_weight[literal])
        kept, left = _promising(row[parent], bound, best, beam)
        np.minimum.at(dropped, row[parent[left]], bound[left])
        parent, literal = parent[kept], literal[kept]
        row, imposed, state = row[parent], nodes.imposed[parent], nodes.state[parent]
        imposed[np.arange(len(row)), literal] = True
    else:
        dropped[row] = -np.inf
    if not leaves:
        nothing = np.zeros(b.shape, dtype=bool)
        z, _, state = block.rows.nearest(p, b, nothing)
        return _Nodes(z, nothing, state), np.full((n, KEPT), -1), dropped < best
    row, cost = (np.concatenate([leaf[i] for leaf in leaves]) for i in (0, 1))
    nodes = _Nodes(*(np.concatenate(part) for part in zip(*(leaf[2] for leaf in leaves), strict=True)))
    order = np.lexsort((cost, row))
    rank = np.arange(len(order)) - np.searchsorted(row[order], row[order], side="left")
    order, rank = order[rank < KEPT], rank[rank < KEPT]
    place = np.full((n, KEPT), -1)
    place[row[order], rank] = order
    return nodes, place, dropped < best


def _promising(row: Numbers, bound: Array, best: Array, beam: int) -> tuple[Numbers, Numbers]:
    """Return the nodes that may beat the best known, at most `beam` for each row, and those left out."""
    order = np.lexsort((bound, row))
    order = order[bound[order] < best[row[order]]]
    rank = np.arange(len(order)) - np.searchsorted(row[order], row[order], side="left")
    return order[rank < beam], order[rank >= beam]
