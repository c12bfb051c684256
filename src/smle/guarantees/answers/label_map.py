"""The most likely allowed set of labels: cross-entropy with epsilon, exact.

    maximize  sum over labels that are on of  w_l = log max(p_l, eps) - log max(1 - p_l, eps)

Where rules tie few labels together, all patterns are tried; elsewhere branch and bound, and a MILP if that grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.guarantees.answers.literals import Node, branch_and_bound
from smle.guarantees.answers.membership import excluded
from smle.solvers import MixedIntegerProgram, Status, solve

__all__ = ["EPSILON", "most_likely_labels", "weights_of"]

Array = npt.NDArray[np.float64]
Sign = tuple[int, bool]
"""A label, and whether it is on."""

EPSILON = 1e-6
MAX_NODES = 500
_FEW = 10  # labels of which all patterns are tried
_AT_ONCE = 4096  # rows


def weights_of(probabilities: Array) -> Array:
    """Return what turning each label on gains in log-likelihood."""
    p = np.clip(probabilities, 0.0, 1.0)
    gains: Array = np.log(np.maximum(p, EPSILON)) - np.log(np.maximum(1 - p, EPSILON))
    return gains


def most_likely_labels(
    probabilities: Array, pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[Sign]] = ()
) -> Array:
    """Return the most likely allowed 0/1 patterns; NaN where no pattern is allowed.

    Shapes: probabilities (n, m), pairs (p, 2); clauses are lists of (label, on). Returns (n, m).
    """
    weights = weights_of(probabilities)
    result = (weights >= 0).astype(np.float64)
    bad = _broken(result > 0, pairs, clauses)
    if not bad.any():
        return result
    tied = np.unique([*(label for clause in clauses for label, _ in clause), *pairs.reshape(-1)]).astype(np.intp)
    if len(tied) <= _FEW:
        result[np.ix_(bad, tied)] = _by_trying(weights[np.ix_(bad, tied)], tied, pairs, clauses)
        return result
    known: dict[bytes, Array] = {}
    for row in np.flatnonzero(bad):
        key = weights[row].tobytes()
        if key not in known:
            found = _by_search(weights[row], pairs, clauses)
            known[key] = _by_program(weights[row], pairs, clauses) if found is None else found
        result[row] = known[key]
    return result


def _broken(
    on: npt.NDArray[np.bool_], pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[Sign]]
) -> npt.NDArray[np.bool_]:
    bad = excluded(on, pairs)
    for clause in clauses:
        bad |= ~np.any([on[:, label] == value for label, value in clause], axis=0)
    return bad


def _by_trying(
    weights: Array, tied: npt.NDArray[np.intp], pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[Sign]]
) -> Array:
    """Return the most likely allowed patterns of the labels that rules tie together, NaN if there is none."""
    place = {int(label): p for p, label in enumerate(tied)}
    patterns = (np.arange(2 ** len(tied))[:, None] >> np.arange(len(tied))) & 1
    own = [[(place[label], value) for label, value in clause] for clause in clauses]
    allowed = patterns[~_broken(patterns > 0, np.searchsorted(tied, pairs).astype(np.int32), own)].astype(np.float64)
    if not len(allowed):
        return np.full_like(weights, np.nan)
    parts = range(0, len(weights), _AT_ONCE)
    best = np.concatenate([(weights[i : i + _AT_ONCE] @ allowed.T).argmax(axis=1) for i in parts])
    return np.asarray(allowed[best])


def _by_search(weights: Array, pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[Sign]]) -> Array | None:
    """Return the pattern, NaN if none is allowed, None if the search grew too large."""
    wanted = weights >= 0
    able = wanted.copy()
    able[[label for clause in clauses for label, value in clause if value]] = True
    live = pairs[able[pairs].all(axis=1)]  # other labels stay off
    apart: dict[int, list[int]] = {}
    for h, k in live.tolist():
        apart.setdefault(h, []).append(k)
        apart.setdefault(k, []).append(h)

    def solve(chosen: tuple[Sign, ...]) -> Node[Array, Sign] | None:
        on, fixed = wanted.copy(), dict[int, bool]()
        for label, value in chosen:
            for one, side in ((label, value), *((k, False) for k in apart.get(label, ()) if value)):
                if fixed.setdefault(one, side) != side:
                    return None
                on[one] = side
        cost, pattern = -float(weights @ on), on.astype(np.float64)
        inner = live[on[live].all(axis=1)]
        if len(inner):  # the label that excludes most others, and of those the likeliest, is on or off
            counts = np.bincount(inner.reshape(-1), minlength=len(on))
            label = int(np.where(counts == counts.max(), weights, -np.inf).argmax())
            return Node(cost, pattern, [(label, True), (label, False)])
        for clause in clauses:
            if not any(on[label] == value for label, value in clause):
                free = [(label, value) for label, value in clause if label not in fixed]
                return Node(cost, pattern, free) if free else None
        return Node(cost, pattern)

    found = branch_and_bound(solve, max_nodes=MAX_NODES)
    if not found.ended:
        return None
    return np.full(len(weights), np.nan) if found.answer is None else found.answer


def _by_program(weights: Array, pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[Sign]]) -> Array:
    """Solve by MILP: exclusions y_h + y_k <= 1; clauses sum of literals >= 1."""
    m = len(weights)
    rows: list[int] = []
    cols: list[int] = []
    values: list[float] = []
    lower: list[float] = []
    for clause in clauses:
        need = 1.0
        for label, value in clause:
            rows.append(len(lower))
            cols.append(label)
            values.append(1.0 if value else -1.0)
            need -= 0.0 if value else 1.0
        lower.append(need)
    first = len(lower)
    count = len(pairs)
    A = sparse.csr_matrix(
        (
            np.concatenate([np.array(values, dtype=np.float64), np.full(2 * count, -1.0)]),
            (
                np.concatenate([np.array(rows, dtype=np.intp), np.repeat(np.arange(first, first + count), 2)]),
                np.concatenate([np.array(cols, dtype=np.intp), pairs.reshape(-1).astype(np.intp)]),
            ),
        ),
        (first + count, m),
    )
    found = solve(
        MixedIntegerProgram(
            -weights,
            A,
            np.array([*lower, *([-1.0] * count)]),
            np.full(first + count, np.inf),
            np.zeros(m),
            np.ones(m),
            integrality=np.ones(m, dtype=bool),
        )
    )
    if found.status is not Status.OPTIMAL or found.x is None:
        return np.full(m, np.nan)
    pattern: Array = np.round(found.x)
    bad = _broken((pattern > 0.5)[None], pairs, clauses)
    return np.full(m, np.nan) if bad[0] else pattern
