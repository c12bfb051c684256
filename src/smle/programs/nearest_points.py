"""Nearest points of polyhedra for many points at once, in NumPy.

    minimize ||z - p||^2   subject to   N z <= b  for the rows that are imposed on the point; rows have norm 1

By duality z = p - N' u, where u >= 0 and N N' u >= N p - b complement each other. One row at a time enters or leaves
the set of tight rows. Points share the solutions of small sets, which are prepared once: a step is a product per point.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Box", "Polyhedron"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

OFF = -1e200  # excess of a row that is not imposed
_RIDGE = 1e-12  # keeps sets of dependent rows solvable; what it leaves open is taken away by `tighten`
_PREPARED_ROWS = 20
_PREPARED_SETS = 4096
_RELATIVE = 2.0**-23  # twice the rounding of a float32
_TINY = 2.0**-125  # and of one near zero, which becomes zero


class Polyhedron:
    """Rows over several outputs. Shape: N (J, k), rows of norm 1."""

    def __init__(self, N: Array, unit: Array) -> None:
        self.N, self.sizes = N, np.abs(N)
        self._tiny = self.sizes @ (_TINY / unit)
        self._gram = N @ N.T
        self._gram[np.diag_indices(len(N))] += _RIDGE
        self._prepared = len(N) <= _PREPARED_ROWS
        self._forget()

    def _forget(self) -> None:
        J = len(self.N)
        self._slot = {0: 0}
        self._table = -np.eye(J)[None] if self._prepared else np.empty(0)
        self._bits = 1 << np.arange(J, dtype=np.int64) if self._prepared else np.empty(0, dtype=np.int64)

    def nearest(self, p: Array, b: Array, imposed: Mask) -> tuple[Array, Mask]:
        """Return nearest points (n, k), and whether they are what they should be (n,)."""
        excess = np.where(imposed, p @ self.N.T - b, OFF)
        tolerance = 1e-13 * (1 + np.abs(p).max(axis=1))
        multipliers = self._pivot(excess, tolerance)
        z = p - multipliers @ self.N
        left = z @ self.N.T - b
        return z, np.asarray((~imposed | (left <= 1e4 * tolerance[:, None])).all(axis=1))

    def tighten(self, z: Array, b: Array, imposed: Mask) -> Array:
        """Move points inward by what a cast to float32 may move them outward."""
        floor = (_RELATIVE * np.abs(z)) @ self.sizes.T + self._tiny
        on = np.zeros(imposed.shape, dtype=bool)
        for round_ in range(4):
            left = z @ self.N.T - b + floor
            broken = imposed & (left > (floor / 2 if round_ else 0.0))
            if not broken.any():
                break
            on |= broken  # rows at their limits stay there; what is broken joins them
            z = z - self._multipliers(left, on) @ self.N
        return z

    def _pivot(self, excess: Array, tolerance: Array) -> Array:
        """Return multipliers (n, J)."""
        n, J = excess.shape
        result = np.zeros((n, J))
        rows = np.flatnonzero((excess > tolerance[:, None]).any(axis=1))
        on = np.zeros((len(rows), J), dtype=bool)
        v = excess[rows]
        on[np.arange(len(rows)), v.argmax(axis=1)] = True
        for _ in range(3 * J + 10):
            if not len(rows):
                break
            r = self._step(v, on)
            bad = r < -tolerance[rows, None]
            negative = bad & on
            drops, done = np.asarray(negative.any(axis=1)), np.asarray(~bad.any(axis=1))
            result[rows[done]] = np.where(on[done], r[done], 0.0)
            r[drops[:, None] & ~on] = np.inf
            flip = r.argmin(axis=1)
            at = np.arange(len(rows))
            on[at, flip] ^= True
            keep = ~done
            rows, on, v = rows[keep], on[keep], v[keep]
        return result

    def _step(self, v: Array, on: Mask) -> Array:
        """Return multipliers of the rows that are on, minus what is left of the others. Shapes: (n, J)."""
        if self._prepared:
            return self._by_table(v, on)
        multipliers = self._equality(v, on)
        return np.where(on, multipliers, multipliers @ self._gram - v)

    def _multipliers(self, v: Array, on: Mask) -> Array:
        return np.where(on, self._by_table(np.where(on, v, 0.0), on), 0.0) if self._prepared else self._equality(v, on)

    def _by_table(self, v: Array, on: Mask) -> Array:
        codes = on @ self._bits
        distinct, place = np.unique(codes, return_inverse=True)
        if len(self._slot) + len(distinct) > _PREPARED_SETS:
            self._forget()
        missing = [code for code in distinct.tolist() if code not in self._slot]
        if missing:
            self._table = np.concatenate([self._table, np.stack([self._solution(code) for code in missing])])
            for code in missing:
                self._slot[code] = len(self._slot)
        slots = np.array([self._slot[code] for code in distinct.tolist()])[place.reshape(-1)]
        return np.asarray(np.matmul(v[:, None, :], self._table[slots])[:, 0])

    def _solution(self, code: int) -> Array:
        """Return the matrix that turns what rows exceed into multipliers on a set, and minus what is left elsewhere."""
        on = (self._bits & code) != 0
        matrix = np.diag(np.where(on, 0.0, -1.0))
        inverse = np.linalg.inv(self._gram[np.ix_(on, on)])
        matrix[np.ix_(on, on)] = inverse
        matrix[np.ix_(on, ~on)] = inverse @ self._gram[np.ix_(on, ~on)]
        return matrix

    def _equality(self, v: Array, on: Mask) -> Array:
        """Solve gram[on, on] u = v[on] for each point; u is 0 elsewhere. Shapes: (n, J)."""
        most = int(on.sum(axis=1).max(initial=0))
        order = np.argsort(~on, axis=1, kind="stable")[:, :most]
        used = np.take_along_axis(on, order, axis=1)
        systems = self._gram[order[:, :, None], order[:, None, :]]
        systems = np.where(used[:, :, None] & used[:, None, :], systems, np.eye(most))
        sides = np.where(used, np.take_along_axis(v, order, axis=1), 0.0)
        multipliers = np.zeros_like(v)
        np.put_along_axis(multipliers, order, np.linalg.solve(systems, sides[:, :, None])[:, :, 0], axis=1)
        return multipliers


class Box:
    """Rows over one output each, in the outputs' own units. Shapes: column (J,), sign (J,)."""

    def __init__(self, column: npt.NDArray[np.intp], sign: Array, k: int) -> None:
        self._ends = []
        for side in (1.0, -1.0):
            rows = np.flatnonzero(sign == side)
            rows = rows[np.argsort(column[rows], kind="stable")]
            columns, starts = np.unique(column[rows], return_index=True)
            self._ends.append((side, rows, columns, starts))
        self._k = k

    def nearest(self, p: Array, b: Array, imposed: Mask) -> tuple[Array, Mask]:
        """Return nearest points (n, k), and whether there are any (n,)."""
        low, high = self._limits(b, imposed)
        z = np.minimum(np.maximum(p, low), high)
        return z, np.asarray((low <= high).all(axis=1))

    def tighten(self, z: Array, b: Array, imposed: Mask) -> Array:
        """Move points to float32 numbers inside."""
        low, high = self._limits(b, imposed)
        with np.errstate(over="ignore", under="ignore"):
            rounded = high.astype(np.float32)
            rounded = np.where(rounded > high, np.nextafter(rounded, np.float32(-np.inf)), rounded)
            rounded[(np.abs(rounded) < 2.0**-126) & (high < 0)] = -(2.0**-126)
            raised = low.astype(np.float32)
            raised = np.where(raised < low, np.nextafter(raised, np.float32(np.inf)), raised)
            raised[(np.abs(raised) < 2.0**-126) & (low > 0)] = 2.0**-126
        return np.minimum(np.maximum(z, raised.astype(np.float64)), rounded.astype(np.float64))

    def _limits(self, b: Array, imposed: Mask) -> tuple[Array, Array]:
        limits = []
        for side, rows, columns, starts in self._ends:
            end = np.full((len(b), self._k), np.inf)
            if len(rows):
                own = np.where(imposed[:, rows], b[:, rows], np.inf)
                end[:, columns] = np.minimum.reduceat(own, starts, axis=1)
            limits.append(end * side)
        return limits[1], limits[0]
