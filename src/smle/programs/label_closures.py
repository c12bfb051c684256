"""The nearest set of labels under implications alone, exactly, for any number of labels: a closure of largest weight.

Labels that imply each other are one. Where each implies at most one other (a forest) weights are added up from the
leaves; elsewhere it is a minimum cut. Of sets that cost the same the one with the fewest labels on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

__all__ = ["Closure", "closure_of"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.intp]
Clause = Sequence[tuple[int, bool]]

_MOST = 2**29  # of all capacities together: the flow is computed in int32


def closure_of(k: int, clauses: Sequence[Clause]) -> Closure | None:
    """Return the search for k labels under clauses "not a, or b"; None if there are others."""
    edges = []
    for clause in clauses:
        signs = sorted(set(clause), key=lambda literal: literal[1])
        if [on for _, on in signs] != [False, True]:
            return None
        edges.append((signs[0][0], signs[1][0]))
    return Closure(k, np.array(edges, dtype=np.intp).reshape(-1, 2))


class Closure:
    """Labels that imply others: edges (p, 2) from a label to one that it implies."""

    def __init__(self, k: int, edges: Numbers) -> None:
        graph = sparse.csr_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), (k, k))
        count, self._of = csgraph.connected_components(graph, connection="strong")
        lower, upper = self._of[edges].T
        apart = np.unique(np.stack([lower, upper], axis=1)[lower != upper], axis=0).astype(np.intp)
        self._count, self._edges = count, apart
        self._together = sparse.csr_matrix((np.ones(k, dtype=np.int64), (self._of, np.arange(k))), (count, k))
        depth = np.zeros(count, dtype=np.intp)  # edges on the longest way up
        levels = []
        while True:
            deeper = np.zeros(count, dtype=np.intp)
            np.maximum.at(deeper, apart[:, 0], depth[apart[:, 1]] + 1)
            if (deeper == depth).all():
                break
            depth = deeper
        for d in range(1, int(depth.max(initial=0)) + 1):
            levels.append(apart[depth[apart[:, 0]] == d])
        self._levels = levels  # edges by the depth of their lower end, from the top down
        self.is_forest = bool(np.bincount(apart[:, 0], minlength=count).max(initial=0) <= 1)
        above = sparse.identity(count, dtype=np.int64, format="csr")
        if not self.is_forest:
            up = sparse.csr_matrix((np.ones(len(apart), dtype=np.int64), (apart[:, 0], apart[:, 1])), (count, count))
            while True:
                more = (above + above @ up).sign()
                if more.nnz == above.nnz:
                    break
                above = more
        self._above = above  # which nodes a node implies, itself included

    def nearest(self, on: Mask, costs: Costs) -> Mask:
        """Return the allowed sets (n, k) that cost the least, where turning a label that is `on` or not has a price."""
        weights = np.asarray(self._together @ np.where(on, costs, -costs).T)  # (nodes, n)
        chosen = self._by_forest(weights) if self.is_forest else self._by_cuts(weights)
        return np.asarray(chosen[self._of].T)

    def _by_forest(self, weights: Costs) -> Mask:
        value = weights.copy()
        for level in reversed(self._levels):
            np.add.at(value, level[:, 1], np.maximum(value[level[:, 0]], 0))
        chosen = value > 0
        for level in self._levels:
            chosen[level[:, 0]] &= chosen[level[:, 1]]
        return np.asarray(chosen)

    def _by_cuts(self, weights: Costs) -> Mask:
        gain, loss = np.maximum(weights, 0), np.maximum(-weights, 0)
        chosen = weights > 0
        tied = (self._above @ loss > 0) & (self._above.T @ gain > 0)
        for row in np.flatnonzero(tied.any(axis=0)).tolist():
            chosen[tied[:, row], row] = self._cut(np.flatnonzero(tied[:, row]), gain[:, row], loss[:, row])
        return np.asarray(chosen)

    def _cut(self, tied: Numbers, gain: Costs, loss: Costs) -> Mask:
        """Return which of the tied nodes lie on the side of the source."""
        size, (gain, loss) = len(tied), self._capacities(gain, loss)
        gain, loss = gain[tied], loss[tied]
        place = np.full(self._count, -1)
        place[tied] = np.arange(size)
        lower, upper = place[self._edges].T
        kept = (lower >= 0) & (upper >= 0)
        ups, downs = np.flatnonzero(gain), np.flatnonzero(loss)
        rows = np.concatenate([np.full(len(ups), size), lower[kept], downs])
        columns = np.concatenate([ups, upper[kept], np.full(len(downs), size + 1)])
        room = np.concatenate([gain[ups], np.full(int(kept.sum()), 2 * _MOST), loss[downs]]).astype(np.int32)
        graph = sparse.csr_matrix((room, (rows, columns)), (size + 2, size + 2))
        left = graph - csgraph.maximum_flow(graph, size, size + 1).flow
        left.eliminate_zeros()
        chosen = np.zeros(size + 2, dtype=bool)
        chosen[csgraph.breadth_first_order(left, size, return_predecessors=False)] = True
        return chosen[:size]

    def _capacities(self, gain: Costs, loss: Costs) -> tuple[Costs, Costs]:
        """Return weights that may be cut off where no more can flow, in a unit in which they fit into int32.

        A node that is worth more than all that it implies costs is worth one more than that: it stays on either way.
        """
        while True:
            up, down = self._above @ loss, self._above.T @ gain
            ends = np.minimum(gain, up + 1), np.minimum(loss, down + 1)
            if max(int(end.sum()) for end in ends) <= _MOST:
                return ends
            gain, loss = ((side + 1) // 2 for side in (gain, loss))
