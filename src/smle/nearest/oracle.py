"""The nearest allowed outputs (MAP), by exact search: what an oracle would answer.

Numbers and scores of choices: squared error, exact up to a margin that makes the result satisfy the rules in exact
evaluation. Labels: cross-entropy with epsilon 1e-6, exact; labels that rules tie to numbers, directly or through other
labels: squared error of p - 1/2, together with these numbers. Outputs that no clause ties together are independent
problems; rows with the same active rules are solved together. For numbers, a warning counts the rows whose search did
not end.

    labels: maximize  sum over labels that are on of  w_l = log max(p_l, eps) - log max(1 - p_l, eps)

Labels are found by the search of the deployed program (`label_search`), and by a MILP if that is cut short.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.nearest.clauses import tied_together
from smle.nearest.label_branches import by_solver
from smle.nearest.label_search import LabelSearch
from smle.nearest.unions import Choices, nearest_in_union
from smle.rules import Clause, Literals, Specification, exclusion, label_columns
from smle.rules.membership import active, clause_holds
from smle_check.floats import BINARY64, round_down

__all__ = ["EPSILON", "common_units", "most_likely_labels", "nearest_outputs", "to_scores", "weights_of"]

Array = npt.NDArray[np.float64]
Sign = tuple[int, bool]
"""A label, and whether it is on."""

EPSILON = 1e-6
_MARGINS = (1e-11, 1e-9, 1e-6)
_ALIKE = 10.0  # spreads within this factor share a unit
_MIXED_PAIRS = 2_000


def to_scores(spec: Specification, Y: Array) -> Array:
    """Return targets as the rules read them: labels (0/1 or probabilities p) become p - 1/2, the rest stays."""
    scores = np.array(Y, dtype=np.float64)
    scores[:, label_columns(spec)] -= 0.5
    return scores


def common_units(scale: npt.ArrayLike, labels: npt.NDArray[np.bool_]) -> Array:
    """Return the units (m,) for distances of outputs with these spreads; labels keep theirs.

    Numbers whose spreads lie within a factor of ten share one unit, their geometric mean: rules mostly add up numbers
    of one kind, and users then expect this nearest answer. Numbers of different sizes keep their own.
    """
    units = np.array(scale, dtype=np.float64)
    left = sorted(np.flatnonzero(~labels).tolist(), key=lambda i: units[i])
    while left:
        group = [i for i in left if units[i] <= _ALIKE * units[left[0]]]
        left = left[len(group) :]
        units[group] = np.exp(np.log(units[group]).mean()) if len(group) > 1 else units[group]
    return units


def nearest_outputs(
    spec: Specification, X: npt.NDArray[np.floating[Any]], Y: npt.ArrayLike, *, scale: npt.ArrayLike | None = None
) -> Array:
    """Return the allowed outputs nearest to given ones, row by row.

    Args:
        spec: The rules.
        X: Inputs (n, d) in the order of `spec.columns`.
        Y: Outputs (n, m) in the order of `spec.targets`: numbers, scores, and for labels 0/1 or probabilities.
        scale: Positive spread (m,) of each number, so that outputs of different sizes weigh the same (`common_units`);
            labels are not scaled. None: no scaling.

    Returns:
        Outputs (n, m): labels as 0 or 1, numbers unchanged if they are allowed; NaN where none was found.

    Raises:
        DataError: If shapes do not fit, outputs are not finite, a label is not in [0, 1], or labels tied to numbers
            have too many exclusions.
    """
    X = np.asarray(X) if np.asarray(X).dtype == np.float32 else np.asarray(X, dtype=np.float64)
    targets = np.asarray(Y, dtype=np.float64)
    if X.shape != (len(X), len(spec.columns)) or targets.shape != (len(X), len(spec.targets)):
        raise DataError(
            f"Expected inputs (n, {len(spec.columns)}) and outputs (n, {len(spec.targets)}). "
            f"Got {X.shape} and {targets.shape}."
        )
    labels = label_columns(spec)
    given = targets[:, labels]
    if not np.isfinite(targets).all() or (given.size and (given.min() < 0 or given.max() > 1)):
        raise DataError("Expected finite outputs, labels between 0 and 1. Scale or clean them first.")
    result = targets.copy()
    switches = np.stack([active(rule, X) for rule in spec.rules], axis=1) if spec.rules else None
    if switches is None or not len(X):
        result[:, labels] = given >= 0.5
        return result
    units = np.where(labels, 1.0, 1.0 if scale is None else common_units(scale, labels))
    patterns, group = np.unique(switches, axis=0, return_inverse=True)
    for g, pattern in enumerate(patterns):
        rows = np.flatnonzero(group.reshape(-1) == g)
        result[rows] = _under(spec, np.flatnonzero(pattern).tolist(), X[rows], targets[rows], units)
    return result


def _under(
    spec: Specification, rules: Sequence[int], X: npt.NDArray[np.floating[Any]], Y: Array, units: Array
) -> Array:
    """Return the nearest outputs that some rules allow. Outputs that they tie together are one problem."""
    labels, result = label_columns(spec), Y.copy()
    asked = [spec.rules[r].requirement for r in rules]
    pairs = np.concatenate([np.empty((0, 2), dtype=np.int32), *(own.exclusions for own in asked)])
    signs = {clause: _signs(clause, labels) for own in asked for clause in own.clauses}
    clauses = sorted(signs, key=lambda clause: signs[clause] is not None)
    ties = [{i for literal in clause.literals for i, _ in literal.outputs} for clause in clauses]
    groups = tied_together(ties, [pairs], len(labels))
    mixed = np.zeros(len(labels), dtype=bool)  # tied to more than labels, if only through other labels
    mixed[[i for clause, tie in zip(clauses, ties, strict=True) if signs[clause] is None for i in tie]] = True
    for columns in groups:
        mixed[columns] = mixed[columns].any()
    touching = pairs[mixed[pairs].any(axis=1)]
    if len(touching) > _MIXED_PAIRS:
        raise DataError(
            f"Expected at most {_MIXED_PAIRS:,} exclusions of labels that other rules tie to numbers. Got "
            f"{len(touching):,}; split the rules."
        )
    alone = np.flatnonzero(labels & ~mixed)
    if len(alone):
        place = np.cumsum(labels & ~mixed) - 1
        plain = [own for own in signs.values() if own is not None and not mixed[own[0][0]]]
        words = [[(int(place[label]), on) for label, on in own] for own in plain]
        apart = place[pairs[~mixed[pairs].any(axis=1)]].astype(np.int32).reshape(-1, 2)
        result[:, alone] = most_likely_labels(Y[:, alone], apart, words)
    for columns in (own for own in groups if mixed[own[0]]):
        tied = [clause for clause, tie in zip(clauses, ties, strict=True) if not tie.isdisjoint(columns.tolist())]
        listed = np.sort(touching[np.isin(touching[:, 0], columns)], axis=1)
        tied += [exclusion(int(h), int(k)) for h, k in np.unique(listed, axis=0)]
        found = _solve_block(columns, tied, X, Y[:, columns] - 0.5 * labels[columns], units)
        on_off = np.where(np.isnan(found), np.nan, (found >= 0).astype(np.float64))
        result[:, columns] = np.where(labels[columns], on_off, found)
    result[np.isnan(result).any(axis=1)] = np.nan
    return result


def _signs(clause: Clause, labels: npt.NDArray[np.bool_]) -> list[Sign] | None:
    """Return a clause as (label, on), or None if it says more than which labels are on or off."""
    found = [sign for literal in clause.literals if (sign := literal.sign) is not None and labels[sign[0]]]
    return found if len(found) == len(clause.literals) else None


def _solve_block(
    columns: npt.NDArray[np.intp], clauses: Sequence[Clause], X: npt.NDArray[np.floating[Any]], Y: Array, units: Array
) -> Array:
    """Return the nearest points of one block; margins grow until the exact evaluation agrees."""
    unit = units[columns]

    def broken(rows: npt.NDArray[np.intp], values: Array) -> npt.NDArray[np.bool_]:
        full = np.zeros((len(rows), len(units)))
        full[:, columns] = np.nan_to_num(values)
        bad: npt.NDArray[np.bool_] = np.asarray(np.isnan(values).any(axis=1))
        for clause in clauses:
            bad |= ~clause_holds(clause, X[rows], full)
        return bad

    def found(rows: npt.NDArray[np.intp], margin: float) -> Array:
        choices = _choices(columns, clauses, X[rows], margin, Y[rows], unit)
        return nearest_in_union(choices, Y[rows] / unit) * unit

    result = Y.copy()
    todo = np.flatnonzero(broken(np.arange(len(Y)), Y))
    if len(todo) and len(columns) == 1 and all(_is_end(clause) for clause in clauses):
        result[todo] = _clip(clauses, Y[todo])
        todo = todo[broken(todo, result[todo])]
    for margin in _MARGINS:
        if not len(todo):
            return result
        result[todo] = found(todo, margin)
        todo = todo[broken(todo, result[todo])]
    if len(todo):
        # No room for a margin: the border itself, exact or (without strict literals) within rounding.
        result[todo] = found(todo, 0.0)
        if any(literal.strict for clause in clauses for literal in clause.literals):
            result[todo[broken(todo, result[todo])]] = np.nan
    return result


def _is_end(clause: Clause) -> bool:
    """Return whether a clause is a constant limit on one output."""
    return len(clause.literals) == 1 and not clause.literals[0].inputs and len(clause.literals[0].outputs) == 1


def _clip(clauses: Sequence[Clause], Y: Array) -> Array:
    """Clip one output to its limits, to the nearest float64 inside. Shape (n, 1)."""
    low, high = -np.inf, np.inf
    for clause in clauses:
        ((_, q),) = clause.literals[0].outputs
        end = clause.literals[0].bound / abs(q)
        inside = round_down(end, BINARY64)
        value = float(inside)
        if clause.literals[0].strict and inside == end:
            value = float(np.nextafter(value, -np.inf))
        if q > 0:
            high = min(high, value)
        else:
            low = max(low, -value)
    return np.clip(Y, low, high) if low <= high else np.full_like(Y, np.nan)


def _choices(
    columns: npt.NDArray[np.intp],
    clauses: Sequence[Clause],
    X: npt.NDArray[np.floating[Any]],
    margin: float,
    Y: Array,
    unit: Array,
) -> Choices:
    """Return the literals, over outputs in the given units, as rows of norm 1, moved inward by a relative margin."""
    literals = Literals.of_clauses(clauses, int(columns.max()) + 1, X.shape[1])
    G = literals.g[:, columns]
    used = literals.s.any(axis=0)
    size = np.abs(literals.h) + np.abs(Y) @ np.abs(G).T
    size += np.abs(X[:, used]).astype(np.float64) @ np.abs(literals.s[:, used]).T
    H = literals.bounds(X) - margin * np.maximum(size, 1e-3)
    G = G * unit
    norms = np.sqrt((G**2).sum(axis=1))
    ends = np.cumsum([0, *(len(clause.literals) for clause in clauses)]).tolist()
    return Choices(G / norms[:, None], H / norms, tuple(tuple(range(i, j)) for i, j in pairwise(ends)))


def weights_of(probabilities: Array) -> Array:
    """Return the gain in log-likelihood of turning each label on."""
    p = np.clip(probabilities, 0.0, 1.0)
    gains: Array = np.log(np.maximum(p, EPSILON)) - np.log(np.maximum(1 - p, EPSILON))
    return gains


def most_likely_labels(
    probabilities: Array, pairs: npt.NDArray[np.int32], clauses: Sequence[Sequence[Sign]] = ()
) -> Array:
    """Return the most likely allowed 0/1 patterns; NaN where no pattern is allowed, or the search did not end.

    Shapes: probabilities (n, m), pairs (p, 2); clauses are lists of (label, on). Returns (n, m).
    """
    weights = weights_of(probabilities)
    found = LabelSearch(weights.shape[1], clauses, pairs).nearest(weights)
    result = np.where(found.allowed[:, None], found.on.astype(np.float64), np.nan)
    for row in np.flatnonzero(found.cut):
        listed = [*clauses, *([(a, False), (b, False)] for a, b in pairs.tolist())]
        best, ended = by_solver(listed, weights[row] >= 0, np.abs(weights[row]).tolist())
        result[row] = best if best is not None and ended else np.nan
    return result
