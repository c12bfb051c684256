"""The nearest points that satisfy clauses over some outputs: a search over literals for many points at once.

The nearest point under the literals chosen so far bounds the distance from below, and the clause that it breaks most is
branched on. Points go through the levels of the search together; each keeps the most promising nodes of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.programs.nearest_points import Box, Polyhedron, State

__all__ = ["KEPT", "Block", "Found"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

KEPT = 3  # points for each row
_BEAM = 16  # nodes of a level for each row
_LEVELS = 60


@dataclass(frozen=True, eq=False)
class Found:
    """Points (n, KEPT, k), nearest first; `cost` (n, KEPT) is infinite where there are fewer."""

    points: Array
    cost: Array


class Block:
    """Clauses that share outputs with each other and with no other clause.

    Shapes: g (J, m), s (J, d), h (J,): distinct literals; `clauses`: rows of each; `parts`: the column of each in the
    mask of what binds; scale (m,); `labels` (m,).
    """

    def __init__(
        self, g: Array, s: Array, h: Array, clauses: Sequence[Sequence[int]], parts: Numbers, scale: Array, labels: Mask
    ) -> None:
        self.outputs = np.flatnonzero(g.any(axis=0))
        self.parts = parts
        own = g[:, self.outputs]
        single = (own != 0).sum(axis=1) == 1
        scale = scale[self.outputs]
        self.is_box = bool(single.all())
        self.unit = np.ones(len(scale)) if self.is_box else scale
        scaled = own * self.unit
        norm = np.abs(own).sum(axis=1) if self.is_box else np.sqrt((scaled**2).sum(axis=1))
        self._rows = (
            Box(np.abs(own).argmax(axis=1), np.sign(own.sum(axis=1)), own.shape[1])
            if self.is_box
            else Polyhedron(scaled / norm[:, None], self.unit)
        )
        self.N = scaled / norm[:, None]
        self._weight = (self.unit / scale) ** 2
        self._likely = bool(self.is_box and labels[self.outputs].all())  # logits: cost in log-likelihood
        self._inputs = np.flatnonzero(s.any(axis=0))
        self._slope = s[:, self._inputs] / norm[:, None]
        exact = single & (np.abs(own).sum(axis=1) == 1)
        self._bound = (h - np.where(exact, 0.0, 2.0**-48 * np.abs(h))) / norm
        lengths = np.array([len(clause) for clause in clauses], dtype=np.intp)
        self._members = np.concatenate([np.asarray(clause, dtype=np.intp) for clause in clauses])
        self._lengths = lengths
        self._starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.intp)
        self._units = np.flatnonzero(lengths == 1)
        self._unit_rows = self._members[self._starts[self._units]]
        self._choices = bool((lengths > 1).any())

    def bounds(self, X: Array) -> Array:
        """Return b (n, J): N z <= b; what rounding of the inputs' terms may do is taken off."""
        if not len(self._inputs):
            return np.broadcast_to(self._bound, (len(X), len(self._bound)))
        x = X[:, self._inputs]
        return np.asarray(self._bound - x @ self._slope.T - 2.0**-46 * (np.abs(x) @ np.abs(self._slope).T))

    def holds(self, y: Array, b: Array, active: Mask) -> Mask:
        """Return whether answers (n, m) satisfy the active clauses, in float64. Returns (n,)."""
        excess = (y[:, self.outputs] / self.unit) @ self.N.T - b
        return np.asarray((~active | (self._least(excess) <= 0)).all(axis=1))

    def solve(self, p: Array, b: Array, active: Mask) -> Found:
        """Return the points nearest to p (n, k), in this block's units, that satisfy the active clauses."""
        n, J = b.shape
        imposed = np.zeros((n, J), dtype=bool)
        for clause, row in zip(self._units, self._unit_rows, strict=True):
            imposed[:, row] |= active[:, clause]
        if not self._choices:
            z, fine, state = self._rows.nearest(p, b, imposed)
            z = self._rows.tighten(z, b, imposed, state)
            return Found(z[:, None], np.where(fine, 0.0, np.inf)[:, None])
        return self._search(p, b, active, imposed)

    def _least(self, excess: Array) -> Array:
        """Return the excess of each clause's best literal. Shapes: (n, J) -> (n, C)."""
        return np.asarray(np.minimum.reduceat(excess[:, self._members], self._starts, axis=1))

    def _cost(self, z: Array, p: Array) -> Array:
        move = np.abs(z - p)
        return np.asarray(move.sum(axis=1) if self._likely else move**2 @ self._weight)

    def _search(self, p: Array, b: Array, active: Mask, imposed: Mask) -> Found:
        n, k = p.shape
        row = np.arange(n)
        best = np.full(n, np.inf)
        leaves: list[tuple[Numbers, Array, Array, Mask, Numbers, Array]] = []
        state: State | None = None
        for _ in range(_LEVELS):
            z, fine, state = self._rows.nearest(p[row], b[row], imposed, state)
            cost = self._cost(z, p[row])
            keep = fine & (cost < best[row])
            row, z, cost, imposed, state = row[keep], z[keep], cost[keep], imposed[keep], state.take(keep)
            excess = z @ self.N.T - b[row]
            excess[imposed] = np.minimum(excess[imposed], 0.0)
            least = np.where(active[row], self._least(excess), 0.0)
            open_ = np.asarray((least > 0).any(axis=1))
            if not open_.all():
                ends = np.logical_not(open_)
                leaves.append((row[ends], z[ends], cost[ends], imposed[ends], *state.take(ends)))
                np.minimum.at(best, row[ends], cost[ends])
                row, z, cost, imposed, state = row[open_], z[open_], cost[open_], imposed[open_], state.take(open_)
                excess, least = excess[open_], least[open_]
            if not len(row):
                break
            worst = least.argmax(axis=1)
            parent = np.repeat(np.arange(len(row)), self._lengths[worst])
            offset = np.arange(len(parent)) - np.repeat(
                np.cumsum(self._lengths[worst]) - self._lengths[worst], self._lengths[worst]
            )
            literal = self._members[self._starts[worst][parent] + offset]
            more = excess[parent, literal]
            bound = cost[parent] + (more if self._likely else more**2 * self._least_weight(literal))
            kept = self._promising(row[parent], bound, best)
            row, parent, literal = row[parent[kept]], parent[kept], literal[kept]
            imposed, state = imposed[parent], state.take(parent)
            imposed[np.arange(len(row)), literal] = True
        return self._sorted(leaves, b, active, n, k)

    def _least_weight(self, literal: Numbers) -> Array | float:
        return self._weight[np.abs(self.N[literal]).argmax(axis=1)] if self.is_box else 1.0

    def _promising(self, row: Numbers, bound: Array, best: Array) -> Numbers:
        """Return the nodes that may be better than what is known, at most `_BEAM` for each row."""
        order = np.lexsort((bound, row))
        order = order[bound[order] < best[row[order]]]
        first = np.searchsorted(row[order], row[order], side="left")
        return np.asarray(order[np.arange(len(order)) - first < _BEAM])

    def _sorted(
        self, leaves: list[tuple[Numbers, Array, Array, Mask, Numbers, Array]], b: Array, active: Mask, n: int, k: int
    ) -> Found:
        points, costs = np.zeros((n, KEPT, k)), np.full((n, KEPT), np.inf)
        if not leaves:
            return Found(points, costs)
        row, z, cost, imposed, place, u = (np.concatenate(part) for part in zip(*leaves, strict=True))
        state = State(place, u)
        order = np.lexsort((cost, row))
        rank = np.arange(len(order)) - np.searchsorted(row[order], row[order], side="left")
        order, rank = order[rank < KEPT], rank[rank < KEPT]
        row, z, cost, imposed, state = row[order], z[order], cost[order], imposed[order], state.take(order)
        # Each clause keeps the literal that holds most clearly, so that the last move breaks none.
        excess = z @ self.N.T - b[row]
        member_excess = excess[:, self._members]
        for c, (start, length) in enumerate(zip(self._starts, self._lengths, strict=True)):
            if length > 1:
                chosen = self._members[start + member_excess[:, start : start + length].argmin(axis=1)]
                on = np.flatnonzero(active[row, c])
                imposed[on, chosen[on]] = True
        points[row, rank] = self._rows.tighten(z, b[row], imposed, state)
        costs[row, rank] = cost
        return Found(points, costs)
