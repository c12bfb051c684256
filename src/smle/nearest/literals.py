"""Chooses one literal of each clause: branch and bound with a callback, and a MILP for constant outputs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.nearest.clauses import tied_together
from smle.solvers import MixedIntegerProgram, solve

__all__ = ["ChosenLiterals", "SearchNode", "branch_and_bound", "choose_literals"]

Array = npt.NDArray[np.float64]
Answer = TypeVar("Answer")
Literal = TypeVar("Literal")


@dataclass(frozen=True, eq=False)
class SearchNode(Generic[Answer, Literal]):
    """The cheapest answer under the chosen literals, its cost, and the literals of a clause it breaks, if any."""

    cost: float
    answer: Answer
    broken: Sequence[Literal] = ()


@dataclass(frozen=True, eq=False)
class ChosenLiterals(Generic[Answer]):
    """The best answer, or None. If `ended`, there is no better one; otherwise the limit cut the search."""

    answer: Answer | None
    cost: float
    nodes: int
    ended: bool


def branch_and_bound(
    solve: Callable[[tuple[Literal, ...]], SearchNode[Answer, Literal] | None],
    *,
    max_nodes: int,
    below: float = float("inf"),
    enough: float = float("-inf"),
    best_first: bool = False,
) -> ChosenLiterals[Answer]:
    """Return the cheapest answer that breaks no clause.

    Args:
        solve: Returns the cheapest answer under the chosen literals, or None if there is none. More literals never make
            it cheaper, so its cost is a bound. A broken clause is branched on, its first literal first.
        max_nodes: The most calls of `solve`.
        below: Only answers that cost less count.
        enough: End with the first answer that costs no more than this.
        best_first: Continue from the cheapest node; otherwise depth first.
    """
    best: Answer | None = None
    cost, nodes, count = below, 0, 0
    heap: list[tuple[Any, int, float, tuple[Literal, ...]]] = [(0, 0, float("-inf"), ())]
    while heap and nodes < max_nodes and cost > enough:
        *_, bound, chosen = heapq.heappop(heap)
        if bound >= cost:
            continue
        nodes += 1
        node = solve(chosen)
        if node is None or not node.cost < cost:
            continue
        if not node.broken:
            best, cost = node.answer, node.cost
            continue
        for literal in node.broken if best_first else reversed(node.broken):
            count += 1
            heapq.heappush(heap, (node.cost if best_first else -count, count, node.cost, (*chosen, literal)))
    return ChosenLiterals(best, cost, nodes, cost <= enough or all(bound >= cost for *_, bound, _ in heap))


def choose_literals(
    g: Array, h: Array, owner: npt.NDArray[np.intp], *, near: Array, reach: Array, room: Array, most: float
) -> npt.NDArray[np.intp] | None:
    """Return for each clause the literal that holds best at a constant output with room in one literal of each.

    Literals `g.y <= h` have shapes g (k, m), h (k,); `owner` (k,) is the clause of each, `room` (k,) the share of the
    room it keeps, up to `most`. Outputs stay within `reach` (m,) of `near` (m,). Clauses that share no output are
    searched apart, and equal searches run once. None if no such output was found.
    """
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(int(owner.max()) + 1))
    chosen, known = order[starts], dict[bytes, npt.NDArray[np.intp] | None]()
    used = np.zeros((len(starts), g.shape[1]), dtype=bool)
    np.logical_or.at(used, owner, g != 0)
    for outputs in tied_together([np.flatnonzero(row).tolist() for row in used], [], g.shape[1]):
        own = np.flatnonzero(np.asarray(used[:, outputs].any(axis=1))[owner])
        clauses, local = np.unique(owner[own], return_inverse=True)
        if len(clauses) == len(own):  # single literals leave no choice
            continue
        asked = (g[np.ix_(own, outputs)], h[own], local, near[outputs], reach[outputs], room[own])
        key = b"".join(np.ascontiguousarray(part).tobytes() for part in asked) + bytes(str(len(outputs)), "ascii")
        if key not in known:
            known[key] = _best_literals(*asked, most)
        best = known[key]
        if best is None:
            return None
        chosen[clauses] = own[best]
    return chosen


def _best_literals(
    g: Array, h: Array, owner: npt.NDArray[np.intp], near: Array, reach: Array, room: Array, most: float
) -> npt.NDArray[np.intp] | None:
    """Choose by a MILP over the output, its distance from `near`, the room (which counts most) and literals."""
    k, m = g.shape
    clauses = int(owner.max()) + 1
    big = np.abs(g) @ (np.abs(near) + reach) + np.abs(h) + most * room
    eye, members = sparse.identity(m), sparse.csr_matrix((np.ones(k), (owner, np.arange(k))), (clauses, k))
    A = sparse.bmat(
        [
            [sparse.csr_matrix(g), None, sparse.csr_matrix(room[:, None]), sparse.diags(big)],
            [None, None, None, -members],
            [eye, -eye, None, None],
            [-eye, -eye, None, None],
        ],
        format="csr",
    )
    upper = np.concatenate([h + big, -np.ones(clauses), near, -near])
    program = MixedIntegerProgram(
        np.concatenate([np.zeros(m), 1.0 / reach, [-100.0 * m / most], np.zeros(k)]),
        A,
        np.full(len(upper), -np.inf),
        upper,
        np.concatenate([near - reach, np.zeros(m + 1 + k)]),
        np.concatenate([near + reach, reach, [most], np.ones(k)]),
        np.arange(2 * m + 1 + k) > 2 * m,
    )
    x = solve(program, time_limit=10.0).x
    if x is None or not np.isfinite(x).all() or not x[2 * m] > 0:
        return None
    excess = (g @ x[:m] - h) / np.abs(g).sum(axis=1)
    order = np.lexsort((excess, owner))
    return order[np.searchsorted(owner[order], np.arange(clauses))]
