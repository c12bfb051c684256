"""The nearest allowed set of labels by branch and bound, if no diagram is found: exact unless cut short.

A set is given by the labels that are turned. A clause that is not met needs one of its labels turned: these are the
branches, cheapest first, each with the earlier ones fixed as they are. The bound is the least that clauses still cost,
with each price counted once. The search ends after a fixed number of steps, independent of the batch. What it leaves
open goes to an integer solver, within a fixed number of nodes; among sets of equal cost it takes any.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.solvers import MixedIntegerProgram, Status, solve

__all__ = ["STEPS", "BranchSearch", "Branches", "by_solver"]

Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Clause = Sequence[tuple[int, bool]]

STEPS = 150_000  # literals examined for a row: some 50 ms
_LOOKED_AT = 64  # unmet clauses examined while no set is known
_LONGER = 4  # times as many steps for a first allowed set
_NODES, _MOST_LITERALS = 500, 20_000  # limits of the solver: nodes, and literals in all clauses
_MOST_PAIRS = 20_000  # exclusions of labels that are on or may be; beyond this, labels are kept from the top
_AT_ONCE = 64  # labels whose exclusions are looked up together


class Branches:
    """Labels under clauses of (label, on) and pairs (p, 2) of labels that exclude each other."""

    def __init__(self, k: int, clauses: Sequence[Clause], pairs: npt.NDArray[np.intp]) -> None:
        self._k, self._pairs = k, pairs[np.lexsort(pairs.T[::-1])]
        self._starts = np.searchsorted(self._pairs[:, 0], np.arange(k + 1))  # of the pairs of a first label
        self._clauses = [sorted(set(clause)) for clause in clauses]
        self._may = np.zeros(k, dtype=bool)  # labels that a clause may turn on
        self._may[[label for clause in clauses for label, on in clause if on]] = True
        apart = sparse.csr_matrix((np.ones(len(pairs), dtype=bool), (pairs[:, 0], pairs[:, 1])), (k, k))
        self._apart = (apart + apart.T).tocsr()

    def nearest(self, on: Mask, costs: Costs) -> tuple[Mask, Mask, Mask]:
        """Return sets (n, k), whether they are allowed (n,), and whether the search was cut short (n,).

        Of sets of equal cost, the search takes the one that keeps the first labels unchanged; the solver takes any.
        """
        sets, allowed, cut = on.copy(), np.zeros(len(on), dtype=bool), np.zeros(len(on), dtype=bool)
        for row in range(len(on)):
            turned, cut[row] = self._turned(on[row], costs[row])
            if turned is not None:
                allowed[row] = True
                sets[row, turned] ^= True
        return sets, allowed, cut

    def _turned(self, on: Mask, costs: Costs) -> tuple[list[int] | None, bool]:
        """Return the labels to turn (None if none were found), and whether the search was cut short."""
        live = self._live(on | self._may)
        known = self._from_the_top(on, costs) if len(live) else None
        if len(live) > _MOST_PAIRS:
            return known, True
        clauses: list[Clause] = [*self._clauses, *([(a, False), (b, False)] for a, b in live.tolist())]
        k = self._k  # a price has a bit for each later label: the order of labels decides between equal costs
        prices = [(cost << k) + (1 << k - 1 - i) for i, cost in enumerate(costs.tolist())]
        found, cut = BranchSearch(clauses, on.tolist(), prices, known).run()
        return self._settled(clauses, on, prices, found) if cut else (found, False)

    def _live(self, may: Mask) -> npt.NDArray[np.intp]:
        """Return the pairs of labels that are on or may be; of more than `_MOST_PAIRS`, some."""
        found, count = [self._pairs[:0]], 0
        labels = np.flatnonzero(may)
        for first in np.split(labels, range(_AT_ONCE, len(labels), _AT_ONCE)):
            starts, sizes = self._starts[first], self._starts[first + 1] - self._starts[first]
            pairs = self._pairs[np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)]
            found.append(pairs[may[pairs[:, 1]]])
            count += len(found[-1])
            if count > _MOST_PAIRS:
                break
        return np.concatenate(found)

    def _settled(
        self, clauses: Sequence[Clause], on: Mask, prices: Sequence[int], known: list[int] | None
    ) -> tuple[list[int] | None, bool]:
        """Return the cheaper of the known set and the solver's, and whether a cheaper one may remain."""
        if sum(map(len, clauses)) > _MOST_LITERALS:
            return known, True
        best, is_best = by_solver(clauses, on, [float(price >> self._k) for price in prices], nodes=_NODES)
        if best is None:
            return known, True
        turned = np.flatnonzero(best != on).tolist()
        if known is not None and sum(prices[i] for i in known) <= sum(prices[i] for i in turned):
            turned = known
        return turned, not is_best

    def _from_the_top(self, on: Mask, costs: Costs) -> list[int] | None:
        """Keep labels that are on from the highest price down, unless a kept one excludes them."""
        kept, blocked = np.zeros(len(on), dtype=bool), np.zeros(len(on), dtype=bool)
        for label in sorted(np.flatnonzero(on).tolist(), key=lambda i: (-costs[i], i)):
            if not blocked[label]:
                kept[label] = True
                blocked[self._apart.indices[self._apart.indptr[label] : self._apart.indptr[label + 1]]] = True
        if not all(any(kept[label] == state for label, state in clause) for clause in self._clauses):
            return None
        return [int(i) for i in np.flatnonzero(on != kept)]


def by_solver(
    clauses: Sequence[Clause], on: Mask, prices: Sequence[float], *, nodes: int | None = None
) -> tuple[Mask | None, bool]:
    """Return the set that turns labels at the least price, by a mixed-integer program, and whether the search ended.

    None if no set was found that obeys the clauses.
    """
    flat = [(c, label, on[label] == state) for c, clause in enumerate(clauses) for label, state in clause]
    row, label, keeps = (np.array(part, dtype=np.intp) for part in zip(*flat, strict=True))
    A = sparse.csr_matrix((np.where(keeps, -1.0, 1.0), (row, label)), (len(clauses), len(on)))
    least = np.asarray(1.0 - np.bincount(row, weights=keeps, minlength=len(clauses)), dtype=np.float64)
    zeros, ones, free = np.zeros(len(on)), np.ones(len(on)), np.full(len(clauses), np.inf)
    cost = np.array(prices) / max(*prices, 1.0)
    found = solve(MixedIntegerProgram(cost, A, least, free, zeros, ones, ones > 0), node_limit=nodes)
    if found.x is None:
        return None, False
    best = on ^ (found.x > 0.5)
    if not all(any(best[i] == state for i, state in clause) for clause in clauses):
        return None, False
    return best, found.status is Status.OPTIMAL


_OPEN, _SETTLED, _TURNED = 0, 1, 2


class BranchSearch:
    """A depth-first search for one row. Labels are open, fixed as they are, or turned; consequences are propagated."""

    def __init__(
        self, clauses: Sequence[Clause], on: Sequence[bool], prices: Sequence[int], known: list[int] | None
    ) -> None:
        self.prices = prices
        self.state = [_OPEN] * len(on)
        self.keeps: list[list[int]] = [[] for _ in on]  # clauses that a label meets as it is
        self.turns: list[list[int]] = [[] for _ in on]  # clauses that a label meets once turned
        self.met = [0] * len(clauses)  # literals that hold
        self.able = [0] * len(clauses)  # open labels that would meet it
        self.labels: list[
            tuple[list[int], list[int]]
        ] = []  # for each clause, the labels that keep it met, and the labels that would meet it
        for c, clause in enumerate(clauses):
            keeping, turning = list[int](), list[int]()
            for label, state in clause:
                (keeping if on[label] == state else turning).append(label)
                (self.keeps if on[label] == state else self.turns)[label].append(c)
            self.met[c], self.able[c] = len(keeping), len(turning)
            self.labels.append((keeping, turning))
        self.unmet = {c for c, count in enumerate(self.met) if not count}
        self.trail: list[int] = []
        self.waiting: list[tuple[int, int]] = []
        self.price, self.steps = 0, 0
        self.best = known
        self.least = 1 + sum(prices) if known is None else sum(prices[i] for i in known)

    def run(self) -> tuple[list[int] | None, bool]:
        """Return the labels to turn (None if none were found), and whether the search was cut short."""
        frames: list[tuple[int, list[int], int]] = []  # length of the trail, labels to turn, and which is next
        fine = all(self._follows(c) for c in range(len(self.met))) and self._propagated()
        while True:
            if fine and self.price < self.least:
                if not self.unmet:
                    self.best = [i for i, state in enumerate(self.state) if state == _TURNED]
                    self.least = self.price
                else:
                    clause = self._bounded()
                    if clause is not None:
                        able = [i for i in self.labels[clause][1] if self.state[i] == _OPEN]
                        frames.append((len(self.trail), sorted(able, key=self.prices.__getitem__), 0))
            while frames and frames[-1][2] == len(frames[-1][1]):
                frames.pop()
            if not frames:
                return self.best, False
            if self.steps > STEPS and (self.best is not None or self.steps > _LONGER * STEPS):
                return self.best, True
            start, labels, number = frames.pop()
            frames.append((start, labels, number + 1))
            self._undo(start)
            self.waiting = [*((label, _SETTLED) for label in labels[:number]), (labels[number], _TURNED)]
            fine = self._propagated()

    def _propagated(self) -> bool:
        """Propagate pending decisions; return False on a contradiction or if it costs too much."""
        while self.waiting:
            label, state = self.waiting.pop()
            if self.state[label] != _OPEN:
                if self.state[label] != state:
                    return False
                continue
            touched = self._set(label, state)
            if self.price >= self.least or not all(self._follows(c) for c in touched):
                return False
        return True

    def _set(self, label: int, state: int) -> list[int]:
        """Fix or turn a label; return the clauses with fewer options left."""
        self.state[label] = state
        self.trail.append(label)
        for c in self.turns[label]:
            self.able[c] -= 1
        self.steps += len(self.turns[label])
        if state == _SETTLED:
            return self.turns[label]
        self.price += self.prices[label]
        self.steps += len(self.keeps[label])
        for c in self.turns[label]:
            self.met[c] += 1
            self.unmet.discard(c)
        for c in self.keeps[label]:
            self.met[c] -= 1
            if not self.met[c]:
                self.unmet.add(c)
        return self.keeps[label]

    def _undo(self, start: int) -> None:
        while len(self.trail) > start:
            label = self.trail.pop()
            turned, self.state[label] = self.state[label] == _TURNED, _OPEN
            self.steps += len(self.turns[label])
            for c in self.turns[label]:
                self.able[c] += 1
            if turned:
                self.price -= self.prices[label]
                for c in self.turns[label]:
                    self.met[c] -= 1
                    if not self.met[c]:
                        self.unmet.add(c)
                for c in self.keeps[label]:
                    self.met[c] += 1
                    self.unmet.discard(c)

    def _follows(self, c: int) -> bool:
        """Note what a clause with one literal left requires; return False if none is left."""
        if self.met[c] + self.able[c] > 1:
            return True
        if not self.met[c] and not self.able[c]:
            return False
        keeping, turning = self.labels[c]
        self.steps += len(keeping) + len(turning)
        if self.able[c]:
            self.waiting.append((next(i for i in turning if self.state[i] == _OPEN), _TURNED))
        else:
            self.waiting += [(i, _SETTLED) for i in keeping if self.state[i] == _OPEN]
        return True

    def _bounded(self) -> int | None:
        """Return the clause to branch on, or None if all of them together cost too much."""
        if self.best is None:
            return min(islice(self.unmet, _LOOKED_AT), key=self.able.__getitem__)
        price, left = self.price, dict[int, int]()
        unmet = sorted(self.unmet, key=lambda c: (self.able[c], c))
        for c in unmet:
            labels = [i for i in self.labels[c][1] if self.state[i] == _OPEN]
            self.steps += len(labels)
            least = min(left.get(i, self.prices[i]) for i in labels)
            if least:
                price += least
                if price >= self.least:
                    return None
                for i in labels:
                    left[i] = left.get(i, self.prices[i]) - least
        return unmet[0]
