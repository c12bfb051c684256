"""Nearest points of polyhedra and of unions of polyhedra, for many points at once.

    minimize ||y' - y||^2   subject to   G y' <= h        (h may differ from point to point)

An active-set method, batched over points, starts from the broken rows and solves equality-constrained problems until
the KKT conditions hold. The rest goes to the QP solver.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.nearest.literals import SearchNode, branch_and_bound
from smle.nearest.polyhedra import tight_multipliers
from smle.solvers import QuadraticProgram, Status, solve

__all__ = ["Choices", "nearest_in_polyhedron", "nearest_in_union"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_ROUNDS = 30
_TOLERANCE = 1e-11
SHARED_NODES = 5_000
"""Choices of literals tried for all points together, before the rest is searched point by point."""
MAX_NODES = 20_000
"""Choices of literals tried for one point."""


def nearest_in_polyhedron(G: Array, H: Array, Y: Array) -> Array:
    """Return the nearest points, NaN where none was found. Shapes: G (k, m) rows of norm 1, H (n, k), Y (n, m)."""
    result = Y.copy()
    scale = 1 + np.abs(H).max(axis=1, initial=0.0) + np.abs(Y).max(axis=1, initial=0.0)
    todo = np.flatnonzero((Y @ G.T > H).any(axis=1))
    if not len(todo):
        return result
    if len(G) == 1:
        over = Y[todo] @ G[0] - H[todo, 0]
        result[todo] = Y[todo] - over[:, None] * G[0]
        return result
    for start in range(0, len(todo), 4096):
        part = todo[start : start + 4096]
        points, solved = _active_set(G, H[part], Y[part], scale[part])
        result[part] = points
        for k in part[~solved]:
            result[k] = _by_solver(G, H[k], Y[k])
    return result


def _active_set(G: Array, H: Array, Y: Array, scale: Array) -> tuple[Array, Mask]:
    """Return points (n, m) and a mask of those that satisfy the KKT conditions within rounding."""
    k = len(G)
    gram = G @ G.T + 1e-13 * np.eye(k)
    excess = Y @ G.T - H
    active = excess > 0
    points, done = Y.copy(), np.zeros(len(Y), dtype=bool)
    for _ in range(_ROUNDS):
        open_ = np.flatnonzero(~done)
        if not len(open_):
            break
        on = active[open_]
        multipliers = tight_multipliers(gram, excess[open_], on)
        moved = Y[open_] - multipliers @ G
        left = moved @ G.T - H[open_]
        tolerance = _TOLERANCE * scale[open_][:, None]
        negative, broken = multipliers < -tolerance, (left > tolerance) & ~on
        fine = ~negative.any(axis=1) & (left <= tolerance).all(axis=1)
        points[open_], done[open_] = moved, fine
        # Drop the most negative multiplier, or else add the row broken most.
        worst = np.where(negative, multipliers, 0.0).argmin(axis=1)
        most = np.where(broken, left, -np.inf).argmax(axis=1)
        span = np.arange(len(open_))
        drops = negative.any(axis=1)
        adds = ~drops & broken.any(axis=1)
        on[span[drops], worst[drops]] = False
        on[span[adds], most[adds]] = True
        active[open_] = on
    return points, done


def _by_solver(G: Array, h: Array, y: Array) -> Array:
    unit = max(float(np.abs(h).max(initial=0.0)), float(np.abs(y).max(initial=0.0))) or 1.0
    m = len(y)
    free = np.full(m, np.inf)
    found = solve(QuadraticProgram(np.eye(m), -y / unit, G, np.full(len(h), -np.inf), h / unit, -free, free))
    if found.status is not Status.OPTIMAL or found.x is None:
        return np.full(m, np.nan)
    point: Array = found.x * unit
    if (G @ point - h).max(initial=0.0) > 1e-6 * (1 + unit):
        return np.full(m, np.nan)
    return point


@dataclass(frozen=True, eq=False)
class Choices:
    """Rows of all literals, and clauses as lists of row numbers, of which at least one must hold.

    Shapes: G (k, m) rows of norm 1; H (n, k) bounds per point.
    """

    G: Array
    H: Array
    clauses: tuple[tuple[int, ...], ...]


def nearest_in_union(choices: Choices, Y: Array) -> Array:
    """Return the nearest points that satisfy all clauses, NaN where none was found. Shape: Y (n, m).

    Branch and bound over literals: the nearest point that satisfies those chosen so far bounds the distance from below,
    and the clause it breaks most is branched on. Points with the same choice go together, depth first; those that stay
    open are searched one by one, best first. If such a search does not end, a warning says so.
    """
    units = tuple(clause[0] for clause in choices.clauses if len(clause) == 1)
    best, cost = np.full_like(Y, np.nan), np.full(len(Y), np.inf)
    stack: list[tuple[npt.NDArray[np.intp], tuple[int, ...]]] = [(np.arange(len(Y)), units)]
    for _ in range(SHARED_NODES):
        if not stack:
            return best
        rows, chosen = stack.pop()
        points, distance, broken = _node(choices, Y, rows, chosen)
        keep = distance < cost[rows]  # also drops NaN
        rows, points, distance, broken = rows[keep], points[keep], distance[keep], broken[keep]
        done = broken < 0
        best[rows[done]], cost[rows[done]] = points[done], distance[done]
        for c in np.unique(broken[~done]):
            same = rows[broken == c]
            literals = list(choices.clauses[c])
            room = choices.H[same][:, literals] - points[broken == c] @ choices.G[literals].T
            # Pushed last, the nearest literal is tried first.
            stack.extend((same, (*chosen, literals[j])) for j in np.argsort(room.mean(axis=0)))
    unsure = 0
    for row in np.unique(np.concatenate([rows for rows, _ in stack])):

        def solve(chosen: tuple[int, ...], row: npt.NDArray[np.intp] = row[None]) -> SearchNode[Array, int]:
            points, distance, broken = _node(choices, Y, row, (*units, *chosen))
            return SearchNode(float(distance[0]), points[0], () if broken[0] < 0 else choices.clauses[broken[0]])

        found = branch_and_bound(solve, max_nodes=MAX_NODES, below=float(cost[row]), best_first=True)
        best[row] = best[row] if found.answer is None else found.answer
        unsure += not found.ended
    if unsure:
        warnings.warn(
            f"The search for the nearest allowed outputs was cut off for {unsure:,} of {len(Y):,} rows. Their outputs "
            "are allowed but may not be the nearest; they are NaN where no allowed ones were found.",
            stacklevel=2,
        )
    return best


def _node(
    choices: Choices, Y: Array, rows: npt.NDArray[np.intp], chosen: tuple[int, ...]
) -> tuple[Array, Array, npt.NDArray[np.intp]]:
    """Return (nearest points for chosen literals, squared distances, the clause broken most or -1)."""
    G, H = choices.G, choices.H[rows]
    points = nearest_in_polyhedron(G[list(chosen)], H[:, list(chosen)], Y[rows]) if chosen else Y[rows].copy()
    distance = ((points - Y[rows]) ** 2).sum(axis=1)
    room = H - points @ G.T + 1e-9 * (1 + np.abs(H).max(axis=1, initial=0.0))[:, None]
    worst, broken = np.zeros(len(rows)), np.full(len(rows), -1)
    for c, clause in enumerate(choices.clauses):
        if len(clause) > 1:
            held = room[:, list(clause)].max(axis=1)
            broken = np.where(held < worst, c, broken)
            worst = np.minimum(held, worst)
    return points, distance, broken
