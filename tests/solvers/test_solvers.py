"""Problems crossed with back-ends: optimum, feasibility, complementarity, and every status read."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest
from scipy.sparse import coo_matrix, csr_matrix

from smle.solvers import (
    BACKENDS,
    LinearProgram,
    MixedIntegerProgram,
    QuadraticProgram,
    Solution,
    Status,
    farkas_gap,
    open_session,
    solve,
)
from support.project import project

INF = np.inf


def random_qp(seed: int, *, sparse: bool = False) -> QuadraticProgram:
    rng = np.random.default_rng(seed)
    n, m = 5, 4
    M = rng.normal(size=(n, n))
    P, A, x0 = M @ M.T + 0.1 * np.eye(n), rng.normal(size=(m, n)), rng.normal(size=n)
    upper = A @ x0 + rng.uniform(0, 0.3, size=m)
    lower = np.where(rng.random(m) < 0.3, -INF, A @ x0 - 0.1)
    lower[0] = upper[0]
    box = np.where(rng.random(n) < 0.5, -INF, x0 - 0.5)
    wrap = csr_matrix if sparse else np.asarray
    return QuadraticProgram(wrap(P), rng.normal(size=n), wrap(A), lower, upper, box, x0 + 0.5)


@pytest.mark.parametrize("backend", BACKENDS[QuadraticProgram])
@pytest.mark.parametrize("sparse", [False, True])
def test_quadratic_optimum_satisfies_kkt(backend: str, sparse: bool) -> None:
    for seed in range(8):
        problem = random_qp(seed, sparse=sparse)
        found = solve(problem, backend=backend)
        assert found.status is Status.OPTIMAL
        assert found.x is not None
        assert found.row_duals is not None
        assert found.column_duals is not None
        rows = problem.A @ found.x
        assert (np.maximum(problem.row_lower - rows, rows - problem.row_upper) < 1e-7).all()
        assert (np.maximum(problem.lower - found.x, found.x - problem.upper) < 1e-7).all()
        assert found.objective == pytest.approx(found.x @ (problem.P @ found.x / 2 + problem.q), abs=1e-6)
        gradient = problem.P @ found.x + problem.q
        stationarity = gradient - problem.A.T @ found.row_duals - found.column_duals
        assert np.abs(stationarity).max() < 1e-5
        slack = np.where(found.row_duals > 0, rows - problem.row_lower, problem.row_upper - rows)
        held = np.abs(found.row_duals) > 1e-5
        assert np.abs((found.row_duals * slack)[held]).max(initial=0.0) < 1e-5


def test_linear_duals_have_the_stated_sign() -> None:
    found = solve(LinearProgram([-1.0, -1.0], [[1.0, 2.0]], [-INF], [4.0], [0.0, 0.0], [3.0, 3.0]))
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(-3.5)
    assert found.row_duals == pytest.approx([-0.5])
    nudged = solve(LinearProgram([-1.0, -1.0], [[1.0, 2.0]], [-INF], [4.1], [0.0, 0.0], [3.0, 3.0]))
    assert (nudged.objective - found.objective) / 0.1 == pytest.approx(found.row_duals[0])


def test_infeasible_linear_program_comes_with_a_ray_that_proves_it() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        A = rng.normal(size=(4, 3))
        x = rng.uniform(size=3)
        # Rows that all x of the box satisfy, and one combination that none does.
        weights = rng.uniform(0.1, 1, size=3)
        A[3] = -(weights @ A[:3])
        upper = A @ x
        upper[3] -= 0.5
        problem = LinearProgram(np.zeros(3), A, np.full(4, -INF), upper, np.full(3, -INF), np.full(3, INF))
        found = solve(problem)
        assert found.status is Status.INFEASIBLE
        if found.farkas is not None:
            assert farkas_gap(problem, found.farkas) > 0
    boxed = LinearProgram([0, 0], [[1, 1], [1, -1]], [3, -INF], [INF, 0], [0, 0], [1, 1])
    ray = solve(boxed).farkas
    assert ray is not None
    assert farkas_gap(boxed, ray) > 0


def test_unbounded_and_empty_problems_are_read() -> None:
    free = LinearProgram([-1.0, 0.0], np.zeros((0, 2)), np.zeros(0), np.zeros(0), [0, 0], [INF, 1])
    assert solve(free).status is Status.UNBOUNDED
    boxed = LinearProgram([-1.0, 0.0], np.zeros((0, 2)), np.zeros(0), np.zeros(0), [0, 0], [2, 1])
    assert solve(boxed).objective == pytest.approx(-2.0)


def test_mixed_integer_optimum_equals_enumeration() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        c, A = rng.normal(size=4), rng.normal(size=(2, 4))
        upper = np.abs(A).sum(axis=1) * 0.3
        problem = MixedIntegerProgram(c, A, np.full(2, -INF), upper, np.zeros(4), np.ones(4), np.ones(4, bool))
        points = np.array(np.meshgrid(*[[0, 1]] * 4)).reshape(4, -1).T
        feasible = points[(points @ A.T <= upper + 1e-9).all(axis=1)]
        found = solve(problem)
        assert found.objective == pytest.approx((feasible @ c).min(), abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS[QuadraticProgram])
def test_contradictory_rows_are_never_optimal(backend: str) -> None:
    bad = QuadraticProgram(np.eye(2), [0, 0], [[1, 1], [1, 1]], [1, -INF], [INF, 0], [-INF] * 2, [INF] * 2)
    found = solve(bad, backend=backend)
    assert found.status is (Status.LIMIT if backend == "piqp" else Status.INFEASIBLE)
    assert found.x is None


def test_a_session_solves_again_like_a_fresh_solve() -> None:
    rng = np.random.default_rng(3)
    A, upper, costs = rng.normal(size=(4, 5)), rng.random(4), rng.normal(size=(3, 5))
    session = open_session(LinearProgram(costs[0], A, -INF, upper, -1.0, 1.0))
    for cost in costs:
        fresh = solve(LinearProgram(cost, A, -INF, upper, -1.0, 1.0))
        assert session.solve(cost).objective == pytest.approx(fresh.objective, abs=1e-6)


@pytest.mark.parametrize("kind", ["LP", "QP", "MIQP"])
def test_an_unknown_native_status_reads_as_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "LP":
        module = importlib.import_module("smle.solvers.highs")
        problem = LinearProgram([1.0], np.zeros((0, 1)), np.zeros(0), np.zeros(0), [0.0], [1.0])
    else:
        module = importlib.import_module("smle.solvers.piqp" if kind == "QP" else "support.scip")
        problem = random_qp(0)
    monkeypatch.setattr(module, "_STATUS", {})
    if kind == "MIQP":  # the solver of the paper's own programs, for tests and studies
        pytest.importorskip("pyscipopt")
        rows = problem.A, problem.row_lower, problem.row_upper
        whole = np.zeros(5, dtype=bool)
        found = module.solve_miqp(np.ones(5), problem.q, rows, problem.lower, problem.upper, whole)
    else:
        found = solve(problem)
    assert found.status is Status.ERROR
    assert found.x is None


def test_a_crash_of_a_back_end_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("smle.solvers.highs")

    def crash(*_: object, **__: object) -> Solution:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(module, "solve", crash)
    found = solve(LinearProgram([1.0], np.zeros((0, 1)), np.zeros(0), np.zeros(0), [0.0], [1.0]))
    assert found.status is Status.ERROR
    assert "out of luck" in found.message


def test_a_back_end_for_another_kind_is_refused() -> None:
    problem = LinearProgram([1.0], np.zeros((0, 1)), np.zeros(0), np.zeros(0), [0.0], [1.0])
    with pytest.raises(ValueError, match="expected a back-end among"):
        solve(problem, backend="piqp")


def test_a_time_limit_is_a_limit() -> None:
    rng = np.random.default_rng(0)
    n = 60
    A = rng.integers(1, 100, size=(20, n)).astype(float)
    hard = MixedIntegerProgram(
        -rng.integers(1, 100, size=n).astype(float),
        A,
        np.full(20, -INF),
        A.sum(axis=1) / 3,
        np.zeros(n),
        np.ones(n),
        np.ones(n),
    )
    assert solve(hard, time_limit=1e-6).status is Status.LIMIT


def test_every_status_says_what_it_means() -> None:
    for status in Status:
        assert status.message
        assert status is Status.OPTIMAL or status.remedy


def test_a_solution_has_no_truth_value() -> None:
    with pytest.raises(TypeError):
        bool(Solution(Status.OPTIMAL))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[1.0, 2.0, 3.0]], [0.0], [1.0], [0.0], [1.0]), "expected a matrix with 1 columns"),
        (([1.0, np.nan], [[1.0, 2.0]], [0.0], [1.0], [0.0, 0.0], [1.0, 1.0]), "objective"),
        (([1.0, 1.0], [[1.0, np.inf]], [0.0], [1.0], [0.0, 0.0], [1.0, 1.0]), "finite coefficients"),
        (([1.0, 1.0], [[1.0, 1.0]], [np.nan], [1.0], [0.0, 0.0], [1.0, 1.0]), "row_lower"),
    ],
)
def test_malformed_problems_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearProgram(*arguments)  # type: ignore[arg-type]


def test_an_asymmetric_hessian_is_refused() -> None:
    with pytest.raises(ValueError, match="symmetric"):
        QuadraticProgram([[1, 1], [0, 1]], [0, 0], np.zeros((0, 2)), [], [], [0, 0], [1, 1])


@pytest.mark.parametrize("backend", BACKENDS[QuadraticProgram])
def test_repeated_positions_of_a_sparse_matrix_add_up(backend: str) -> None:
    rows = coo_matrix(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), (2, 2))
    half = coo_matrix(([0.5, 0.5, 1.0], ([0, 0, 1], [0, 0, 1])), (2, 2))
    problem = QuadraticProgram(half, [0, 0], rows, [3.0, 4.0], [INF, INF], [-INF] * 2, [INF] * 2)
    assert solve(problem, backend=backend).x == pytest.approx([1.0, 1.0], abs=1e-6)


def test_every_back_end_is_a_dependency() -> None:
    """A fallback must not depend on which extras happen to be installed."""
    stated = project()["dependencies"]
    names = {re.split(r"[<>=;\[ ]", item)[0] for item in stated}
    packages = {"highs": "highspy", "piqp": "piqp"}
    assert {packages[name] for choices in BACKENDS.values() for name in choices} <= names
    assert "scipy" in names
