"""Projection with delayed constraint generation: the paper's Algorithm 1, for linear rules, exclusions and any CNF.

Strongest counterexample, FIFO memory of n_xs points (x, z), nearest head over the memory, at most n_it times. Over the
memory linear rules give a QP (equation polytopes_projection) and exclusions an MIQP (equation mutex_projection).

With P the identity and few rows the QP is solved through its dual, whose size is the number of rows, and the MIQP by
branching on which literal of a broken clause is to hold: the same optimum as the paper's big-M formulation
(studies/formulations.py). Tolerances follow the supplement: the projection is asked for slightly
more than the search checks. The rounding of the deployed float32 program counts as part of the tolerance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from smle.guarantees.box.counterexample import Counterexample, Search, exclusion_counterexample, linear_counterexample
from smle.guarantees.box.head_problem import HeadProblem, RegionObligations
from smle.guarantees.box.robust import Layout
from smle.guarantees.proof.clause_lp import clause_optimum
from smle.guarantees.proof.frozen_heads import Head
from smle.guarantees.proof.worst_case import HeadNumbers, Literals, rounding_margin
from smle.solvers import QuadraticProgram, Solution, Status, solve

__all__ = ["Pdcg", "memory_clauses", "memory_features", "memory_projection", "pdcg", "strongest_counterexample"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pdcg:
    """The outcome of a run.

    `succeeded`: no counterexample is left (rounding included). `iterations`: projections made. `strengths`: strength
    of each counterexample in order. `distance`: Euclidean distance that the parameters moved. `reason`: why it failed.
    """

    head: Head
    succeeded: bool
    iterations: int
    strengths: tuple[float, ...]
    distance: float
    reason: str = ""


@dataclass(eq=False)
class Memory:
    """The last counterexamples as (x, z, part of the head's obligations), oldest first."""

    size: int
    points: deque[tuple[Array, Array, int]] = field(default_factory=deque)

    def append(self, x: Array, z: Array, part: int) -> None:
        """Add a point; the oldest one leaves when the memory is full."""
        if len(self.points) == self.size:
            self.points.popleft()
        self.points.append((x, z, part))


def pdcg(
    head: Head, problem: HeadProblem, *, n_it: int, n_xs: int, tolerance: float = 1e-6, memory: Memory | None = None,
    anchored: bool = False,
) -> Pdcg:  # fmt: skip
    """Run the algorithm on one head.

    The k-th projection starts from the (k-1)-th head. The paper leaves open whether it starts from the given head
    instead, but reports that one counterexample in memory was enough; anchored, one is never enough where two corners
    of the box matter, since what the last projection mended is forgotten by the next.

    Args:
        head: The head to project.
        problem: Its obligations.
        n_it: Largest number of iterations.
        n_xs: Size of the memory.
        tolerance: What the projection leaves free in every literal, in its own units.
        memory: Counterexamples of an earlier run to start with (the paper starts with none).
        anchored: Project the given head each time: ends at the nearest safe head if the memory holds all it needs.

    """
    layout = problem.layout(head)
    theta = _pack(head, layout)
    current = head
    strengths: list[float] = []
    points = Memory(n_xs) if memory is None else memory
    for iteration in range(n_it + 1):
        search, part = strongest_counterexample(current, problem)
        if search.none_exists:
            return Pdcg(current, True, iteration, tuple(strengths), _distance(current, theta, layout))
        if search.found is None:
            return Pdcg(
                current, False, iteration, tuple(strengths), _distance(current, theta, layout), str(search.status)
            )
        if iteration == n_it:
            break
        strengths.append(search.found.strength)
        points.append(search.found.x, search.found.z, part)
        start = theta if anchored else _pack(current, layout)
        found = memory_projection(start, points, problem, layout=layout, like=current, tolerance=tolerance)
        if found.x is None:
            reason = f"the projection failed: {found.status} ({found.message})"
            return Pdcg(current, False, iteration, tuple(strengths), _distance(current, theta, layout), reason)
        W, V, b = layout.unpack(found.x)
        current = Head(
            W.astype(np.float32),
            b.astype(np.float32),
            V=None if V is None else V.astype(np.float32),
            fallback=head.fallback,
        )
    reason = f"a counterexample is left after {n_it} iterations"
    return Pdcg(current, False, n_it, tuple(strengths), _distance(current, theta, layout), reason)


def _pack(head: Head, layout: Layout) -> Array:
    V = None if head.V is None else head.V.astype(np.float64)
    return layout.pack(head.W.astype(np.float64), V, head.b.astype(np.float64))


def _distance(head: Head, theta: Array, layout: Layout) -> float:
    return float(np.linalg.norm(_pack(head, layout) - theta))


def strongest_counterexample(head: Head, problem: HeadProblem) -> tuple[Search, int]:
    """Return the strongest counterexample over all parts of a head's obligations, and its part.

    Rounding is included: a point counts if the deployed program might break a rule there.
    """
    numbers = problem.numbers(head)
    plain = HeadNumbers(numbers.W, numbers.V, numbers.b, np.zeros(len(numbers.b)), np.zeros(len(numbers.b)))
    best: tuple[Counterexample, int] | None = None
    for p, part in enumerate(problem.parts):
        for search in _searches(part, problem, numbers, plain):
            if search.found is None and search.status is not Status.OPTIMAL:
                return search, p
            if search.found is not None and (best is None or search.found.strength > best[0].strength):
                best = (search.found, p)
    if best is None:
        return Search(None, Status.OPTIMAL), 0
    return Search(best[0], Status.OPTIMAL), best[1]


def _searches(part: RegionObligations, problem: HeadProblem, numbers: HeadNumbers, plain: HeadNumbers) -> list[Search]:
    searches = []
    single = [literals for literals in part.literals if len(literals.h) == 1]
    if single:
        rows = Literals.stacked(single)
        margin = rounding_margin(rows, numbers, problem.domain)
        rows = Literals(rows.g, rows.s, rows.h - margin, rows.strict)
        searches.append(linear_counterexample(rows, plain, part.envelope, part.support))
    for literals in part.literals:
        if len(literals.h) > 1:
            optimum = clause_optimum(literals, numbers, part.envelope, part.region)
            if optimum.x is None or optimum.z is None:
                searches.append(Search(None, Status.ERROR, f"{optimum.solution.status}"))
            elif optimum.value >= 0:
                searches.append(Search(Counterexample(optimum.x, optimum.z, optimum.value, ()), Status.OPTIMAL))
    if len(part.exclusions):
        shifted = HeadNumbers(plain.W, plain.V, numbers.b + numbers.errors, plain.errors, plain.sizes)
        searches.append(exclusion_counterexample(part.exclusions, shifted, problem.envelope, problem.whole))
    return searches


def memory_features(points: Memory, layout: Layout) -> Array:
    """Return (z, x if it passes through, 1) for every point, (points, stride)."""
    rows = []
    for x, z, _ in points.points:
        rows.append(np.concatenate([z, x, [1.0]]) if layout.passthrough else np.concatenate([z, [1.0]]))
    return np.array(rows)


def memory_clauses(
    points: Memory, problem: HeadProblem, *, like: Head, tolerance: float
) -> list[tuple[int, Array, Array]]:
    """Return what must hold at the points: (point, g (k, m), right (k,)), one of k literals `g.y <= right`."""
    numbers = problem.numbers(like)
    required = []
    for i, (x, _, p) in enumerate(points.points):
        part = problem.parts[p]
        for literals in part.literals:
            margin = 2 * rounding_margin(literals, numbers, problem.domain) + tolerance
            required.append((i, literals.g, literals.h - literals.s @ x - margin))
        for h, k in part.exclusions:
            g = np.zeros((2, problem.outputs))
            g[0, h] = g[1, k] = 1.0
            required.append((i, g, -2 * numbers.errors[[h, k]] - tolerance))
    return required


def memory_projection(
    theta: Array, points: Memory, problem: HeadProblem, *, layout: Layout, like: Head, tolerance: float,
    node_limit: int = 400,
) -> Solution:  # fmt: skip
    """Return the nearest parameters that satisfy every clause at every point of the memory.

    Single literals are rows of the root; a broken clause with several literals is branched on. Reaching the node
    limit gives LIMIT, with the best parameters found so far.
    """
    features = memory_features(points, layout)
    gram = features @ features.T
    required = memory_clauses(points, problem, like=like, tolerance=tolerance)
    root = [(i, g[0], float(right[0])) for i, g, right in required if len(right) == 1]
    choices = [(i, g, right) for i, g, right in required if len(right) > 1]
    outputs = features @ theta.reshape(layout.outputs, layout.stride).T
    best: tuple[float, Array] | None = None
    last = Solution(Status.INFEASIBLE, message="no branch is feasible")
    stack: list[tuple[list[tuple[int, Array, float]], frozenset[int]]] = [(root, frozenset())]
    nodes = 0
    while stack and nodes < node_limit:
        rows, settled = stack.pop()
        nodes += 1
        found = _nearest(rows, outputs, gram)
        if found.x is None:
            last = found if found.status is not Status.OPTIMAL else last
            continue
        value, y = found.objective, _moved(rows, found.x, outputs, gram)
        if best is not None and value >= best[0] - 1e-12:
            continue
        broken = _most_broken(choices, y, settled)
        if broken is None:
            best = (value, _parameters(rows, found.x, theta, features, layout))
            continue
        i, g, right = choices[broken]
        excess = g @ y[i] - right
        # The literal that is nearest to holding is tried first.
        order = np.argsort(-excess / np.linalg.norm(g, axis=1))
        stack.extend(([*rows, (i, g[j], float(right[j]))], settled | {broken}) for j in order)
    if best is None:
        return last
    status = Status.LIMIT if stack else Status.OPTIMAL
    return Solution(status, x=best[1], objective=best[0], message=f"{nodes} nodes")


def _most_broken(choices: Sequence[tuple[int, Array, Array]], y: Array, settled: frozenset[int]) -> int | None:
    """Return the clause that is broken most; settled ones have a literal among the rows, up to solver tolerance."""
    worst, position = 1e-12, None
    for c, (i, g, right) in enumerate(choices):
        if c in settled:
            continue
        excess = float((g @ y[i] - right).min())
        if excess > worst:
            worst, position = excess, c
    return position


def _nearest(rows: Sequence[tuple[int, Array, float]], outputs: Array, gram: Array) -> Solution:
    """Minimize 1/2 |theta' - theta|^2 s.t. g.y_i <= right, through the dual; x holds the multipliers.

    The row of (i, g) in terms of theta is g (x) features_i, so the dual's matrix is (g.g') (features.features').
    """
    if not rows:
        return Solution(Status.OPTIMAL, x=np.zeros(0), objective=0.0)
    point = np.array([i for i, _, _ in rows])
    g = np.stack([row[1] for row in rows])
    excess = (g * outputs[point]).sum(axis=1) - np.array([right for *_, right in rows])
    scale = 1.0 / np.sqrt(np.maximum((g * g).sum(axis=1) * gram[point, point], 1e-300))
    left = excess * scale
    size = float(left.max(initial=0.0))
    nu = np.zeros(len(rows))
    if not size > 0:
        return Solution(Status.OPTIMAL, x=nu, objective=0.0)
    working = np.flatnonzero(left > 0)
    for _ in range(100):
        # Only rows that were violated at some time take part: most rows of the memory are idle.
        block = (g[working] @ g.T) * gram[np.ix_(point[working], point)] * scale[working, None] * scale
        found = _dual(block[:, working], (excess * scale)[working] / size)
        if found.x is None:
            return found
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
        return Solution(Status.NUMERICAL, message="the dual left rows violated")
    value = 0.5 * float(nu @ (excess * scale - left))
    return Solution(Status.OPTIMAL, x=nu * scale, objective=value)


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
        # An unbounded dual is an infeasible set of rows.
        status = Status.INFEASIBLE if found.status is Status.UNBOUNDED else found.status
        return Solution(status, message=found.message)
    return found


def _moved(rows: Sequence[tuple[int, Array, float]], nu: Array, outputs: Array, gram: Array) -> Array:
    """Return the outputs at all points after the move, (points, m)."""
    y = outputs.copy()
    for (i, g, _), weight in zip(rows, nu, strict=True):
        if weight:
            y -= weight * gram[:, i : i + 1] * g
    return y


def _parameters(
    rows: Sequence[tuple[int, Array, float]], nu: Array, theta: Array, features: Array, layout: Layout
) -> Array:
    table = theta.reshape(layout.outputs, layout.stride).copy()
    for (i, g, _), weight in zip(rows, nu, strict=True):
        if weight:
            table -= weight * np.outer(g, features[i])
    return table.reshape(-1)
