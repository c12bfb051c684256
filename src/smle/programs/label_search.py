"""The nearest allowed set of labels, exactly: one search for any clauses, whose answer to a row depends on it alone.

Turning a label costs the size of its logit: what is given up in log-likelihood. Prices are rounded to 20 binary digits,
in units of 2^-20, and are at least one unit, so that last bits of logits decide nothing. Labels that clauses tie
together are searched apart from others:

* implications alone ("not a, or b"): a closure, for any number of labels (`label_closures`);
* a decision diagram, if one of some 10,000 nodes is found (`label_diagrams`);
* else branch and bound, which is cut short after so many steps (`label_branches`).

The first two always end. The rules alone say which it is, so that a row gets the same labels in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from smle.programs.label_branches import Branches
from smle.programs.label_closures import Closure, closure_of
from smle.programs.label_diagrams import Diagram, diagram_of

__all__ = ["LabelSearch", "NearestSets", "prices_of"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Costs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.intp]
Clause = Sequence[tuple[int, bool]]

_DIGITS = 20
_MOST_PAIRS = 20_000  # exclusions that are read as clauses of a diagram


class NearestSets(NamedTuple):
    """Sets of labels (n, k); whether each is allowed, and whether the search for a nearer one was cut short (n,)."""

    on: Mask
    allowed: Mask
    cut: Mask


def prices_of(logits: Array) -> Costs:
    """Return what turning each label costs (n, k), in units of 2^-20: rounded to 20 binary digits, and at least 1.

    The most is 2^50, or less where there are so many labels that sums would overflow.
    """
    most = min(2.0**50, 2.0 ** (60 - logits.shape[1].bit_length()))
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.fmin(np.ldexp(np.abs(logits), _DIGITS), most)
    digits, power = np.frexp(units)
    rounded = np.where(power > _DIGITS, np.ldexp(np.rint(np.ldexp(digits, _DIGITS)), power - _DIGITS), np.rint(units))
    return np.asarray(np.maximum(rounded, 1.0).astype(np.int64))


class LabelSearch:
    """From logits (n, k) to the nearest sets of labels that clauses and exclusions allow.

    Args:
        k: How many labels there are.
        clauses: Lists of (label, on): one of them has to be so.
        pairs: Labels that are never on together, (p, 2).
    """

    def __init__(self, k: int, clauses: Sequence[Clause], pairs: npt.ArrayLike = ()) -> None:
        self._k = k
        self._fixed, left, apart = _settled(k, clauses, np.asarray(pairs, dtype=np.intp).reshape(-1, 2))
        self._parts = [] if left is None else [_Part(*part) for part in _together(k, left, apart)]
        empty = any(isinstance(part.way, Diagram) and not part.way.size for part in self._parts)
        self.is_possible = left is not None and not empty

    @property
    def ends(self) -> bool:
        """Whether every search ends: none is by branch and bound."""
        return not any(isinstance(part.way, Branches) for part in self._parts)

    def nearest(self, logits: Array) -> NearestSets:
        """Return the allowed sets that cost the least; a row that is allowed stays as it is."""
        n = len(logits)
        on = np.asarray(logits >= 0)
        if not self.is_possible:
            return NearestSets(on, np.zeros(n, dtype=bool), np.zeros(n, dtype=bool))
        on = np.where(self._fixed == 0, on, self._fixed > 0)
        prices = prices_of(logits)
        allowed, cut = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
        for part in self._parts:
            rows = np.flatnonzero(part.breaks(on))
            if len(rows):
                at = np.ix_(rows, part.labels)
                on[at], allowed[rows], cut[rows] = part.nearest(on[at], prices[at], allowed[rows], cut[rows])
        return NearestSets(on, allowed, cut)


class _Part:
    """Labels that clauses tie together, and how their nearest sets are found."""

    def __init__(self, labels: Numbers, clauses: Sequence[Clause], pairs: Numbers) -> None:
        self.labels, self._pairs = labels, pairs
        place = {int(label): i for i, label in enumerate(labels)}
        own: list[Clause] = [[(place[label], on) for label, on in clause] for clause in clauses]
        within = np.searchsorted(labels, pairs)
        every = own
        if len(pairs) <= _MOST_PAIRS:
            every = [*own, *([(a, False), (b, False)] for a, b in within.tolist())]
        found: Closure | Diagram | Branches | None = None if len(pairs) else closure_of(len(labels), own)
        if found is None and len(every) == len(own) + len(pairs):
            found = diagram_of(len(labels), every)
        self.way = Branches(len(labels), own, within) if found is None else found
        self._label = np.array([label for clause in clauses for label, _ in clause], dtype=np.intp)
        self._wanted = np.array([on for clause in clauses for _, on in clause], dtype=bool)
        self._starts = np.cumsum([0, *(len(clause) for clause in clauses)])[:-1]

    def breaks(self, on: Mask) -> Mask:
        """Return which sets of all labels break a clause or an exclusion (n,)."""
        bad = np.zeros(len(on), dtype=bool)
        if len(self._label):
            met = np.logical_or.reduceat(on[:, self._label] == self._wanted, self._starts, axis=1)
            bad |= ~met.all(axis=1)
        if len(self._pairs):
            bad |= (on[:, self._pairs[:, 0]] & on[:, self._pairs[:, 1]]).any(axis=1)
        return bad

    def nearest(self, on: Mask, prices: Costs, allowed: Mask, cut: Mask) -> tuple[Mask, Mask, Mask]:
        """Return sets of the own labels, and what is known of their rows with this."""
        if not isinstance(self.way, Branches):
            return self.way.nearest(on, prices), allowed, cut
        sets, found, short = self.way.nearest(on, prices)
        return sets, allowed & found, cut | short


def _settled(
    k: int, clauses: Sequence[Clause], pairs: Numbers
) -> tuple[npt.NDArray[np.int8], list[Clause] | None, Numbers]:
    """Return which labels are settled by themselves (1 on, -1 off), and clauses and pairs that are left to be met.

    None in the place of clauses: they contradict each other.
    """
    state = np.zeros(k, dtype=np.int8)
    left: list[Clause] = [clause for clause in (sorted(set(own)) for own in clauses) if not _is_sure(clause)]
    while True:
        known = state.tolist()
        shorter: list[Clause] = []
        for clause in left:
            if not any(known[label] == (1 if on else -1) for label, on in clause):
                shorter.append([(label, on) for label, on in clause if not known[label]])
        both = state[pairs] if len(pairs) else np.zeros((0, 2), dtype=np.int8)
        if not all(shorter) or (both > 0).all(axis=1).any():
            return state, None, pairs
        single = [clause[0] for clause in shorter if len(clause) == 1]
        reached = np.flatnonzero((both > 0).any(axis=1))
        wanted = {(int(pairs[i, 1 if both[i, 0] > 0 else 0]), False) for i in reached}
        wanted.update(single)
        pairs, left = pairs[(both == 0).all(axis=1)], shorter
        if not wanted:
            return state, left, pairs
        for label, on in sorted(wanted):
            if state[label] and (state[label] > 0) != on:
                return state, None, pairs
            state[label] = 1 if on else -1


def _is_sure(clause: Clause) -> bool:
    return len({label for label, _ in clause}) < len(clause)


def _together(k: int, clauses: Sequence[Clause], pairs: Numbers) -> list[tuple[Numbers, list[Clause], Numbers]]:
    """Return labels that are tied together, with their clauses and pairs, group by group."""
    ties = [
        np.array([(clause[0][0], label) for clause in clauses for label, _ in clause], dtype=np.intp).reshape(-1, 2)
    ]
    edges = np.concatenate([*ties, pairs])
    graph = sparse.csr_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), (k, k))
    _, group = csgraph.connected_components(graph, directed=False)
    own: dict[int, list[Clause]] = {}
    for clause in clauses:
        own.setdefault(int(group[clause[0][0]]), []).append(clause)
    of_pairs = group[pairs[:, 0]] if len(pairs) else np.empty(0, dtype=np.intp)
    tied = np.unique(group[edges[:, 0]]).tolist()
    return [(np.flatnonzero(group == g), own.get(g, []), pairs[of_pairs == g]) for g in tied]
