"""Exact projection: feasible, idempotent, optimal (KKT, and against any other safe head), never farther than PDCG."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smle.heads.box.algorithms import pdcg
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import (
    Memory,
    _Absolute,
    _Squared,
    memory_clauses,
    memory_features,
    memory_projection,
    run_pdcg,
)
from smle.heads.box.algorithms.projection import Objective, nearest_safe_head, project, safe_head
from smle.heads.box.algorithms.refitting import LOSSES, Samples, mean_loss, refit
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.heads.box.proof.verify import verify
from smle.regions.robust import robust_rows
from smle.solvers import QuadraticProgram, Status, solve
from support.formulations import memory_projection_miqp
from support.guarantee_instances import Instance, random_instance

MANY = pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.audit)], ids=["some", "many"]
)
KINDS = pytest.mark.parametrize(
    "kind",
    [
        {},
        {"affine": True},
        {"affine": True, "passthrough": False, "inputs": False},
        {"literals": 2},
        {"affine": True, "literals": 3},
    ],
    ids=["constant", "affine", "affine without pass-through", "two literals", "three literals"],
)


def parts(instance: Instance, c: int = 0) -> tuple[Head, HeadProblem]:
    head = instance.over.heads[c]
    assert head is not None
    return head, HeadProblem.of(instance.over, instance.spec, instance.cells, c)


def moved(before: Head, after: Head) -> float:
    return float(np.linalg.norm(after.vector() - before.vector()))


@MANY
@KINDS
def test_projection_is_proved_safe_and_idempotent(kind: dict[str, object], seeds: range) -> None:
    done = 0
    for seed in seeds:
        instance = random_instance(seed, **kind)  # type: ignore[arg-type]
        first = project(instance.over, instance.spec, instance.cells)
        if not first.succeeded:
            # Random rules may contradict each other: then the outcome must say so.
            assert all(r is None or r.head is not None or r.reason for r in first.heads)
            continue
        done += 1
        again = project(first.over, instance.spec, instance.cells)
        assert again.distance == 0.0
        for a, b in zip(first.over.heads, again.over.heads, strict=True):
            assert a is b
    assert done >= len(seeds) // 3


@MANY
def test_projection_satisfies_kkt(seeds: range) -> None:
    """The QP's optimum is stationary with multipliers of the right sign on active rows only."""
    for seed in seeds:
        head, problem = parts(random_instance(seed, affine=bool(seed % 2)))
        weights, layout = problem.weights(head), problem.layout(head)
        safe = robust_rows(problem.rows(weights, head), problem.envelope, layout)
        start = np.concatenate([head.vector(), np.zeros(safe.A.shape[1] - layout.size)])
        P = np.diag((np.arange(len(start)) < layout.size).astype(float))
        program = QuadraticProgram(P, -start, safe.A, safe.row_lower, safe.row_upper, safe.lower, safe.upper)
        found = solve(program)
        if found.status is not Status.OPTIMAL:
            continue
        assert found.x is not None
        assert found.row_duals is not None
        assert found.column_duals is not None
        gradient = P @ found.x - start
        assert np.abs(gradient - safe.A.T @ found.row_duals - found.column_duals).max() < 1e-6
        rows = safe.A @ found.x
        inactive = (rows < safe.row_upper - 1e-5) & (rows > safe.row_lower + 1e-5)
        assert np.abs(found.row_duals[inactive]).max(initial=0.0) < 1e-5


@MANY
@pytest.mark.parametrize("affine", [False, True])
def test_projection_is_nearer_than_any_other_safe_head(affine: bool, seeds: range) -> None:
    """Single literals: the safe heads are convex, so moving toward another safe head never helps."""
    for seed in seeds:
        head, problem = parts(random_instance(seed, affine=affine))
        result = nearest_safe_head(head, problem)
        if result.head is None or result.value == 0.0:
            continue
        start, best = head.vector(), result.head.vector()
        rng = np.random.default_rng(seed)
        other = safe_head(Objective.distance(rng.normal(size=len(start))), problem, current=head)
        if other.head is None:
            continue
        direction = other.head.vector() - best
        # Variational inequality of a projection, up to the margin for rounding and float32.
        assert (best - start) @ direction >= -1e-3 * (1 + np.linalg.norm(direction))


@MANY
@pytest.mark.parametrize("kind", [{}, {"affine": True}, {"affine": True, "passthrough": False, "inputs": False}])
def test_projection_is_never_farther_than_pdcg(kind: dict[str, object], seeds: range) -> None:
    converged = 0
    for seed in seeds:
        head, problem = parts(random_instance(seed, **kind))  # type: ignore[arg-type]
        run = run_pdcg(head, problem, n_it=12, n_xs=12)
        if not run.succeeded:
            continue
        converged += 1
        assert problem.safe(run.head)
        result = nearest_safe_head(head, problem)
        assert result.head is not None
        assert np.sqrt(2 * result.value) <= (1 + 1e-4) * moved(head, run.head) + 1e-4
    assert converged >= len(seeds) // 3


@pytest.mark.parametrize("affine", [False, True])
def test_pdcg_with_enough_memory_ends_at_the_projection(affine: bool) -> None:
    """Linear rules: when no counterexample is left, the memory's QP is a relaxation with a feasible optimum."""
    for seed in range(10):
        head, problem = parts(random_instance(seed, affine=affine))
        run = run_pdcg(head, problem, n_it=100, n_xs=100, anchored=True)
        result = nearest_safe_head(head, problem)
        assert run.succeeded == (result.head is not None)
        if run.succeeded:
            assert moved(head, run.head) == pytest.approx(np.sqrt(2 * result.value), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("affine", [False, True])
def test_pdcg_converges_with_one_counterexample_in_memory(affine: bool) -> None:
    """From head to head one counterexample is enough, as the paper reports; anchored at the first head it is not."""
    ended = 0
    for seed in range(4):
        head, problem = parts(random_instance(seed, affine=affine))
        if nearest_safe_head(head, problem).head is None:
            continue
        run = run_pdcg(head, problem, n_it=200, n_xs=1)
        assert run.succeeded
        assert problem.safe(run.head)
        ended += run_pdcg(head, problem, n_it=20, n_xs=1, anchored=True).succeeded
    assert ended < 4


def test_branching_over_the_memory_equals_the_papers_miqp() -> None:
    compared = 0
    for seed in range(4):
        head, problem = parts(random_instance(seed, literals=2, n=1, passthrough=False, inputs=False))
        head = Head(head.W, head.b + np.float32(3.0) * np.sign(problem.parts[0].literals[0].g.sum(axis=0)))
        rng = np.random.default_rng(seed)
        memory = Memory(2)
        for _ in range(2):
            x = rng.uniform(-1, 1, size=2)
            lower, upper = problem.envelope.at(x)
            memory.append(x, np.where(rng.random(1) < 0.5, lower, upper), 0)
        ours = memory_projection(head, memory, problem, like=head, tolerance=1e-4)
        theirs = memory_projection_miqp(head, memory, problem, tolerance=1e-4, big=60.0, time_limit=200)
        assert ours.status is Status.OPTIMAL
        assert theirs.status is Status.OPTIMAL
        assert ours.objective == pytest.approx(theirs.objective, abs=1e-4)
        compared += ours.objective > 1e-6
    assert compared


def test_linear_cost_has_the_optimum_of_all_vertices() -> None:
    """One point, two rows: the least sum of absolute moves puts each row's move on few coordinates."""
    compared = 0
    for seed in range(12):
        head, problem = parts(random_instance(seed, n=3, passthrough=False, inputs=False))
        memory = Memory(1)
        memory.append(np.zeros(2), problem.envelope.at(np.zeros(2))[1], 0)
        found = memory_projection(head, memory, problem, like=head, tolerance=1e-6, cost="absolute")
        squared = memory_projection(head, memory, problem, like=head, tolerance=1e-6)
        assert found.x is not None
        assert squared.x is not None
        features = memory_features(memory, head)[0]
        for _, g, right in memory_clauses(memory, problem, like=head, tolerance=1e-6):
            assert (g @ (found.x.reshape(len(head.b), -1) @ features) <= right + 1e-7).all()
        move, other = (np.abs(x - head.vector()).sum() for x in (found.x, squared.x))
        assert found.objective == pytest.approx(move, abs=1e-9)
        assert move <= other + 1e-9
        compared += move < other - 1e-6
    assert compared


@pytest.mark.parametrize("cost", ["squared", "absolute"])
def test_a_failed_run_hands_over_its_last_head(cost: str) -> None:
    head, problem = parts(random_instance(0))
    run = run_pdcg(head, problem, n_it=1, n_xs=1, cost=cost)
    assert not run.succeeded
    assert run.reason
    assert run.iterations == len(run.counterexamples) == 1
    assert moved(head, run.head) > 0
    found = run.counterexamples[0]
    y = run.head.W @ found.z + run.head.b + (0 if run.head.V is None else run.head.V @ found.x)
    part = problem.parts[0]
    assert all((rows.g @ y + rows.s @ found.x <= rows.h).all() for rows in part.stated if len(rows.h) == 1)


def test_weights_that_grow_without_end_are_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    head, problem = parts(random_instance(0))
    monkeypatch.setattr(pdcg, "_LARGEST", 1e-9)
    run = run_pdcg(head, problem, n_it=3, n_xs=1)
    assert (run.succeeded, run.iterations) == (False, 0)
    assert run.reason == "the weights grow without end"
    assert moved(head, run.head) == 0


def samples_of(instance: Instance, rows: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    head, problem = parts(instance)
    inputs = rng.uniform(-1, 1, size=(rows, 2))
    embedding = np.array([rng.uniform(*problem.envelope.at(x)) for x in inputs])
    targets = rng.normal(size=(rows, len(head.b)))
    return Samples(embedding, inputs, np.zeros(rows, dtype=np.intp), targets)


def loss_of(over: FrozenHeads, samples: Samples, loss: str = "squared") -> float:
    head = over.heads[0]
    assert head is not None
    return mean_loss(head, samples, loss, np.ones(len(head.b)))


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("literals", [1, 2])
def test_refit_is_safe_and_fits_no_worse_than_the_projection(literals: int, loss: str) -> None:
    improved = 0
    for seed in range(8):
        instance = random_instance(seed, affine=bool(seed % 2), literals=literals)
        projection = project(instance.over, instance.spec, instance.cells)
        if not projection.succeeded:
            continue
        data = samples_of(instance, 60, seed)
        if loss == "logistic":
            data = replace(data, targets=(data.targets > 0).astype(float))
        found = refit(projection.over, instance.spec, instance.cells, samples=data, loss=loss, validation=data)
        assert verify(found, instance.spec, instance.cells).hold
        before, after = (loss_of(over, data, loss) for over in (projection.over, found))
        assert after <= before
        improved += after < before - 1e-6
    assert improved > 2


def test_refit_without_binding_rules_is_least_squares() -> None:
    for seed in range(10):
        instance = random_instance(seed)
        projection = project(instance.over, instance.spec, instance.cells)
        if not projection.succeeded:
            continue
        data = samples_of(instance, 80, seed)
        head = projection.over.heads[0]
        assert head is not None
        free = Samples(data.embedding, data.inputs, data.head, data.outputs(head))
        found = refit(projection.over, instance.spec, instance.cells, samples=free)
        assert loss_of(found, free) < 1e-6


@pytest.mark.parametrize("name", LOSSES)
def test_quadratic_models_touch_the_loss_and_lie_above_it(name: str) -> None:
    loss, _ = LOSSES[name]
    rng = np.random.default_rng(0)
    at = rng.normal(size=(5, 3))
    targets = np.eye(3)[rng.integers(3, size=5)]
    local = loss(at, targets)
    for _ in range(200):
        move = rng.normal(size=at.shape) * rng.choice([1e-4, 0.1, 3.0])
        model = local.value + (local.gradient * move).sum(axis=1) + 0.5 * (local.curvature * move**2).sum(axis=1)
        assert (loss(at + move, targets).value <= model + 1e-9).all()


def test_points_that_no_head_satisfies_are_infeasible_and_not_out_of_time() -> None:
    """Rows that contradict each other at a point, or over three points: the solver of the dual runs into a limit."""
    up, down = np.array([1.0]), np.array([-1.0])
    here = np.array([[1.0, 2.0, 1.0]])
    rows = [(0, up, -1.0), (0, down, -1.0)]
    for nearest in (_Squared(np.zeros((1, 3)), here), _Absolute(np.zeros((1, 3)), here)):
        assert nearest(rows).status is Status.INFEASIBLE
    between = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])  # y <= -1 at both ends, y >= 1 in the middle
    rows = [(0, up, -1.0), (1, down, -1.0), (2, up, -1.0)]
    assert _Squared(np.zeros((1, 2)), between)(rows).status is Status.INFEASIBLE
    assert _Squared(np.zeros((1, 2)), between)(rows[:2]).status is Status.OPTIMAL
