"""Exact proofs that rows of regions, as the guard reports them, cannot hold together.

A set of rows is refuted by multipliers mu >= 0 if, in every input format,

    sum_r mu_r a_r + sum_i max(e_i lo_i, e_i hi_i) < 0,   e = -A'mu,

or = 0 with positive weight on a strict row. [lo, hi] is the domain; a_r are the guard's bounds (guard_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.regions.guard_rows import FORMATS, GuardRow, domain_box
from smle.regions.simplex import point_or_proof
from smle.rules import Specification
from smle.rules.formula import HalfSpace
from smle.solvers import LinearProgram, Status, solve
from smle_check.floats import BINARY64, Binary
from smle_check.kernel import bounded

__all__ = ["COMPLEMENT", "Multipliers", "Point", "Prover", "Refutation"]

COMPLEMENT = -1
"""The row number of the complement of an implied row."""

Multipliers = tuple[tuple[int, Fraction], ...]
"""(row number, value > 0) pairs; one-hot rows are numbered after the rows of the cells."""

ZERO, ONE = Fraction(0), Fraction(1)
_CLEARLY = 1e-7  # least room of a float solver's point; it proves nothing


@dataclass(frozen=True)
class Refutation:
    """Multipliers that prove a set of rows empty, in every format."""

    multipliers: Multipliers


@dataclass(frozen=True)
class Point:
    """A point of the domain where the rows hold together, in at least one format.

    Found in floats or exactly. It only shows that a proof need not be tried.
    """

    x: tuple[Fraction, ...]


class Prover:
    """A prover that decides whether sets of guard rows can hold together in the domain of a specification."""

    def __init__(self, spec: Specification, rows: Sequence[GuardRow]) -> None:
        self.rows = tuple(rows)
        self.boxes = {fmt: domain_box(spec, fmt) for fmt in FORMATS}
        self.one_hot: list[HalfSpace] = []
        self.groups: dict[int, int] = {}
        for g, group in enumerate(spec.one_hot):
            self.one_hot += [HalfSpace(tuple((i, s) for i in group), s) for s in (ONE, -ONE)]
            self.groups.update(dict.fromkeys(group, g))
        self.middle = {fmt: self._middle(spec, fmt) for fmt in FORMATS}
        low, high = (np.array([float(v) for v in end]) for end in self.boxes[BINARY64])
        self._center, self._half = (low + high) / 2, (high - low) / 2
        self._floats: dict[int, tuple[npt.NDArray[np.float64], float]] = {}

    def _middle(self, spec: Specification, fmt: Binary) -> tuple[Fraction, ...]:
        """Return a point of the domain: the midpoints of ranges, and the first category of groups."""
        lower, upper = self.boxes[fmt]
        x = [(lo + hi) / 2 for lo, hi in zip(lower, upper, strict=True)]
        for group in spec.one_hot:
            for i in group:
                x[i] = ONE if i == group[0] else ZERO
        return tuple(x)

    def half_space(self, number: int, complement: GuardRow | None, fmt: Binary) -> HalfSpace:
        """Return the half-space of a row number in a format."""
        if number == COMPLEMENT:
            assert complement is not None
            return complement.outside(fmt)
        if number < len(self.rows):
            return self.rows[number].inside(fmt)
        return self.one_hot[number - len(self.rows)]

    def refutes(self, multipliers: Multipliers, complement: GuardRow | None = None) -> bool:
        """Return whether the multipliers are a proof, in every format."""
        for fmt in FORMATS:
            spaces = [(self.half_space(r, complement, fmt), m) for r, m in multipliers]
            lower, upper = self.boxes[fmt]
            rows = [(dict(form), a) for (form, a, _), _ in spaces]
            bound = bounded({}, rows, [m for _, m in spaces], lower, upper)
            if bound > 0 or (bound == 0 and not any(strict and m > 0 for (_, _, strict), m in spaces)):
                return False
        return True

    def decide(self, numbers: Sequence[int], complement: GuardRow | None = None) -> Refutation | Point | None:
        """Refute the rows, or find a point where they hold in some format; return None if neither succeeds."""
        numbers = self._with_groups(numbers, complement)
        attempt = self._decide_exactly
        if all(len(self.half_space(r, complement, BINARY64)[0]) == 1 for r in numbers):
            attempt = self._decide_box
        elif (guess := self._guess(numbers, complement)) is not None:
            return guess
        for fmt in FORMATS:
            outcome = attempt(numbers, complement, fmt)
            if isinstance(outcome, Point):
                return outcome
            if self.refutes(outcome, complement):
                return Refutation(outcome)
        return None

    def _with_groups(self, numbers: Sequence[int], complement: GuardRow | None) -> tuple[int, ...]:
        """Add the complement, and the one-hot rows of the groups that the rows mention."""
        chosen = [*dict.fromkeys(numbers)]
        if complement is not None:
            chosen.append(COMPLEMENT)
        columns = {i for r in chosen for i, _ in self.half_space(r, complement, BINARY64)[0]}
        groups = sorted({self.groups[i] for i in columns if i in self.groups})
        return (*chosen, *(len(self.rows) + 2 * g + side for g in groups for side in (0, 1)))

    def _decide_box(self, numbers: Sequence[int], complement: GuardRow | None, fmt: Binary) -> Point | Multipliers:
        """Intersect intervals: two rows over one input, or one row and the domain, are the whole proof."""
        # By input and side, 1 above and -1 below: (side * end, not strict, row number).
        ends: dict[tuple[int, int], tuple[Fraction, bool, int | None]] = {}

        def end(i: int, side: int) -> tuple[Fraction, bool, int | None]:
            return ends.get((i, side), (side * self.boxes[fmt][side > 0][i], True, None))

        for r in numbers:
            ((i, q),), a, strict = self.half_space(r, complement, fmt)
            side = 1 if q > 0 else -1
            if (side * a / q, not strict) < end(i, side)[:2]:
                ends[i, side] = side * a / q, not strict, r
        x = list(self.middle[fmt])
        for i in sorted({i for i, _ in ends}):
            below, above = end(i, -1), end(i, 1)
            gap = above[0] + below[0]
            if gap < 0 or (gap == 0 and not (below[1] and above[1])):
                used = [r for r in (below[2], above[2]) if r is not None]
                return tuple(sorted((r, 1 / abs(self.half_space(r, complement, fmt).coefficients[0][1])) for r in used))
            x[i] = (above[0] - below[0]) / 2
        return Point(tuple(x))

    def _guess(self, numbers: Sequence[int], complement: GuardRow | None) -> Refutation | Point | None:
        """Let a float solver guess: multipliers count only after an exact check, points need none.

        minimize t subject to A x - t <= a (rows scaled): the duals are multipliers that sum to 1.
        """
        spaces = [self._in_floats(r, complement) for r in numbers]
        A = np.array([form for form, _ in spaces])
        a = np.array([bound for _, bound in spaces])
        norms = np.maximum(np.abs(A).sum(axis=1), 1e-300)
        used = np.flatnonzero(A.any(axis=0))
        program = LinearProgram(
            np.array([*np.zeros(len(used)), 1.0]),
            np.column_stack([A[:, used] / norms[:, None], -np.ones(len(A))]),
            np.full(len(A), -np.inf),
            a / norms,
            np.array([*np.full(len(used), -1.0), -4.0]),
            np.array([*np.ones(len(used)), np.inf]),
        )
        found = solve(program)
        if found.status is not Status.OPTIMAL or found.x is None or found.row_duals is None:
            return None
        if found.objective > 0:
            weights = np.maximum(-found.row_duals, 0.0) / norms
            weights /= weights.max(initial=1e-300)
            rational = [Fraction(float(w)).limit_denominator(10**6) for w in weights]
            proof = tuple(sorted((r, m) for r, m in zip(numbers, rational, strict=True) if m))
            return Refutation(proof) if self.refutes(proof, complement) else None
        if found.objective > -_CLEARLY:
            return None
        x = list(self.middle[BINARY64])
        for i, value in zip(used.tolist(), found.x[:-1].tolist(), strict=True):
            x[i] = Fraction(float(self._center[i]) + float(self._half[i]) * value)
        return Point(tuple(x))

    def _in_floats(self, number: int, complement: GuardRow | None) -> tuple[npt.NDArray[np.float64], float]:
        """Return a row in floats, over inputs scaled to [-1, 1]. Shape: (d,)."""
        if number in self._floats:
            return self._floats[number]
        form, bound, _ = self.half_space(number, complement, BINARY64)
        dense = np.zeros(len(self._half))
        for i, q in form:
            dense[i] = float(q)
        result = dense * self._half, float(bound) - float(dense @ self._center)
        if number != COMPLEMENT:
            self._floats[number] = result
        return result

    def _decide_exactly(self, numbers: Sequence[int], complement: GuardRow | None, fmt: Binary) -> Point | Multipliers:
        spaces = [self.half_space(r, complement, fmt) for r in numbers]
        found = point_or_proof(spaces, *self.boxes[fmt])
        if isinstance(found, dict):
            return Point(tuple(found.get(i, v) for i, v in enumerate(self.middle[fmt])))
        return tuple(sorted((r, m) for r, m in zip(numbers, found, strict=True) if m))
