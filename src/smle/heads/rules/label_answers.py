"""Safe sets of labels: if rules only say which labels are on or off, search for one set that obeys all of them.

The search is the one for nearest labels: it starts from the labels of a typical answer and turns as few as it can.
Evaluating the clauses proves the result, as for any answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from smle.nearest.clauses import Sign
from smle.nearest.label_branches import BranchSearch

__all__ = ["LabelRule", "TooMany", "obeying", "smallest"]

Pairs = npt.NDArray[np.intp]
Clause = tuple[Sign, ...]
_MOST_PAIRS = 200_000
_SECONDS = 1.5  # time to find which rules contradict each other


class TooMany(Exception):  # noqa: N818 - an outcome
    """The search was cut short, so the result is unknown."""


class LabelRule(NamedTuple):
    """What one rule says about labels."""

    clauses: list[Clause]
    pairs: list[Pairs]


def obeying(rules: Iterable[LabelRule], typical: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    """Return a set of labels near a typical one that obeys the rules, as a mask, or None if there is none.

    Raises TooMany if there are too many pairs, or sets to try.
    """
    own = list(rules)
    clauses = [sorted(set(clause)) for rule in own for clause in rule.clauses]
    pairs = np.concatenate([np.zeros((0, 2), dtype=np.intp), *(part for rule in own for part in rule.pairs)])
    # A label that nothing requires stays off, so its pairs do not matter.
    may_be_on = typical.copy()
    may_be_on[[label for clause in clauses for label, on in clause if on]] = True
    both = pairs[may_be_on[pairs].all(axis=1)]
    if len(both) > _MOST_PAIRS:
        raise TooMany
    clauses += [sorted({(h, False), (k, False)}) for h, k in both.tolist()]
    turned, cut = BranchSearch(clauses, typical.tolist(), [1] * len(typical), None).run()
    if turned is None:
        if cut:
            raise TooMany
        return None
    found = typical.copy()
    found[turned] ^= True
    return found


def smallest(rules: Mapping[int, LabelRule], typical: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """Return a small set of rules that no set of labels obeys together.

    Expects rules that contradict each other. If time runs out, the result holds more rules than needed.
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
