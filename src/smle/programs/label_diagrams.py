"""Allowed sets of labels as a decision diagram: the nearest one is a shortest path, exactly, for many rows at once.

Labels are settled one after the other. Two beginnings of a set lead to the same node if they leave the same to be done;
what is left of clauses tells. Rules that people write have few such nodes (243 clauses over 41 labels: about 250).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Diagram", "diagram_of"]

Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.intp]
Clause = Sequence[tuple[int, bool]]

DEAD = 2**62  # more than any set costs
_SIZES = (2_000, 30_000)  # nodes that are tried: first every order with few
_ROUNDS = 30  # of looking for an order
_AT_ONCE = 2**24  # nodes times rows
_FEW = 64  # nodes of a level, up to which one row is answered number by number


class Diagram:
    """Nodes by level: `arcs[i]` (2, w) has the node of the next level where label `order[i]` is off, and on.

    A number beyond the last node is a dead end.
    """

    def __init__(self, order: Numbers, arcs: Sequence[Numbers]) -> None:
        self.order, self._arcs = order, arcs
        self._order, self._listed = order.tolist(), [level.tolist() for level in arcs]
        self.size = sum(level.shape[1] for level in arcs)

    def nearest(self, on: Mask, costs: Costs) -> Mask:
        """Return the allowed sets (n, k) that cost the least, where turning a label that is `on` or not has a price.

        Of sets that cost the same the one that leaves labels as they are, from the first label of `order` on.
        """
        if len(on) == 1 and self.size <= _FEW * len(self._arcs):
            return self._of_one(on[0].tolist(), costs[0].tolist())
        rows = max(1, _AT_ONCE // max(1, self.size))
        parts = [self._nearest(on[i : i + rows], costs[i : i + rows]) for i in range(0, len(on), rows)]
        return np.concatenate(parts) if parts else on.copy()

    def _of_one(self, on: list[bool], costs: list[int]) -> Mask:
        """Do what `_nearest` does for one row, in Python's numbers: calls cost more than numbers here."""
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
        for label, (off_to, on_to) in zip(self.order[::-1].tolist(), self._arcs[::-1], strict=True):
            value = np.concatenate([value, dead])
            keeps, price = on[:, label], costs[:, label]
            off = value.take(off_to, 0) + np.where(keeps, price, 0)
            up = value.take(on_to, 0) + np.where(keeps, 0, price)
            turned.append(np.where(keeps, up <= off, up < off))
            value = np.minimum(np.minimum(off, up), DEAD)
        result, node, at = on.copy(), np.zeros(n, dtype=np.intp), np.arange(n)
        for label, arcs, up in zip(self.order.tolist(), self._arcs, reversed(turned), strict=True):
            chosen = up[node, at]
            result[:, label] = chosen
            node = arcs[chosen.astype(np.intp), node]
        return result


def diagram_of(k: int, clauses: Sequence[Clause]) -> Diagram | None:
    """Return the smallest diagram that is found for k labels under clauses of (label, on).

    It has no nodes where nothing is allowed. None: all that were tried grow too large.
    """
    stated = list(range(k))
    orders = [stated, _gathered(stated, clauses), _gathered(stated[::-1], clauses)]
    for most in _SIZES:
        found = []
        for order in orders:
            levels = _compiled(clauses, order, most)
            if levels is not None:
                found.append((sum(map(len, levels)), order, levels))
        if found:
            _, order, levels = min(found, key=lambda one: one[0])
            arcs = _reduced(levels)
            return Diagram(np.array(order, dtype=np.intp), arcs)
    return None


def _gathered(order: list[int], clauses: Sequence[Clause]) -> list[int]:
    """Return an order in which the labels of a clause are near each other: each moves to the middle of its clauses."""
    label = np.array([i for clause in clauses for i, _ in clause], dtype=np.intp)
    sizes = np.array([len(clause) for clause in clauses])
    clause = np.repeat(np.arange(len(clauses)), sizes)
    counts = np.maximum(np.bincount(label, minlength=len(order)), 1)
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    best, least = order, np.inf
    for _ in range(_ROUNDS):
        own = place[label]
        spread = float(
            (
                np.maximum.reduceat(own, np.cumsum(sizes) - sizes) - np.minimum.reduceat(own, np.cumsum(sizes) - sizes)
            ).sum()
        )
        if spread < least:
            best, least = [int(i) for i in np.argsort(place, kind="stable")], spread
        middle = np.bincount(clause, weights=own) / sizes
        moved = np.bincount(label, weights=middle[clause], minlength=len(order)) / counts
        place = np.argsort(np.argsort(moved, kind="stable"), kind="stable").astype(np.float64)
    return best


def _compiled(clauses: Sequence[Clause], order: Sequence[int], most: int) -> list[list[tuple[int, int]]] | None:
    """Return for each level the two next nodes of each node, -1 for a dead end; None: there are more than `most`.

    What is left of a clause is its end in the order. Ends are numbered, and a state is the set of those that are still
    to be met, as bits of a whole number.
    """
    place = {label: i for i, label in enumerate(order)}
    ends: dict[tuple[int, int, bool], int] = {}  # (what is left behind the first literal, its label, on) -> number
    rest: list[int] = []
    starts: list[list[int]] = [[0, 0] for _ in order]  # ends that begin with a label, off and on, as bits
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
    for off, up in starts:
        following: dict[int, int] = {}
        level = []
        for bits in states:
            left = bits & ~(off | up)
            level.append((_next(left, bits & up, rest, following), _next(left, bits & off, rest, following)))
        count += len(following)
        if count > most:
            return None
        levels.append(level)
        states = following
    return levels


def _next(left: int, missed: int, rest: Sequence[int], following: dict[int, int]) -> int:
    """Return the node in which literals were missed that would have met their clauses."""
    while missed:
        bit = missed & -missed
        end = rest[bit.bit_length() - 1]
        if end < 0:
            return -1
        left |= 1 << end
        missed ^= bit
    return following.setdefault(left, len(following))


def _reduced(levels: Sequence[Sequence[tuple[int, int]]]) -> list[Numbers]:
    """Return levels in which no two nodes lead to the same, without dead ends; [] if there is no way through."""
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
