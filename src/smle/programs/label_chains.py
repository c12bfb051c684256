"""The best allowed set of many labels, exactly, where rules tie each label to few others: chains, trees, groups.

Labels are settled one after the other. Whatever the labels that a label is tied to will be, it is known whether it is
better on or off; what that gives up is passed on to them. Tables hold the allowed combinations only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["allowed_sets", "best_sets", "planned"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
Clause = Sequence[tuple[int, bool]]

_MOST_SETS = 4096  # combinations of a table
_MOST_LABELS = 1_000
_MOST_TIES = 62  # labels of a table: a combination is a whole number


@dataclass(frozen=True, eq=False)
class Step:
    """How one label is settled, for each combination (q,) of the labels that it is tied to and that are settled later.

    `others` are these labels, `codes` (q,) their combinations, in ascending order. `rows` (q, 2): the two rows of the
    table with the label off and on; the same one twice if one is not allowed; `on` (P,) says which. `parts`: the tables
    of earlier steps that it adds up, with the row of each for each of its own.
    """

    label: int
    others: Numbers
    codes: npt.NDArray[np.int64]
    rows: Numbers
    on: Array
    parts: tuple[tuple[int, Numbers], ...]


def planned(k: int, clauses: Sequence[Clause]) -> list[Step] | None:
    """Return the steps for k labels under clauses of (label, on); None if tables grow too large, or are empty."""
    if k > _MOST_LABELS:
        return None
    ties: list[set[int]] = [set() for _ in range(k)]
    asked: list[list[Clause]] = [[] for _ in range(k)]
    for clause in clauses:
        labels = {label for label, _ in clause}
        for label in labels:
            ties[label] |= labels - {label}
            asked[label].append(clause)
    steps: list[Step] = []
    waiting: dict[int, tuple[tuple[int, ...], Mask]] = {}  # tables that earlier steps passed on
    left, used = set(range(k)), set[int]()
    while left:
        label = min(left, key=lambda i: (len(ties[i]), i))
        others = sorted(ties[label])
        if len(others) > _MOST_TIES:
            return None
        own = [clause for clause in asked[label] if id(clause) not in used]
        used.update(map(id, own))
        parts = [s for s, (scope, _) in waiting.items() if label in scope]
        table = allowed_sets([*others, label], own, [waiting[s] for s in parts])
        if table is None or not len(table):
            return None
        codes, place = np.unique(_codes(table[:, :-1]), return_inverse=True)
        rows = np.full((len(codes), 2), -1)
        rows[place.reshape(-1), table[:, -1].astype(np.intp)] = np.arange(len(table))
        rows = np.where(rows < 0, rows[:, ::-1], rows)
        columns = {name: i for i, name in enumerate([*others, label])}
        joined = tuple(
            (s, np.searchsorted(steps[s].codes, _codes(table[:, [columns[name] for name in waiting[s][0]]])))
            for s in parts
        )
        steps.append(Step(label, np.array(others, dtype=np.intp), codes, rows, table[:, -1].astype(np.float64), joined))
        for s in parts:
            del waiting[s]
        if others:
            waiting[len(steps) - 1] = tuple(others), table[rows[:, 0], :-1]
        left.remove(label)
        for other in others:
            ties[other] |= set(others) - {other}
            ties[other].discard(label)
    return steps


def best_sets(steps: Sequence[Step], scores: Array) -> Mask:
    """Return the allowed sets of the largest total score. Shapes: (n, k) -> (n, k)."""
    passed: list[Array] = []
    choices: list[Mask] = []
    for step in steps:
        value = scores[:, step.label, None] * step.on
        for s, rows in step.parts:
            value += passed[s][:, rows]
        off, on = value[:, step.rows[:, 0]], value[:, step.rows[:, 1]]
        choices.append(on > off)
        passed.append(np.maximum(on, off))
    result = np.zeros(scores.shape, dtype=bool)
    at = np.arange(len(scores))
    for step, choice in zip(reversed(steps), reversed(choices), strict=True):
        q = np.searchsorted(step.codes, _codes(result[:, step.others]))
        result[:, step.label] = step.on[step.rows[q, choice[at, q].astype(np.intp)]] > 0
    return result


def _codes(sets: Mask) -> npt.NDArray[np.int64]:
    """Return combinations (n, l) as whole numbers (n,)."""
    return np.asarray(sets @ (1 << np.arange(sets.shape[1], dtype=np.int64)), dtype=np.int64)


def allowed_sets(
    labels: Sequence[int], clauses: Iterable[Clause], known: Sequence[tuple[tuple[int, ...], Mask]] = ()
) -> Mask | None:
    """Return the combinations (P, l) of some labels that clauses allow, those with the first labels on first.

    None: they are too many. `known`: labels, and which of their combinations (q, .) are allowed.
    """
    scope, sets = max(known, key=lambda part: len(part[0]), default=((), np.ones((1, 0), dtype=bool)))
    order = [*scope, *(label for label in labels if label not in scope)]
    column = {label: i for i, label in enumerate(order)}
    due: dict[int, list[Clause]] = {}
    for clause in clauses:
        due.setdefault(max(len(scope), 1 + max(column[label] for label, _ in clause)), []).append(clause)
    for width in range(len(scope), len(order) + 1):
        if width > len(scope):
            sets = np.concatenate([np.repeat(sets, 2, axis=0), np.tile([[True], [False]], (len(sets), 1))], axis=1)
        for clause in due.get(width, ()):
            sets = sets[np.any([sets[:, column[label]] == on for label, on in clause], axis=0)]
        for other, allowed in known:
            if other is not scope and width == max(len(scope), 1 + max(column[label] for label in other)):
                sets = sets[np.isin(_codes(sets[:, [column[label] for label in other]]), _codes(allowed))]
        if len(sets) > 4 * _MOST_SETS:
            return None
    return sets[:, [column[label] for label in labels]] if len(sets) <= _MOST_SETS else None
