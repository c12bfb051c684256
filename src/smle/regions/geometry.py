"""Polytopes of inputs in float64, as the proof sees them, and the maximum of linear functions over them.

Every bound is priced by weak duality, so that a solver's tolerance costs margin and never soundness:

    max c.x over {x in [low, high] : A x <= a}  <=  mu.a + sum_i max(e_i low_i, e_i high_i),   e = c - A' mu
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smle.regions.cells import Cells
from smle.regions.guard_rows import GuardRow, guard_rows
from smle.rules import Specification
from smle.solvers import LinearProgram, Status, open_session, solve
from smle_check.floats import BINARY32, BINARY64, cast_error, nearest, round_up

if TYPE_CHECKING:
    from smle.solvers.highs import Session

__all__ = ["Domain", "Region", "RegionMaximum", "enlarged_rows"]

Array = npt.NDArray[np.float64]

TINY = 2.0**-126
U = 2.0**-24
_UP = 1.0 + 1e-12
"""Inflation that covers the float64 arithmetic of margins."""
_MOST = 60_000  # systems of equations to try for vertices
_SLACK = 1e-9  # tolerance for "inside", relative to the size of a row's terms


@dataclass(frozen=True, eq=False)
class Domain:
    """The box of inputs after the cast to float32, and the largest magnitudes before and after it.

    Shapes: low (d,), high (d,), sizes (d,).
    """

    low: Array
    high: Array
    sizes: Array

    @classmethod
    def of(cls, spec: Specification) -> Domain:
        """Return the domain of a specification, its ends rounded to nearest float32 (casting is monotone)."""

        def ends(value: Fraction) -> list[float]:
            double = nearest(value, BINARY64)
            return [float(nearest(value, BINARY32)), float(nearest(double, BINARY32)), float(double)]

        lows, highs = [ends(v) for v in spec.lower], [ends(v) for v in spec.upper]
        sizes = [max(abs(v) for v in a + b) * (1 + U) * _UP + TINY for a, b in zip(lows, highs, strict=True)]
        return cls(
            np.array([min(v[:2]) for v in lows], dtype=np.float64),
            np.array([max(v[:2]) for v in highs], dtype=np.float64),
            np.array(sizes, dtype=np.float64),
        )

    def over(self, slopes: Array) -> Array:
        """Return max slopes.x over the box. Shapes: slopes (..., d) -> (...)."""
        top: Array = np.maximum(slopes * self.low, slopes * self.high).sum(axis=-1)
        return top


def enlarged_rows(cells: Cells, spec: Specification) -> tuple[Array, Array]:
    """Return (A, a) in float64: what "the guard says inside" implies for the cast input, row by row.

    An oblique row is enlarged by the slack of its guard (twice, and the rounding of the stored threshold); a row over
    one input by the rounding of its constant. Two rows per one-hot group follow: sum <= 1, -sum <= -1. Shapes: A (rows
    + 2 groups, d), a (rows + 2 groups,).
    """
    d, groups = len(spec.columns), spec.one_hot
    A = np.zeros((len(cells.rows) + 2 * len(groups), d))
    a = np.zeros(len(A))
    sizes = Domain.of(spec).sizes
    for r, row in enumerate(guard_rows(cells, spec)):
        for i, value in row.coefficients:
            A[r, i] = float(value)
        a[r] = _enlarged(row, sizes)
    for g, group in enumerate(groups):
        r = len(cells.rows) + 2 * g
        A[r, list(group)], a[r] = 1.0, 1.0
        A[r + 1, list(group)], a[r + 1] = -1.0, -1.0
    return A, a


def _enlarged(row: GuardRow, sizes: Array) -> float:
    if row.threshold is None:
        return float(max(nearest(constant, BINARY32) for constant in row.constants))
    cast = sum((abs(q) * cast_error(Fraction(float(sizes[i]))) for i, q in row.coefficients), Fraction(0))
    # The small excess covers coefficients that float64 cannot hold.
    return float(round_up(row.threshold + (row.slack + cast) * Fraction(1025, 1024), BINARY64))


@dataclass(frozen=True, eq=False)
class Region:
    """{x in domain : A x <= a}: the rows of a cell by number, one-hot rows included.

    Shapes: numbers (r,), A (r, d), a (r,). Cuts are numbered from `total` on.
    """

    domain: Domain
    numbers: tuple[int, ...]
    A: Array
    a: Array
    total: int = 0

    @classmethod
    def of(
        cls, cells: Cells, spec: Specification, regions: Iterable[int], *,
        domain: Domain | None = None, rows: tuple[Array, Array] | None = None,
    ) -> Region:  # fmt: skip
        """Return the intersection of some regions.

        Pass `domain` and `rows` (from `enlarged_rows`) to avoid computing them again.
        """
        A, a = enlarged_rows(cells, spec) if rows is None else rows
        used = sorted({r for region in regions for r in cells.regions[region]})
        numbers = (*used, *range(len(cells.rows), len(a)))
        place = Domain.of(spec) if domain is None else domain
        return cls(place, numbers, A[list(numbers)], a[list(numbers)], len(a))

    @classmethod
    def whole(cls, domain: Domain) -> Region:
        """Return the whole domain."""
        return cls(domain, (), np.zeros((0, len(domain.low))), np.zeros(0))

    def price(self, slopes: Array, mu: Array) -> tuple[Array, Array]:
        """Bound max slopes.x by multipliers: return (bound, sum of the sizes of its terms).

        Shapes: slopes (k, d), mu (k, r) -> (k,), (k,).
        """
        residual = slopes - mu @ self.A
        bound = mu @ self.a + self.domain.over(residual)
        size = mu @ np.abs(self.a) + (np.abs(slopes) + mu @ np.abs(self.A)) @ self.domain.sizes
        return bound, size

    def pairs(self, mu: Array) -> tuple[tuple[int, float], ...]:
        """Return the positive multipliers as (row number, value) pairs. Shape: mu (r,)."""
        if not mu.any():
            return ()
        return tuple((self.numbers[r], float(mu[r])) for r in np.flatnonzero(mu > 0))

    @cached_property
    def ends(self) -> list[tuple[int, int, int, float, float]]:
        """The rows over one input that cut the domain's box: (column, side, row, coefficient, limit)."""
        rows, columns = np.nonzero(self.A)
        alone = np.bincount(rows, minlength=len(self.A))[rows] == 1
        single, column = rows[alone], columns[alone]
        scale = self.A[single, column]
        limit = self.a[single] / scale
        found = []
        for i in np.unique(column).tolist():
            for sign, end in ((1, self.domain.high[i]), (-1, self.domain.low[i])):
                own = np.flatnonzero((column == i) & (np.sign(scale) == sign))
                best = own[np.argmin(limit[own] * sign)] if len(own) else None
                if best is not None and sign * limit[best] < sign * end:
                    found.append((i, sign, int(single[best]), float(scale[best]), float(limit[best])))
        return found

    def tight_box(self) -> tuple[Array, Array, npt.NDArray[np.intp]]:
        """Return (low, high, oblique): the box cut by the rows over one input, and the positions of the other rows."""
        low, high = self.domain.low.copy(), self.domain.high.copy()
        for i, sign, _, _, limit in self.ends:
            (high if sign > 0 else low)[i] = limit
        return np.minimum(low, high), high, np.flatnonzero((self.A != 0).sum(axis=1) != 1)

    def empty(self) -> Array | None:
        """Return multipliers (r,) that prove the region empty, or None.

        They prove that max 0 over the region is negative, with the float64 error deducted.
        """
        return self.locate()[1]

    def locate(self) -> tuple[Array | None, Array | None, str]:
        """Look for a point: (point, None, ""), or (None, proof that there is none, ""), or (None, None, reason)."""
        if not self.numbers:
            return (self.domain.low + self.domain.high) / 2, None, ""
        program = LinearProgram(
            np.zeros(len(self.domain.low)),
            self.A,
            np.full(len(self.a), -np.inf),
            self.a,
            self.domain.low,
            self.domain.high,
        )
        found = solve(program)
        if found.status is Status.OPTIMAL and found.x is not None:
            return found.x, None, ""
        reason = f"{found.status} ({found.message})"
        if found.status is not Status.INFEASIBLE or found.farkas is None:
            return None, None, reason
        # A ray of the rows `A x <= a` is <= 0; multipliers are its negative.
        mu = np.maximum(0.0, -found.farkas)
        if not mu.max(initial=0.0) > 0:
            return None, None, reason
        mu /= mu.max()
        bound, size = self.price(np.zeros((1, self.A.shape[1])), mu[None])
        return (None, mu, "") if bound[0] + 1e-12 * size[0] < 0 else (None, None, reason)


class RegionMaximum:
    """The maximum of c.x over one region, for many directions c: closed form on boxes, a warm-started LP otherwise."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._box_rows = bool(((region.A != 0).sum(axis=1) == 1).all())
        self._session: Session | None = None
        self.failure: str | None = None

    @cached_property
    def vertices(self) -> Array | None:
        """The vertices of a small region (v, d), cached; None if there are too many."""
        low, high, oblique = self.region.tight_box()
        return vertices(low, high, self.region.A[oblique], self.region.a[oblique])

    @cached_property
    def located(self) -> tuple[Array | None, Array | None, str]:
        """The cached result of `Region.locate`."""
        return self.region.locate()

    def __call__(self, slopes: Array) -> tuple[Array, Array, Array]:
        """Return (bounds, mu, x). Shapes: slopes (k, d) -> (k,), (k, r), (k, d).

        `Region.price` gives the bounds for mu. If the LP fails, mu is zero, x is NaN, and `failure` has the reason.
        """
        region, domain = self.region, self.region.domain
        mu = np.zeros((len(slopes), len(region.numbers)))
        x = np.where(slopes > 0, domain.high, domain.low)
        if region.numbers and self._box_rows:
            self._tighten(slopes, mu, x)
        elif region.numbers:
            moves = slopes.any(axis=1)
            for k in np.flatnonzero(moves):
                self._solve(slopes[k], mu[k], x[k])
            if not moves.all():
                x[~moves] = self._some_point()
        bounds, _ = region.price(slopes, mu)
        return bounds, mu, x

    def largest(self, slopes: Array) -> tuple[Array, Array]:
        """Return (bounds, x) without multipliers; a small region needs no linear program, only its vertices."""
        points = None if self._box_rows else self.vertices
        if points is None:
            bounds, _, x = self(slopes)
            return bounds, x
        value = slopes @ points.T
        best = value.argmax(axis=1)
        return value[np.arange(len(slopes)), best], points[best]

    def _tighten(self, slopes: Array, mu: Array, x: Array) -> None:
        for i, sign, row, scale, limit in self.region.ends:
            moved = slopes[:, i] * sign > 0
            mu[moved, row] = np.abs(slopes[moved, i] / scale)
            x[moved, i] = limit
            low_side = ~moved & ((x[:, i] - limit) * sign > 0)
            x[low_side, i] = limit

    def _solve(self, slope: Array, mu: Array, x: Array) -> None:
        region, domain = self.region, self.region.domain
        scale = float(np.abs(slope * np.maximum(domain.high - domain.low, 1e-300)).max())
        if self._session is None:
            self._span = np.maximum(domain.high - domain.low, 1e-300)
            # x = low + span * t keeps the LP well scaled in any unit.
            scaled = region.A * self._span
            self._norms = np.maximum(np.abs(scaled).max(axis=1), 1e-300)
            self._session = open_session(
                LinearProgram(
                    np.zeros(len(slope)),
                    scaled / self._norms[:, None],
                    np.full(len(region.a), -np.inf),
                    (region.a - region.A @ domain.low) / self._norms,
                    np.zeros(len(slope)),
                    np.ones(len(slope)),
                )
            )
        found = self._session.solve(-slope * self._span / max(scale, 1e-300))
        if found.status is not Status.OPTIMAL or found.x is None or found.row_duals is None:
            self.failure = f"{found.status} ({found.message})"
            x[:] = np.nan
            return
        mu[:] = np.maximum(0.0, -found.row_duals) * scale / self._norms
        x[:] = domain.low + self._span * found.x

    def _some_point(self) -> Array:
        point, _, reason = self.located
        if point is None:
            self.failure = reason or "the region is empty"
            return np.full(len(self.region.domain.low), np.nan)
        return point


def vertices(low: Array, high: Array, A: Array, a: Array) -> Array | None:
    """Return the vertices (v, d) of {x in [low, high] : A x <= a}, or None if there are too many systems or no vertex.

    At a vertex some rows are tight; as many inputs lie between their ends, and the others are at an end.
    """
    d, rows = len(low), len(A)
    if sum(comb(rows, k) * comb(d, k) * 2 ** (d - k) for k in range(min(rows, d) + 1)) > _MOST:
        return None
    sides = {n: (np.arange(2**n)[:, None] >> np.arange(n)) & 1 for n in range(d + 1)}
    found = [np.where(sides[d] == 1, high, low)]
    for k in range(1, min(rows, d) + 1):
        for inner in combinations(range(d), k):
            outer = [i for i in range(d) if i not in inner]
            corners = np.where(sides[len(outer)] == 1, high[outer], low[outer])
            for tight in combinations(range(rows), k):
                matrix = A[np.ix_(tight, inner)]
                scale = np.abs(matrix).max()
                if not scale > 0 or abs(np.linalg.det(matrix / scale)) < 1e-12:
                    continue
                x = np.empty((len(corners), d))
                x[:, outer] = corners
                x[:, inner] = np.linalg.solve(matrix, (a[list(tight)] - corners @ A[np.ix_(tight, outer)].T).T).T
                found.append(x)
    points = np.concatenate(found)
    reach = np.maximum(np.abs(low), np.abs(high))
    slack, edge = _SLACK * (np.abs(A) @ reach + np.abs(a)), _SLACK * np.maximum(reach, 1e-300)
    inside = ((points >= low - edge) & (points <= high + edge)).all(axis=1) & (points @ A.T <= a + slack).all(axis=1)
    points = np.clip(points[inside], low, high)
    return points if len(points) else None
