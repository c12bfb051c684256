"""The nearest allowed outputs (MAP), by exact search: what an oracle would answer.

Numbers and scores of choices: squared error, exact up to a margin that makes the result satisfy the rules in exact
evaluation. Labels: cross-entropy with epsilon 1e-6, exact; labels that rules tie to numbers, directly or through other
labels: squared error of p - 1/2, together with these numbers. Outputs that no clause ties together are independent
problems; rows with the same active rules are solved together. A warning counts the rows whose search did not end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.nearest.clauses import tied_together
from smle.nearest.oracle_labels import most_likely_labels
from smle.nearest.unions import Choices, nearest_in_union
from smle.rules import Clause, Literals, Specification, exclusion, label_columns
from smle.rules.membership import active, clause_holds
from smle_check.floats import BINARY64, round_down

__all__ = ["common_units", "nearest_outputs", "to_scores"]

Array = npt.NDArray[np.float64]

_MARGINS = (1e-11, 1e-9, 1e-6)
_ALIKE = 10.0  # spreads within this factor share a unit
_MIXED_PAIRS = 2_000


def to_scores(spec: Specification, Y: Array) -> Array:
    """Return targets as the rules read them: labels (0/1 or probabilities p) become p - 1/2, the rest stays."""
    scores = np.array(Y, dtype=np.float64)
    scores[:, label_columns(spec)] -= 0.5
    return scores


def common_units(scale: npt.ArrayLike, labels: npt.NDArray[np.bool_]) -> Array:
    """Return the units (m,) for distances of outputs with these spreads; those of labels stay.

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
        DataError: If shapes do not fit or a label is not in [0, 1].
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
        part = _Piece.of(spec, np.flatnonzero(pattern).tolist(), labels)
        result[rows] = part.solve(X[rows], targets[rows], units)
    return result


@dataclass(frozen=True, eq=False)
class _Piece:
    """The requirement of one set of active rules, split into independent problems."""

    labels: npt.NDArray[np.bool_]
    pairs: npt.NDArray[np.int32]
    label_clauses: tuple[tuple[tuple[int, bool], ...], ...]
    blocks: tuple[tuple[tuple[int, ...], tuple[Clause, ...]], ...]

    @classmethod
    def of(cls, spec: Specification, rules: Sequence[int], labels: npt.NDArray[np.bool_]) -> _Piece:
        clauses = tuple(clause for r in rules for clause in spec.rules[r].requirement.clauses)
        pairs = [spec.rules[r].requirement.exclusions for r in rules]
        stacked = np.concatenate([np.empty((0, 2), dtype=np.int32), *pairs])
        plain: dict[Clause, tuple[tuple[int, bool], ...]] = {}
        general: list[Clause] = []
        for clause in dict.fromkeys(clauses):
            signs = tuple(sign for literal in clause.literals if (sign := literal.sign) is not None and labels[sign[0]])
            if len(signs) == len(clause.literals):
                plain[clause] = signs
            else:
                general.append(clause)
        mixed = _tied(general, plain, stacked, labels)
        touching = mixed[stacked].any(axis=1)
        if touching.sum() > _MIXED_PAIRS:
            raise DataError(
                f"Expected at most {_MIXED_PAIRS:,} exclusions of labels that other rules tie to numbers. Got "
                f"{touching.sum():,}; split the rules."
            )
        general += [clause for clause, signs in plain.items() if mixed[signs[0][0]]]
        general += [exclusion(int(h), int(k)) for h, k in np.unique(np.sort(stacked[touching], axis=1), axis=0)]
        rest = tuple(signs for signs in plain.values() if not mixed[signs[0][0]])
        return cls(labels, stacked[~touching], rest, _blocks(general, len(labels)))

    def solve(self, X: npt.NDArray[np.floating[Any]], Y: Array, units: Array) -> Array:
        result = Y.copy()
        mixed = {i for columns, _ in self.blocks for i in columns}
        own = np.array([i for i in np.flatnonzero(self.labels) if i not in mixed], dtype=np.intp)
        if len(own):
            result[:, own] = self._labels(Y, own)
        for columns, clauses in self.blocks:
            index = np.array(columns)
            scores = Y[:, index] - 0.5 * self.labels[index]
            found = _solve_block(index, clauses, X, scores, units)
            on_off = np.where(np.isnan(found), np.nan, (found >= 0).astype(np.float64))
            result[:, index] = np.where(self.labels[index], on_off, found)
        result[np.isnan(result).any(axis=1)] = np.nan
        return result

    def _labels(self, Y: Array, own: npt.NDArray[np.intp]) -> Array:
        place = np.full(Y.shape[1], -1)
        place[own] = np.arange(len(own))
        clauses = [[(int(place[label]), value) for label, value in clause] for clause in self.label_clauses]
        pairs = place[self.pairs].astype(np.int32) if len(self.pairs) else self.pairs
        return most_likely_labels(Y[:, own], pairs, clauses)


def _tied(
    general: Sequence[Clause],
    plain: Mapping[Clause, tuple[tuple[int, bool], ...]],
    pairs: npt.NDArray[np.int32],
    labels: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Return a mask of the labels that clauses tie to other outputs, directly or through rules among labels: (m,)."""
    mixed = np.zeros(len(labels), dtype=bool)
    mixed[[i for clause in general for literal in clause.literals for i, _ in literal.outputs]] = True
    mixed &= labels
    while True:
        count = mixed.sum()
        for signs in plain.values():
            members = [label for label, _ in signs]
            mixed[members] |= mixed[members].any()
        mixed[pairs[mixed[pairs].any(axis=1)]] = True
        if mixed.sum() == count:
            return mixed


def _blocks(clauses: Sequence[Clause], m: int) -> tuple[tuple[tuple[int, ...], tuple[Clause, ...]], ...]:
    """Group clauses that share outputs."""
    ties = [{i for literal in clause.literals for i, _ in literal.outputs} for clause in clauses]
    found = []
    for columns in tied_together(ties, [], m):
        own = set(columns.tolist())
        found.append((tuple(columns.tolist()), tuple(c for c, tie in zip(clauses, ties, strict=True) if tie & own)))
    return tuple(found)


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
