"""Affine centers y0 + Y x, for rules that mention inputs on the side of the outputs.

For weights lambda (g, s, h are the weighted sums) the condition "room t over Q for all x" has a finite form,

    g.y0 + mu.a + sum_i max(e_i low_i, e_i high_i) + ||g|| t <= h,   e = Y'g + s - A'mu,   mu >= 0,

so center and multipliers come from one linear program. Inputs are scaled to [-1, 1] inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.guarantees.box.center_search import MINIMUM_ROOM, CandidateCenter
from smle.guarantees.regions.cell_rules import CellRules, PlainClause
from smle.guarantees.regions.geometry import Region, RegionMaximum
from smle.solvers import LinearProgram, Matrix, QuadraticProgram, Status, solve

__all__ = ["AffineSearch", "clause_weights", "evaluate_affine"]

Array = npt.NDArray[np.float64]

MAX_NODES = 200
_ALTERNATIONS = 20
_ENOUGH = 0.05
_KEEP = 0.98


@dataclass(frozen=True, eq=False)
class _Weighted:
    """A clause under weights, on scaled inputs: g (m,), s (d,), h, and the position of its region."""

    g: Array
    s: Array
    h: float
    region: int
    norm: float


class _Scaled:
    """Regions with inputs scaled to the domain: x = middle + half * xi, xi in [-1, 1]."""

    def __init__(self, need: CellRules) -> None:
        domain = need.polytopes.domain
        self.middle, self.half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
        self.polytopes = [need.polytopes.intersection(active) for active in need.regions]
        half = np.where(self.half > 0, self.half, 1.0)
        self.boxes: list[tuple[Array, Array, Array, Array]] = []
        for region in self.polytopes:
            low, high, oblique = region.tight_box()
            A, a = region.A[oblique], region.a[oblique]
            scaled = A * half
            norms = np.maximum(np.abs(scaled).max(axis=1, initial=0.0), 1e-300)[:, None] if len(A) else 1.0
            self.boxes.append(
                (
                    (low - self.middle) / half,
                    (high - self.middle) / half,
                    scaled / norms,
                    ((a - A @ self.middle)[:, None] / norms).reshape(-1),
                )
            )
        self.half = half

    def weighted(self, clause: PlainClause, weights: Array, m: int) -> _Weighted:
        d = len(self.middle)
        g, s, h = np.zeros(m), np.zeros(d), 0.0
        for w, lit in zip(weights, clause.literals, strict=True):
            g[lit.outputs] += w * lit.g
            s[lit.inputs] += w * lit.s
            h += w * lit.h
        norm = float(np.sqrt(g @ g)) or max(lit.norm for lit in clause.literals)
        return _Weighted(g, s * self.half, h - float(s @ self.middle), clause.region, norm)


class AffineSearch:
    """Depth-first over literals with a robust LP at each node; then alternation of weights and center."""

    def __init__(self, need: CellRules, target: Array, *, prefers: bool, share: float) -> None:
        self.need, self.target, self.prefers, self.share = need, target, prefers, share
        self.m = len(target)
        self.scaled = _Scaled(need)
        self.columns = self._columns()
        self.cap = need.scale
        self.nodes = 0
        self.tight = False

    def run(self) -> CandidateCenter | None:
        """Return the first center found, or None."""
        chosen: dict[int, Array] = {
            c: np.ones(1) for c, clause in enumerate(self.need.clauses) if len(clause.literals) == 1
        }
        weights = self._descend(chosen) or self._alternate()
        if weights is None:
            return CandidateCenter(self.target, None, 0.0) if self.tight else None
        return self._finish(weights)

    def _columns(self) -> npt.NDArray[np.intp]:
        """The inputs that the center may use: those of x-terms, and those that oblique rows tie to them."""
        used = np.zeros(len(self.scaled.middle), dtype=bool)
        for clause in self.need.clauses:
            for lit in clause.literals:
                used[lit.inputs] = True
        grown = True
        while grown:
            before = used.sum()
            for _, _, A, _ in self.scaled.boxes:
                for row in A != 0:
                    if (row & used).any():
                        used |= row
            grown = used.sum() > before
        return np.flatnonzero(used)

    def _descend(self, chosen: dict[int, Array]) -> dict[int, Array] | None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            return None
        solved = self._solve(chosen)
        if solved is None or solved[2] < MINIMUM_ROOM * self.cap:
            self.tight |= solved is not None and solved[2] > -MINIMUM_ROOM * 1e-3 * self.cap
            return None
        y0, Y, room = solved
        complete = dict(chosen)
        for c, clause in enumerate(self.need.clauses):
            if c in complete:
                continue
            outcome = clause_weights(clause, y0, Y, self.scaled.polytopes[clause.region])
            if outcome is not None and outcome[1] >= _ENOUGH * room * max(lit.norm for lit in clause.literals):
                complete[c] = outcome[0]
                continue
            for j in range(len(clause.literals)):
                found = self._descend({**chosen, c: np.eye(len(clause.literals))[j]})
                if found is not None:
                    return found
            return None
        return complete

    def _alternate(self) -> dict[int, Array] | None:
        """Improve weights and center in turn, from equal weights, until every clause has room."""
        weights = {
            c: np.full(len(clause.literals), 1 / len(clause.literals)) for c, clause in enumerate(self.need.clauses)
        }
        best = -np.inf
        for _ in range(_ALTERNATIONS):
            solved = self._solve(weights)
            if solved is None:
                return None
            y0, Y, room = solved
            if room > MINIMUM_ROOM * self.cap:
                return weights
            if room <= best + 1e-9 * self.cap:
                return None
            best = room
            for c, clause in enumerate(self.need.clauses):
                if len(clause.literals) > 1:
                    outcome = clause_weights(clause, y0, Y, self.scaled.polytopes[clause.region])
                    if outcome is not None:
                        weights[c] = outcome[0]
        return None

    def _finish(self, weights: dict[int, Array]) -> CandidateCenter | None:
        """Move toward the preferred point while a share of the room is kept."""
        solved = self._solve(weights)
        if solved is None or solved[2] <= 0:
            return None
        room = solved[2]
        keep = _KEEP * room * ((1 - self.share) if self.prefers else 1.0)
        near = self._solve(weights, keep=keep)
        ordered = tuple(weights[c] for c in range(len(self.need.clauses)))
        for y0, Y, _ in (near, solved) if near is not None else (solved,):
            found = CandidateCenter(y0, Y, room, ordered)
            if evaluate_affine(self.need, found)[2].min(initial=np.inf) > 0:
                return found
        return None

    def _solve(self, weights: dict[int, Array], keep: float | None = None) -> tuple[Array, Array, float] | None:
        """Maximize the room for given weights; with `keep`, go as near to the target as this room allows.

        Returns (y0, Y, room) in the user's units, or None if the solver gave no optimum.
        """
        rows = [self.scaled.weighted(self.need.clauses[c], w, self.m) for c, w in sorted(weights.items())]
        program = _RobustProgram(rows, self.scaled.boxes, self.columns, self.m)
        solution = program.most_room(self.cap) if keep is None else program.nearest(keep, self.target)
        if solution is None:
            return None
        center, slope, room = solution
        Y = np.zeros((self.m, len(self.scaled.middle)))
        Y[:, self.columns] = slope / self.scaled.half[self.columns]
        return center - Y @ self.scaled.middle, Y, room


class _RobustProgram:
    """The finite form of "every row has room t over its region". Columns: y (m), Y (m c), t, then helpers."""

    def __init__(
        self,
        rows: Sequence[_Weighted],
        boxes: Sequence[tuple[Array, Array, Array, Array]],
        columns: npt.NDArray[np.intp],
        m: int,
    ) -> None:
        self.m, self.c = m, len(columns)
        self.unit = max([abs(row.h) / row.norm for row in rows], default=0.0) or 1.0
        self.n = m + m * self.c + 1
        self.triplets: list[tuple[int, int, float]] = []
        self.bounds: list[float] = []
        self.free: list[bool] = [True] * self.n
        for row in rows:
            self._add(row, boxes[row.region], columns)

    def _variable(self, *, free: bool) -> int:
        self.free.append(free)
        self.n += 1
        return self.n - 1

    def _add(self, row: _Weighted, box: tuple[Array, Array, Array, Array], columns: npt.NDArray[np.intp]) -> None:
        low, high, A, a = box
        g, s, h = row.g / row.norm, row.s / row.norm, row.h / row.norm
        touching = [r for r in range(len(A)) if (A[r, columns] != 0).any()]
        multipliers = [self._variable(free=False) for _ in touching]
        main = self._row(h / self.unit)
        self.triplets.extend((main, int(k), float(g[k])) for k in np.flatnonzero(g))
        self.triplets.append((main, self.m + self.m * self.c, 1.0))
        for r, mu in zip(touching, multipliers, strict=True):
            self.triplets.append((main, mu, float(a[r])))
        for position, i in enumerate(columns.tolist()):
            priced = self._variable(free=True)
            self.triplets.append((main, priced, 1.0))
            for end in (float(low[i]), float(high[i])):
                # end * e_i - p_i <= 0, with the constant part s_i of e_i on the right
                number = self._row(-end * float(s[i]) / self.unit)
                self.triplets.append((number, priced, -1.0))
                self.triplets.extend(
                    (number, self.m + int(k) * self.c + position, end * float(g[k])) for k in np.flatnonzero(g)
                )
                self.triplets.extend(
                    (number, mu, -end * float(A[r, i])) for r, mu in zip(touching, multipliers, strict=True) if A[r, i]
                )

    def _row(self, bound: float) -> int:
        self.bounds.append(bound)
        return len(self.bounds) - 1

    def _matrix(self) -> Matrix:
        rows, cols, values = zip(*self.triplets, strict=True) if self.triplets else ((), (), ())
        places = np.array(rows, dtype=np.intp), np.array(cols, dtype=np.intp)
        return sparse.csr_matrix((np.array(values, dtype=np.float64), places), (len(self.bounds), self.n))

    def _limits(self, low_room: float, high_room: float) -> tuple[Array, Array]:
        lower = np.where(self.free, -np.inf, 0.0)
        upper = np.full(self.n, np.inf)
        t = self.m + self.m * self.c
        lower[t], upper[t] = low_room / self.unit, high_room / self.unit
        return lower, upper

    def most_room(self, cap: float) -> tuple[Array, Array, float] | None:
        objective = np.zeros(self.n)
        objective[self.m + self.m * self.c] = -1.0
        lower, upper = self._limits(-np.inf, cap)
        sides = np.full(len(self.bounds), -np.inf)
        found = solve(LinearProgram(objective, self._matrix(), sides, np.array(self.bounds), lower, upper))
        return self._read(found.x if found.status is Status.OPTIMAL else None)

    def nearest(self, room: float, target: Array) -> tuple[Array, Array, float] | None:
        weight = np.zeros(self.n)
        weight[: self.m] = 1.0
        weight[self.m : self.m + self.m * self.c] = 0.1
        P = sparse.diags(np.maximum(weight, 1e-8), format="csr")
        q = np.zeros(self.n)
        q[: self.m] = -target / self.unit
        lower, upper = self._limits(room, np.inf)
        sides = np.full(len(self.bounds), -np.inf)
        found = solve(QuadraticProgram(P, q, self._matrix(), sides, np.array(self.bounds), lower, upper))
        return self._read(found.x if found.status is Status.OPTIMAL else None)

    def _read(self, x: Array | None) -> tuple[Array, Array, float] | None:
        if x is None:
            return None
        m, c = self.m, self.c
        return x[:m] * self.unit, x[m : m + m * c].reshape(m, c) * self.unit, float(x[m + m * c]) * self.unit


def clause_weights(clause: PlainClause, y0: Array, Y: Array, region: Region) -> tuple[Array, float] | None:
    """Return the weights (J,) under which a clause has the most room at y0 + Y x over a region, and that room.

    The dual of: maximize min_j (g_j.(y0 + Y x) + s_j.x - h_j) over x. None if the solver gave no optimum.
    """
    count, d = len(clause.literals), Y.shape[1]
    slopes, offsets = _literals_at(clause, y0, Y)
    domain = region.domain
    half = np.maximum((domain.high - domain.low) / 2, 1e-300)
    middle = (domain.low + domain.high) / 2
    size = max(float(np.abs(slopes * half).max(initial=0.0)), float(np.abs(offsets).max())) or 1.0
    A = np.zeros((count + len(region.a), d + 1))
    A[:count, :d], A[:count, d] = slopes * half / size, -1.0
    scaled = region.A * half
    norms = np.maximum(np.abs(scaled).max(axis=1, initial=0.0), 1e-300)
    A[count:, :d] = scaled / norms[:, None]
    low = np.concatenate([-(offsets + slopes @ middle) / size, np.full(len(region.a), -np.inf)])
    high = np.concatenate([np.full(count, np.inf), (region.a - region.A @ middle) / norms])
    found = solve(
        LinearProgram(
            np.array([*np.zeros(d), -1.0]),
            A,
            low,
            high,
            np.array([*np.full(d, -1.0), -np.inf]),
            np.array([*np.ones(d), np.inf]),
        )
    )
    if found.status is not Status.OPTIMAL or found.row_duals is None:
        return None
    weights = np.maximum(found.row_duals[:count], 0.0)
    if not weights.sum() > 0:
        return None
    weights /= weights.sum()
    top, _, _ = RegionMaximum(region)((weights @ slopes)[None])
    return weights, -float(top[0] + weights @ offsets)


def _literals_at(clause: PlainClause, y0: Array, Y: Array) -> tuple[Array, Array]:
    """Return each literal's excess at y0 + Y x as an affine function of x. Shapes: (J, d), (J,)."""
    slopes = np.zeros((len(clause.literals), Y.shape[1]))
    offsets = np.zeros(len(clause.literals))
    for j, lit in enumerate(clause.literals):
        slopes[j] = lit.g @ Y[lit.outputs]
        slopes[j, lit.inputs] += lit.s
        offsets[j] = lit.g @ y0[lit.outputs] - lit.h
    return slopes, offsets


def evaluate_affine(need: CellRules, found: CandidateCenter) -> tuple[list[Array], Array, Array]:
    """Return (weights, g, slacks) of all clauses at an affine center, slacks priced over their regions."""
    assert found.Y is not None
    supports = [RegionMaximum(need.polytopes.intersection(active)) for active in need.regions]
    g = np.zeros((len(need.clauses), len(found.y0)))
    slacks = np.zeros(len(need.clauses))
    for c, (clause, weights) in enumerate(zip(need.clauses, found.weights, strict=True)):
        slopes, offsets = _literals_at(clause, found.y0, found.Y)
        top, _, _ = supports[clause.region]((weights @ slopes)[None])
        slacks[c] = -float(top[0] + weights @ offsets)
        for w, lit in zip(weights, clause.literals, strict=True):
            g[c, lit.outputs] += w * lit.g
    return list(found.weights), g, slacks
