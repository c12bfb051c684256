"""Labels that rules tie to each other and to nothing else: the nearest allowed set, and logits for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from smle.nearest.label_diagrams import Diagram, diagram_of
from smle.nearest.label_search import Clause, LabelSearch, NearestSets, prices_of

__all__ = ["NEVER", "LabelBlock", "Turned"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
Pairs = npt.NDArray[np.int32]

_MOST_LITERALS = 2_000_000  # of cached searches, over all patterns of active rules
_FEWEST = 8  # searches
_MOST_CLAUSES = 20_000  # of a diagram of rules that may not apply
NEVER = 2**60  # the price of what cannot be turned, more than all labels together


class Turned:
    """The result of turning labels: logits y (n, k), which rows they satisfy, and which searches were cut short."""

    def __init__(self, y: Array, solved: Mask, cut: Mask) -> None:
        self._y, self._solved, self.cut = y, solved, cut

    def first(self) -> Array:
        """Return the logits."""
        return self._y

    def points(self, rank: int, rows: Numbers) -> Array:
        """Return the logits of some rows; there is only one rank."""
        return self._y[rows]

    def holds(self, y: Array, rows: Numbers) -> Mask:
        """Return a mask of the rows whose logits obey."""
        return self._solved[rows]


class LabelBlock:
    """Labels that clauses and exclusions tie to each other, and to nothing else.

    `words`: lists of (label, on) over labels numbered within the block; `pairs`: arrays of pairs that exclude each
    other. `parts`: the columns of both in the mask of binding parts; `gates`: the rule of each if it may not apply, -1
    if it always does. `least` and `most` (k,): the lowest logit that is on, the highest that is off.

    Attributes:
        switches: The rules that may not apply.
    """

    def __init__(
        self,
        outputs: Numbers,
        words: Sequence[Clause],
        pairs: Sequence[Pairs],
        parts: Numbers,
        gates: Numbers,
        least: Array,
        most: Array,
    ) -> None:
        self.outputs, self.words, self.pairs, self.parts = outputs, words, pairs, parts
        self.least, self.most, self._gates = least, most, gates
        self.switches = np.unique(gates[gates >= 0])
        self._first = [int(np.flatnonzero(gates == rule)[0]) for rule in self.switches]  # one part of each
        size = len(outputs) + sum(map(len, words)) + 2 * sum(map(len, pairs))
        self._remembered = max(_FEWEST, _MOST_LITERALS // size)
        self._known: OrderedDict[bytes, LabelSearch] = OrderedDict()

    def solve(self, active: Mask, X: Array, t: Array) -> Turned:
        """Return logits near answers t (n, m), given which parts of the rules are active."""
        n, logits, binds = len(t), t[:, self.outputs], active[:, self.parts]
        if not len(self.switches):
            found = self.search(np.ones(len(self.parts), dtype=bool)).nearest(logits)
        elif self.switched is not None:
            on = np.concatenate([logits >= 0, binds[:, self._first]], axis=1)
            prices = np.concatenate([prices_of(logits), np.full((n, len(self.switches)), NEVER)], axis=1)
            on = self.switched.nearest(on, prices)[:, : len(self.outputs)]
            found = NearestSets(on, np.ones(n, dtype=bool), np.zeros(n, dtype=bool))
        else:
            found = NearestSets(logits >= 0, np.zeros(n, dtype=bool), np.zeros(n, dtype=bool))
            patterns, place = np.unique(binds, axis=0, return_inverse=True)
            for number, pattern in enumerate(patterns):
                rows = np.flatnonzero(place.reshape(-1) == number)
                for whole, own in zip(found, self.search(pattern).nearest(logits[rows]), strict=True):
                    whole[rows] = own
        y = np.where(found.on, np.maximum(logits, self.least), np.minimum(logits, self.most))
        return Turned(y, found.allowed, found.cut)

    @cached_property
    def switched(self) -> Diagram | None:
        """The diagram of all rules, None if too large. A rule that may not apply is a label that is never turned."""
        k, switch = len(self.outputs), {int(rule): i for i, rule in enumerate(self.switches)}
        clauses, apart = [], [np.empty((0, 2), dtype=np.intp)]
        ends = [[(k + switch[rule], False)] if rule >= 0 else [] for rule in self._gates.tolist()]
        for clause, end in zip(self.words, ends, strict=False):
            clauses.append([*clause, *end])
        for pairs, end in zip(self.pairs, ends[len(self.words) :], strict=True):
            if end:
                clauses += [[(a, False), (b, False), *end] for a, b in pairs.tolist()]
            else:
                apart.append(pairs.astype(np.intp))
        if len(clauses) > _MOST_CLAUSES:
            return None
        found = diagram_of(k + len(switch), clauses, np.concatenate(apart))
        return found if found is not None and found.size else None

    def search(self, pattern: Mask) -> LabelSearch:
        """Return the search for a pattern of binding parts; recent ones are cached."""
        key = pattern.tobytes()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        clauses = [clause for clause, own in zip(self.words, pattern, strict=False) if own]
        lists = [pairs for pairs, own in zip(self.pairs, pattern[len(self.words) :], strict=True) if own]
        pairs = np.concatenate([np.empty((0, 2), dtype=np.int32), *lists])
        self._known[key] = LabelSearch(len(self.outputs), clauses, pairs)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)
        return self._known[key]
