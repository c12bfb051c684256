"""Projection with delayed constraint generation: the paper's Algorithm 1, for linear rules, exclusions and any CNF.

Each of at most n_it iterations finds the strongest counterexample, adds it to a FIFO memory of n_xs points (x, z), and
projects to the nearest head over the memory: a QP for linear rules (equation polytopes_projection), an MIQP for
exclusions (equation mutex_projection).

With P the identity and few rows, the QP is solved through its dual, whose size is the number of rows, and the MIQP by
branching on which literal of a broken clause should hold: the same optimum as the paper's big-M formulation
(studies/formulations.py). Following the supplement, the projection is asked for slightly more than the search checks,
in the units of the rows as stated. Rounding of the deployed float32 program counts as part of the tolerance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from smle.heads.box.algorithms.counterexample import (
    Counterexample,
    Search,
    exclusion_counterexample,
    linear_counterexample,
)
from smle.heads.box.algorithms.head_problem import HeadProblem, RegionObligations
from smle.heads.box.proof.clause_lp import exact_clause_optimum
from smle.heads.box.proof.frozen_heads import Head
from smle.heads.box.proof.worst_case import HeadNumbers, HiddenWidenedBox, rounding_margin
from smle.nearest.literals import SearchNode, branch_and_bound
from smle.rules import Literals
from smle.solvers import LinearProgram, QuadraticProgram, Solution, Status, solve

__all__ = [
    "COSTS",
    "Finder",
    "Memory",
    "Pdcg",
    "Projector",
    "memory_clauses",
    "memory_features",
    "memory_projection",
    "run_pdcg",
    "strongest_counterexample",
]

Array = npt.NDArray[np.float64]
Row = tuple[int, Array, float]
"""(point of the memory, g (m,), right): g.y <= right there."""

Finder = Callable[[Head, HeadProblem], tuple[Search, int]]
"""Search for a counterexample; return the outcome, and the part of the obligations it breaks."""

Projector = Callable[[Head, "Memory", HeadProblem], Solution]
"""Return the nearest parameters, as `Head.vector`, for which no point of the memory is a counterexample."""

COSTS = ("squared", "absolute")

_LARGEST = 1e30
"""Reject weights beyond this: their products overflow float32."""
_NODES = 400  # choices of literals that a projection tries


@dataclass(frozen=True, eq=False)
class Pdcg:
    """The outcome of a run.

    * `head`: the last head, also if the run failed.
    * `succeeded`: a search found no counterexample, rounding included. `reason`: why the run failed.
    * `iterations`: projections made. `counterexamples`: those found, in order.
    """

    head: Head
    succeeded: bool
    iterations: int
    counterexamples: tuple[Counterexample, ...] = ()
    reason: str = ""

    @property
    def strengths(self) -> tuple[float, ...]:
        """The strength of each counterexample, in order."""
        return tuple(found.strength for found in self.counterexamples)


@dataclass(eq=False)
class Memory:
    """The last counterexamples as (x, z, part of the head's obligations), oldest first: the paper's queue C."""

    size: int
    points: deque[tuple[Array, Array, int]] = field(default_factory=deque)

    def append(self, x: Array, z: Array, part: int) -> None:
        """Add a point, dropping the oldest if the memory is full."""
        if len(self.points) == self.size:
            self.points.popleft()
        self.points.append((x, z, part))


def run_pdcg(
    head: Head, problem: HeadProblem, *, n_it: int, n_xs: int, tolerance: float = 1e-6, memory: Memory | None = None,
    anchored: bool = False, cost: str = "squared", search: Finder | None = None, projection: Projector | None = None,
) -> Pdcg:  # fmt: skip
    """Run Algorithm 1 on one head.

    Each projection starts from the head of the one before. The paper leaves open whether it starts from the given head
    instead (`anchored`), but reports that one counterexample in memory was enough. When `anchored`, one is not enough
    if two corners of the box matter: each projection forgets what the last one repaired.

    Args:
        head: The head to project.
        problem: The obligations of the head.
        n_it: Largest number of iterations.
        n_xs: Size of the memory.
        tolerance: Slack that the projection keeps in every literal, in its own units.
        memory: Counterexamples of an earlier run to start with (the paper starts with none).
        anchored: Project the given head each time. Ends at the nearest safe head if the memory is large enough.
        cost: The distance to minimize: `squared` as in the paper, or `absolute`, which is linear.
        search: Finds a counterexample; by default `strongest_counterexample`. The run succeeds once it finds none.
        projection: Projects over the memory; by default `memory_projection`. Together with `search`, this enforces any
            predicate over the outputs that a head reaches.
    """
    current, found = head, list[Counterexample]()
    points = Memory(n_xs) if memory is None else memory
    for iteration in range(n_it):
        outcome, part = (search or strongest_counterexample)(current, problem)
        if outcome.found is None:
            reason = "" if outcome.none_exists else f"the search ended with {outcome.status} {outcome.message}"
            return Pdcg(current, outcome.none_exists, iteration, tuple(found), reason)
        found.append(outcome.found)
        points.append(outcome.found.x, outcome.found.z, part)
        start = head if anchored else current
        if projection is not None:
            solution = projection(start, points, problem)
        else:
            solution = memory_projection(start, points, problem, like=current, tolerance=tolerance, cost=cost)
        if solution.x is None:
            reason = f"the projection failed: {solution.status} ({solution.message})"
            return Pdcg(current, False, iteration, tuple(found), reason)
        if not np.abs(solution.x).max() < _LARGEST:
            return Pdcg(current, False, iteration, tuple(found), "the weights grow without end")
        current = Head.from_vector(solution.x, head)
    return Pdcg(current, False, n_it, tuple(found), f"a counterexample was found in each of {n_it} iterations")


def strongest_counterexample(head: Head, problem: HeadProblem) -> tuple[Search, int]:
    """Return the strongest counterexample over all parts of a head's obligations, and its part.

    Rounding is included: a point counts if the deployed program might break a rule there.
    """
    numbers = problem.numbers(head)
    plain = HeadNumbers.exact(numbers)
    best: tuple[Counterexample, int] | None = None
    strongest = True
    for p, part in enumerate(problem.parts):
        for search in _searches(part, problem, numbers, plain):
            if search.found is None and search.status is not Status.OPTIMAL:
                return search, p
            strongest = strongest and search.strongest
            if search.found is not None and (best is None or search.found.strength > best[0].strength):
                best = (search.found, p)
    if best is None:
        return Search(None, Status.OPTIMAL), 0
    return Search(best[0], Status.OPTIMAL, strongest=strongest), best[1]


def _searches(part: RegionObligations, problem: HeadProblem, numbers: HeadNumbers, plain: HeadNumbers) -> list[Search]:
    searches = []
    single = [literals for literals in part.stated if len(literals.h) == 1]
    if single:
        rows = Literals.stacked(single)
        margin = rounding_margin(rows, numbers, problem.domain)
        rows = Literals(rows.g, rows.s, rows.h - margin, rows.strict)
        searches.append(linear_counterexample(rows, plain, part.envelope, part.support))
    for literals in part.stated:
        if len(literals.h) > 1:
            optimum = exact_clause_optimum(literals, numbers, part.envelope, part.region)
            if optimum.x is None or optimum.z is None:
                searches.append(Search(None, Status.ERROR, f"{optimum.solution.status}"))
            elif optimum.value >= 0:
                certain = optimum.exact and not isinstance(part.envelope, HiddenWidenedBox)
                point = Counterexample(optimum.x, optimum.z, optimum.value, ())
                searches.append(Search(point, Status.OPTIMAL, strongest=certain))
    if len(part.exclusions):
        shifted = replace(plain, b=numbers.b + numbers.errors)
        searches.append(exclusion_counterexample(part.exclusions, shifted, part.envelope, part.region))
    return searches


def memory_features(points: Memory, head: Head) -> Array:
    """Return (z, x if the head sees it, 1) for every point. Shape (points, parameters per output)."""
    rows = []
    for x, z, _ in points.points:
        rows.append(np.concatenate([z, [1.0]]) if head.V is None else np.concatenate([z, x, [1.0]]))
    return np.array(rows)


def memory_clauses(
    points: Memory, problem: HeadProblem, *, like: Head, tolerance: float
) -> list[tuple[int, Array, Array]]:
    """Return the clauses at the points as (point, g (k, m), right (k,)): one literal `g.y <= right` must hold."""
    numbers = problem.numbers(like)
    required = []
    for i, (x, _, p) in enumerate(points.points):
        part = problem.parts[p]
        for literals in part.stated:
            margin = 2 * rounding_margin(literals, numbers, problem.domain) + tolerance
            required.append((i, literals.g, literals.h - literals.s @ x - margin))
        for h, k in part.exclusions:
            g = np.zeros((2, problem.outputs))
            g[0, h] = g[1, k] = 1.0
            required.append((i, g, -2 * numbers.errors[[h, k]] - tolerance))
    return required


def memory_projection(
    head: Head, points: Memory, problem: HeadProblem, *, like: Head, tolerance: float, cost: str = "squared"
) -> Solution:
    """Return the nearest parameters, as `Head.vector`, that satisfy every clause at every point of the memory.

    Single literals are rows of the root; a broken clause with several literals is branched on. At the node limit the
    status is LIMIT, with the best parameters found so far; points that no head satisfies give INFEASIBLE. The rounding
    errors are those of `like`.
    """
    features, theta = memory_features(points, head), head.vector().reshape(problem.outputs, -1)
    nearest = _Squared(theta, features) if cost == "squared" else _Absolute(theta, features)
    required = memory_clauses(points, problem, like=like, tolerance=tolerance)
    root = [(i, g[0], float(right[0])) for i, g, right in required if len(right) == 1]
    choices = [(i, g, right) for i, g, right in required if len(right) > 1]
    failed = Solution(Status.INFEASIBLE, message="no branch is feasible")

    def solved(chosen: tuple[tuple[int, int], ...]) -> SearchNode[Array, tuple[int, int]] | None:
        nonlocal failed
        settled = {c: (i, g[j], float(right[j])) for c, j in chosen for i, g, right in (choices[c],)}
        found = nearest([*root, *settled.values()])
        if found.x is None:
            failed = found if failed.status is Status.INFEASIBLE else failed  # infeasible only if all branches are
            return None
        y = features @ found.x.reshape(theta.shape).T
        # A settled clause has a literal among the rows, which holds up to the solver's tolerance.
        excess = {c: g @ y[i] - right for c, (i, g, right) in enumerate(choices) if c not in settled}
        worst = max(excess, key=lambda c: float(excess[c].min()), default=None)
        if worst is None or excess[worst].min() <= 1e-12:
            return SearchNode(found.objective, found.x)
        order = np.argsort(excess[worst] / np.linalg.norm(choices[worst][1], axis=1))
        return SearchNode(found.objective, found.x, [(worst, int(j)) for j in order])

    found = branch_and_bound(solved, max_nodes=_NODES)
    if found.answer is None:
        return failed
    status = Status.OPTIMAL if found.ended else Status.LIMIT
    return Solution(status, x=found.answer, objective=found.cost, message=f"{found.nodes} nodes")


class _Squared:
    """The projection that minimizes 1/2 |theta' - theta|^2 s.t. g.y_i <= right, through the dual.

    The row of (i, g) in terms of theta is g (x) features_i, so the dual's matrix is (g.g') (features.features').
    """

    def __init__(self, theta: Array, features: Array) -> None:
        self.theta, self.features = theta, features
        self.gram, self.outputs = features @ features.T, features @ theta.T

    def __call__(self, rows: Sequence[Row]) -> Solution:
        if not rows:
            return Solution(Status.OPTIMAL, x=self.theta.reshape(-1), objective=0.0)
        gram, point = self.gram, np.array([i for i, _, _ in rows])
        g = np.stack([row[1] for row in rows])
        excess = (g * self.outputs[point]).sum(axis=1) - np.array([right for *_, right in rows])
        scale = 1.0 / np.sqrt(np.maximum((g * g).sum(axis=1) * gram[point, point], 1e-300))
        left = excess * scale
        size = float(left.max(initial=0.0))
        if not size > 0:
            return Solution(Status.OPTIMAL, x=self.theta.reshape(-1), objective=0.0)
        nu, working = np.zeros(len(rows)), np.flatnonzero(left > 0)
        for _ in range(100):
            # Only rows that were violated at some point take part: most rows of the memory are idle.
            block = (g[working] @ g.T) * gram[np.ix_(point[working], point)] * scale[working, None] * scale
            found = _dual(block[:, working], (excess * scale)[working] / size)
            if found.x is None:
                return self._unsolved(rows, found)
            nu = np.zeros(len(rows))
            nu[working] = np.maximum(found.x, 0.0) * size
            left = excess * scale - nu[working] @ block
            missing = left > 1e-9 * size
            missing[working] = False
            idle = np.flatnonzero(missing)
            if not len(idle):
                break
            working = np.union1d(working[nu[working] > 0], idle)
        if left.max() > 1e-7 * size:
            return self._unsolved(rows, Solution(Status.NUMERICAL, message="the dual left rows violated"))
        moved = self.theta - (g * (nu * scale)[:, None]).T @ self.features[point]
        return Solution(Status.OPTIMAL, x=moved.reshape(-1), objective=0.5 * float(nu @ (excess * scale - left)))

    def _unsolved(self, rows: Sequence[Row], found: Solution) -> Solution:
        """Return INFEASIBLE if a linear program does: the dual is then unbounded, and its solver only meets limits."""
        asked = _Absolute(self.theta, self.features)(rows)
        return asked if asked.status is Status.INFEASIBLE else found


def _dual(K: Array, right: Array) -> Solution:
    """Minimize 1/2 nu' K nu - right . nu over nu >= 0."""
    count = len(right)
    if count == 1 and K[0, 0] > 0:
        nu = np.maximum(right / K[0, 0], 0.0)
        return Solution(Status.OPTIMAL, x=nu, objective=float(0.5 * K[0, 0] * nu[0] ** 2 - right[0] * nu[0]))
    none = np.zeros(0)
    program = QuadraticProgram(
        (K + K.T) / 2, -right, np.zeros((0, count)), none, none, np.zeros(count), np.full(count, np.inf)
    )
    found = solve(program)
    if found.x is None:
        # An unbounded dual means that the rows are infeasible.
        status = Status.INFEASIBLE if found.status is Status.UNBOUNDED else found.status
        return Solution(status, message=found.message)
    return found


class _Absolute:
    """The projection that minimizes |theta' - theta|_1 s.t. g.y_i <= right: a linear program in moves up and down."""

    def __init__(self, theta: Array, features: Array) -> None:
        self.theta, self.features = theta, features

    def __call__(self, rows: Sequence[Row]) -> Solution:
        at = self.theta.reshape(-1)
        if not rows:
            return Solution(Status.OPTIMAL, x=at, objective=0.0)
        A = np.stack([np.outer(g, self.features[i]).reshape(-1) for i, g, _ in rows])
        room = np.array([right for *_, right in rows]) - A @ at
        if (room >= 0).all():
            return Solution(Status.OPTIMAL, x=at, objective=0.0)
        unit, sizes = -float(room.min()), np.abs(A).max(axis=1)
        sizes = np.where(sizes > 0, sizes, 1.0)
        count = len(at)
        found = solve(
            LinearProgram(
                np.ones(2 * count),
                np.hstack([A, -A]) / sizes[:, None],
                np.full(len(rows), -np.inf),
                room / (unit * sizes),
                np.zeros(2 * count),
                np.full(2 * count, np.inf),
            )
        )
        if found.status is not Status.OPTIMAL or found.x is None:
            return Solution(found.status, message=found.message)
        move = unit * (found.x[:count] - found.x[count:])
        return Solution(Status.OPTIMAL, x=at + move, objective=float(np.abs(move).sum()))
