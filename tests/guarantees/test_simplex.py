"""The rational simplex agrees with HiGHS, and its multipliers prove what it says."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smle.guarantees.proof.simplex import ExactInfeasible, ExactOptimal, ExactUnbounded, maximize, priced_bound
from smle.solvers import LinearProgram, Status, solve

F = Fraction
small = st.integers(-6, 6).map(F)


@st.composite
def programs(draw, *, boxed=True):
    n, k = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    rows = [tuple((i, v) for i in range(n) if (v := draw(small))) for _ in range(k)]
    bounds = [draw(small) for _ in range(k)]
    objective = tuple((i, v) for i in range(n) if (v := draw(small)))
    lower = [draw(st.integers(-5, 0).map(F)) for _ in range(n)]
    upper = [draw(st.integers(0, 5).map(F)) for _ in range(n)]
    if not boxed:
        lower = [v if draw(st.booleans()) else None for v in lower]
        upper = [v if draw(st.booleans()) else None for v in upper]
    return objective, rows, bounds, lower, upper


def in_floats(objective, rows, bounds, lower, upper):
    n = len(lower)
    A, c = np.zeros((len(rows), n)), np.zeros(n)
    for r, row in enumerate(rows):
        for i, v in row:
            A[r, i] = float(v)
    for i, v in objective:
        c[i] = -float(v)
    low = np.array([-np.inf if v is None else float(v) for v in lower])
    high = np.array([np.inf if v is None else float(v) for v in upper])
    return solve(LinearProgram(c, A, np.full(len(rows), -np.inf), np.array([float(v) for v in bounds]), low, high))


def run(objective, rows, bounds, lower, upper):
    return maximize(objective, rows, row_lower=[None] * len(rows), row_upper=bounds, lower=lower, upper=upper)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_agrees_with_highs_and_proves_it(program):
    objective, rows, bounds, lower, upper = program
    outcome, claim = run(*program), in_floats(*program)
    proof = [(row, a, m) for row, a, m in zip(rows, bounds, outcome.multipliers, strict=True)]
    if isinstance(outcome, ExactInfeasible):
        assert claim.status is Status.INFEASIBLE
        assert priced_bound(proof, lower, upper) < 0
        return
    assert isinstance(outcome, ExactOptimal)
    assert claim.status is Status.OPTIMAL
    assert float(outcome.value) == pytest.approx(-claim.objective, abs=1e-6)
    assert all(sum(v * outcome.x[i] for i, v in row) <= a for row, a in zip(rows, bounds, strict=True))
    assert all(lo <= x <= hi for lo, x, hi in zip(lower, outcome.x, upper, strict=True))
    assert priced_bound(proof, lower, upper, objective) == outcome.value


@settings(max_examples=100, deadline=None)
@given(programs(boxed=False))
def test_free_variables(program):
    _, rows, bounds, _, _ = program
    outcome, claim = run(*program), in_floats(*program)
    if isinstance(outcome, ExactInfeasible):
        assert claim.status is not Status.OPTIMAL
        return
    assert all(sum(v * outcome.x[i] for i, v in row) <= a for row, a in zip(rows, bounds, strict=True))
    if isinstance(outcome, ExactUnbounded):
        assert claim.status is Status.UNBOUNDED
    else:
        assert float(outcome.value) == pytest.approx(-claim.objective, abs=1e-6)


def test_rows_with_lower_ends_and_equalities():
    outcome = maximize(
        [(0, F(1))],
        [[(0, F(1)), (1, F(1))], [(0, F(1)), (1, F(-1))]],
        row_lower=[F(1), F(0)],
        row_upper=[F(1), None],
        lower=[F(0), F(1, 3)],
        upper=[None, None],
    )
    assert isinstance(outcome, ExactOptimal)
    assert outcome.x == (F(2, 3), F(1, 3))


def test_degenerate_program_ends():
    # Beale's example cycles under the greedy rule without a tie-breaker.
    rows = [
        [(0, F(1, 4)), (1, F(-60)), (2, F(-1, 25)), (3, F(9))],
        [(0, F(1, 2)), (1, F(-90)), (2, F(-1, 50)), (3, F(3))],
        [(2, F(1))],
    ]
    outcome = maximize(
        [(0, F(3, 4)), (1, F(-150)), (2, F(1, 50)), (3, F(-6))],
        rows,
        row_lower=[None] * 3,
        row_upper=[F(0), F(0), F(1)],
        lower=[F(0)] * 4,
        upper=[None] * 4,
    )
    assert isinstance(outcome, ExactOptimal)
    assert outcome.value == F(1, 20)


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="one end per variable"):
        maximize([], [], row_lower=[], row_upper=[], lower=[F(0)], upper=[])
    with pytest.raises(ValueError, match="empty range for variable 0"):
        maximize([], [], row_lower=[], row_upper=[], lower=[F(1)], upper=[F(0)])
    with pytest.raises(ValueError, match="empty range for a row"):
        maximize([], [[(0, F(1))]], row_lower=[F(1)], row_upper=[F(0)], lower=[F(0)], upper=[F(0)])
    with pytest.raises(ValueError, match="negative"):
        priced_bound([([(0, F(1))], F(0), F(-1))], [F(0)], [F(1)])
