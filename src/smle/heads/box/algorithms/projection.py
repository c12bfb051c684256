"""Exact projection: the nearest head that is proved safe, by one convex quadratic program per cell.

For given weights lambda on the literals of each clause, the safe heads form a polyhedron (`robust`), so the nearest one
is a QP. The rounding margin of the deployed float32 program is part of the constraints. The optimum is rounded to
float32, moved toward a strictly safe center if needed, and judged again by `verify`. For clauses with several literals,
weights and head are optimized in turn; the distance never increases. The paper's own projection is in `pdcg`, the best
safe head for given data in `refitting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.linalg import spsolve

from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.heads.box.proof.verdict import Verdicts
from smle.heads.box.proof.verify import verify
from smle.regions.cells import Cells
from smle.regions.robust import Layout, RobustRow, RobustRows, robust_rows, roomy_center
from smle.rules import Specification
from smle.solvers import Matrix, QuadraticProgram, Solution, Status, solve

__all__ = ["HeadResult", "Objective", "Projection", "nearest_safe_head", "project", "safe_center", "safe_head"]

Array = npt.NDArray[np.float64]

_SOLVER_SHARE = 1e-8
"""Share of a row's terms reserved for the feasibility tolerance of the QP solver."""

_USUAL = 1e4  # rescale only if limits are larger than this, or smaller than one over it
_PAIR_ROUNDS = 20


@dataclass(frozen=True, eq=False)
class Objective:
    """1/2 theta' P theta + q . theta over the parameters of one head (layout of `robust.Layout`), plus a constant."""

    P: Matrix
    q: Array
    constant: float = 0.0

    @classmethod
    def distance(cls, theta: Array) -> Objective:
        """Return half the squared distance to given parameters."""
        return cls(sparse.identity(len(theta), format="csr"), -theta, 0.5 * float(theta @ theta))

    def value(self, theta: Array) -> float:
        """Evaluate the objective."""
        return float(0.5 * (theta @ (self.P @ theta)) + self.q @ theta) + self.constant

    def minimum(self) -> Array:
        """Return the unconstrained minimizer."""
        return np.asarray(spsolve(self.P.tocsc(), -self.q))


@dataclass(frozen=True, eq=False)
class HeadResult:
    """A float32 head and its objective, or None and the reason."""

    head: Head | None
    value: float = float("nan")
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Projection:
    """Projected heads, their verdicts, and the result for each head (None for the free cell)."""

    over: FrozenHeads
    verdicts: Verdicts
    heads: tuple[HeadResult | None, ...]

    @property
    def distance(self) -> float:
        """Euclidean distance the parameters moved, over all heads."""
        return float(np.sqrt(sum(2 * max(0.0, r.value) for r in self.heads if r is not None)))

    @property
    def succeeded(self) -> bool:
        """Whether every obligation of the projected heads is proved."""
        return self.verdicts.hold


def project(over: FrozenHeads, spec: Specification, cells: Cells, *, margin: float = 0.0) -> Projection:
    """Return the nearest safe heads (squared Euclidean distance of the parameters), cell by cell.

    A head that is already safe with the given margin is returned unchanged.

    Args:
        over: The heads to project, with their bounds.
        spec: The rules.
        cells: The regions and cells of the rules.
        margin: Extra room to keep in every clause, in the units of its left-hand sides.
    """
    results = tuple(
        None if head is None else nearest_safe_head(head, HeadProblem.of(over, spec, cells, c), margin=margin)
        for c, head in enumerate(over.heads)
    )
    heads = tuple(
        head if result is None or result.head is None else result.head
        for head, result in zip(over.heads, results, strict=True)
    )
    projected = replace(over, heads=heads)
    return Projection(projected, verify(projected, spec, cells), results)


def nearest_safe_head(head: Head, problem: HeadProblem, *, margin: float = 0.0) -> HeadResult:
    """Return the safe head nearest to a given one: the same head if it is safe."""
    if problem.safe(head, margin):
        return HeadResult(head, 0.0)
    return safe_head(Objective.distance(head.vector()), problem, current=head, margin=margin)


def safe_head(
    objective: Objective, problem: HeadProblem, *, current: Head, margin: float = 0.0, rounds: int = 8
) -> HeadResult:
    """Minimize a convex quadratic function of a head's parameters over the safe heads.

    Weights lambda start as the best ones at `current`; after each QP they are the best ones at its optimum. If
    `current` is safe, the result is never worse (up to rounding). `rounds` limits the QPs; only clauses with several
    literals need more than one.
    """
    for _ in range(_PAIR_ROUNDS):
        known = len(problem.pairs)
        result = _take_turns(objective, problem, current=current, margin=margin, rounds=rounds)
        # Exclusions are added when found broken; without new ones, repeating changes nothing.
        if result.head is not None or len(problem.pairs) == known:
            return result
    return result


def _take_turns(objective: Objective, problem: HeadProblem, *, current: Head, margin: float, rounds: int) -> HeadResult:
    """Optimize weights and head in turn until the objective stops falling."""
    layout = problem.layout(current)
    safe = problem.safe(current, margin)
    weights = problem.weights(current)
    if not safe:
        admissible = _admissible(problem, weights, current)
        if admissible is None:
            return HeadResult(None, reason="no output was found that satisfies all clauses of the cell with some room")
        weights = admissible
    best: _Optimum | None = None
    reference, reason = current, ""
    for _ in range(rounds):
        found = _optimum(objective, problem, layout, weights=weights, reference=reference, first=current, margin=margin)
        if isinstance(found, Solution):
            reason = f"the QP failed: {found.status} ({found.message})"
            break
        if best is not None and not found.value < best.value - 1e-9 * (1.0 + abs(best.value)):
            break
        best = found
        if not problem.several:
            break
        reference = Head.from_vector(found.theta, current)
        weights = problem.weights(reference)
    if best is None:
        return HeadResult(None, reason=reason)
    return _deploy(objective, problem, layout, best, current=current, margin=margin)


@dataclass(frozen=True, eq=False)
class _Optimum:
    value: float
    theta: Array
    rows: list[RobustRow]


def _optimum(
    objective: Objective,
    problem: HeadProblem,
    layout: Layout,
    *,
    weights: list[Array],
    reference: Head,
    first: Head,
    margin: float,
) -> _Optimum | Solution:
    """Solve the QP at given weights; solve it again if the optimum outgrows the assumed rounding margin."""
    for _ in range(4):
        rows = problem.rows(weights, reference, first=first, margin=margin, share=_SOLVER_SHARE)
        found = _solve_lazily(objective, rows, problem, layout)
        if found.status is not Status.OPTIMAL or found.x is None:
            return found
        theta = found.x[: layout.size]
        head = Head.from_vector(theta, reference)
        assumed, needed = problem.numbers(reference).errors, problem.numbers(head).errors
        if (needed <= 1.9 * assumed).all():
            break
        reference = head
    return _Optimum(objective.value(theta), theta, rows)


def _admissible(problem: HeadProblem, weights: list[Array], current: Head) -> list[Array] | None:
    """Replace weights that allow no safe head by single literals that some output satisfies; None if not found."""
    layout = problem.layout(current)
    if _center(problem.rows(weights, current), layout) is not None:
        return weights
    vertices = problem.vertex_weights(current)
    if vertices is None or _center(problem.rows(vertices, current), layout) is None:
        return None
    return vertices


def safe_center(head: Head, problem: HeadProblem) -> Head | None:
    """Return a head with W = 0, proved safe with room, near the answer of a given head; None if not found."""
    layout = problem.layout(head)
    size = max((abs(float(h)) for part in problem.parts for own in part.literals for h in own.h), default=0.0)
    if problem.safe(head, 0.5 * (size or 1.0)):  # also notes the exclusions it breaks
        return head
    for _ in range(_PAIR_ROUNDS):
        known = len(problem.pairs)
        weights = _admissible(problem, problem.weights(head), head)
        center = None if weights is None else _center(problem.rows(weights, head), layout, head.vector())
        if center is None:
            return None
        found = Head.from_vector(center, head)
        if problem.safe(found):
            return found
        if len(problem.pairs) == known:
            return None
    return None


def _solve_lazily(objective: Objective, rows: Sequence[RobustRow], problem: HeadProblem, layout: Layout) -> Solution:
    """Solve the QP, adding rows as they turn out to be violated."""
    unit = _unit(rows)
    active: set[int] = set()
    found = Solution(Status.OPTIMAL, x=objective.minimum())
    for _ in range(60):
        if found.status is not Status.OPTIMAL or found.x is None:
            return found
        excess = problem.row_excess(rows, found.x[: layout.size], layout)
        broken = [int(k) for k in np.flatnonzero(excess > 0) if int(k) not in active]
        if not broken:
            return found
        broken.sort(key=lambda k: -excess[k])
        active.update(broken[: max(64, len(active))])
        safe = robust_rows([rows[k] for k in sorted(active)], problem.envelope, layout)
        found = _solve(objective, safe, layout, unit)
    return Solution(Status.LIMIT, message="rows kept being added")


def _unit(rows: Sequence[RobustRow]) -> float:
    """Return a unit for outputs in which limits are neither huge nor tiny, since solvers have absolute tolerances."""
    largest = max((abs(row.h) for row in rows), default=0.0)
    return 1.0 if largest == 0 or 1 / _USUAL <= largest <= _USUAL else float(2.0 ** np.round(np.log2(largest)))


def _solve(objective: Objective, safe: RobustRows, layout: Layout, unit: float) -> Solution:
    """Solve the QP in the given unit, with its objective divided by the largest curvature."""
    more = safe.A.shape[1] - layout.size
    scale = 1.0 if unit == 1.0 else float(np.abs(objective.P.data).max(initial=0.0)) or 1.0
    P = sparse.block_diag([objective.P / scale, sparse.csr_matrix((more, more))], format="csr")
    q = np.concatenate([objective.q / (scale * unit), np.zeros(more)])
    ends = (end / unit for end in (safe.row_lower, safe.row_upper, safe.lower, safe.upper))
    problem = QuadraticProgram(P, q, safe.A, *ends)
    found = solve(problem)
    if found.status is not Status.OPTIMAL:
        second = solve(problem, backend="highs", time_limit=30.0)
        found = second if second.status is Status.OPTIMAL else found
    return found if found.x is None else replace(found, x=unit * found.x)


def _deploy(
    objective: Objective, problem: HeadProblem, layout: Layout, best: _Optimum, *, current: Head, margin: float
) -> HeadResult:
    """Round to float32, then move toward a safe center until the proof succeeds."""
    center = None
    for step in range(-1, 25):
        if step == 0:
            center = _center(best.rows, layout, best.theta)
            if center is None:
                break
        alpha = 1.0 if center is None else 1.0 - min(1.0, 1e-7 * 2.0**step)
        moved = best.theta if center is None else center + alpha * (best.theta - center)
        head = Head.from_vector(moved, current)
        if head.fallback is not None and not problem.fallback_safe(head.fallback):
            middle = best.theta if center is None else center
            head = replace(head, fallback=problem.central_output(Head.from_vector(middle, current)))
        if problem.safe(head, margin):
            return HeadResult(head, objective.value(head.vector()))
    reason = "the rounded optimum could not be proved" if center is not None else "no center is strictly safe"
    return HeadResult(None, reason=reason)


def _center(rows: Sequence[RobustRow], layout: Layout, near: Array | None = None) -> Array | None:
    """Return parameters with W = 0 that satisfy all rows with room to spare, as a full vector; or None.

    With `near`, return the nearest ones that keep half of the largest room.
    """
    small = Layout(layout.outputs, 0, layout.inputs, layout.passthrough)
    # 1 for rules about signs alone, whose outputs are logits.
    most = max((abs(row.h) for row in rows), default=0.0) or 1.0
    found = roomy_center(rows, small, room=(0.0, most))
    if found is None or not found[1] > 0:
        return None
    if near is not None:
        target = near.reshape(layout.outputs, -1)[:, layout.width :].reshape(-1)
        found = roomy_center(rows, small, room=(0.5 * found[1], most), gain=0.0, near=target) or found
    table = found[0].reshape(layout.outputs, -1)
    return np.hstack([np.zeros((layout.outputs, layout.width)), table]).reshape(-1)
