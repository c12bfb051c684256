"""Which rules apply to rows of data, and which are broken: vectorized in float64, decided exactly near borders.

A comparison of one input with a constant is read as the deployed guard reads it (0.1 means the float nearest to 0.1, in
the format of the data). Everything else uses the exact values of the floats, or of the whole numbers of steps that they
stand for on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules.formula import CNF, Clause, Linear, Literal, Row
from smle.rules.grids import Grid
from smle.rules.specification import Rule, Specification
from smle_check.floats import BINARY32, BINARY64, nearest, round_down
from smle_check.heads.steps import whole_form

__all__ = ["active", "active_rules", "broken", "clause_holds", "excluded", "meant", "requirement_holds"]

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]
_EPS = 2.0**-52


def active(rule: Rule, X: Floats) -> Mask:
    """Return a mask of the rows in which the rule applies. Shapes: X (n, d) -> (n,)."""
    return _applies(rule, _Rows(X, np.empty((len(X), 0))))


def active_rules(spec: Specification, X: Floats) -> Mask:
    """Return a mask of the rules that apply in each row of inputs. Shapes: X (n, d) -> (n, r)."""
    found = [active(rule, X) for rule in spec.rules]
    return np.stack(found, axis=1) if found else np.zeros((len(X), 0), dtype=bool)


def broken(spec: Specification, X: Floats, Y: Array, on: Mask | None = None) -> Mask:
    """Return which rules each row of inputs and outputs breaks, exactly. Shapes: (n, d), (n, m) -> (n, r).

    On a grid, floats count as the whole numbers of steps they stand for. `on` (n, r) is the result of `active_rules`,
    if known.
    """
    result = np.zeros((len(X), len(spec.rules)), dtype=bool)
    for r, rule in enumerate(spec.rules):
        rows = active(rule, X) if on is None else on[:, r]
        if rows.all():  # avoids copies
            result[:, r] = ~requirement_holds(rule.requirement, X, Y)
        elif rows.any():
            result[rows, r] = ~requirement_holds(rule.requirement, X[rows], Y[rows])
    if spec.grid is not None:
        kx, k, on_grid = _rows_on_grid(spec.grid, X, Y)
        judge = _Steps(spec.grid, X[on_grid], kx[on_grid], k[on_grid])
        for r, rule in enumerate(spec.rules):
            result[on_grid, r] = _applies(rule, judge) & ~_meets(rule.requirement.clauses, judge)
    return result


def meant(spec: Specification | None, x: Floats, y: Array) -> tuple[list[Fraction], list[Fraction]]:
    """Return the exact numbers that a row of floats (d,), (m,) counts as; non-finite ones become 0."""
    numbers = [[Fraction(float(v)) if np.isfinite(v) else Fraction(0) for v in part] for part in (x, y)]
    if spec is not None and (grid := spec.grid) is not None:
        kx, k, on = _rows_on_grid(grid, x[None], y[None])
        if on[0]:
            for part, steps, whole in zip(numbers, (grid.input_steps, grid.steps), (kx[0], k[0]), strict=True):
                part[:] = [v if s is None else int(n) * s for v, s, n in zip(part, steps, whole, strict=True)]
    return numbers[0], numbers[1]


def requirement_holds(requirement: CNF, X: Floats, Y: Array) -> Mask:
    """Return a mask of the rows that satisfy a requirement, exactly. Shapes: (n, d), (n, m) -> (n,)."""
    result = _meets(requirement.clauses, _Rows(X, Y))
    if len(requirement.exclusions):
        result &= ~excluded(Y >= 0, requirement.exclusions)
    return result


def clause_holds(clause: Clause, X: Floats, Y: Array) -> Mask:
    """Return a mask of the rows that satisfy a clause, exactly."""
    return _meets((clause,), _Rows(X, Y))


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


def _applies(rule: Rule, judge: _Rows | _Steps) -> Mask:
    result = np.zeros(judge.count, dtype=bool)
    for region in rule.regions:
        inside = np.ones(judge.count, dtype=bool)
        for row in region.rows:
            inside &= judge.row(row)
        result |= inside
    return result


def _meets(clauses: Iterable[Clause], judge: _Rows | _Steps) -> Mask:
    result = np.ones(judge.count, dtype=bool)
    for clause in clauses:
        met = np.zeros(judge.count, dtype=bool)
        for literal in clause.literals:
            met |= judge.literal(literal)
        result &= met
    return result


def _bound(row: Row, dtype: np.dtype[Any]) -> Fraction:
    """Return the bound of a comparison as the deployed guard reads it in a format."""
    return nearest(row.bound, BINARY32 if dtype == np.float32 else BINARY64)


class _Rows:
    """Rows of floats (n, d), (n, m), judged by their exact values."""

    def __init__(self, X: Floats, Y: Array) -> None:
        self.X, self.Y, self.count = X, Y, len(X)

    def row(self, row: Row) -> Mask:
        """Return a mask of the inputs in a half-space."""
        if not row.is_comparison:
            return self._at_most([(self.X, row.coefficients)], row.bound, row.strict)
        ((i, sign),) = row.coefficients
        bound, column = self.X.dtype.type(float(_bound(row, self.X.dtype))), self.X[:, i] * int(sign)
        return np.asarray(column < bound if row.strict else column <= bound)

    def literal(self, literal: Literal) -> Mask:
        """Return a mask of the rows that satisfy a literal."""
        return self._at_most([(self.Y, literal.outputs), (self.X, literal.inputs)], literal.bound, literal.strict)

    def _at_most(self, parts: Sequence[tuple[Floats, Linear]], bound: Fraction, strict: bool) -> Mask:
        """Compare sums with a bound in float64, and exactly wherever rounding could change the result."""
        single = [(values[:, i], q) for values, form in parts for i, q in form]
        if len(single) == 1 and abs(single[0][1]) == 1:
            column, q = single[0]
            below = round_down(bound, BINARY64)
            signed = np.asarray(column, dtype=np.float64) * float(q)
            return np.asarray(signed < float(below) if strict and below == bound else signed <= float(below))
        value = np.full(self.count, -float(bound))
        size = np.abs(value)
        for values, form in parts:
            own = np.asarray(values[:, [i for i, _ in form]], dtype=np.float64)
            factors = np.array([float(q) for _, q in form])
            value += own @ factors
            size += np.abs(own) @ np.abs(factors)
        holds = value < 0 if strict else value <= 0
        for k in np.flatnonzero(np.abs(value) <= (len(single) + 4) * _EPS * size):
            exact = sum((_exact(form, values[k]) for values, form in parts), -bound)
            holds[k] = exact < 0 if strict else exact <= 0
        return np.asarray(holds)


def _exact(form: Linear, row: Floats) -> Fraction:
    """Evaluate a form at a row of floats, skipping zeros: most terms of a long form are 0."""
    terms = ((q, row[i]) for i, q in form)
    return sum((q * Fraction(float(v)) for q, v in terms if v), Fraction(0))


class _Steps:
    """Rows on a grid, judged by their whole numbers of steps kx (n, d), k (n, m); X has the inputs without steps."""

    def __init__(self, grid: Grid, X: Floats, kx: Array, k: Array) -> None:
        self.grid, self.X, self.kx, self.k, self.count = grid, X, kx, k, len(k)

    def row(self, row: Row) -> Mask:
        """Return a mask of the inputs in a half-space."""
        real = row.is_comparison and self.grid.input_steps[row.coefficients[0][0]] is None
        return self._at_most((), row.coefficients, _bound(row, self.X.dtype) if real else row.bound, row.strict)

    def literal(self, literal: Literal) -> Mask:
        """Return a mask of the rows that satisfy a literal."""
        return self._at_most(literal.outputs, literal.inputs, literal.bound, literal.strict)

    def _at_most(self, outputs: Linear, inputs: Linear, bound: Fraction, strict: bool) -> Mask:
        """Compare sums with a bound, in Python integers."""
        steps = self.grid.input_steps
        stepped = {j: v * step for j, v in inputs if (step := steps[j]) is not None}
        whole = whole_form({i: g * self.grid.steps[i] for i, g in outputs}, stepped, "rule")
        total = np.zeros(self.count, dtype=object)
        for values, form in ((self.k, whole.outputs), (self.kx, whole.inputs)):
            for i, c in form.items():
                total = total + values[:, i].astype(np.int64).astype(object) * c
        real = tuple((j, v * whole.factor) for j, v in inputs if steps[j] is None)
        limit = bound * whole.factor
        if not real:
            return np.asarray(total <= (math.ceil(limit) - 1 if strict else math.floor(limit)), dtype=bool)
        sums = [t + _exact(real, row) for t, row in zip(total, self.X, strict=True)]
        return np.array([value < limit if strict else value <= limit for value in sums], dtype=bool)


def _rows_on_grid(grid: Grid, X: Floats, Y: Array) -> tuple[Array, Array, Mask]:
    """Return inputs and outputs in steps, and a mask (n,) of the rows that lie on the grid."""
    kx, on_x = _read_steps(X, grid.input_steps)
    k, on_y = _read_steps(Y, grid.steps)
    return kx, k, np.asarray(on_x.all(axis=1) & on_y.all(axis=1))


def _read_steps(values: Floats, steps: Sequence[Fraction | None]) -> tuple[Array, Mask]:
    """Return the whole numbers of steps (n, c) that floats stand for, and a mask; 0 where there is no such number."""
    whole, on = np.zeros(values.shape), np.ones(values.shape, dtype=bool)
    for c, step in enumerate(steps):
        if step is None:
            continue
        column = values[:, c]
        with np.errstate(invalid="ignore", over="ignore"):
            k = np.rint(column.astype(np.float64) * step.denominator / step.numerator)
            exact = k * step.numerator / step.denominator
            fits = (column == exact) | (column == exact.astype(np.float32))
        on[:, c] = fits & (np.abs(k) < 2**53)
        whole[:, c] = np.where(on[:, c], k, 0.0)
    return whole, on
