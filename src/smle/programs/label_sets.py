"""Which labels to turn on or off: the allowed set of labels that gives up the least log-likelihood.

A label's score is its logit: turning it costs |score|. Where few sets are allowed all of them are tried. Where the
rules are exclusions the labels that exclude each other are tried in all ways, or (many of them) kept from the highest
score down. Where each label is tied to few others they are settled one by one (`label_chains`), else by search.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from smle.programs.alternatives import Block
from smle.programs.label_chains import allowed_sets, best_sets, planned

__all__ = ["Labels", "kept_labels"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Pairs = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.intp]

_MOST_TRIED = 10
_AT_ONCE = 1024
_MOST_PAIRS = 2_016  # exclusions that are read as clauses
_MOST_WAYS, _MOST_LARGE_WAYS = 256, 8
Way = Callable[[Array], Mask]  # from scores to which labels are on


def kept_labels(conflicts: Mask, scores: Array) -> Mask:
    """Return for each row labels that are on and do not exclude each other. Shapes: (k, k), (n, k) -> (n, k)."""
    on = scores >= 0
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
        self._known: OrderedDict[bytes, Way | None] = OrderedDict()

    def solve(self, active: Mask, X: Array, t: Array) -> Turned:
        """Return logits near those of answers t (n, m), where parts of the rules are active."""
        logits, binds = t[:, self.outputs], active[:, self.parts]
        on, solved = logits >= 0, np.zeros(len(t), dtype=bool)
        patterns, place = np.unique(binds, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows, way = np.flatnonzero(place.reshape(-1) == number), self._way(pattern)
            for start in range(0, len(rows) if way is not None else 0, _AT_ONCE):
                part = rows[start : start + _AT_ONCE]
                on[part], solved[part] = way(logits[part]), True  # type: ignore[misc]
        if self._block is not None and not solved.all():
            rest = np.flatnonzero(~solved)
            found = self._block.solve(active[rest], X[rest], t[rest])
            y = found.first()
            on[rest], solved[rest] = y >= 0, ~np.isnan(y).any(axis=1)
        return Turned(np.where(on, np.maximum(logits, self.least), np.minimum(logits, self.most)), solved)

    def _way(self, pattern: Mask) -> Way | None:
        """Return how labels are turned where these parts of the rules bind; None: by search."""
        key = pattern.tobytes()
        if key not in self._known:
            if len(self._known) >= (_MOST_WAYS if len(self.outputs) <= 64 else _MOST_LARGE_WAYS):
                self._known.popitem(last=False)
            self._known[key] = self._made(pattern)
        return self._known[key]

    def _made(self, pattern: Mask) -> Way | None:
        count, k = len(self.words), len(self.outputs)
        clauses = [clause for clause, own in zip(self.words, pattern, strict=False) if own]
        lists = [pairs for pairs, own in zip(self.pairs, pattern[count:], strict=True) if own]
        pairs = np.concatenate([np.empty((0, 2), dtype=np.int32), *lists])
        alone = not clauses
        if len(pairs) <= _MOST_PAIRS:
            both = [[(a, False), (b, False)] for a, b in pairs.tolist()]
            sets = allowed_sets(range(k), [*clauses, *both]) if k <= 64 else None
            if sets is not None:
                return partial(_best_of, sets) if len(sets) else None
            steps = None if alone else planned(k, [*clauses, *both])
            if steps is not None:
                return partial(best_sets, steps)
        if not alone:
            return None
        graph = np.zeros((k, k), dtype=bool)
        graph[pairs[:, 0], pairs[:, 1]] = graph[pairs[:, 1], pairs[:, 0]] = True
        return partial(kept_labels, graph)


def _best_of(sets: Mask, scores: Array) -> Mask:
    return np.asarray(sets[(scores @ sets.T).argmax(axis=1)])
