"""An exact judge of what models answer, apart from the one in smle; the points are those that `smle.attack` tries.

The judge screens in float64 with an error bound and decides what is left in rationals, so that its word is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.regions.cells import Cells, regions_of
from smle.rules import Clause, Linear, Literal, Row, Specification
from smle.violations.points import border_points, corner_points, finished, hard_points, uniform_points
from smle_check.floats import BINARY32, BINARY64, nearest

__all__ = [
    "Judge",
    "Judgment",
    "Violation",
    "border_points",
    "corner_points",
    "finished",
    "half_spaces",
    "hard_points",
    "uniform_points",
]

FloatArray = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Violation:
    """One exact violation: the row of the batch, the rule, inputs and outputs."""

    row: int
    rule: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Judgment:
    """What became of a batch: rows that break each rule, and the smallest exact margin of any clause that was asked.

    * `broken`: rule number -> rows; rules that nobody broke are left out.
    * `margin`: max over literals of h - g.y - s.x, the least over clauses and rows; None if no rule was active.
    """

    broken: dict[int, npt.NDArray[np.intp]]
    margin: Fraction | None

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """Rows that break at least one rule."""
        parts = list(self.broken.values())
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.intp)


class Judge:
    """Evaluates rules exactly on float inputs and outputs. Comparisons read constants in the inputs' format."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.cells: Cells = regions_of(spec)
        self._clauses = [rule.requirement.expanded() for rule in spec.rules]

    def violations(self, X: FloatArray, Y: FloatArray) -> list[Violation]:
        """Return all violations of a batch. Shapes: X (rows, d) in float32 or float64, Y (rows, m)."""
        Y = Y.reshape(len(X), -1)
        return [
            Violation(int(i), self.spec.rules[rule].name, tuple(X[i].tolist()), tuple(Y[i].tolist()))
            for rule, rows in self.judge(X, Y).broken.items()
            for i in rows
        ]

    def judge(self, X: FloatArray, Y: FloatArray) -> Judgment:
        """Judge a batch. Shapes: X (rows, d) in float32 or float64, Y (rows, m)."""
        # One column after the other is read, in float64: both formats are contained in it exactly.
        x, y = np.asfortranarray(X, dtype=np.float64), np.asfortranarray(Y.reshape(len(X), -1), dtype=np.float64)
        broken: dict[int, npt.NDArray[np.intp]] = {}
        margin: Fraction | None = None
        for region, active in self.active(X):
            rows = np.flatnonzero(active)
            if not len(rows):
                continue
            chosen = (x, y) if len(rows) == len(x) else (x[rows], y[rows])
            for rule in self.cells.rules[region]:
                wrong = np.isnan(chosen[1]).any(axis=1)
                for clause in self._clauses[rule]:
                    holds, worst = _clause(clause, *chosen)
                    wrong |= ~holds
                    if worst is not None and (margin is None or worst < margin):
                        margin = worst
                if wrong.any():
                    known = broken.get(rule, np.zeros(0, dtype=np.intp))
                    broken[rule] = np.union1d(known, rows[wrong])
        return Judgment(broken, margin)

    def active(self, X: FloatArray) -> Iterator[tuple[int, BoolArray]]:
        """Yield each region with the rows that lie in it, exactly."""
        inside = [self._inside(row, X) for row in self.cells.rows]
        for number, region in enumerate(self.cells.regions):
            active = np.ones(len(X), dtype=bool)
            for r in region:
                active &= inside[r]
            yield number, active

    def _inside(self, row: Row, X: FloatArray) -> BoolArray:
        if row.is_comparison:
            ((column, sign),) = row.coefficients
            fmt = BINARY32 if X.dtype == np.float32 else BINARY64
            constant = X.dtype.type(float(nearest(row.bound, fmt)))
            values = X[:, column] * X.dtype.type(float(sign))
            result: BoolArray = values < constant if row.strict else values <= constant
            return result
        terms = _terms(row.coefficients, X.astype(np.float64, copy=False))
        return _settled(terms, row.bound, *_screen(terms, row.bound), strict=row.strict)


def half_spaces(rows: Sequence[Row], columns: int) -> tuple[Doubles, Doubles]:
    """Return rows as floats A (k, columns), a (k,): A x <= a, strict ones included."""
    A = np.zeros((len(rows), columns))
    for i, row in enumerate(rows):
        A[i, [k for k, _ in row.coefficients]] = [float(v) for _, v in row.coefficients]
    return A, np.array([float(row.bound) for row in rows])


Terms = list[tuple[Fraction, Doubles]]


def _terms(form: Linear, values: Doubles) -> Terms:
    return [(coefficient, values[:, column]) for column, coefficient in form]


def _literal_terms(literal: Literal, x: Doubles, y: Doubles) -> Terms:
    return _terms(literal.outputs, y) + _terms(literal.inputs, x)


def _clause(clause: Clause, x: Doubles, y: Doubles) -> tuple[BoolArray, Fraction | None]:
    """Return which rows satisfy a clause, exactly, and the smallest margin, exactly (None: no row is finite)."""
    holds = np.zeros(len(y), dtype=bool)
    least = np.full(len(y), np.inf)
    for literal in clause.literals:
        terms = _literal_terms(literal, x, y)
        total, error = _screen(terms, literal.bound)
        holds |= _settled(terms, literal.bound, total, error, strict=literal.strict)
        least = np.fmin(least, total)
    least[~np.isfinite(least)] = -np.inf
    worst = int(least.argmax())
    if not (np.isfinite(least[worst]) and np.isfinite(y[worst]).all()):
        return holds, None
    xs, ys = ([Fraction(float(v)) for v in values] for values in (x[worst], y[worst]))
    return holds, max(-literal.excess(ys, xs) for literal in clause.literals)


def _screen(terms: Terms, bound: Fraction) -> tuple[Doubles, Doubles]:
    """Return sum c_i v_i - bound in float64, and a bound of its error, per row.

    With k terms each passes through at most k + 3 roundings of at most 2^-53 (coefficient, product, sums, the bound),
    and 45 times that is allowed for; the constant covers underflow. Overflow and NaN make the error infinite or NaN.
    """
    total = np.full(len(terms[0][1]), -float(bound))
    size = np.full(len(total), abs(float(bound)))
    with np.errstate(over="ignore", invalid="ignore"):
        for coefficient, values in terms:
            part = float(coefficient) * values
            total += part
            size += np.abs(part, out=part)
        size *= 1e-14 * (len(terms) + 2)
        size += 1e-290
    return total, size


def _settled(terms: Terms, bound: Fraction, total: Doubles, error: Doubles, *, strict: bool) -> BoolArray:
    """Whether sum c_i v_i <= bound (<, if strict), exactly, per row; what the screen leaves open in rationals."""
    result: BoolArray = total <= 0
    open_rows = np.flatnonzero(~(np.abs(total) > error))
    if not len(open_rows):
        return result
    # On one grid rationals are integers, which are quicker.
    grid = math.lcm(bound.denominator, *(c.denominator for c, _ in terms))
    factors, limit = [int(c * grid) for c, _ in terms], int(bound * grid)
    for i, *values in zip(open_rows, *(v[open_rows].tolist() for _, v in terms), strict=True):
        if not all(map(math.isfinite, values)):  # nothing holds
            result[i] = False
            continue
        ratios = [value.as_integer_ratio() for value in values]
        bottom = max(below for _, below in ratios)  # powers of two
        value = sum(f * above * (bottom // below) for f, (above, below) in zip(factors, ratios, strict=True))
        result[i] = value < limit * bottom if strict else value <= limit * bottom
    return result
