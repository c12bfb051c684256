"""Proposals of the grid head: whole numbers of steps near a model's answers that obey the rules. Nothing is proved.

Outputs that no rule ties together are separate problems. Equalities are solved first, k = B u + T kx + t. In each
problem, for one literal per clause: the nearest real point, rounded so that sums of neighbors keep their limits; then,
if rules tie few outputs together, whole points around it; then single steps as long as they help.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.heads.grid.reduction import Reduction, reduce
from smle.heads.grid.rounding import (
    cumulative,
    exchanged,
    nearest_in_box,
    nearest_on_sum,
    nearest_under,
    remainders,
    snapped,
)

if TYPE_CHECKING:
    from smle.heads.grid.program import GridProgram

__all__ = ["GridBlock", "GridProposals"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_PIECES = 32  # choices of literals that are all tried
_FEW = 4  # up to this many free outputs, whole points this many steps around the real one are tried
_AROUND, _FARTHER = (-1, 0, 1, 2), (-3, -2, -1, 0, 1, 2, 3, 4)
_SORTED = 64  # outputs of a sum that are rounded by remainders
_MOVES = (2.0**-6, 2.0**-3, 0.25, 0.5)  # toward the safe answer
_COARSE = 0.02  # a step larger than this share of a unit is worth placing exactly
_STEPS = 10  # single steps that are taken
_WORK = 2_000_000  # numbers that single steps may examine
_FAR = 2.0**52


@dataclass(frozen=True)
class _Asked:
    """Rows of one problem: targets p and base c (n, outputs), right sides (n, literals), and which clauses apply."""

    p: Array
    c: Array
    right: Array
    on: Mask


class GridProposals:
    """Proposes candidates for rows whose answers do not pass."""

    def __init__(self, program: GridProgram) -> None:
        spec = program.lattice
        self.reduction = reduce(spec, program.listed)
        steps = np.array([float(own.step) for own in spec.output_steps])
        weight = steps / program.stored["check.scale"]
        C = program.stored["check.outputs"]
        self._T, self._t = self.reduction.T.astype(np.float64), self.reduction.t.astype(np.float64)
        self._moves = bool(self._T.any())
        groups = _together(self.reduction, C, program.clauses)
        self.blocks = [GridBlock(program, self.reduction, C, weight, outputs) for outputs in groups]

    def candidates(self, p: Array, safe: Array, read: Array | None, right: Array, on: Mask) -> Iterator[Array]:
        """Yield candidates (n, m) for targets p in steps, nearest first."""
        far = ~(np.abs(p) <= _FAR)
        if far.any():
            p = np.where(far, safe, p)
        c = self._t + read @ self._T.T if self._moves and read is not None else np.broadcast_to(self._t, p.shape)
        right = np.broadcast_to(right, (len(p), right.shape[-1]))
        first = self.blocks[0]
        if len(self.blocks) == 1 and len(first.literals) == right.shape[1] and len(first.clauses) == on.shape[1]:
            k, real = first.nearest(_Asked(p, c, right, on))  # avoids copies
        else:
            k, real = np.empty_like(p), np.empty_like(p)
            for block in self.blocks:
                own = _Asked(p[:, block.outputs], c[:, block.outputs], right[:, block.literals], on[:, block.clauses])
                k[:, block.outputs], real[:, block.outputs] = block.nearest(own)
        yield k
        k = k.copy()
        for share in _MOVES:
            moved = real + share * (safe - real)
            for block in self.blocks:
                k[:, block.outputs] = block.rounded(moved[:, block.outputs], c[:, block.outputs])
            yield k


def _together(reduction: Reduction, C: Array, clauses: list[tuple[int, ...]]) -> list[Numbers]:
    """Group outputs that equalities or clauses tie together."""
    m = len(reduction.t)
    group = np.arange(m)

    def join(members: Any) -> None:
        own = np.asarray(members)
        if len(own):
            group[np.isin(group, group[own])] = group[own].min()

    for i in range(m):
        join([i, *reduction.free[np.flatnonzero(reduction.B[i])]])
    for own in clauses:
        join(np.flatnonzero(C[list(own)].any(axis=0)))
    return [np.flatnonzero(group == g) for g in np.unique(group)]


class GridBlock:
    """One problem: some outputs, the free ones among them, and the rows that bind them."""

    def __init__(self, program: GridProgram, reduction: Reduction, C: Array, weight: Array, outputs: Numbers) -> None:
        self.outputs = outputs
        self.free = np.flatnonzero(np.isin(reduction.free, outputs))
        self.places = np.searchsorted(outputs, reduction.free[self.free])  # positions of free outputs among these
        self.B = reduction.B[np.ix_(outputs, self.free)].astype(np.float64)
        self.w = weight[outputs] / weight[outputs].max()
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
        """Prepare rows over free outputs: those of literals, then upper and lower ends of ranges."""
        A = np.vstack([self.C @ self.B, self.B, -self.B]) if len(self.free) else np.zeros((0, 0))
        if not len(self.free):
            self.A, self.divisor = A, np.ones(0)
            return
        divisor = np.array([max(int(np.gcd.reduce(np.abs(row).astype(np.int64))), 1) for row in A])
        self.A, self.divisor = A / divisor[:, None], divisor.astype(np.float64)
        self.binds = self.A.any(axis=1)
        single = (self.C != 0).sum(axis=1) == 1
        plain = all(len(own) == 1 for own in self.of_clause)
        equal: Mask = np.asarray(~(self.C @ self.B).any(axis=1))  # sums that equalities fix
        self.is_limits = len(self.outputs) == 1
        m = len(self.outputs)
        signs = self.C[equal][0] if equal.any() else np.zeros(m)
        one = len(self.free) == m - 1 and m > 2 and bool((np.abs(signs) == 1).all()) and plain
        self.is_sum = bool(one and (single | equal).all())
        self.signs = signs
        self.single = single
        first = np.array([row[np.flatnonzero(row)[0]] > 0 for row in self.C], dtype=bool)
        self.sums = np.flatnonzero(~single & (~equal | first))  # rows over several outputs, an equality once
        self.equal = equal[self.sums]

    def _order(self) -> None:
        """Order base outputs so that sums over some of them are sums of neighbors, if sums nest."""
        m, f = len(self.outputs), len(self.free)
        derived = [i for i in range(m) if i not in set(self.places.tolist())]
        # A derived output that is a sum of others is a total; else it is one of the parts, and comes last of them.
        totals = [i for i in derived if f and (self.B[i] >= 0).all() and self.B[i].any()]
        self.base = np.array([i for i in range(m) if i not in set(totals)], dtype=np.intp)
        parts = [i for i in derived if i not in set(totals)]
        sets = [frozenset(np.searchsorted(self.base, self.places[np.flatnonzero(self.B[i])]).tolist()) for i in totals]
        for i in parts:
            own = [*self.places[np.flatnonzero(self.B[i])].tolist(), i]
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

    def _metric(self) -> None:
        if not len(self.free):
            return
        WB = self.w[:, None] * self.B
        self.H = WB.T @ WB
        self.P = np.linalg.solve(self.H, WB.T * self.w)  # (f, outputs)
        self.project = self.B @ self.P
        R = np.linalg.cholesky(self.H).T
        self.R, self.back = R, np.linalg.inv(R)
        rows = self.A @ self.back
        self.norm = np.where(self.binds, np.sqrt((rows**2).sum(axis=1)), 1.0)
        self.N = rows / self.norm[:, None]

    # --- right sides

    def limits(self, asked: _Asked) -> Array:
        """Return right sides of the rows over free outputs (n, rows): whole, infinite where literals do not apply."""
        literal = asked.right - asked.c @ self.C.T
        if not self.always:
            literal = np.where(self._on(asked), literal, np.inf)
        r = np.hstack([literal, self.upper - asked.c, asked.c - self.lower])
        return np.floor(r / self.divisor)

    def _on(self, asked: _Asked) -> Mask:
        """Return a mask of the literals in a clause that applies (n, literals)."""
        on = np.zeros((len(asked.p), len(self.literals)), dtype=bool)
        for place, own in enumerate(self.of_clause):
            on[:, own] |= asked.on[:, place : place + 1]
        return on

    def _ends(self, right: Array, rows: Numbers, on: Mask) -> tuple[Array, Array]:
        """Return the whole limits of single outputs (n, outputs) that ranges and some rows leave."""
        lower, upper = (np.repeat(side[None], len(right), axis=0) for side in (self.lower, self.upper))
        for place, row in enumerate(rows.tolist()):
            i = int(np.flatnonzero(self.C[row])[0])
            value = right[:, place] / self.C[row, i]
            if self.C[row, i] > 0:
                upper[:, i] = np.where(on[:, place], np.minimum(upper[:, i], np.floor(value)), upper[:, i])
            else:
                lower[:, i] = np.where(on[:, place], np.maximum(lower[:, i], np.ceil(value)), lower[:, i])
        return lower, upper

    # --- nearest points

    def nearest(self, asked: _Asked) -> tuple[Array, Array]:
        """Return whole points (n, outputs), and the real points they come from."""
        if not len(self.free):
            return asked.c, asked.c
        if self.is_sum:
            return self._on_sum(asked)
        r = self.limits(asked)
        if all(len(own) == 1 for own in self.of_clause):
            return self._limited(asked, r) if self.is_limits else self._in_piece(asked, r)
        best, real, cost = asked.c.copy(), asked.c.copy(), np.full(len(asked.p), np.inf)
        for piece in self._pieces(asked, r):
            k, z = self._in_piece(asked, piece)
            far = (((k - asked.p) * self.w) ** 2).sum(axis=1)
            far = np.where(self._holds(k, asked, piece), far, far + 1e30)
            nearer = far < cost
            best[nearer], real[nearer], cost[nearer] = k[nearer], z[nearer], far[nearer]
        return best, real

    def _limited(self, asked: _Asked, r: Array) -> tuple[Array, Array]:
        """Return the nearest whole numbers between limits of a single output."""
        a = self.A[:, 0]
        upper = np.where(a > 0, r, np.inf).min(axis=1) + asked.c[:, 0]
        lower = np.where(a < 0, -r, -np.inf).max(axis=1) + asked.c[:, 0]
        p = asked.p[:, 0]
        k = np.minimum(np.maximum(np.floor(p + 0.5), lower), upper)
        return k[:, None], np.clip(p, lower, upper)[:, None]

    def _on_sum(self, asked: _Asked) -> tuple[Array, Array]:
        """Return the nearest whole points with a given sum, between limits of single outputs."""
        own = np.flatnonzero(self.single)
        lower, upper = self.lower, self.upper
        if len(own):
            lower, upper = self._ends(asked.right[:, own], own, self._on(asked)[:, own])
        turned = self.signs < 0
        is_turned = bool(turned.any())
        if is_turned:
            p = np.where(turned, -asked.p, asked.p)
            lower, upper = np.where(turned, -upper, lower), np.where(turned, -lower, upper)
        else:
            p = asked.p
        total = asked.c @ self.signs  # the same for all u
        cost = self.w**2
        z = snapped(nearest_on_sum(p, lower, upper, total, cost))
        if len(self.w) <= _SORTED and self.coarse:
            k = exchanged(remainders(z, p, upper, total, cost), p, lower, upper, cost)
        else:
            k = cumulative(z)
        if is_turned:
            k, z = np.where(turned, -k, k), np.where(turned, -z, z)
        return k, z

    def _pieces(self, asked: _Asked, r: Array) -> Iterator[Array]:
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

    def _in_piece(self, asked: _Asked, r: Array) -> tuple[Array, Array]:
        """Return whole points (n, outputs) that obey rows, or nearly so, and the nearest real ones."""
        if len(self.free) <= _FEW:
            u = (asked.p - asked.c) @ self.P.T
            v = nearest_under(u @ self.R.T, self.N, r / self.norm)
            u = snapped(v @ self.back.T)
            z = snapped(u @ self.B.T) + asked.c
            whole, found = self._around(u, asked, r)
            k = whole @ self.B.T + asked.c
            missing = ~found
            if missing.any():
                k[missing] = self.rounded(z[missing], asked.c[missing])
            return (self._polished(k, asked, r) if len(self.free) > 1 and self.coarse else k), z
        bound = np.isfinite(r[:, : len(self.literals)])
        own = np.flatnonzero(self.single)
        lower, upper = self._ends(asked.right[:, own], own, bound[:, own])
        right = np.where(bound[:, self.sums], asked.right[:, self.sums], np.inf)
        z = (asked.p - asked.c) @ self.project.T + asked.c
        out = ((z < lower) | (z > upper)).any(axis=1) | ((z @ self.C[self.sums].T - right > 1e-3) & ~self.equal).any(
            axis=1
        )
        rest = np.flatnonzero(out)
        if len(rest):
            ends = lower[rest], upper[rest]
            z[rest] = nearest_in_box(asked.p[rest], *ends, self.C[self.sums], right[rest], self.equal, self.w**2)
        z = snapped(z)
        k = self.rounded(z, asked.c)
        open_ = np.flatnonzero(~self._holds(k, asked, r)) if not self.coarse else np.arange(len(k))
        if len(open_):
            some = _Asked(asked.p[open_], asked.c[open_], asked.right[open_], asked.on[open_])
            k[open_] = self._polished(k[open_], some, r[open_])
        return k, z

    def _around(self, u: Array, asked: _Asked, r: Array) -> tuple[Array, Mask]:
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
        base = cumulative(z[:, self.base])
        return np.asarray(base[:, self.free_of_base] @ self.B.T + c - c[:, self.places] @ self.B.T)

    def _holds(self, k: Array, asked: _Asked, r: Array) -> Mask:
        u = k[:, self.places] - asked.c[:, self.places]
        return np.asarray((u @ self.A.T <= r + 1e-9).all(axis=1))

    def _polished(self, k: Array, asked: _Asked, r: Array) -> Array:
        """Take single steps, or one there and one back, as long as rows break less or come nearer."""
        f = len(self.free)
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
