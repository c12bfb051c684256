"""The search for a center: which literals, and the point with the most room under them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.guarantees.answers.label_map import most_likely_labels
from smle.guarantees.regions.cell_rules import CellRules, PlainClause, PlainLiteral, negative
from smle.rules import label_columns
from smle.solvers import LinearProgram, QuadraticProgram, Status, solve

__all__ = ["MINIMUM_ROOM", "CandidateCenter", "CenterSearch", "best_weights", "evaluate"]

Array = npt.NDArray[np.float64]

MINIMUM_ROOM = 1e-6
"""Smallest room, relative to the size of the rules' constants, that leaves space for float32 rounding."""

MAX_NODES = 2000
_ENOUGH = 0.05  # a clause holds by itself if it has this share of the room of the chosen rows
_KEEP = 0.98  # share of the most room that is kept when moving toward the preferred point


@dataclass(frozen=True, eq=False)
class CandidateCenter:
    """A center y0 + Y x and its smallest room; for an affine one also the weights of literals per clause."""

    y0: Array
    Y: Array | None
    room: float
    weights: tuple[Array, ...] = ()


def evaluate(need: CellRules, y: Array) -> Array:
    """Return the room of all clauses at a constant center, each under its best weights (k,)."""
    slacks = np.zeros(len(need.clauses))
    for c, clause in enumerate(need.clauses):
        for w, lit in zip(best_weights(clause, y), clause.literals, strict=True):
            slacks[c] += w * (lit.h - lit.g @ y[lit.outputs])
    return slacks


def best_weights(clause: PlainClause, y: Array) -> Array:
    """Return the weights (J,) of the half-space that is farthest from y among those that imply the clause.

    All literals fail on a polytope; the nearest point of it gives the separating half-space. Found by
    minimizing ||G' w||^2 over w >= 0 with w.slack = 1; weights are scaled to sum to 1.
    """
    count = len(clause.literals)
    slack = np.array([lit.h - lit.g @ y[lit.outputs] for lit in clause.literals])
    best = np.zeros(count)
    best[int(np.argmax([s / lit.norm for s, lit in zip(slack, clause.literals, strict=True)]))] = 1.0
    if count == 1 or slack.max() <= 0:
        return best
    if count == 2:
        return _two_weights(clause, slack, best)
    used = np.unique(np.concatenate([lit.outputs for lit in clause.literals]))
    G = np.zeros((count, len(used)))
    for j, lit in enumerate(clause.literals):
        G[j, np.searchsorted(used, lit.outputs)] = lit.g
    scale = slack.max()
    gram = G @ G.T
    gram = (gram + gram.T) / 2 + 1e-9 * np.trace(gram) / count * np.eye(count)
    found = solve(
        QuadraticProgram(gram, np.zeros(count), slack[None] / scale, [1.0], [1.0], [0.0], [np.inf])  # type: ignore[arg-type]
    )
    if found.status is not Status.OPTIMAL or found.x is None:
        return best
    w = np.maximum(found.x, 0.0)
    w[w < 1e-7 * w.max()] = 0.0
    if not w.sum() > 0 or w @ slack <= 0:
        return best
    w /= w.sum()
    mixed, single = np.linalg.norm(w @ G), np.linalg.norm(best @ G)
    return w if (w @ slack) * single >= (best @ slack) * mixed else best


def _two_weights(clause: PlainClause, slack: Array, best: Array) -> Array:
    """Closed form for two literals: w = gram^-1 slack if that is positive, else one of the literals."""
    first, second = clause.literals
    dots = dict(zip(first.outputs.tolist(), first.g.tolist(), strict=True))
    b = sum(dots.get(i, 0.0) * v for i, v in zip(second.outputs.tolist(), second.g.tolist(), strict=True))
    a, c = first.norm**2, second.norm**2
    w = np.array([c * slack[0] - b * slack[1], a * slack[1] - b * slack[0]])
    if a * c - b * b <= 1e-12 * a * c:
        # Parallel: opposite literals that overlap are always true together.
        w = np.array([second.norm, first.norm])
        if b > 0 or w @ slack <= 0:
            return best
    return w / w.sum() if (w > 0).all() else best


class CenterSearch:
    """Depth-first over literals, for rules without x-terms. Variables that no row mentions stay at the target."""

    def __init__(self, need: CellRules, target: Array, *, prefers: bool, share: float) -> None:
        self.need, self.prefers, self.share = need, prefers, share
        self.target = target
        self.cap = need.scale
        self.units = [clause.literals[0] for clause in need.clauses if len(clause.literals) == 1]
        self.open = [clause for clause in need.clauses if len(clause.literals) > 1]
        self.wish = self._with_signs(target)
        self.nodes = 0
        self.tight = False

    def run(self) -> CandidateCenter | None:
        """Return the first center found; one without room if the rules can be met only so; or None."""
        found = self._descend(list(self.units))
        return CandidateCenter(self.target, None, 0.0) if found is None and self.tight else found

    def _with_signs(self, target: Array) -> Array:
        """Give the labels of clauses and exclusions signs that satisfy them all, as near to the target as can be.

        Labels that no clause mentions are off unless wanted, and compatible with others that are wanted more.
        """
        labels = label_columns(self.need.polytopes.spec)
        clauses = [c for c in (_signs(clause, labels) for clause in self.need.clauses) if c is not None]
        pairs = self.need.pairs
        if not clauses and not len(pairs):
            return target.copy()
        mentioned = np.zeros(len(target), dtype=bool)
        mentioned[[label for clause in clauses for label, _ in clause]] = True
        open_ = mentioned.copy()
        mentioned[np.unique(pairs)] = True
        if self.prefers:
            open_ |= _compatible(np.flatnonzero(mentioned & ~open_ & (target > 0)), target, pairs)
        place = np.cumsum(open_) - 1
        inner = place[pairs[open_[pairs].all(axis=1)]].astype(np.int32)
        wanted = target[open_] if self.prefers else np.full(int(open_.sum()), -1.0)
        pattern = most_likely_labels(
            1 / (1 + np.exp(-np.clip(wanted, -12, 12)))[None],
            inner.reshape(-1, 2),
            [[(int(place[label]), on) for label, on in clause] for clause in clauses],
        )[0]
        signs = np.full(len(target), -1.0)
        signs[open_] = np.where(pattern > 0.5, 1.0, -1.0)  # NaN (no pattern at all) counts as off
        wish = target.copy()
        wish[mentioned] = signs[mentioned] * np.maximum(signs[mentioned] * target[mentioned], 1.0)
        return wish

    def _descend(self, rows: list[PlainLiteral]) -> CandidateCenter | None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            return None
        point = place(rows, self.wish, len(self.target), cap=self.cap, share=self.share, prefers=self.prefers)
        if point is None:
            return None
        y, room = point
        if room < MINIMUM_ROOM * self.cap:
            self.tight = True
            return None
        literals = self._broken(y, _ENOUGH * room)
        if literals is None:
            return CandidateCenter(y, None, room)
        for literal in sorted(literals, key=lambda lit: -lit.room(y)):
            found = self._descend([*rows, literal])
            if found is not None:
                return found
        return None

    def _broken(self, y: Array, enough: float) -> Sequence[PlainLiteral] | None:
        """Return the literals of a clause, or of an exclusion, that has too little room at y."""
        for clause in self.open:
            if clause.rooms(y).max() < enough:
                return clause.literals
        pairs = self.need.pairs
        bad = np.flatnonzero((y[pairs] > -min(enough, 1.0)).all(axis=1))
        if not len(bad):
            return None
        return [negative(int(label)) for label in pairs[bad[0]]]


def _compatible(wanted: npt.NDArray[np.intp], weights: Array, pairs: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Choose wanted labels without an exclusion among them, heaviest first. Returns a mask (m,)."""
    keep = np.zeros(len(weights), dtype=bool)
    candidate = np.zeros(len(weights), dtype=bool)
    candidate[wanted] = True
    inner = pairs[candidate[pairs].all(axis=1)]
    neighbors: dict[int, list[int]] = {}
    for h, k in inner.tolist():
        neighbors.setdefault(h, []).append(k)
        neighbors.setdefault(k, []).append(h)
    for label in wanted[np.argsort(-weights[wanted], kind="stable")].tolist():
        keep[label] = not keep[neighbors.get(label, [])].any()
    return keep


def _signs(clause: PlainClause, labels: npt.NDArray[np.bool_]) -> list[tuple[int, bool]] | None:
    """Read a clause about the signs of labels as (label, on) pairs; None if it says something else."""
    read = []
    for lit in clause.literals:
        if len(lit.outputs) != 1 or lit.h != 0 or not labels[lit.outputs[0]]:
            return None
        read.append((int(lit.outputs[0]), bool(lit.g[0] < 0)))
    return read


def place(
    rows: Sequence[PlainLiteral], target: Array, m: int, *, cap: float, share: float, prefers: bool
) -> tuple[Array, float] | None:
    """Return a point (m,) and its room: near the target, with a share of the most room that the rows allow.

    Room 0 means that the rows can be met but leave none. None: they cannot be met together.
    """
    y = target.copy()
    if not rows:
        return y, cap
    used = np.unique(np.concatenate([lit.outputs for lit in rows]))
    G = np.zeros((len(rows), len(used)))
    for r, lit in enumerate(rows):
        G[r, np.searchsorted(used, lit.outputs)] = lit.g / lit.norm
    h = np.array([lit.h / lit.norm for lit in rows])
    most = _most_room(G, h, cap)
    if most is None or most[1] < -MINIMUM_ROOM * 1e-3 * cap:
        return None
    inner, room = most
    if room < MINIMUM_ROOM * cap:
        return y, 0.0
    middle = _toward(G, h - _KEEP * room, target[used], inner)
    if prefers:
        mixed = share * target[used] + (1 - share) * middle
        middle = _toward(G, h - _KEEP * (1 - share) * room, mixed, middle)
    y[used] = middle
    left = float((h - G @ middle).min())
    return (y, min(left, room)) if left > 0 else None


def _most_room(G: Array, h: Array, cap: float) -> tuple[Array, float] | None:
    """Maximize t <= cap with G y + t <= h (unit rows). Return (y, t), or None if the solver gave no optimum."""
    k, n = G.shape
    unit = float(np.abs(h).max()) or 1.0
    program = LinearProgram(
        np.array([*np.zeros(n), -1.0]),
        np.column_stack([G, np.ones(k)]),
        np.full(k, -np.inf),
        h / unit,
        np.full(n + 1, -np.inf),
        np.array([*np.full(n, np.inf), cap / unit]),
    )
    found = solve(program)
    if found.status is not Status.OPTIMAL or found.x is None:
        return None
    y = found.x[:n] * unit
    return y, float(min((h - G @ y).min(), cap))


def _toward(G: Array, h: Array, target: Array, inner: Array) -> Array:
    """Return the point of {G y <= h} nearest to the target; if the solver fails, the last one on the way there."""
    if (G @ target <= h).all():
        return target
    if not (G @ inner <= h).all():
        return inner
    n = len(target)
    unit = max(float(np.abs(target).max(initial=0.0)), float(np.abs(h).max(initial=0.0))) or 1.0
    program = QuadraticProgram(
        np.eye(n), -target / unit, G, np.full(len(h), -np.inf), h / unit, np.full(n, -np.inf), np.full(n, np.inf)
    )
    found = solve(program)
    goal = found.x * unit if found.status is Status.OPTIMAL and found.x is not None else target
    move, left = G @ (goal - inner), h - G @ inner
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(move > 0, left / move, np.inf)
    moved: Array = inner + min(1.0, float(steps.min())) * (goal - inner)
    return moved
