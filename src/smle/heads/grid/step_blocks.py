"""Finds nearest whole numbers of steps for outputs that rules tie together. Nothing is proved.

Equalities are solved first, k = B u + T kx + t. Then one literal per clause is chosen. The nearest real point is
rounded so that sums of neighbors keep their limits or, with few free outputs, the whole points around it are tried.
Single steps follow as long as they help.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smle.heads.grid.reduction import Reduction
from smle.heads.grid.rounding import (
    cumulative,
    exchanged,
    floors,
    nearest_in_box,
    nearest_on_sum,
    of,
    remainders,
    snapped,
)
from smle.nearest.polyhedra import Polyhedron

if TYPE_CHECKING:
    from smle.heads.grid.grid_program import GridProgram

__all__ = ["Asked", "GridBlock"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_PIECES = 32  # up to this many choices of literals are all tried
_FEW = 4  # up to this many free outputs, whole points around the real one are tried, at these steps from it
_AROUND, _FARTHER = (-1, 0, 1, 2), (-3, -2, -1, 0, 1, 2, 3, 4)
_SORTED = 64  # outputs of a sum that are rounded by remainders
_COARSE = 0.02  # a step larger than this share of a unit is worth placing exactly
_STEPS = 10  # most single steps
_WORK = 2_000_000  # most numbers that single steps examine


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows of one problem: targets p and base c (n, outputs), right sides (n, literals), clauses that are on.

    Base and right sides have a single row where they are the same for all; `on` is None where all clauses are on.
    """

    p: Array
    c: Array
    right: Array
    on: Mask | None

    def some(self, rows: Numbers) -> Asked:
        """Return some of the rows."""
        return Asked(self.p[rows], of(self.c, rows), of(self.right, rows), None if self.on is None else self.on[rows])


class GridBlock:
    """One problem: some outputs, the free ones among them, and the rows that bind them."""

    def __init__(self, program: GridProgram, reduction: Reduction, C: Array, weight: Array, outputs: Numbers) -> None:
        self.outputs = outputs
        self.free = np.flatnonzero(np.isin(reduction.free, outputs))
        self.places = np.searchsorted(outputs, reduction.free[self.free])  # positions of free outputs among these
        self.B = reduction.B[np.ix_(outputs, self.free)].astype(np.float64)
        self.w = weight[outputs] / weight[outputs].max()
        self.cost = self.w**2
        self.coarse = bool(weight[outputs].max() > _COARSE)
        self.lower, self.upper = program.lower[outputs], program.upper[outputs]
        touching = [c for c, own in enumerate(program.clauses) if C[list(own)][:, outputs].any()]
        self.clauses = np.array(touching, dtype=np.intp)
        literals = sorted({k for c in touching for k in program.clauses[c]})
        self.literals = np.array(literals, dtype=np.intp)
        place = {k: i for i, k in enumerate(literals)}
        self.of_clause = [[place[k] for k in program.clauses[c]] for c in touching]
        self.always = all(program.always[c] for c in touching)
        self.C = C[np.ix_(self.literals, outputs)]
        self._rows()
        self._order()
        self._metric()

    def _rows(self) -> None:
        """Prepare rows over free outputs: literals first, then upper and lower ends of ranges."""
        A = np.vstack([self.C @ self.B, self.B, -self.B])
        divisor = np.array([max(int(np.gcd.reduce(np.abs(row).astype(np.int64))), 1) for row in A])
        self.A, self.divisor = A / divisor[:, None], divisor.astype(np.float64)
        self.binds = self.A.any(axis=1)
        self.binding = np.flatnonzero(self.A[: len(self.literals)].any(axis=1))  # literals that no equality settles
        single = (self.C != 0).sum(axis=1) == 1
        self.is_plain = all(len(own) == 1 for own in self.of_clause)
        equal: Mask = np.asarray(~(self.C @ self.B).any(axis=1))  # sums that equalities fix
        m = len(self.outputs)
        self.signs = signs = self.C[equal][0] if equal.any() else np.zeros(m)
        one = len(self.free) == m - 1 and m > 2 and bool((np.abs(signs) == 1).all()) and self.is_plain
        self.is_sum = bool(one and (single | equal).all())
        self.single = single
        self.own = [(k, i, float(self.C[k, i])) for k in np.flatnonzero(single) for i in np.flatnonzero(self.C[k])]
        first = np.array([row[np.flatnonzero(row)[0]] > 0 for row in self.C], dtype=bool)
        self.sums = np.flatnonzero(~single & (~equal | first))  # rows over several outputs, an equality once
        self.equal, self.summed = equal[self.sums], self.C[self.sums]

    def _order(self) -> None:
        """Order base outputs so that sums over some of them are sums of neighbors, if sums nest."""
        m = len(self.outputs)
        derived = [i for i in range(m) if i not in set(self.places.tolist())]
        # A derived output that is a sum of others is a total; any other is one of the parts, and comes last.
        totals = {i for i in derived if (self.B[i] >= 0).all() and self.B[i].any()}
        self.base = np.array([i for i in range(m) if i not in totals], dtype=np.intp)
        sets = []
        for i in derived:
            own = [*self.places[np.flatnonzero(self.B[i])].tolist(), *({i} - totals)]
            sets.append(frozenset(np.searchsorted(self.base, own).tolist()))
        for row in self.C[:, self.base] if len(self.C) else ():
            used = np.flatnonzero(row)
            if len(used) > 1 and (row[used] == row[used[0]]).all():
                sets.append(frozenset(used.tolist()))
        sets = sorted(set(sets), key=lambda own: (-len(own), sorted(own)))[:400]
        keys = [tuple(i not in own for own in sets) for i in range(len(self.base))]
        order = sorted(range(len(self.base)), key=lambda i: (keys[i], i))
        self.base = self.base[order]
        self.free_of_base = np.array([int(np.flatnonzero(self.base == i)[0]) for i in self.places], dtype=np.intp)
        apart = np.eye(len(self.base)) - np.eye(len(self.base), k=1)
        self.differences = apart[:, self.free_of_base] @ self.B.T  # of cumulative sums

    def _metric(self) -> None:
        WB = self.w[:, None] * self.B
        self.H = WB.T @ WB
        self.P = np.linalg.solve(self.H, WB.T * self.w)  # (f, outputs)
        self.project = self.B @ self.P
        self.R = np.linalg.cholesky(self.H).T
        self.back = np.linalg.inv(self.R)
        self.norm = np.where(self.binds, np.sqrt(((self.A @ self.back) ** 2).sum(axis=1)), 1.0)

    @cached_property
    def _polyhedron(self) -> Polyhedron:
        """The rows that bind, in coordinates where distances are plain."""
        return Polyhedron((self.A @ self.back / self.norm[:, None])[self.binds], np.ones(len(self.free)))

    # --- right sides

    def limits(self, asked: Asked) -> Array:
        """Return right sides of the rows over free outputs (n, rows): whole, infinite where literals do not apply."""
        literal, count, m = asked.right - asked.c @ self.C.T, len(self.literals), len(self.outputs)
        on = self._on(asked)
        if on is not None:
            literal = np.where(on, literal, np.inf)
        r = np.empty((max(len(literal), len(asked.c)), len(self.A)))
        r[:, :count] = literal
        np.subtract(self.upper, asked.c, out=r[:, count : count + m])
        np.subtract(asked.c, self.lower, out=r[:, count + m :])
        r /= self.divisor
        return np.asarray(np.floor(r, out=r))

    def _on(self, asked: Asked) -> Mask | None:
        """Return which literals belong to a clause that is on (n, literals), or None if all always do."""
        if asked.on is None or self.always:
            return None
        on = np.zeros((len(asked.p), len(self.literals)), dtype=bool)
        for place, own in enumerate(self.of_clause):
            on[:, own] |= asked.on[:, place : place + 1]
        return on

    def _ends(self, right: Array, on: Mask | None) -> tuple[Array, Array]:
        """Return the whole limits of single outputs (n, outputs) that ranges and literals leave."""
        if not self.own:
            return self.lower[None], self.upper[None]
        count = len(right) if on is None else max(len(right), len(on))
        lower, upper = (np.repeat(side[None], count, axis=0) for side in (self.lower, self.upper))
        for row, i, factor in self.own:
            value, some = right[:, row] / factor, True if on is None else on[:, row]
            if factor > 0:
                np.minimum(upper[:, i], np.floor(value), out=upper[:, i], where=some)
            else:
                np.maximum(lower[:, i], np.ceil(value), out=lower[:, i], where=some)
        return lower, upper

    # --- nearest points

    def nearest(self, asked: Asked) -> tuple[Array, Array]:
        """Return whole points (n, outputs), and the real points they come from."""
        if not len(self.free):
            c = np.broadcast_to(asked.c, asked.p.shape)
            return c, c
        if self.is_sum:
            return self._on_sum(asked)
        if len(self.outputs) == 1 and self.is_plain:
            return self._limited(asked)
        r = self.limits(asked)
        if self.is_plain:
            return self._in_piece(asked, r)
        r = np.broadcast_to(r, (len(asked.p), len(self.A)))
        best = np.broadcast_to(asked.c, asked.p.shape).copy()
        real, cost = best.copy(), np.full(len(asked.p), np.inf)
        for piece in self._pieces(asked, r):
            k, z = self._in_piece(asked, piece)
            far = (((k - asked.p) * self.w) ** 2).sum(axis=1)
            far = np.where(self._holds(k, asked, piece), far, far + 1e30)
            nearer = far < cost
            best[nearer], real[nearer], cost[nearer] = k[nearer], z[nearer], far[nearer]
        return best, real

    def _limited(self, asked: Asked) -> tuple[Array, Array]:
        """Return the nearest whole numbers between limits of a single output."""
        lower, upper = self._ends(asked.right, self._on(asked))
        real = np.minimum(np.maximum(asked.p, lower), upper)
        return np.minimum(np.maximum(np.floor(asked.p + 0.5), lower), upper), real

    def _on_sum(self, asked: Asked) -> tuple[Array, Array]:
        """Return the nearest whole points with a given sum, between limits of single outputs."""
        lower, upper = self._ends(asked.right, self._on(asked))
        p, turned = asked.p, self.signs < 0
        if turned.any():
            p = np.where(turned, -p, p)
            lower, upper = np.where(turned, -upper, lower), np.where(turned, -lower, upper)
        total = asked.c @ self.signs  # the same for all u
        z = snapped(nearest_on_sum(p, lower, upper, total, self.cost))
        if len(self.w) <= _SORTED and self.coarse:
            k = exchanged(remainders(z, p, upper, total, self.cost), p, lower, upper, self.cost)
        else:
            k = cumulative(z)
        return (np.where(turned, -k, k), np.where(turned, -z, z)) if turned.any() else (k, z)

    def _pieces(self, asked: Asked, r: Array) -> Iterator[Array]:
        """Yield right sides with one literal per clause; the others do not bind."""
        open_ = [own for own in self.of_clause if len(own) > 1]
        listed = list(dict.fromkeys(k for own in open_ for k in own))
        alone = {own[0] for own in self.of_clause if len(own) == 1}
        if np.prod([float(len(own)) for own in open_]) <= _PIECES:
            for choice in product(*open_):
                dropped = [k for k in listed if k not in choice and k not in alone]
                piece = r.copy()
                piece[:, dropped] = np.inf
                yield piece
            return
        # Too many: take the literal violated least at the target, and single swaps.
        u = (asked.p - asked.c) @ self.P.T
        excess = (u @ self.A.T - r) / self.norm
        best = [np.asarray(own)[excess[:, own].argmin(axis=1)] for own in open_]
        for swapped in (-1, *range(min(len(open_), _PIECES))):
            keep = np.zeros(r.shape, dtype=bool)
            keep[:, [k for k in range(r.shape[1]) if k not in set(listed) - alone]] = True
            for number, (own, first) in enumerate(zip(open_, best, strict=True)):
                chosen = first
                if number == swapped:
                    others = np.where(np.asarray(own) == first[:, None], np.inf, excess[:, own])
                    chosen = np.asarray(own)[others.argmin(axis=1)]
                keep[np.arange(len(r)), chosen] = True
            yield np.where(keep, r, np.inf)

    def _in_piece(self, asked: Asked, r: Array) -> tuple[Array, Array]:
        """Return whole points (n, outputs) that obey rows, or nearly so, and the nearest real ones."""
        if len(self.free) <= _FEW:
            r = np.broadcast_to(r, (len(asked.p), len(self.A)))
            u = (asked.p - asked.c) @ self.P.T
            u = snapped(self._nearest_under(u @ self.R.T, (r / self.norm)[:, self.binds]) @ self.back.T)
            z = snapped(u @ self.B.T) + asked.c
            whole, found = self._around(u, asked, r)
            k = whole @ self.B.T + asked.c
            missing = np.flatnonzero(~found)
            if len(missing):
                k[missing] = self.rounded(z[missing], of(asked.c, missing))
            return (self._polished(k, asked, r) if len(self.free) > 1 and self.coarse else k), z
        z = self._nearest_real(asked, r)
        k = self.rounded(z, asked.c)
        open_ = np.arange(len(k)) if self.coarse else np.flatnonzero(~self._holds(k, asked, r))
        if len(open_):
            k[open_] = self._polished(k[open_], asked.some(open_), of(r, open_))
        return k, z

    def _nearest_under(self, v: Array, b: Array) -> Array:
        """Return the nearest points (n, f) under the rows that bind, b (n, rows), where distances are plain."""
        few = self._polyhedron.at_once
        parts = [slice(i, i + few) for i in range(0, len(v), few)]
        return np.concatenate([self._polyhedron.nearest(v[i], b[i], np.isfinite(b[i]))[0] for i in parts])

    def _nearest_real(self, asked: Asked, r: Array) -> Array:
        """Return the nearest real points (n, outputs) that obey rows."""
        bound = np.isfinite(r[:, : len(self.literals)])
        lower, upper = self._ends(asked.right, bound)
        z = (asked.p - asked.c) @ self.project.T + asked.c if asked.c.any() else asked.p @ self.project.T
        out = ((z < lower) | (z > upper)).any(axis=1)
        right = np.where(bound, asked.right, np.inf)[:, self.sums]
        if not self.equal.all():
            out |= ((z @ self.summed.T - right > 1e-3) & ~self.equal).any(axis=1)
        rest = np.flatnonzero(out)
        if len(rest):
            ends = of(lower, rest), of(upper, rest)
            z[rest] = nearest_in_box(asked.p[rest], *ends, self.summed, of(right, rest), self.equal, self.cost)
        return snapped(z)

    def _around(self, u: Array, asked: Asked, r: Array) -> tuple[Array, Mask]:
        """Return the best whole points around real ones (n, f), and whether one obeys the rows."""
        n, f = u.shape
        last = int(np.abs(self.w @ np.abs(self.B)).argmin()) if f > 1 else 0  # the finest is solved on its line
        others = [i for i in range(f) if i != last]
        listed = list(product(_FARTHER if f < _FEW else _AROUND, repeat=len(others)))
        shifts = np.array(listed, dtype=np.float64).reshape(len(listed), len(others))
        base = np.floor(u[:, others] + 1e-9)
        trial = base[:, None, :] + shifts  # (n, s, f - 1)
        rest = r[:, None, :] - trial @ self.A[:, others].T  # (n, s, J)
        a = self.A[:, last]
        good = np.where(a == 0, rest >= 0, True).all(axis=2)
        with np.errstate(all="ignore"):
            ends = rest / np.where(a == 0, 1.0, a)
        upper = np.where(a > 0, np.floor(ends + 1e-9), np.inf).min(axis=2)
        lower = np.where(a < 0, np.ceil(ends - 1e-9), -np.inf).max(axis=2)
        goal = (asked.p - asked.c) @ self.P.T  # minimum of the quadratic form
        apart = trial - goal[:, None, others]
        line = snapped(goal[:, None, last] - apart @ self.H[others, last] / self.H[last, last])
        chosen = np.minimum(np.maximum(np.floor(line + 0.5), lower), upper)
        good &= (lower <= upper) & np.isfinite(chosen)
        point = np.empty((n, len(shifts), f))
        point[:, :, others], point[:, :, last] = trial, chosen
        step, slope = point - u[:, None], snapped(2 * (u - goal) @ self.H)
        # Cost beyond that of the real point.
        more = ((step @ self.H) * step).sum(axis=2) + (step * slope[:, None]).sum(axis=2)
        cost = np.where(good, more, np.inf)
        best = (cost <= cost.min(axis=1, keepdims=True) + 1e-6).argmax(axis=1)  # the first of equal ones
        rows = np.arange(n)
        return np.where(good[rows, best][:, None], point[rows, best], np.rint(u)), good[rows, best]

    def rounded(self, z: Array, c: Array) -> Array:
        """Round real points (n, outputs) so that sums of neighbors keep their limits; equalities hold."""
        if not len(self.free):
            return c
        k = floors(z.take(self.base, axis=1)) @ self.differences
        return k + c - c[:, self.places] @ self.B.T if c.any() else k

    def _holds(self, k: Array, asked: Asked, r: Array) -> Mask:
        """Return which rows of whole numbers are in range and obey the literals that bind (n,)."""
        inside = (k >= self.lower) & (k <= self.upper)
        held = np.ones(len(k), dtype=bool) if inside.all() else inside.all(axis=1)
        if len(self.binding):
            u = k.take(self.places, axis=1) - asked.c[:, self.places]
            held &= (self.A[self.binding] @ u.T <= r[:, self.binding].T + 1e-9).all(axis=0)
        return np.asarray(held)

    def _polished(self, k: Array, asked: Asked, r: Array) -> Array:
        """Take single steps, or one up and one down, as long as rows break less or come nearer."""
        f, r = len(self.free), np.broadcast_to(r, (len(k), len(self.A)))
        eye = np.eye(f)
        steps = [eye, -eye]
        if f <= 20:
            steps.append(np.array([eye[a] - eye[b] for a in range(f) for b in range(f) if a != b]).reshape(-1, f))
        D = np.vstack(steps)
        AD, HD = D @ self.A.T, D @ self.H
        own = (HD * D).sum(axis=1)
        goal = (asked.p - asked.c) @ self.P.T
        u, k = k[:, self.places] - asked.c[:, self.places], k.copy()
        left = np.arange(len(k))[: max(_WORK // max(AD.size, 1), 1)]
        for _ in range(_STEPS):
            slack = r[left] - u[left] @ self.A.T
            broken = np.maximum(-slack, 0.0).sum(axis=1)
            after = np.maximum(AD - np.where(np.isfinite(slack), slack, 1e30)[:, None, :], 0.0).sum(axis=2)
            change = snapped(2 * (u[left] - goal[left]) @ HD.T + own)
            least = after.min(axis=1)
            nearer = np.where(after <= least[:, None], change, np.inf)  # rows that hold count more than any distance
            best = nearer.argmin(axis=1)
            gain = (least < broken) | ((least == broken) & (nearer[np.arange(len(left)), best] < -1e-9))
            left, best = left[gain], best[gain]
            if not len(left):
                break
            u[left] += D[best]
        return np.asarray(u @ self.B.T + asked.c)
