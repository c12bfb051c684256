"""The nearest allowed set of labels by branch and bound, for what no diagram holds: exact unless it is cut short.

A set is told by the labels that are turned. A clause that is not met needs one of its labels turned: these are the
branches, cheapest first, each with those before it settled as they are. What clauses still cost at least, each price
counted once, is the bound. The search ends after so many steps, whatever batch a row came in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["STEPS", "Branches"]

Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Clause = Sequence[tuple[int, bool]]

STEPS = 300_000  # clauses looked at for a row: some 50 ms
_LONGER = 4  # times as many steps for a first allowed set


class Branches:
    """Labels under clauses of (label, on) and pairs (p, 2) of labels that exclude each other."""

    def __init__(self, k: int, clauses: Sequence[Clause], pairs: npt.NDArray[np.intp]) -> None:
        self._k, self._pairs = k, pairs
        self._clauses = []  # labels that meet each clause if they are on, if they are off, as bits
        may = np.zeros(k, dtype=bool)
        for clause in clauses:
            up = sum({1 << label for label, on in clause if on})
            down = sum({1 << label for label, on in clause if not on})
            if not up & down:
                self._clauses.append((up, down))
            may[[label for label, on in clause if on]] = True
        self._may = may  # labels that a clause may turn on

    def nearest(self, on: Mask, costs: Costs) -> tuple[Mask, Mask, Mask]:
        """Return sets (n, k), whether they are allowed (n,), and whether the search was cut short (n,).

        Of sets that cost the same the one that leaves labels as they are, from the first label on.
        """
        sets, allowed, cut = on.copy(), np.zeros(len(on), dtype=bool), np.zeros(len(on), dtype=bool)
        for row in range(len(on)):
            turned, cut[row] = self._turned(on[row], costs[row])
            if turned is not None:
                allowed[row] = True
                sets[row, [i for i in range(self._k) if turned >> i & 1]] ^= True
        return sets, allowed, cut

    def _turned(self, on: Mask, costs: Costs) -> tuple[int | None, bool]:
        """Return the labels to turn, as bits (None: none were found), and whether the search was cut short."""
        bits = sum(1 << i for i in np.flatnonzero(on).tolist())
        live = self._pairs[(on | self._may)[self._pairs].all(axis=1)] if len(self._pairs) else self._pairs
        clauses = [*self._clauses, *((0, 1 << a | 1 << b) for a, b in live.tolist())]
        # For each clause the labels that meet it as they are, and those that meet it once they are turned.
        signs = [(up & bits | down & ~bits, up & ~bits | down & bits) for up, down in clauses]
        k = self._k  # a price has a bit for each label behind it: of equal costs the order of labels decides
        prices = [(cost << k) + (1 << k - 1 - i) for i, cost in enumerate(costs.tolist())]
        return _Search(signs, prices).run()


class _Search:
    """One row: depth first, by a stack."""

    def __init__(self, signs: Sequence[tuple[int, int]], prices: Sequence[int]) -> None:
        self.signs, self.prices = signs, prices
        self.best: int | None = None
        self.least = 1 + sum(prices)
        self.steps = 0

    def run(self) -> tuple[int | None, bool]:
        stack = [(0, 0, 0)]  # turned, settled as they are, price
        while stack:
            if self.steps > STEPS and (self.best is not None or self.steps > _LONGER * STEPS):
                return self.best, True
            turned, settled, price = stack.pop()
            if price < self.least:
                stack += reversed(self._branches(turned, settled, price))
        return self.best, False

    def _branches(self, turned: int, settled: int, price: int) -> list[tuple[int, int, int]]:
        """Return the nodes below one; none where it cannot be better, or ends."""
        while True:  # what only one label can meet, it meets
            self.steps += len(self.signs)
            unmet = []
            before = turned, settled
            for kept, turns in self.signs:
                if turns & turned:
                    continue
                left, able = kept & ~turned, turns & ~settled
                if not left:
                    if not able:
                        return []
                    if not able & (able - 1):
                        turned |= able
                        price += self.prices[able.bit_length() - 1]
                    else:
                        unmet.append(able)
                elif not able and not left & (left - 1):
                    settled |= left
            if (turned, settled) == before:
                break
        if price >= self.least:
            return []
        if not unmet:
            self.best, self.least = turned, price
            return []
        clause = self._bounded(unmet, price)
        result = []
        for label in sorted(_labels(clause), key=self.prices.__getitem__):
            result.append((turned | 1 << label, settled, price + self.prices[label]))
            settled |= 1 << label
        return result

    def _bounded(self, unmet: list[int], price: int) -> int:
        """Return the clause to branch on, 0 if all of them cost too much together."""
        unmet.sort(key=int.bit_count)
        left: dict[int, int] = {}
        for clause in unmet:
            labels = _labels(clause)
            self.steps += len(labels)
            least = min(left.get(i, self.prices[i]) for i in labels)
            if least:
                price += least
                if price >= self.least:
                    return 0
                for i in labels:
                    left[i] = left.get(i, self.prices[i]) - least
        return unmet[0]


def _labels(bits: int) -> list[int]:
    found = []
    while bits:
        bit = bits & -bits
        found.append(bit.bit_length() - 1)
        bits ^= bit
    return found
