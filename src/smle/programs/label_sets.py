"""Which labels to turn on or off: the allowed set of labels that gives up the least log-likelihood.

A label's score is its logit: turning it costs |score|. Where few sets are allowed all of them are tried; where the
rules are exclusions the labels that exclude each other are tried in all ways, or (many of them) kept from the highest
score down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smle.programs.alternatives import Block

__all__ = ["Labels", "allowed_sets", "kept_labels"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Pairs = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.intp]

_MOST_SETS = 4096
_MOST_TRIED = 10
_AT_ONCE = 1024


def allowed_sets(k: int, clauses: Sequence[Sequence[tuple[int, bool]]]) -> Mask | None:
    """Return the sets of k labels that satisfy clauses of (label, on), as rows of a mask; None if there are many."""
    due: list[list[Sequence[tuple[int, bool]]]] = [[] for _ in range(k)]
    for clause in clauses:
        due[max(label for label, _ in clause)].append(clause)
    sets = np.zeros((1, 0), dtype=bool)
    for own in due:
        wider = np.repeat(sets, 2, axis=0)
        sets = np.concatenate([wider, np.tile([[True], [False]], (len(sets), 1))], axis=1)
        for clause in own:
            sets = sets[np.any([sets[:, label] == on for label, on in clause], axis=0)]
        if len(sets) > _MOST_SETS:
            return None
    return sets


def kept_labels(scores: Array, on: Mask, conflicts: Mask) -> Mask:
    """Return a set of the labels that are on without a conflict in it, for each row. Shapes: (n, k), (n, k), (k, k)."""
    kept = on.copy()
    count = on.astype(np.float32) @ conflicts.astype(np.float32)
    tied = on & (count > 0)
    rows = np.flatnonzero(tied.any(axis=1))
    few = tied[rows].sum(axis=1) <= _MOST_TRIED
    for start in range(0, int(few.sum()), _AT_ONCE):
        part = rows[few][start : start + _AT_ONCE]
        kept[part] = _all_ways(scores[part], on[part], tied[part], conflicts)
    part = rows[~few]
    if len(part):
        kept[part] = _from_the_top(scores[part], on[part], tied[part], conflicts)
    return kept


def _all_ways(scores: Array, on: Mask, tied: Mask, conflicts: Mask) -> Mask:
    """Try all sets of the tied labels, at most `_MOST_TRIED` in each row."""
    most = int(tied.sum(axis=1).max())
    order = np.argsort(~tied, axis=1, kind="stable")[:, :most]
    used = np.take_along_axis(tied, order, axis=1)
    weight = np.where(used, np.take_along_axis(scores, order, axis=1), 0.0)
    bits = 1 << np.arange(most)
    against = (conflicts[order[:, :, None], order[:, None, :]] & used[:, None, :]) @ bits  # (n, most): bit masks
    sets = np.arange(1 << most)
    members = (sets[:, None] & bits) != 0
    broken = np.zeros((len(scores), len(sets)), dtype=bool)
    for i in range(most):
        chosen = members[:, i]
        broken[:, chosen] |= (against[:, i, None] & sets[chosen]) != 0
    value = np.where(broken, -np.inf, weight @ members.T)
    best = members[value.argmax(axis=1)] & used
    kept = on & ~tied
    at = np.arange(len(scores))[:, None]
    kept[at, order] |= best
    return kept


def _from_the_top(scores: Array, on: Mask, tied: Mask, conflicts: Mask) -> Mask:
    """Keep labels from the highest score down, unless one that is kept excludes them."""
    kept = on & ~tied
    order = np.argsort(np.where(tied, -scores, np.inf), axis=1, kind="stable")
    blocked = np.zeros(on.shape, dtype=bool)
    at = np.arange(len(scores))
    for rank in range(int(tied.sum(axis=1).max())):
        label = order[:, rank]
        fine = tied[at, label] & ~blocked[at, label]
        kept[at[fine], label[fine]] = True
        blocked[fine] |= conflicts[label[fine]]
    return kept


class Turned:
    """Labels that were turned on or off: logits y (n, k), and for which rows they obey."""

    def __init__(self, y: Array, solved: Mask) -> None:
        self._y, self._solved = y, solved

    def first(self) -> Array:
        """Return the logits."""
        return self._y

    def points(self, rank: int, rows: Numbers) -> Array:
        """Return the logits of some rows; there is one rank."""
        return self._y[rows]

    def holds(self, y: Array, rows: Numbers) -> Mask:
        """Return for which rows the logits obey."""
        return self._solved[rows]


class Labels:
    """Labels that clauses and exclusions tie to each other, and to nothing else.

    `clauses`: lists of (label, on) over labels numbered within the block; `exclusions`: arrays of pairs. `parts`: the
    columns of both in the mask of what binds. `least` and `most` (k,): the lowest logit that is on, the highest that is
    off. `block`: the same clauses, for a search where there are many sets; None if there are too many.
    """

    def __init__(
        self,
        outputs: Numbers,
        clauses: Sequence[Sequence[tuple[int, bool]]],
        exclusions: Sequence[Pairs],
        parts: Numbers,
        least: Array,
        most: Array,
        block: Block | None,
    ) -> None:
        self.outputs = outputs
        self.words, self.pairs, self.parts = clauses, exclusions, parts
        self.least, self.most, self._block = least, most, block
        self._known: OrderedDict[bytes, Mask | None] = OrderedDict()
        self._graphs: OrderedDict[bytes, Mask] = OrderedDict()

    def solve(self, active: Mask, X: Array, t: Array) -> Turned:
        """Return logits near those of answers t (n, m), where parts of the rules are active."""
        logits, binds = t[:, self.outputs], active[:, self.parts]
        on, solved = logits >= 0, np.zeros(len(t), dtype=bool)
        patterns, place = np.unique(binds, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows = np.flatnonzero(place.reshape(-1) == number)
            sets = self._sets(pattern)
            if sets is not None and len(sets):
                for start in range(0, len(rows), _AT_ONCE):
                    part = rows[start : start + _AT_ONCE]
                    on[part] = sets[(logits[part] @ sets.T).argmax(axis=1)]
                solved[rows] = True
            elif sets is None and not pattern[: len(self.words)].any():
                on[rows] = kept_labels(logits[rows], on[rows], self._graph(pattern))
                solved[rows] = True
        if self._block is not None and not solved.all():
            rest = np.flatnonzero(~solved)
            found = self._block.solve(active[rest], X[rest], t[rest])
            y = found.first()
            on[rest], solved[rest] = y >= 0, ~np.isnan(y).any(axis=1)
        return Turned(np.where(on, np.maximum(logits, self.least), np.minimum(logits, self.most)), solved)

    def _sets(self, pattern: Mask) -> Mask | None:
        key = pattern.tobytes()
        if key not in self._known:
            if len(self._known) >= 256:
                self._known.popitem(last=False)
            count = len(self.words)
            binding = [clause for clause, own in zip(self.words, pattern, strict=False) if own]
            pairs = [list_ for list_, own in zip(self.pairs, pattern[count:], strict=True) if own]
            k = len(self.outputs)
            few = k <= 64 and sum(map(len, pairs)) <= 2016
            both = [[(int(a), False), (int(b), False)] for list_ in pairs for a, b in list_] if few else []
            self._known[key] = allowed_sets(k, [*binding, *both]) if few else None
        return self._known[key]

    def _graph(self, pattern: Mask) -> Mask:
        own = pattern[len(self.words) :]
        key = own.tobytes()
        if key not in self._graphs:
            if len(self._graphs) >= 4:
                self._graphs.popitem(last=False)
            graph = np.zeros((len(self.outputs),) * 2, dtype=bool)
            for pairs, binds in zip(self.pairs, own, strict=True):
                if binds:
                    graph[pairs[:, 0], pairs[:, 1]] = graph[pairs[:, 1], pairs[:, 0]] = True
            self._graphs[key] = graph
        return self._graphs[key]
