"""Nearest points of unions of polyhedra, for many points at once, searched to the end.

    minimize ||y' - y||^2   subject to   one literal of each clause, G y' <= h        (h may differ from point to point)

What `polyhedra` does not find for the literals chosen goes to the QP solver.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.nearest.literals import SearchNode, branch_and_bound
from smle.nearest.polyhedra import Polyhedron
from smle.quiet import quiet
from smle.solvers import QuadraticProgram, Status, solve

__all__ = ["Choices", "nearest_in_union"]

Array = npt.NDArray[np.float64]

_TOLERANCE = 1e-11
_AT_ONCE = 4096
SHARED_NODES = 5_000
"""Choices of literals tried for all points together, before the rest is searched point by point."""
MAX_NODES = 20_000
"""Choices of literals tried for one point."""


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
    points = _nearest(G[list(chosen)], H[:, list(chosen)], Y[rows]) if chosen else Y[rows].copy()
    distance = ((points - Y[rows]) ** 2).sum(axis=1)
    room = H - points @ G.T + 1e-9 * (1 + np.abs(H).max(axis=1, initial=0.0))[:, None]
    worst, broken = np.zeros(len(rows)), np.full(len(rows), -1)
    for c, clause in enumerate(choices.clauses):
        if len(clause) > 1:
            held = room[:, list(clause)].max(axis=1)
            broken = np.where(held < worst, c, broken)
            worst = np.minimum(held, worst)
    return points, distance, broken


@quiet
def _nearest(G: Array, H: Array, Y: Array) -> Array:
    """Return the nearest points (n, m) that satisfy all rows, NaN where none was found."""
    result, polyhedron = Y.copy(), Polyhedron(G, np.ones(Y.shape[1]), once=True)
    size = 1 + np.abs(H).max(axis=1) + np.abs(Y).max(axis=1)
    todo = np.flatnonzero((Y @ G.T > H).any(axis=1))
    for rows in np.split(todo, range(_AT_ONCE, len(todo), _AT_ONCE)):
        unit = size[rows, None]
        points, *_ = polyhedron.nearest(Y[rows] / unit, H[rows] / unit, np.ones((len(rows), len(G)), dtype=bool))
        result[rows] = points * unit
    for row in np.flatnonzero((result @ G.T - H).max(axis=1) > _TOLERANCE * size):
        result[row] = _by_solver(G, H[row], Y[row])
    return result


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
