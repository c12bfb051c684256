"""Nearest points of polyhedra for many points at once, in NumPy.

    minimize ||z - p||^2   subject to   N z <= b  for the rows imposed on the point; rows have norm 1

Outputs are divided by their units first. z = p - N' u with u >= 0 on a set of tight rows. Few sets are all tried by one
product; otherwise the dual method of Goldfarb and Idnani is used: the row broken most joins the set, and rows whose
multipliers would become negative leave it. For many points and few sets it moves from set to set by tables prepared
once; preparing sets as they occur took longer than solving each point's own systems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["TINY", "Polyhedron", "SingleRows", "independent_sets", "steps_of", "tight_multipliers", "upward"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

OFF = -1e200  # excess of a row that is not imposed
_RIDGE = 1e-12  # keeps sets of dependent rows solvable
_DEPENDENT = 1e-9  # what is left of a row that depends on others
_FEW_ROWS = 256  # up to this many rows, all are multiplied, with multipliers or not
_FEASIBLE = 1e-8  # tolerance where all sets are tried
# Most sets, and numbers, to prepare in advance; half of the numbers are left for others.
_PREPARED_SETS, _PREPARED_NUMBERS = 500, 1_000_000
_TRIED, _TRIED_TOGETHER = 800, 400_000  # sets times rows, of one point and of all, up to which all sets are tried
_AT_ONCE = 200_000  # numbers that stay in the processor's cache
_RELATIVE = 2.0**-23  # twice the rounding of a float32
_NOISE = 2.0**-44  # float64 noise that other outputs leave in one near zero
TINY = 2.0**-125  # twice what becomes zero: proposals keep this far from bounds


class Polyhedron:
    """Rows over several outputs. Shapes: rows (J, k); unit (k,) of the outputs. Rows of N = rows * unit have norm 1.

    Points and bounds are in the outputs' own units, rows z <= b. A state says which rows are tight: the number of
    a prepared set (n,), or multipliers (n, J) if there are many rows, or these points are asked for only `once`.
    """

    def __init__(self, rows: Array, unit: Array, *, once: bool = False) -> None:
        N = rows * unit
        self.N, self._moves = N, N * unit
        self._turned, self._unit = np.ascontiguousarray(rows.T), unit
        self._rows = np.ascontiguousarray(rows)
        self._sizes = _RELATIVE * np.abs(self._rows) + _NOISE / unit
        self._gram = N @ N.T
        self._gram[np.diag_indices(len(N))] += _RIDGE
        J, k = N.shape
        count = sum(comb(J, i) for i in range(min(J, k) + 1))
        self._prepared = not once and count <= _PREPARED_SETS and 2 * count * J * J <= _PREPARED_NUMBERS
        self._all = np.zeros((0, J))
        self._forget()

    @property
    def at_once(self) -> int:
        """The most points that are found without preparing further sets, so that several threads may ask."""
        return max(_TRIED_TOGETHER // len(self._all), 1) if self._prepared else 2**31

    def trim(self) -> None:
        """Forget sets prepared on the way if there are many; earlier states become invalid."""
        if self._steps.size > _PREPARED_NUMBERS:
            self._forget()

    def _forget(self) -> None:
        """Start with the sets that can be tight, if there are few."""
        J, k = self.N.shape
        self._members = [frozenset[int]()]
        self._numbers = {self._members[0]: 0}
        size = 8 if self._prepared else 0
        # [set, row]: by how much multipliers fall when the row's rises; for rows in the set, the inverse.
        self._steps = np.zeros((size, J, J))
        self._pulls = np.zeros((J, k, size))  # [row, output, set]: the move that removes the excess of rows
        self._tight = np.zeros((size, J), dtype=bool)
        self._next = np.full((size, J), -1, dtype=np.intp)  # [set, row]: the set with the row turned
        if self._prepared:
            self._prepare_all()

    def _prepare_all(self) -> None:
        J, k = self.N.shape
        for rows in independent_sets(self._gram, range(J), k):
            self._number(frozenset(rows))
        count = len(self._members)
        tables = self._steps[:count] - np.where(self._tight[:count], 0.0, 1.0)[:, :, None] * np.eye(J)
        self._all = np.ascontiguousarray(tables.transpose(1, 0, 2).reshape(J * count, J))  # (rows, sets) by rows

    def nearest(
        self, p: Array, b: Array, imposed: Mask, state: Any = None, *, may_be_empty: bool = True
    ) -> tuple[Array, Any, Any]:
        """Return nearest points (n, k), their shortfall if negative (n,), and the state.

        A given state is that of the same points under fewer rows. If not `may_be_empty`, the shortfall is not computed.
        """
        n, J = imposed.shape
        numbers = n * len(self._all)
        if self._prepared and (numbers <= _TRIED_TOGETHER or len(self._all) <= _TRIED):
            if numbers > 2 * _AT_ONCE:
                starts = range(0, n, _AT_ONCE // len(self._all))
                parts = [slice(i, i + starts.step) for i in starts]
                found = [self.nearest(p[i], b if b.ndim == 1 else b[i], imposed[i]) for i in parts]
                z, least, number = (np.concatenate(own) for own in zip(*found, strict=True))
                return z, least, number
            over = self._over(p, b)
            if not np.logical_and.reduce(imposed, axis=None):
                np.copyto(over, OFF, where=~imposed.T)
            least = np.minimum.reduce((self._all @ over).reshape(J, len(self._all) // J, n))
            number = least.argmax(axis=0)
            short = np.maximum.reduce(least) + _FEASIBLE if may_be_empty else None
            return p - self._pulled(over, number), short, number
        excess = np.where(imposed, p @ self._turned - b, OFF)
        tolerance = 1e-12 * (1.0 + np.abs(p / self._unit).max(axis=1))
        sets: Numbers | None = None
        if self._prepared:
            sets = number = np.zeros(n, dtype=np.intp) if state is None else state.copy()
            if state is None:
                u, left = np.zeros((n, J)), excess
            else:
                u = _product(np.where(self._tight[number], excess, 0.0), self._steps[number])
                left = np.where(imposed, excess - u @ self._gram, OFF)
        else:
            u = np.zeros((n, J)) if state is None else state.copy()
            left = np.where(imposed, excess - self._change(u), OFF)
        self._climb(left, u, sets, tolerance)
        z = p - u @ self._moves
        over = np.where(imposed, z @ self._turned - b, OFF).max(axis=1)
        return z, 1e4 * tolerance - over, u if sets is None else sets

    def _over(self, z: Array, b: Array) -> Array:
        """Return the excess of points over bounds, (J, n), since long rows add up faster than short ones."""
        over: Array = self._rows @ z.T
        over -= b.T if b.ndim == 2 else b[:, None]
        return over

    def _pulled(self, over: Array, number: Numbers) -> Array:
        """Return the moves (n, k) that remove the excess of the tight rows of each point's set."""
        return np.asarray(np.einsum("jn,jkn->nk", over, self._pulls.take(number, axis=2)))

    def _climb(self, excess: Array, multipliers: Array, numbers: Numbers | None, tolerance: Array) -> None:
        """Let broken rows join until none is left; updates multipliers and numbers of sets in place."""
        row = excess.argmax(axis=1)
        at = np.flatnonzero(excess[np.arange(len(row)), row] > tolerance)
        if not len(at):
            return
        row, left, u, tolerance = row[at], excess[at], multipliers[at], tolerance[at]
        number = at if numbers is None else numbers[at]
        most = left[np.arange(len(at)), row]
        for _ in range(5 * left.shape[1] + 10):
            span = np.arange(len(at))
            w = self._step(row, u, None if numbers is None else number)
            change = self._change(w)
            slope = change[span, row]
            whole = most / slope
            ratio = np.where(w < 0, u / -w, np.inf)
            blocking = ratio.argmin(axis=1)
            part = ratio[span, blocking]
            joins = whole <= part
            # A row that depends on tight ones, none of which can leave: no point satisfies them all.
            empty = joins & (slope < _DEPENDENT)
            step = np.where(joins, whole, part)
            step[empty] = 0.0
            u += step[:, None] * w
            left -= step[:, None] * change
            u[span, blocking] *= joins
            if numbers is not None:
                number = self._turn(number, np.where(joins, row, blocking))
            highest = left.argmax(axis=1)
            row = np.where(joins, highest, row)
            most = left[span, row]
            done = empty | (joins & (most <= tolerance))
            if done.any():
                multipliers[at[done]] = u[done]
                if numbers is not None:
                    numbers[at[done]] = number[done]
                keep = ~done
                at, row, left, u, number, most, tolerance = (
                    v[keep] for v in (at, row, left, u, number, most, tolerance)
                )
                if not len(at):
                    return
        multipliers[at] = u
        if numbers is not None:
            numbers[at] = number

    def _change(self, u: Array) -> Array:
        """Return u N N'; of many rows, few have multipliers."""
        if len(self._gram) <= _FEW_ROWS:
            return np.asarray(u @ self._gram)
        used = np.flatnonzero(u.any(axis=0))
        return np.asarray(u[:, used] @ self._gram[used])

    def _step(self, row: Numbers, u: Array, number: Numbers | None) -> Array:
        """Return how multipliers change when that of a row rises by 1 and tight rows stay tight: (n, J)."""
        span = np.arange(len(row))
        if number is not None:
            w = -self._steps[number, row]
        else:
            tight = u > 0
            tight[span, row] = False  # it may have risen part of the way
            w = -tight_multipliers(self._gram, self._gram[row], tight)
        w[span, row] = 1.0
        return w

    def _turn(self, number: Numbers, row: Numbers) -> Numbers:
        """Return the sets with a row turned on or off, preparing new ones."""
        turned = self._next[number, row]
        if turned.min() < 0:
            new = turned < 0
            for s, j in set(zip(number[new].tolist(), row[new].tolist(), strict=True)):
                self._next[s, j] = self._number(self._members[s] ^ {j})
            turned = self._next[number, row]
        return turned

    def _number(self, members: frozenset[int]) -> int:
        """Return the number of a set, preparing it if it is new."""
        if members in self._numbers:
            return self._numbers[members]
        number = self._numbers[members] = len(self._members)
        self._members.append(members)
        if number == len(self._steps):
            self._steps, self._tight = (np.concatenate([v, np.zeros_like(v)]) for v in (self._steps, self._tight))
            self._pulls = np.concatenate([self._pulls, np.zeros_like(self._pulls)], axis=2)
            self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
        on = np.array(sorted(members), dtype=np.intp)
        self._steps[number], inverse = steps_of(self._gram, on)
        self._pulls[on, :, number] = inverse @ self._moves[on]
        self._tight[number][on] = True
        return number

    def tight(self, state: Any, z: Array, b: Array, imposed: Mask) -> Mask:
        """Return a mask of the rows that hold points z of a state in place (n, J)."""
        return np.asarray(self._tight[state] if self._prepared else state > 0)

    def tighten(self, z: Array, b: Array, imposed: Mask, state: Any, *, thorough: bool) -> Array:
        """Move points inward, so that a cast to float32 cannot move them outside.

        Unless `thorough`, only tight rows are considered.
        """
        room = self._sizes @ np.abs(z).T
        over = self._over(z, b)
        over += room
        if self._prepared:
            z = z - self._pulled(over, state)  # 0 for rows that are not tight
        else:
            z = z - tight_multipliers(self._gram, over.T, state > 0) @ self._moves
        if not thorough:
            return z
        floor = room.T
        tight, limit = self._tight[state] if self._prepared else state > 0, b - floor
        broken = imposed & (z @ self._turned - limit > 0.5 * floor)
        rows = np.flatnonzero(broken.any(axis=1) & tight.any(axis=1))
        on = tight[rows]
        for _ in range(3):  # other rows that the move broke, or that were as near
            if not len(rows):
                break
            on |= broken[rows]
            z[rows] -= tight_multipliers(self._gram, z[rows] @ self._turned - limit[rows], on) @ self._moves
            broken[rows] = imposed[rows] & (z[rows] @ self._turned - limit[rows] > 0.5 * floor[rows])
            keep = broken[rows].any(axis=1)
            rows, on = rows[keep], on[keep]
        return z


def independent_sets(
    gram: Array, rows: Sequence[int], k: int, meets: Callable[[tuple[int, ...]], bool] = lambda rows: True
) -> Iterator[tuple[int, ...]]:
    """Yield the sets of at most k independent rows, the smallest first; supersets only of sets that `meets` accepts."""
    sets: list[tuple[int, ...]] = [()]
    yield ()
    for tight in sets:  # the list grows
        for row in rows[rows.index(tight[-1]) + 1 :] if tight else rows:
            more = (*tight, row)
            if len(more) <= k and np.linalg.eigvalsh(gram[np.ix_(more, more)])[0] > _DEPENDENT and meets(more):
                sets.append(more)
                yield more


def steps_of(gram: Array, tight: Numbers) -> tuple[Array, Array]:
    """Return the table (J, J) of a set of tight rows, and the inverse of their products.

    It maps the excess of rows to multipliers of the tight rows, and to what these take off the others.
    """
    table: Array = np.zeros(gram.shape)
    inverse: Array = np.asarray(np.linalg.inv(gram[np.ix_(tight, tight)]), dtype=np.float64)
    table[:, tight] = gram[:, tight] @ inverse
    table[np.ix_(tight, tight)] = inverse
    return table, inverse


def tight_multipliers(gram: Array, over: Array, on: Mask) -> Array:
    """Solve gram[on, on] u = over[on] for each point, with u 0 elsewhere. Shapes: (J, J), (n, J), (n, J) -> (n, J)."""
    most = int(on.sum(axis=1).max(initial=0))
    order = np.argsort(~on, axis=1, kind="stable")[:, :most]
    used = np.take_along_axis(on, order, axis=1)
    systems = gram[order[:, :, None], order[:, None, :]]
    systems = np.where(used[:, :, None] & used[:, None, :], systems, np.eye(most))
    sides = np.where(used, np.take_along_axis(over, order, axis=1), 0.0)
    u = np.zeros(over.shape)
    np.put_along_axis(u, order, np.linalg.solve(systems, sides[:, :, None])[:, :, 0], axis=1)
    return u


def _product(rows: Array, matrices: Array) -> Array:
    """Multiply each row by its own matrix. Shapes: (n, J), (n, J, k) -> (n, k)."""
    if len(rows) > 256:  # faster from here on, as long as matrices are small
        return np.asarray(np.einsum("nj,njk->nk", rows, matrices))
    return np.asarray(np.matmul(rows[:, None, :], matrices)[:, 0])


class SingleRows:
    """Rows over one output each, in the outputs' own units. Shapes: column (J,), sign (J,). Needs no state."""

    def __init__(self, column: Numbers, sign: Array, k: int) -> None:
        self._ends = []
        for side in (1.0, -1.0):
            rows = np.flatnonzero(sign == side)
            rows = rows[np.argsort(column[rows], kind="stable")]
            columns, starts = np.unique(column[rows], return_index=True)
            self._ends.append((side, rows, columns, starts))
        self._k, self._column = k, column

    def trim(self) -> None:
        """Do nothing: there is nothing to forget."""

    def nearest(
        self, p: Array, b: Array, imposed: Mask, state: Any = None, *, may_be_empty: bool = True
    ) -> tuple[Array, Any, Any]:
        """Return nearest points (n, k), and their shortfall if negative (n,)."""
        low, high = self._limits(b, imposed)
        z = np.minimum(np.maximum(p, low), high)
        short = (high - low).min(axis=1) if may_be_empty else None
        return z, short, np.zeros(len(p), dtype=np.intp)

    def tight(self, state: Any, z: Array, b: Array, imposed: Mask) -> Mask:
        """Return a mask of the rows that hold points z in place (n, J): one for each output at a limit."""
        found = np.zeros(imposed.shape, dtype=bool)
        for side, rows, columns, starts in self._ends:
            # An empty split still yields one part.
            for column, own in zip(columns, np.split(rows, starts[1:]), strict=False):
                at = imposed[:, own] & (b[..., own] * side == z[:, [column]])
                at[found[:, self._column == column].any(axis=1)] = False
                found[at.any(axis=1), own[at.argmax(axis=1)[at.any(axis=1)]]] = True
        return found

    def tighten(self, z: Array, b: Array, imposed: Mask, state: Any, *, thorough: bool) -> Array:
        """Move points to float32 numbers inside."""
        low, high = self._limits(b, imposed)
        low, high = upward(low), -upward(-high)
        return np.asarray(np.minimum(np.maximum(z, low), high))

    def _limits(self, b: Array, imposed: Mask) -> tuple[Array, Array]:
        limits = []
        for side, rows, columns, starts in self._ends:
            end = np.full((len(imposed), self._k), np.inf)
            if len(rows):
                own = np.where(imposed[:, rows], b[..., rows], np.inf)
                end[:, columns] = np.minimum.reduceat(own, starts, axis=1)
            limits.append(end * side)
        return limits[1], limits[0]


def upward(values: Array) -> Array:
    """Round up to float32 numbers that are normal or 0."""
    rounded = values.astype(np.float32)
    rounded = np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded).astype(np.float64)
    small = np.abs(rounded) < 2.0**-126
    return np.where(small, np.where(values > 0, 2.0**-126, 0.0), rounded)
