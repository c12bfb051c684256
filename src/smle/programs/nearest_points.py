"""Nearest points of polyhedra for many points at once, in NumPy.

    minimize ||z - p||^2   subject to   N z <= b  for the rows that are imposed on the point; rows have norm 1

The dual method of Goldfarb and Idnani: z = p - N' u with u >= 0 on a set of tight rows; the row that is broken most
joins the set, and rows whose multipliers would become negative leave it. Points share the solutions of small systems,
which are prepared once for each set that occurs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Box", "Polyhedron", "State"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

OFF = -1e200  # excess of a row that is not imposed
_RIDGE = 1e-12  # keeps sets of dependent rows solvable
_PREPARED_ROWS = 32
_PREPARED_NUMBERS = 4_000_000  # of all prepared sets
_RELATIVE = 2.0**-23  # twice the rounding of a float32
_TINY = 2.0**-125  # and of one near zero, which becomes zero


class State(NamedTuple):
    """Where a search stands: the set of tight rows (its place among prepared ones), and multipliers."""

    place: Numbers  # (n,)
    u: Array  # (n, J); 0 for rows that are not tight

    def take(self, rows: Numbers | Mask) -> State:
        """Return the state of some points."""
        return State(self.place[rows], self.u[rows])


class Polyhedron:
    """Rows over several outputs. Shapes: N (J, k), rows of norm 1; unit (k,), of the outputs."""

    def __init__(self, N: Array, unit: Array) -> None:
        self.N = N
        self._turned = np.ascontiguousarray(N.T)
        self._sizes = _RELATIVE * np.abs(self._turned)
        self._tiny = np.abs(N) @ (_TINY / unit)
        self._gram = N @ N.T
        self._gram[np.diag_indices(len(N))] += _RIDGE
        self._prepared = len(N) <= _PREPARED_ROWS
        self._forget()

    def _forget(self) -> None:
        """Start without prepared sets, but for the empty one."""
        J = len(self.N)
        self._members = [frozenset[int]()]
        self._places = {self._members[0]: 0}
        size = 8 if self._prepared else 0
        self._steps = np.zeros((size, J, J))  # [set, row]: by how much multipliers fall when the row's rises
        self._pulls = np.zeros((size, J, self.N.shape[1]))  # [set]: the move that takes off what rows exceed
        self._next = np.full((size, J), -1, dtype=np.intp)  # [set, row]: the set with the row turned

    def nearest(self, p: Array, b: Array, imposed: Mask, state: State | None = None) -> tuple[Array, Mask, State]:
        """Return nearest points (n, k), and whether they are what they should be (n,).

        A state is that of the same points under fewer rows.
        """
        n, J = b.shape
        if state is None:
            if self._prepared and self._steps.size > _PREPARED_NUMBERS:
                self._forget()
            state = State(np.zeros(n, dtype=np.intp), np.zeros((n, J)))
            left = p @ self._turned - b
        else:
            left = (p - state.u @ self.N) @ self._turned - b - _RIDGE * state.u
        excess = np.where(imposed, left, OFF)
        tolerance = 1e-12 * (1.0 + np.abs(p).max(axis=1))
        self._climb(excess, tolerance, state)
        z = p - state.u @ self.N
        left = z @ self._turned - b
        return z, np.asarray((~imposed | (left <= 1e4 * tolerance[:, None])).all(axis=1)), state

    def _climb(self, excess: Array, tolerance: Array, state: State) -> None:
        """Let broken rows join, until none is left; changes the state."""
        row = excess.argmax(axis=1)
        at = np.flatnonzero(excess[np.arange(len(row)), row] > tolerance)
        if not len(at):
            return
        row, left, u, place, tolerance = row[at], excess[at], state.u[at], state.place[at], tolerance[at]
        for _ in range(5 * left.shape[1] + 10):
            span = np.arange(len(at))
            w = self._step(place, u, row)
            change = w @ self._gram
            whole = left[span, row] / change[span, row]
            ratio = np.full(w.shape, np.inf)
            np.divide(u, -w, out=ratio, where=w < 0)
            blocking = ratio.argmin(axis=1)
            part = ratio[span, blocking]
            joins = whole <= part
            step = np.where(joins, whole, part)[:, None]
            # A row that depends on tight ones, none of which can leave: no point satisfies them all.
            empty = joins & (change[span, row] < 1e3 * _RIDGE)
            step[empty] = 0.0
            u += step * w
            left -= step * change
            turned = np.where(joins, row, blocking)
            u[span, blocking] = np.where(joins, u[span, blocking], 0.0)
            if self._prepared:
                place = self._turn(place, turned)
            most = left.argmax(axis=1)
            row = np.where(joins, most, row)
            done = empty | (joins & (left[span, most] <= tolerance))
            if done.any():
                state.u[at[done]], state.place[at[done]] = u[done], place[done]
                keep = ~done
                at, row, left, u, place, tolerance = (v[keep] for v in (at, row, left, u, place, tolerance))
                if not len(at):
                    return
        state.u[at], state.place[at] = u, place

    def _step(self, place: Numbers, u: Array, row: Numbers) -> Array:
        """Return how multipliers change when that of a row rises by 1, tight rows staying tight. Returns (n, J)."""
        span = np.arange(len(row))
        if self._prepared:
            w = -self._steps[place, row]
        else:
            tight = u > 0
            tight[span, row] = False  # it may have risen a part of the way
            w = -self._solve(self._gram[row], tight)
        w[span, row] = 1.0
        return w

    def _turn(self, place: Numbers, row: Numbers) -> Numbers:
        """Return the places of the sets with a row turned on or off, which are prepared if they are new."""
        turned = self._next[place, row]
        if turned.min() < 0:
            for s, j in {
                (s, j) for s, j, t in zip(place.tolist(), row.tolist(), turned.tolist(), strict=True) if t < 0
            }:
                members = self._members[s] ^ {j}
                if members not in self._places:
                    self._places[members] = self._prepare(members)
                self._next[s, j] = self._places[members]
            turned = self._next[place, row]
        return turned

    def _prepare(self, members: frozenset[int]) -> int:
        place = len(self._members)
        if place == len(self._steps):
            self._steps, self._pulls = (np.concatenate([v, np.zeros_like(v)]) for v in (self._steps, self._pulls))
            self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
        on = np.array(sorted(members), dtype=np.intp)
        inverse = np.linalg.inv(self._gram[np.ix_(on, on)])
        self._steps[place][:, on] = self._gram[:, on] @ inverse
        self._pulls[place][on] = inverse @ self.N[on]
        self._members.append(members)
        return place

    def _solve(self, v: Array, on: Mask) -> Array:
        """Solve gram[on, on] u = v[on] for each point; u is 0 elsewhere. Shapes: (n, J)."""
        most = int(on.sum(axis=1).max(initial=0))
        order = np.argsort(~on, axis=1, kind="stable")[:, :most]
        used = np.take_along_axis(on, order, axis=1)
        systems = self._gram[order[:, :, None], order[:, None, :]]
        systems = np.where(used[:, :, None] & used[:, None, :], systems, np.eye(most))
        sides = np.where(used, np.take_along_axis(v, order, axis=1), 0.0)
        u = np.zeros(v.shape)
        np.put_along_axis(u, order, np.linalg.solve(systems, sides[:, :, None])[:, :, 0], axis=1)
        return u

    def tighten(self, z: Array, b: Array, imposed: Mask, state: State) -> Array:
        """Move points inward by what a cast to float32 may move them outward; leave those that were not moved."""
        floor = np.abs(z) @ self._sizes + self._tiny
        left = z @ self._turned - b + floor
        tight = state.u > 0
        left = np.where(tight, left, 0.0)
        if self._prepared:
            z = z - np.matmul(left[:, None, :], self._pulls[state.place])[:, 0]
        else:
            z = z - self._solve(left, tight) @ self.N
        spare = z @ self._turned - b + 0.5 * floor
        broken = imposed & (spare > 0) & tight.any(axis=1, keepdims=True)
        rows = np.flatnonzero(broken.any(axis=1))
        on = tight[rows]
        for _ in range(3):  # rows beside the tight ones that the move broke, or that were as near
            if not len(rows):
                break
            on |= broken[rows]
            left = np.where(on, z[rows] @ self._turned - b[rows] + floor[rows], 0.0)
            z[rows] -= self._solve(left, on) @ self.N
            broken[rows] = imposed[rows] & (z[rows] @ self._turned - b[rows] + 0.5 * floor[rows] > 0)
            keep = broken[rows].any(axis=1)
            rows, on = rows[keep], on[keep]
        return z


class Box:
    """Rows over one output each, in the outputs' own units. Shapes: column (J,), sign (J,)."""

    def __init__(self, column: Numbers, sign: Array, k: int) -> None:
        self._ends = []
        for side in (1.0, -1.0):
            rows = np.flatnonzero(sign == side)
            rows = rows[np.argsort(column[rows], kind="stable")]
            columns, starts = np.unique(column[rows], return_index=True)
            self._ends.append((side, rows, columns, starts))
        self._k = k

    def nearest(self, p: Array, b: Array, imposed: Mask, state: State | None = None) -> tuple[Array, Mask, State]:
        """Return nearest points (n, k), and whether there are any (n,)."""
        low, high = self._limits(b, imposed)
        z = np.minimum(np.maximum(p, low), high)
        if state is None:
            state = State(np.zeros(len(p), dtype=np.intp), np.empty((len(p), 0)))
        return z, np.asarray((low <= high).all(axis=1)), state

    def tighten(self, z: Array, b: Array, imposed: Mask, state: State) -> Array:
        """Move points to float32 numbers inside."""
        low, high = self._limits(b, imposed)
        low, high = upward(low), -upward(-high)
        return np.asarray(np.minimum(np.maximum(z, low), high))

    def _limits(self, b: Array, imposed: Mask) -> tuple[Array, Array]:
        limits = []
        for side, rows, columns, starts in self._ends:
            end = np.full((len(b), self._k), np.inf)
            if len(rows):
                own = np.where(imposed[:, rows], b[:, rows], np.inf)
                end[:, columns] = np.minimum.reduceat(own, starts, axis=1)
            limits.append(end * side)
        return limits[1], limits[0]


def upward(values: Array) -> Array:
    """Return the least float32 numbers that are no less; normal, or 0."""
    rounded = values.astype(np.float32)
    rounded = np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded).astype(np.float64)
    small = np.abs(rounded) < 2.0**-126
    return np.where(small, np.where(values > 0, 2.0**-126, 0.0), rounded)
