"""The nearest allowed set of labels for any clauses, exact unless cut short. Rows do not depend on each other.

Turning a label costs the size of its logit, the log-likelihood given up. Prices are rounded to 20 binary digits, in
units of 2^-20, and are at least one unit, so that last bits of logits decide nothing. Labels tied together by clauses
are searched apart from others:

* implications alone ("not a, or b"): a closure, for any number of labels (`label_closures`);
* a decision diagram, if one with at most 30,000 nodes plus 10 per label is found (`label_diagrams`);
* else branch and bound, cut short after a fixed number of steps (`label_branches`).

The first two always end. The rules alone decide which is used, so that a row gets the same labels in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.nearest.clauses import tied_together
from smle.nearest.label_branches import Branches
from smle.nearest.label_closures import Closure, closure_of
from smle.nearest.label_diagrams import Diagram, diagram_of

__all__ = ["DIGITS", "SPLIT", "Clause", "LabelSearch", "NearestSets", "Tied", "most_of", "prices_of"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.intp]
Clause = Sequence[tuple[int, bool]]

DIGITS = 20
SPLIT = 2.0**33 + 1  # a product with it splits off the first 20 of 53 digits
_MOST_PAIRS = 1_000_000  # exclusions of a diagram
_DENSE = 0.05  # share of pairs that exclude each other, above which their matrix is dense


class NearestSets(NamedTuple):
    """Sets of labels (n, k); whether each is allowed, and whether the search for a nearer one was cut short (n,)."""

    on: Mask
    allowed: Mask
    cut: Mask


def most_of(k: int) -> float:
    """Return the highest price of one of k labels, so that the sum over all fits into 60 bits."""
    return float(min(2.0**50, 2.0 ** (60 - k.bit_length())))


def prices_of(logits: Array) -> Costs:
    """Return the price of turning each label (n, k), in units of 2^-20: rounded to 20 binary digits, and at least 1.

    The highest is 2^50, or less if there are so many labels that sums would overflow. Every step exists in ONNX, with
    the same bits.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.fmin(np.abs(logits) * 2.0**DIGITS, most_of(logits.shape[1]))
    wide = units * SPLIT
    rounded = np.where(units >= 2.0**DIGITS, wide - (wide - units), np.maximum(np.rint(units), 1.0))
    return np.asarray(rounded.astype(np.int64))


class LabelSearch:
    """The search that maps logits (n, k) to the nearest sets of labels that clauses and exclusions allow.

    Args:
        k: Number of labels.
        clauses: Lists of (label, on), one of which must hold.
        pairs: Labels that are never on together, (p, 2).

    Attributes:
        fixed: Labels that the clauses determine: 1 on, -1 off, 0 neither, (k,).
        parts: Labels tied together, each with its search.
        is_possible: Whether there may be an allowed set.
    """

    def __init__(self, k: int, clauses: Sequence[Clause], pairs: npt.ArrayLike = ()) -> None:
        self.fixed, left, apart = _settled(k, clauses, np.asarray(pairs, dtype=np.intp).reshape(-1, 2))
        self.parts = [] if left is None else [Tied(*part) for part in _together(k, left, apart)]
        empty = any(isinstance(part.way, Diagram) and not part.way.size for part in self.parts)
        self.is_possible = left is not None and not empty

    def nearest(self, logits: Array) -> NearestSets:
        """Return the cheapest allowed sets; an allowed row stays unchanged."""
        n = len(logits)
        on = np.asarray(logits >= 0)
        if not self.is_possible:
            return NearestSets(on, np.zeros(n, dtype=bool), np.zeros(n, dtype=bool))
        on = np.where(self.fixed == 0, on, self.fixed > 0)
        prices = prices_of(logits)
        allowed, cut = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
        for part in self.parts:
            rows = np.flatnonzero(part.breaks(on))
            if len(rows):
                at = np.ix_(rows, part.labels)
                on[at], allowed[rows], cut[rows] = part.nearest(on[at], prices[at], allowed[rows], cut[rows])
        return NearestSets(on, allowed, cut)


class Tied:
    """Labels (l,) tied together by clauses and pairs, numbered among themselves, and how to find their nearest sets."""

    def __init__(self, labels: Numbers, clauses: Sequence[Clause], pairs: Numbers) -> None:
        self.labels = labels
        place = {int(label): i for i, label in enumerate(labels)}
        own: list[Clause] = [[(place[label], on) for label, on in clause] for clause in clauses]
        within = np.searchsorted(labels, pairs)
        found: Closure | Diagram | Branches | None = None if len(pairs) else closure_of(len(labels), own)
        if found is None and len(pairs) <= _MOST_PAIRS:
            found = diagram_of(len(labels), own, within)
        self.way = Branches(len(labels), own, within) if found is None else found
        self.clauses, self.pairs = own, within
        self._label = np.array([label for clause in clauses for label, _ in clause], dtype=np.intp)
        self._wanted = np.array([on for clause in clauses for _, on in clause], dtype=bool)
        self._starts = np.cumsum([0, *(len(clause) for clause in clauses)])[:-1]
        self._apart: Any = None  # which labels exclude which, if any (k, k)
        if len(pairs):
            ones = np.ones(len(pairs), dtype=np.float32)
            self._apart = sparse.csr_matrix((ones, (within[:, 0], within[:, 1])), (len(labels),) * 2)
            if len(pairs) > _DENSE * len(labels) ** 2:
                self._apart = self._apart.toarray()

    def breaks(self, on: Mask) -> Mask:
        """Return a mask of the sets of all labels that break a clause or an exclusion (n,)."""
        bad = np.zeros(len(on), dtype=bool)
        if len(self._label):
            met = np.logical_or.reduceat(on[:, self._label] == self._wanted, self._starts, axis=1)
            bad |= ~met.all(axis=1)
        if self._apart is not None:
            own = on[:, self.labels].T
            bad |= ((self._apart @ own.astype(np.float32) > 0) & own).any(axis=0)
        return bad

    def nearest(self, on: Mask, prices: Costs, allowed: Mask, cut: Mask) -> tuple[Mask, Mask, Mask]:
        """Return sets of these labels, and the updated masks `allowed` and `cut`."""
        if not isinstance(self.way, Branches):
            return self.way.nearest(on, prices), allowed, cut
        sets, found, short = self.way.nearest(on, prices)
        return sets, allowed & found, cut | short


def _settled(
    k: int, clauses: Sequence[Clause], pairs: Numbers
) -> tuple[npt.NDArray[np.int8], list[Clause] | None, Numbers]:
    """Return the labels that are determined (1 on, -1 off), and the clauses and pairs that remain.

    The clauses are None if they contradict each other.
    """
    state = np.zeros(k, dtype=np.int8)
    plain = [clause for clause in (sorted(set(own)) for own in clauses) if not _is_sure(clause)]
    asked: dict[tuple[int, bool], list[int]] = {}  # the clauses that lose a literal if a label has this value
    for c, clause in enumerate(plain):
        for label, on in clause:
            asked.setdefault((label, not on), []).append(c)
    apart = sparse.csr_matrix((np.ones(len(pairs), dtype=bool), (pairs[:, 0], pairs[:, 1])), (k, k))
    apart = (apart + apart.T).tocsr()
    left = [len(clause) for clause in plain]
    waiting = [clause[0] for clause in plain if len(clause) == 1]
    waiting += [(int(label), False) for label in np.unique(pairs[pairs[:, 0] == pairs[:, 1]])]
    for label, on in waiting:  # the list grows
        if state[label]:
            if (state[label] > 0) != on:
                return state, None, pairs
            continue
        state[label] = 1 if on else -1
        for c in asked.get((label, on), ()):
            left[c] -= 1
            if left[c] == 1:
                waiting += [(other, side) for other, side in plain[c] if not state[other]]
            elif not left[c]:
                return state, None, pairs
        if on:
            waiting += [(int(other), False) for other in apart.indices[apart.indptr[label] : apart.indptr[label + 1]]]
    known = state.tolist()
    open_: list[Clause] = [
        [(label, on) for label, on in clause if not known[label]]
        for clause in plain
        if not any(known[label] == (1 if on else -1) for label, on in clause)
    ]
    return state, open_, pairs[(state[pairs] == 0).all(axis=1)]


def _is_sure(clause: Clause) -> bool:
    return len({label for label, _ in clause}) < len(clause)


def _together(k: int, clauses: Sequence[Clause], pairs: Numbers) -> list[tuple[Numbers, list[Clause], Numbers]]:
    """Group labels that are tied together, with their clauses and pairs."""
    groups = tied_together([[label for label, _ in clause] for clause in clauses], [pairs], k)
    group = np.full(k, -1)
    for number, labels in enumerate(groups):
        group[labels] = number
    own: list[list[Clause]] = [[] for _ in groups]
    for clause in clauses:
        own[group[clause[0][0]]].append(clause)
    return [(labels, own[number], pairs[group[pairs[:, 0]] == number]) for number, labels in enumerate(groups)]
