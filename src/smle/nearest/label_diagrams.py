"""Allowed sets of labels as a decision diagram: the nearest one is a shortest path, exact, for many rows at once.

Labels are decided one after the other. Two beginnings of a set lead to the same node if the same parts of clauses
remain to be met. Rules that people write have few such nodes (243 clauses over 41 labels: about 250).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

__all__ = ["Diagram", "diagram_of"]

Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.intp]
Clause = Sequence[tuple[int, bool]]

DEAD = 2**62  # more than any set costs
_SIZES = ((2_000, 0), (30_000, 10))  # (nodes to try, and more for each label): every order with few nodes first
_ROUNDS, _MOST_TIES = 30, 100_000  # rounds of improving an order; beyond this many ties it is not improved
_AT_ONCE = 2**24  # nodes times rows
_FEW = 64  # up to this many nodes per level on average, a single row is answered in plain Python


class Diagram:
    """Nodes by level: `arcs[i]` (2, w) has the node of the next level if label `order[i]` is off, and on.

    A number beyond the last node is a dead end.
    """

    def __init__(self, order: Numbers, arcs: Sequence[Numbers]) -> None:
        self.order, self.arcs = order, arcs
        self._order, self._listed = order.tolist(), [level.tolist() for level in arcs]
        self.size = sum(level.shape[1] for level in arcs)

    def nearest(self, on: Mask, costs: Costs) -> Mask:
        """Return the cheapest allowed sets (n, k), given which labels are `on` and the price of turning each.

        Of sets of equal cost, it takes the one that keeps the first labels of `order` unchanged.
        """
        if len(on) == 1 and self.size <= _FEW * len(self.arcs):
            return self._of_one(on[0].tolist(), costs[0].tolist())
        rows = max(1, _AT_ONCE // max(1, self.size))
        parts = [self._nearest(on[i : i + rows], costs[i : i + rows]) for i in range(0, len(on), rows)]
        return np.concatenate(parts) if parts else on.copy()

    def sets(self, most: int) -> Mask | None:
        """Return all allowed sets (P, k), those with the first labels of `order` on first; None if more than `most`."""
        count = [1]
        for off_to, on_to in reversed(self._listed):
            count.append(0)
            count = [min(count[i] + count[j], most + 1) for i, j in zip(off_to, on_to, strict=True)]
        if not self.size or count[0] > most:
            return None if self.size else np.zeros((0, len(self.order)), dtype=bool)
        sets, node = np.zeros((1, len(self.order)), dtype=bool), np.zeros(1, dtype=np.intp)
        for i, (label, level) in enumerate(zip(self._order, self.arcs, strict=True)):
            width = self.arcs[i + 1].shape[1] if i + 1 < len(self.arcs) else 1
            sets, following = np.repeat(sets, 2, axis=0), level[::-1, node].T.reshape(-1)
            sets[::2, label] = True
            sets, node = sets[following < width], following[following < width]
        return sets

    def _of_one(self, on: list[bool], costs: list[int]) -> Mask:
        """Like `_nearest` for one row, in Python numbers, since NumPy calls would cost more."""
        value, turned = [0], []
        for label, (off_to, on_to) in zip(self._order[::-1], self._listed[::-1], strict=True):
            value.append(DEAD)
            keeps, price = on[label], costs[label]
            fall, rise = (price, 0) if keeps else (0, price)
            off, up = [value[i] + fall for i in off_to], [value[i] + rise for i in on_to]
            turned.append(
                [b <= a for a, b in zip(off, up, strict=True)]
                if keeps
                else [b < a for a, b in zip(off, up, strict=True)]
            )
            value = [min(a, b, DEAD) for a, b in zip(off, up, strict=True)]
        node = 0
        for label, arcs, ups in zip(self._order, self._listed, reversed(turned), strict=True):
            on[label] = ups[node]
            node = arcs[ups[node]][node]
        return np.array([on])

    def _nearest(self, on: Mask, costs: Costs) -> Mask:
        n = len(on)
        dead = np.full((1, n), DEAD)
        value: Costs = np.zeros((1, n), dtype=np.int64)
        turned = []
        for label, (off_to, on_to) in zip(self.order[::-1].tolist(), self.arcs[::-1], strict=True):
            value = np.concatenate([value, dead])
            keeps, price = on[:, label], costs[:, label]
            off = value.take(off_to, 0) + np.where(keeps, price, 0)
            up = value.take(on_to, 0) + np.where(keeps, 0, price)
            turned.append(np.where(keeps, up <= off, up < off))
            value = np.minimum(np.minimum(off, up), DEAD)
        result, node, at = on.copy(), np.zeros(n, dtype=np.intp), np.arange(n)
        for label, arcs, up in zip(self.order.tolist(), self.arcs, reversed(turned), strict=True):
            chosen = up[node, at]
            result[:, label] = chosen
            node = arcs[chosen.astype(np.intp), node]
        return result


def diagram_of(k: int, clauses: Sequence[Clause], pairs: Numbers) -> Diagram | None:
    """Return the smallest diagram found for k labels under clauses of (label, on) and pairs that exclude each other.

    It has no nodes if nothing is allowed. None if all orders grow too large.
    """
    tied = [[label for label, _ in clause] for clause in clauses] + pairs.tolist()
    stated = list(range(k))
    orders = [stated]
    if len(tied) <= _MOST_TIES:
        orders += [_gathered(stated, tied), _branch_by_branch(k, tied)]
    for few, each in _SIZES:
        found = []
        for order in orders:
            levels = _compiled(clauses, pairs, order, few + each * k)
            if levels is not None:
                found.append((sum(map(len, levels)), order, levels))
        if found:
            _, order, levels = min(found, key=lambda one: one[0])
            return Diagram(np.array(order, dtype=np.intp), _reduced(levels))
    return None


def _gathered(order: list[int], tied: Sequence[Sequence[int]]) -> list[int]:
    """Reorder labels so that tied ones are close: each moves to the middle of its ties."""
    label = np.array([i for own in tied for i in own], dtype=np.intp)
    sizes = np.array([len(own) for own in tied])
    starts = np.cumsum(sizes) - sizes
    tie = np.repeat(np.arange(len(tied)), sizes)
    counts = np.maximum(np.bincount(label, minlength=len(order)), 1)
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    best, least = order, np.inf
    for _ in range(_ROUNDS):
        own = place[label]
        spread = float((np.maximum.reduceat(own, starts) - np.minimum.reduceat(own, starts)).sum())
        if spread < least:
            best, least = [int(i) for i in np.argsort(place, kind="stable")], spread
        middle = np.bincount(tie, weights=own) / sizes
        moved = np.bincount(label, weights=middle[tie], minlength=len(order)) / counts
        place = np.argsort(np.argsort(moved, kind="stable"), kind="stable").astype(np.float64)
    return best


def _branch_by_branch(k: int, tied: Sequence[Sequence[int]]) -> list[int]:
    """Return an order that follows a tree of ties, from the label with most of them: small branches first."""
    ends = np.array([(own[0], label) for own in tied for label in own[1:]], dtype=np.intp).reshape(-1, 2)
    edges = np.concatenate([ends, ends[:, ::-1]])
    graph = sparse.csr_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), (k, k))
    degree = np.bincount(edges[:, 0], minlength=k)
    order: list[int] = []
    while len(order) < k:
        degree[order] = -1
        root = int(degree.argmax())
        reached, before = csgraph.breadth_first_order(graph, root)
        size, below = dict.fromkeys(reached.tolist(), 1), {label: list[int]() for label in reached.tolist()}
        for label in reached[:0:-1].tolist():
            size[before[label]] += size[label]
            below[before[label]].append(label)
        stack = [root]
        while stack:
            label = stack.pop()
            order.append(label)
            stack += sorted(below[label], key=size.__getitem__, reverse=True)
    return order


def _compiled(
    clauses: Sequence[Clause], pairs: Numbers, order: Sequence[int], most: int
) -> list[list[tuple[int, int]]] | None:
    """Return for each level the two next nodes of each node, -1 for a dead end; None if there are more than `most`.

    What remains of a clause is its tail in the order. Tails are numbered, and a state is the set of tails still to be
    met, as bits of an integer. The first k are "this label is off", the tail of a pair.
    """
    k, place = len(order), {label: i for i, label in enumerate(order)}
    ends: dict[tuple[int, int, bool], int] = {(-1, i, False): i for i in range(k)}  # (tail after it, label, on)
    rest = [-1] * k
    starts = [[1 << i, 0] for i in range(k)]  # tails that begin with a label, off and on, as bits
    apart = [0] * k
    for a, b in pairs.tolist():
        first, second = sorted((place[a], place[b]))
        apart[first] |= 1 << second
    state = 0
    for clause in clauses:
        end = -1
        for at, on in sorted({(place[label], on) for label, on in clause}, reverse=True):
            known = ends.get((end, at, on))
            if known is None:
                known = ends[end, at, on] = len(rest)
                rest.append(end)
                starts[at][on] |= 1 << known
            end = known
        state |= 1 << end
    states, levels, count = {state: 0}, [], 1
    for (off, up), excluded in zip(starts, apart, strict=True):
        following: dict[int, int] = {}
        level, others = [], ~(off | up)
        for bits in states:
            left = bits & others
            level.append((_next(left, bits & up, rest, following), _next(left | excluded, bits & off, rest, following)))
        count += len(following)
        if count > most:
            return None
        levels.append(level)
        states = following
    return levels


def _next(left: int, missed: int, rest: Sequence[int], following: dict[int, int]) -> int:
    """Return the node after missing some literals, given the tails that remain."""
    while missed:
        bit = missed & -missed
        end = rest[bit.bit_length() - 1]
        if end < 0:
            return -1
        left |= 1 << end
        missed ^= bit
    return following.setdefault(left, len(following))


def _reduced(levels: Sequence[Sequence[tuple[int, int]]]) -> list[Numbers]:
    """Merge nodes that lead to the same, and drop dead ends; return [] if there is no path."""
    number, arcs = [0], []
    width = 1
    for level in reversed(levels):
        known: dict[tuple[int, int], int] = {}
        own = []
        for off, on in level:
            to = (number[off] if off >= 0 else -1, number[on] if on >= 0 else -1)
            own.append(-1 if to == (-1, -1) else known.setdefault(to, len(known)))
        if not known:
            return []
        pairs = np.array(list(known), dtype=np.intp).T
        arcs.append(np.where(pairs < 0, width, pairs))
        number, width = own, len(known)
    return arcs[::-1]
