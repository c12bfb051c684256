"""Exact rule checks on a grid: which whole numbers of steps floats stand for, and which rules these break."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules.formula import CNF
from smle.rules.specification import Rule, Specification
from smle.rules.steps import Grid
from smle_check.heads.steps import whole_form

__all__ = ["read_steps", "rows_on_grid", "rules_broken"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def read_steps(values: Array, steps: list[Fraction | None]) -> tuple[Array, Mask]:
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


def rows_on_grid(grid: Grid, X: Array, Y: Array) -> tuple[Array, Array, Mask]:
    """Return inputs and outputs in steps, and a mask (n,) of the rows that lie on the grid."""
    kx, on_x = read_steps(X, list(grid.input_steps))
    k, on_y = read_steps(Y, list(grid.steps))
    return kx, k, np.asarray(on_x.all(axis=1) & on_y.all(axis=1))


def rules_broken(spec: Specification, grid: Grid, X: Array, kx: Array, k: Array) -> Mask:
    """Return which rules each row breaks, given in steps; X has the real inputs. Shape (n, rules)."""
    judge = _Judge(grid, X, kx, k)
    result = np.zeros((len(k), len(spec.rules)), dtype=bool)
    for r, rule in enumerate(spec.rules):
        result[:, r] = judge.on(rule) & ~judge.holds(rule.requirement)
    return result


class _Judge:
    def __init__(self, grid: Grid, X: Array, kx: Array, k: Array) -> None:
        self.grid, self.X, self.kx, self.k = grid, X, kx, k

    def on(self, rule: Rule) -> Mask:
        """Return a mask of the rows in which a rule applies."""
        found = np.zeros(len(self.k), dtype=bool)
        for region in rule.regions:
            inside = np.ones(len(self.k), dtype=bool)
            for row in region.rows:
                terms = dict(row.coefficients)
                ((j, sign), *more) = terms.items()
                bound = row.bound
                if not more and self.grid.input_steps[j] is None:  # the constant is read in the input's format
                    bound = Fraction(float(self.X.dtype.type(float(bound * sign)))) * sign
                inside &= self.at_most({}, terms, bound, row.strict)
            found |= inside
        return found

    def holds(self, requirement: CNF) -> Mask:
        """Return a mask of the rows that satisfy a requirement."""
        result = np.ones(len(self.k), dtype=bool)
        for clause in requirement.clauses:
            met = np.zeros(len(self.k), dtype=bool)
            for literal in clause.literals:
                met |= self.at_most(dict(literal.outputs), dict(literal.inputs), literal.bound, literal.strict)
            result &= met
        return result

    def at_most(self, y: Mapping[int, Fraction], x: Mapping[int, Fraction], bound: Fraction, strict: bool) -> Mask:
        """Return a mask of the rows whose sum is at most the bound (below it if strict), in Python integers."""
        steps = self.grid.input_steps
        own = {i: g * self.grid.steps[i] for i, g in y.items()}
        stepped = {j: v * step for j, v in x.items() if (step := steps[j]) is not None}
        whole = whole_form(own, stepped, "rule")
        total = np.zeros(len(self.k), dtype=object)
        for i, c in whole.outputs.items():
            total = total + self.k[:, i].astype(np.int64).astype(object) * c
        for j, c in whole.inputs.items():
            total = total + self.kx[:, j].astype(np.int64).astype(object) * c
        real = {j: v * whole.factor for j, v in x.items() if steps[j] is None}
        limit = bound * whole.factor
        if not real:
            most = math.ceil(limit) - 1 if strict else math.floor(limit)
            return np.asarray(total <= most, dtype=bool)
        moved = [
            sum((v * Fraction(float(self.X[n, j])) for j, v in real.items()), limit * 0) for n in range(len(total))
        ]
        pairs = zip(total, moved, strict=True)
        return np.array([t + m < limit if strict else t + m <= limit for t, m in pairs], dtype=bool)
