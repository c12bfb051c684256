"""Points that are hard for a guard, and an exact judge of what a model answers there.

The judge screens in float64 with an error bound and decides what is left in rationals, so that its word is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.exact import BINARY32, BINARY64, exact, nearest
from smle.guarantees.arrangement import Arrangement
from smle.guarantees.cells import distinct
from smle.rules import CNF, Linear, Row, Specification

__all__ = ["Judge", "Violation", "hard_points"]

FloatArray = npt.NDArray[np.floating]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Violation:
    """One exact violation: the row of the batch, the rule, inputs and outputs."""

    row: int
    rule: str
    x: tuple[float, ...]
    y: tuple[float, ...]


class Judge:
    """Evaluates rules exactly on float inputs and outputs. Comparisons read constants in the inputs' format."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.arrangement: Arrangement = distinct(spec)

    def violations(self, X: FloatArray, Y: FloatArray) -> list[Violation]:
        """Return all violations of a batch. Shapes: X (rows, d) in float32 or float64, Y (rows, m)."""
        Y = Y.reshape(len(X), -1)
        inside = [self._inside(row, X) for row in self.arrangement.rows]
        found: list[Violation] = []
        for region, rules in zip(self.arrangement.regions, self.arrangement.rules, strict=True):
            active = np.ones(len(X), dtype=bool)
            for r in region:
                active &= inside[r]
            rows = np.flatnonzero(active)
            if not len(rows):
                continue
            for rule in rules:
                broken = self._broken(self.spec.rules[rule].requirement, X[rows], Y[rows])
                for i in rows[broken]:
                    name = self.spec.rules[rule].name
                    found.append(Violation(int(i), name, tuple(X[i].tolist()), tuple(Y[i].tolist())))
        return found

    def _inside(self, row: Row, X: FloatArray) -> BoolArray:
        if row.is_comparison:
            ((column, sign),) = row.coefficients
            fmt = BINARY32 if X.dtype == np.float32 else BINARY64
            constant = X.dtype.type(float(nearest(row.bound, fmt)))
            values = X[:, column] * X.dtype.type(float(sign))
            result: BoolArray = values < constant if row.strict else values <= constant
            return result
        return _at_most(_terms(row.coefficients, X), row.bound, strict=row.strict)

    @staticmethod
    def _broken(requirement: CNF, X: FloatArray, Y: FloatArray) -> BoolArray:
        broken: BoolArray = np.asarray(np.isnan(Y).any(axis=1))
        for clause in requirement.clauses:
            holds = np.zeros(len(Y), dtype=bool)
            for literal in clause.literals:
                terms = _terms(literal.outputs, Y) + _terms(literal.inputs, X)
                holds |= _at_most(terms, literal.bound, strict=literal.strict)
            broken |= ~holds
        positive = Y >= 0
        for h, k in requirement.exclusions:
            broken |= positive[:, h] & positive[:, k]
        return broken


def _terms(form: Linear, values: FloatArray) -> list[tuple[Fraction, FloatArray]]:
    return [(coefficient, values[:, column]) for column, coefficient in form]


def _at_most(terms: list[tuple[Fraction, FloatArray]], bound: Fraction, *, strict: bool) -> BoolArray:
    """Whether sum c_i v_i <= bound, exactly, per row."""
    total = np.full(len(terms[0][1]), -float(bound))
    size = np.full(len(total), abs(float(bound)))
    for coefficient, values in terms:
        part = float(coefficient) * values.astype(np.float64)
        total, size = total + part, size + np.abs(part)
    error = 1e-14 * (len(terms) + 2) * size + 1e-290
    result: BoolArray = total <= 0
    for i in np.flatnonzero(~(np.abs(total) > error)):
        try:
            value = sum((c * exact(v[i]) for c, v in terms), Fraction(0)) - bound
        except ValueError:  # NaN or infinity: nothing holds
            result[i] = False
            continue
        result[i] = value < 0 if strict else value <= 0
    return result


def hard_points(
    spec: Specification, rng: np.random.Generator, count: int, *, dtype: type[np.floating] = np.float32
) -> Iterator[FloatArray]:
    """Yield batches of about `count` points in all: uniform, inside regions, on facets, vertices, one ulp around.

    Inputs lie in the domain; integer and categorical inputs get whole values.
    """
    lower, upper = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    rows = list(distinct(spec).rows)
    share = max(1, count // (2 + len(rows)))
    yield _finish(spec, rng.uniform(lower, upper, (share, len(lower))), dtype)
    corners = np.where(rng.random((share, len(lower))) < 0.5, lower, upper)
    yield _finish(spec, _snap(rows, corners, rng), dtype)
    for row in rows:
        points = np.where(rng.random((share, 1)) < 0.5, rng.uniform(lower, upper, (share, len(lower))), corners)
        points = _snap([r for r in rows if r != row and r.is_comparison], points, rng)
        cast = _finish(spec, _onto(row, points, rng, lower, upper), dtype)
        column = row.coefficients[0][0]
        for _ in range(3):  # up to three numbers of the format to either side
            side = np.where(rng.random(len(cast)) < 0.5, -np.inf, np.inf)
            moved = np.nextafter(cast[:, column], side.astype(dtype), dtype=dtype)
            cast[:, column] = np.where(rng.random(len(cast)) < 0.5, moved, cast[:, column])
        yield _finish(spec, cast, dtype)


def _snap(rows: list[Row], points: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Put a random half of the points onto each comparison's constant."""
    points = points.copy()
    for row in rows:
        if row.is_comparison:
            ((column, sign),) = row.coefficients
            chosen = rng.random(len(points)) < 0.5
            points[chosen, column] = float(row.bound * sign)
    return points


def _onto(
    row: Row, points: npt.NDArray[np.float64], rng: np.random.Generator, lower: FloatArray, upper: FloatArray
) -> npt.NDArray[np.float64]:
    """Move points onto the row's facet by changing one coordinate, where the domain allows it."""
    points = points.copy()
    columns = [c for c, _ in row.coefficients]
    weights = np.array([float(v) for _, v in row.coefficients])
    rest = points[:, columns] @ weights
    pick = rng.integers(len(columns), size=len(points))
    for k, column in enumerate(columns):
        moved = points[:, column] + (float(row.bound) - rest) / weights[k]
        use = (pick == k) & (moved >= lower[column]) & (moved <= upper[column])
        points[use, column] = moved[use]
    return points


def _finish(spec: Specification, points: FloatArray, dtype: type[np.floating]) -> FloatArray:
    fmt = BINARY32 if dtype == np.float32 else BINARY64
    lower, upper = (np.array([float(nearest(v, fmt)) for v in e], dtype=dtype) for e in (spec.lower, spec.upper))
    cast = np.clip(points.astype(dtype), lower, upper)
    for group in spec.one_hot:
        winner = cast[:, group].argmax(axis=1)
        cast[:, group] = np.eye(len(group), dtype=dtype)[winner]
    return cast
