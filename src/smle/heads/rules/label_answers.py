"""Safe sets of labels: if rules only say which labels are on or off, search for one set that obeys all of them.

Unit propagation with backtracking (DPLL). It starts from the labels of a typical answer, and changes them only in
clauses that these break. The result is proved by evaluating clauses, as for any answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from smle_check.heads.clips import Limit
from smle_check.specification import Literal

__all__ = ["LabelRule", "TooMany", "labels_that_obey", "obeying", "sign_of", "sign_of_limit", "smallest"]

Pairs = npt.NDArray[np.intp]
Clause = tuple[int, ...]  # of signs: i + 1 for a label that is on, -(i + 1) for one that is off
_MOST_NODES = 20_000
_MOST_PAIRS = 200_000
_SECONDS = 1.5  # time to find which rules contradict each other


class TooMany(Exception):  # noqa: N818 - an outcome
    """The search was cut short, so the result is unknown."""


def sign_of(literal: Literal) -> int | None:
    """Return what a literal says about a label, as a sign, or None if it says something else."""
    if literal.x or literal.bound or len(literal.y) != 1:
        return None
    ((i, g),) = literal.y.items()
    return (-(i + 1) if literal.strict else None) if g > 0 else (None if literal.strict else i + 1)


def sign_of_limit(limit: Limit) -> int | None:
    """Return what a limit says about a label, as a sign, or None if it says something else."""
    if limit.slope or limit.offset:
        return None
    if limit.side > 0:
        return None if limit.strict else limit.output + 1
    return -(limit.output + 1) if limit.strict else None


class LabelRule(NamedTuple):
    """What one rule says about labels."""

    clauses: list[Clause]
    pairs: list[Pairs]


def obeying(rules: Iterable[LabelRule], typical: npt.NDArray[np.bool_]) -> Sequence[bool] | None:
    """Return which labels are on in a set that obeys some rules, or None. Raises TooMany as `labels_that_obey`."""
    own = list(rules)
    pairs = [np.zeros((0, 2), dtype=np.intp), *(part for rule in own for part in rule.pairs)]
    return labels_that_obey([clause for rule in own for clause in rule.clauses], np.concatenate(pairs), typical)


def smallest(rules: Mapping[int, LabelRule], typical: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """Return a small set of rules that no set of labels obeys together.

    All rules together must have no such set. If time runs out, more are returned than needed.
    """
    kept, end, size = list(rules), monotonic() + _SECONDS, len(rules)
    while size and monotonic() < end:  # drop many at once, then fewer
        size = (size + 1) // 2 if size > 1 else 0
        start = 0
        while size and start < len(kept) and monotonic() < end:
            fewer = kept[:start] + kept[start + size :]
            if _contradict([rules[r] for r in fewer], typical):
                kept = fewer
            else:
                start += size
    return tuple(kept)


def _contradict(rules: list[LabelRule], typical: npt.NDArray[np.bool_]) -> bool:
    try:
        return obeying(rules, typical) is None
    except TooMany:
        return False


def labels_that_obey(clauses: Iterable[Clause], pairs: Pairs, typical: npt.NDArray[np.bool_]) -> Sequence[bool] | None:
    """Return which labels are on in a set, near a typical one, that obeys all clauses and excluded pairs, or None.

    Raises TooMany if there are too many pairs, or sets to try.
    """
    listed = [tuple(dict.fromkeys(clause)) for clause in clauses]
    # A label that nothing requires stays off, so its pairs do not matter.
    may_be_on = typical.copy()
    may_be_on[[sign - 1 for clause in listed for sign in clause if sign > 0]] = True
    both = pairs[may_be_on[pairs].all(axis=1)]
    if len(both) > _MOST_PAIRS:
        raise TooMany
    listed += [(-(h + 1), -(k + 1)) for h, k in both.tolist()]
    return _LabelSearch(listed, typical.tolist()).run()


class _LabelSearch:
    """The decided signs in order, and the clauses of each sign."""

    def __init__(self, clauses: list[Clause], typical: list[bool]) -> None:
        self.clauses, self.typical = clauses, typical
        self.value: list[int] = [0] * len(typical)  # 1 on, -1 off, 0 undecided
        self.inside: dict[int, list[int]] = {}
        for number, clause in enumerate(clauses):
            for sign in clause:
                self.inside.setdefault(sign, []).append(number)
        self.trail: list[int] = []

    def run(self) -> list[bool] | None:
        """Return the labels that are on, or None if no set obeys."""
        if not all(self.decide(clause[0]) for clause in self.clauses if len(clause) == 1):
            return None
        open_: list[tuple[int, list[int]]] = []  # length of the trail, and the signs left to try
        nodes = 0
        while True:
            broken = self.broken()
            if broken is None:
                return [self.is_on(i) for i in range(len(self.value))]
            nodes += 1
            if nodes > _MOST_NODES:
                raise TooMany
            open_.append((len(self.trail), [sign for sign in broken if not self.value[abs(sign) - 1]][::-1]))
            while True:
                if not open_:
                    return None
                length, signs = open_[-1]
                self.undo(length)
                if not signs:
                    open_.pop()
                    continue
                if self.decide(signs.pop()):
                    break

    def is_on(self, i: int) -> bool:
        """Return whether a label is on: as decided, else as in the typical answer."""
        return self.value[i] > 0 or (not self.value[i] and self.typical[i])

    def broken(self) -> Clause | None:
        """Return a clause that the current labels break, with fewest open signs, or None if all hold."""
        found: tuple[int, Clause] | None = None
        for clause in self.clauses:
            if not any(self.is_on(abs(sign) - 1) == (sign > 0) for sign in clause):
                count = sum(not self.value[abs(sign) - 1] for sign in clause)
                if found is None or count < found[0]:
                    found = count, clause
        return None if found is None else found[1]

    def decide(self, sign: int) -> bool:
        """Decide a sign and propagate; return False if a clause breaks."""
        queue = [sign]
        while queue:
            sign = queue.pop()
            i, value = abs(sign) - 1, 1 if sign > 0 else -1
            if self.value[i] == value:
                continue
            if self.value[i]:
                return False
            self.value[i] = value
            self.trail.append(sign)
            for number in self.inside.get(-sign, ()):
                clause = self.clauses[number]
                if any(self.value[abs(own) - 1] == (1 if own > 0 else -1) for own in clause):
                    continue
                left = [own for own in clause if not self.value[abs(own) - 1]]
                if not left:
                    return False
                if len(left) == 1:
                    queue.append(left[0])
        return True

    def undo(self, length: int) -> None:
        """Take back decisions until the trail has this length."""
        while len(self.trail) > length:
            self.value[abs(self.trail.pop()) - 1] = 0
