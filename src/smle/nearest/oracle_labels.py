"""The most likely allowed set of labels: cross-entropy with epsilon, exact.

    maximize  sum over labels that are on of  w_l = log max(p_l, eps) - log max(1 - p_l, eps)

It uses the search of the deployed program (`label_search`), and a MILP if that is cut short.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.nearest.label_search import LabelSearch
from smle.solvers import MixedIntegerProgram, Status, solve

__all__ = ["EPSILON", "most_likely_labels", "weights_of"]

Array = npt.NDArray[np.float64]
Sign = tuple[int, bool]
"""A label, and whether it is on."""

EPSILON = 1e-6


def weights_of(probabilities: Array) -> Array:
    """Return the gain in log-likelihood of turning each label on."""
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
    found = LabelSearch(weights.shape[1], clauses, pairs).nearest(weights)
    result = np.where(found.allowed[:, None], found.on.astype(np.float64), np.nan)
    for row in np.flatnonzero(found.cut):
        result[row] = _by_program(weights[row], pairs, clauses)
    return result


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
    on = pattern > 0.5
    unmet = any(all(on[label] != value for label, value in clause) for clause in clauses)
    return np.full(m, np.nan) if unmet or (on[pairs].all(axis=1)).any() else pattern
