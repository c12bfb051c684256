"""Affine centers y0 + Y x, for rules that mention inputs on the side of the outputs.

For weights lambda (g, s, h are the weighted sums) "room t over Q for all x" is a robust row of a head without
embedding (`robust`), so center and multipliers come from one linear program. Inputs are scaled to [-1, 1] inside.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from smle.guarantees.box.center_search import MINIMUM_ROOM, CandidateCenter
from smle.guarantees.box.robust import Layout, RobustRow, roomy_center
from smle.guarantees.regions.cell_rules import CellRules, PlainClause
from smle.guarantees.regions.geometry import Domain, Region, RegionMaximum
from smle.solvers import LinearProgram, Status, solve

__all__ = ["AffineSearch", "clause_weights", "evaluate_affine"]

Array = npt.NDArray[np.float64]

MAX_NODES = 200
_ALTERNATIONS = 20
_ENOUGH = 0.05
_KEEP = 0.98


class _Scaled:
    """Regions with inputs scaled to the domain: x = middle + half * xi, xi in [-1, 1]."""

    def __init__(self, need: CellRules) -> None:
        domain = need.polytopes.domain
        half = (domain.high - domain.low) / 2
        self.middle, self.half = (domain.low + domain.high) / 2, np.where(half > 0, half, 1.0)
        self.polytopes = [need.polytopes.intersection(active) for active in need.regions]
        self.regions = [self._scaled(region) for region in self.polytopes]

    def _scaled(self, region: Region) -> Region:
        low, high = ((end - self.middle) / self.half for end in (region.domain.low, region.domain.high))
        A, a = region.A * self.half, region.a - region.A @ self.middle
        norms = np.maximum(np.abs(A).max(axis=1, initial=0.0), 1e-300)
        domain = Domain(low, high, np.maximum(np.abs(low), np.abs(high)))
        return Region(domain, region.numbers, A / norms[:, None], a / norms)

    def row(self, clause: PlainClause, weights: Array, m: int) -> RobustRow:
        """Return a clause under weights on scaled inputs, divided by the length of its output part."""
        g, s, h = np.zeros(m), np.zeros(len(self.middle)), 0.0
        for w, lit in zip(weights, clause.literals, strict=True):
            g[lit.outputs] += w * lit.g
            s[lit.inputs] += w * lit.s
            h += w * lit.h
        norm = float(np.sqrt(g @ g)) or max(lit.norm for lit in clause.literals)
        h -= float(s @ self.middle)
        return RobustRow(g / norm, s * self.half / norm, h / norm, self.regions[clause.region])


class AffineSearch:
    """Depth-first over literals with a robust LP at each node; then alternation of weights and center."""

    def __init__(self, need: CellRules, target: Array, *, prefers: bool, share: float) -> None:
        self.need, self.target, self.prefers, self.share = need, target, prefers, share
        self.m = len(target)
        self.scaled = _Scaled(need)
        self.used = self._used()
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

    def _used(self) -> npt.NDArray[np.bool_]:
        """The inputs that the center may use (d,): those of x-terms, and those that oblique rows tie to them."""
        used = np.zeros(len(self.scaled.middle), dtype=bool)
        for clause in self.need.clauses:
            for lit in clause.literals:
                used[lit.inputs] = True
        grown = True
        while grown:
            before = used.sum()
            for region in self.scaled.polytopes:
                for row in region.A != 0:
                    if row.sum() > 1 and (row & used).any():
                        used |= row
            grown = used.sum() > before
        return used

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
            if evaluate_affine(self.need, found).min(initial=np.inf) > 0:
                return found
        return None

    def _solve(self, weights: dict[int, Array], keep: float | None = None) -> tuple[Array, Array, float] | None:
        """Maximize the room for given weights; with `keep`, go as near to the target as this room allows.

        Returns (y0, Y, room) in the user's units, or None if the solver gave no optimum.
        """
        rows = [self.scaled.row(self.need.clauses[c], w, self.m) for c, w in sorted(weights.items())]
        unit = max([abs(row.h) for row in rows], default=0.0) or 1.0
        rows = [replace(row, s=row.s / unit, h=row.h / unit) for row in rows]
        d = len(self.scaled.middle)
        layout = Layout(self.m, 0, d, True)
        near = None
        if keep is not None:
            near = np.hstack([np.zeros((self.m, d)), self.target[:, None] / unit]).reshape(-1)
        room = (-np.inf, self.cap / unit) if keep is None else (keep / unit, np.inf)
        found = roomy_center(rows, layout, room=room, near=near, used=self.used)
        if found is None:
            return None
        table = unit * found[0].reshape(self.m, d + 1)
        Y = table[:, :-1] / self.scaled.half
        return table[:, -1] - Y @ self.scaled.middle, Y, unit * found[1]


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


def evaluate_affine(need: CellRules, found: CandidateCenter) -> Array:
    """Return the room of all clauses at an affine center, priced over their regions (k,)."""
    assert found.Y is not None
    supports = [RegionMaximum(need.polytopes.intersection(active)) for active in need.regions]
    slacks = np.zeros(len(need.clauses))
    for c, (clause, weights) in enumerate(zip(need.clauses, found.weights, strict=True)):
        slopes, offsets = _literals_at(clause, found.y0, found.Y)
        top, _, _ = supports[clause.region]((weights @ slopes)[None])
        slacks[c] = -float(top[0] + weights @ offsets)
    return slacks
