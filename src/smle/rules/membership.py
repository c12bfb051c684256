"""Which rules apply to rows of data, and which are broken: vectorized in float64, decided exactly near borders.

A comparison of one input with a constant is read as the deployed guard reads it (0.1 means the float nearest to 0.1, in
the format of the data). Everything else uses the exact values of the floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules.formula import CNF, Clause, Linear, Literal, Polytope, Row
from smle.rules.in_steps import rows_on_grid, rules_broken
from smle.rules.specification import Rule, Specification
from smle_check.floats import BINARY32, BINARY64, nearest, round_down

__all__ = ["active", "broken", "clause_holds", "excluded", "meant", "requirement_holds"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_EPS = 2.0**-52
_LONG = 32  # terms of a sum, most of which are 0


def active(rule: Rule, X: npt.NDArray[np.floating[Any]]) -> Mask:
    """Return a mask of the rows in which the rule applies. Shapes: X (n, d) -> (n,)."""
    result = np.zeros(len(X), dtype=bool)
    for region in rule.regions:
        result |= _inside(region, X)
    return result


def broken(spec: Specification, X: npt.NDArray[np.floating[Any]], Y: Array) -> Mask:
    """Return which rules each row of inputs and outputs breaks, exactly. Shapes: (n, d), (n, m) -> (n, r).

    On a grid, floats count as the whole numbers of steps they stand for.
    """
    if spec.grid is not None:
        kx, k, on = rows_on_grid(spec.grid, X, Y)
        result = _broken(spec, X, Y)
        result[on] = rules_broken(spec, spec.grid, X[on], kx[on], k[on])
        return result
    return _broken(spec, X, Y)


def meant(
    spec: Specification | None, x: npt.NDArray[np.floating[Any]], y: Array
) -> tuple[list[Fraction], list[Fraction]]:
    """Return the exact numbers that a row of floats (d,), (m,) counts as; non-finite ones become 0."""
    numbers = [[Fraction(float(v)) if np.isfinite(v) else Fraction(0) for v in part] for part in (x, y)]
    if spec is not None and (grid := spec.grid) is not None:
        kx, k, on = rows_on_grid(grid, x[None], y[None])
        if on[0]:
            for part, steps, whole in zip(numbers, (grid.input_steps, grid.steps), (kx[0], k[0]), strict=True):
                part[:] = [v if s is None else int(n) * s for v, s, n in zip(part, steps, whole, strict=True)]
    return numbers[0], numbers[1]


def _broken(spec: Specification, X: npt.NDArray[np.floating[Any]], Y: Array) -> Mask:
    result = np.zeros((len(X), len(spec.rules)), dtype=bool)
    for r, rule in enumerate(spec.rules):
        on = active(rule, X)
        if on.all():  # avoids copies
            result[:, r] = ~requirement_holds(rule.requirement, X, Y)
        elif on.any():
            result[on, r] = ~requirement_holds(rule.requirement, X[on], Y[on])
    return result


def requirement_holds(requirement: CNF, X: npt.NDArray[np.floating[Any]], Y: Array) -> Mask:
    """Return a mask of the rows that satisfy a requirement, exactly. Shapes: (n, d), (n, m) -> (n,)."""
    result = np.ones(len(X), dtype=bool)
    for clause in requirement.clauses:
        result &= clause_holds(clause, X, Y)
    if len(requirement.exclusions):
        result &= ~excluded(Y >= 0, requirement.exclusions)
    return result


_FEW_PAIRS = 1_000  # beyond this, look up pairs only for the labels that are on


def excluded(on: Mask, pairs: npt.NDArray[np.int32]) -> Mask:
    """Return a mask of the label patterns that contain an excluded pair. Shapes: (n, m), (p, 2) -> (n,)."""
    result = np.zeros(len(on), dtype=bool)
    crowded = np.flatnonzero(on.sum(axis=1) > 1) if len(pairs) else ()
    if not len(crowded):
        return result
    if len(pairs) <= _FEW_PAIRS:
        for first, second in pairs.tolist():
            result |= on[:, first] & on[:, second]
        return result
    m = on.shape[1]
    codes = np.unique(np.sort(pairs, axis=1).astype(np.int64) @ np.array([m, 1]))
    for row in crowded:
        labels = np.flatnonzero(on[row])
        first, second = np.triu_indices(len(labels), 1)
        wanted = labels[first] * m + labels[second]
        place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        result[row] = (codes[place] == wanted).any()
    return result


def clause_holds(clause: Clause, X: npt.NDArray[np.floating[Any]], Y: Array) -> Mask:
    """Return a mask of the rows that satisfy a clause, exactly."""
    result = np.zeros(len(X), dtype=bool)
    for literal in clause.literals:
        result |= _literal_holds(literal, X, Y)
    return result


def _inside(region: Polytope, X: npt.NDArray[np.floating[Any]]) -> Mask:
    result = np.ones(len(X), dtype=bool)
    for row in region.rows:
        result &= _row_holds(row, X)
    return result


def _row_holds(row: Row, X: npt.NDArray[np.floating[Any]]) -> Mask:
    if row.is_comparison:
        fmt = BINARY32 if X.dtype == np.float32 else BINARY64
        ((i, sign),) = row.coefficients
        constant = X.dtype.type(float(nearest(row.bound * sign, fmt)))
        column = X[:, i]
        if sign > 0:
            return np.asarray(column < constant if row.strict else column <= constant)
        return np.asarray(column > constant if row.strict else column >= constant)

    def exactly(k: int) -> bool:
        value = _exact(row.coefficients, X[k])
        return value < row.bound if row.strict else value <= row.bound

    return _compare([(X, row.coefficients)], row.bound, strict=row.strict, exactly=exactly)


def _literal_holds(literal: Literal, X: npt.NDArray[np.floating[Any]], Y: Array) -> Mask:
    def exactly(k: int) -> bool:
        value = _exact(literal.outputs, Y[k]) + _exact(literal.inputs, X[k]) - literal.bound
        return value < 0 if literal.strict else value <= 0

    parts = [(Y, literal.outputs), (X, literal.inputs)]
    return _compare(parts, literal.bound, strict=literal.strict, exactly=exactly)


def _exact(form: Linear, row: npt.NDArray[np.floating[Any]]) -> Fraction:
    """Evaluate a form at a row of floats, skipping zeros: most terms of a long form are 0."""
    terms = ((q, row[i]) for i, q in form)
    return sum((q * Fraction(float(v)) for q, v in terms if v), Fraction(0))


def _compare(
    parts: Sequence[tuple[npt.NDArray[np.floating[Any]], Any]], bound: Fraction, *, strict: bool, exactly: Any
) -> Mask:
    """Compare sums with a bound in float64, and exactly wherever rounding could change the result."""
    single = [(values[:, i], q) for values, form in parts for i, q in form]
    if len(single) == 1 and abs(single[0][1]) == 1:
        column, q = single[0]
        below = round_down(bound, BINARY64)
        signed = np.asarray(column, dtype=np.float64) * float(q)
        return np.asarray(signed < float(below) if strict and below == bound else signed <= float(below))
    value = np.full(len(parts[0][0]), -float(bound))
    size = np.abs(value)
    terms = 1
    for values, form in parts:
        if len(form) > _LONG:
            columns, factors = np.array([i for i, _ in form]), np.array([float(q) for _, q in form])
            together = len(columns) == columns[-1] - columns[0] + 1
            own = values[:, columns[0] : columns[-1] + 1] if together else values[:, columns]
            rows, places = own.nonzero()  # one column per category
            products = own[rows, places].astype(np.float64) * factors[places]
            value += np.bincount(rows, products, len(value))
            size += np.bincount(rows, np.abs(products), len(value))
            terms += len(form)
            continue
        for i, q in form:
            term = values[:, i].astype(np.float64) * float(q)
            value += term
            size += np.abs(term)
            terms += 1
    holds = value < 0 if strict else value <= 0
    for k in np.flatnonzero(np.abs(value) <= (terms + 3) * _EPS * size):
        holds[k] = exactly(int(k))
    return np.asarray(holds)
