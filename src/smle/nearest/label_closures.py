"""The nearest set of labels under implications alone, exactly, for any number of labels: a maximum-weight closure.

Labels that imply each other are merged. If each implies at most one other (a forest), weights are added up from the
leaves; otherwise a minimum cut is computed. Of sets of equal cost, the one with the fewest labels on is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

__all__ = ["Closure", "closure_of"]

Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.intp]
Clause = Sequence[tuple[int, bool]]

_MOST = 29  # bits of a flow, which is computed in int32


def closure_of(k: int, clauses: Sequence[Clause]) -> Closure | None:
    """Return the search for k labels under clauses "not a, or b", or None if there are other clauses."""
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
        self.is_forest = bool(np.bincount(apart[:, 0], minlength=count).max(initial=0) <= 1)
        self._levels = _levels(count, apart) if self.is_forest else []

    def nearest(self, on: Mask, costs: Costs) -> Mask:
        """Return the cheapest allowed sets (n, k), given which labels are `on` and the price of turning each."""
        weights = np.asarray(self._together @ np.where(on, costs, -costs).T)  # (nodes, n)
        chosen = self._by_forest(weights) if self.is_forest else np.stack([self._cut(own) for own in weights.T], axis=1)
        return np.asarray(chosen[self._of].T)

    def _by_forest(self, weights: Costs) -> Mask:
        value = weights.copy()
        for level in reversed(self._levels):
            np.add.at(value, level[:, 1], np.maximum(value[level[:, 0]], 0))
        chosen = value > 0
        for level in self._levels:
            chosen[level[:, 0]] &= chosen[level[:, 1]]
        return np.asarray(chosen)

    def _cut(self, weights: Costs) -> Mask:
        """Return the nodes on the source side of a minimum cut: the smallest such set, whatever the flow.

        The source feeds nodes that gain, nodes that lose feed the sink, and a node feeds the nodes that it implies. The
        flow is found in a coarse unit first, the rest in finer ones.
        """
        size, (lower, upper) = self._count, self._edges.T
        gain, loss = np.maximum(weights, 0), np.maximum(-weights, 0)
        flow = np.zeros(len(lower), dtype=np.int64)
        left = min(int(gain.sum()), int(loss.sum()))  # upper bound on the remaining flow
        while left:
            unit = max(0, left.bit_length() - _MOST)
            ups, downs, backs = (np.flatnonzero(room >> unit) for room in (gain, loss, flow))
            rows = np.concatenate([np.full(len(ups), size), downs, lower, upper[backs]])
            columns = np.concatenate([ups, np.full(len(downs), size + 1), upper, lower[backs]])
            room = [np.minimum(own, left) >> unit for own in (gain[ups], loss[downs])]
            room += [np.full(len(lower), 1 << _MOST), np.minimum(flow[backs], left) >> unit]
            graph = sparse.csr_matrix((np.concatenate(room).astype(np.int32), (rows, columns)), (size + 2, size + 2))
            found = csgraph.maximum_flow(graph, size, size + 1).flow
            gain[ups] -= _at(found, np.full(len(ups), size), ups) << unit
            loss[downs] -= _at(found, downs, np.full(len(downs), size + 1)) << unit
            flow += _at(found, lower, upper) << unit
            # What a cut lets pass below a whole unit: less than a unit through each of its edges.
            left = min(int(gain.sum()), int(loss.sum()), (size + len(lower)) << unit) if unit else 0
        ups, backs = np.flatnonzero(gain), np.flatnonzero(flow)
        rows, columns = (
            np.concatenate([np.full(len(ups), size), lower, upper[backs]]),
            np.concatenate([ups, upper, lower[backs]]),
        )
        graph = sparse.csr_matrix((np.ones(len(rows), dtype=np.int8), (rows, columns)), (size + 1, size + 1))
        chosen = np.zeros(size + 1, dtype=bool)
        chosen[csgraph.breadth_first_order(graph, size, return_predecessors=False)] = True
        return chosen[:size]


def _at(flow: sparse.csr_matrix, rows: Numbers, columns: Numbers) -> Costs:
    return np.asarray(flow[rows, columns], dtype=np.int64).reshape(-1) if len(rows) else np.zeros(0, dtype=np.int64)


def _levels(count: int, edges: Numbers) -> list[Numbers]:
    """Return edges by the length of the chain up from their lower end, from the top down."""
    depth = np.zeros(count, dtype=np.intp)
    while True:
        deeper = np.zeros(count, dtype=np.intp)
        np.maximum.at(deeper, edges[:, 0], depth[edges[:, 1]] + 1)
        if (deeper == depth).all():
            break
        depth = deeper
    return [edges[depth[edges[:, 0]] == d] for d in range(1, int(depth.max(initial=0)) + 1)]
