"""The rational simplex agrees with HiGHS, and its multipliers prove what it says."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smle.regions.simplex import ExactInfeasible, ExactOptimal, ExactUnbounded, maximize, point_or_proof
from smle.solvers import LinearProgram, Status, solve
from smle_check.kernel import bounded

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
    return maximize(objective, list(zip(rows, bounds, strict=True)), lower, upper)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_agrees_with_highs_and_proves_it(program):
    objective, rows, bounds, lower, upper = program
    outcome, claim = run(*program), in_floats(*program)
    spaces = [(dict(row), a) for row, a in zip(rows, bounds, strict=True)]
    if isinstance(outcome, ExactInfeasible):
        assert claim.status is Status.INFEASIBLE
        assert bounded({}, spaces, outcome.multipliers, lower, upper) < 0
        return
    assert isinstance(outcome, ExactOptimal)
    assert claim.status is Status.OPTIMAL
    assert float(outcome.value) == pytest.approx(-claim.objective, abs=1e-6)
    assert all(sum(v * outcome.x[i] for i, v in row) <= a for row, a in zip(rows, bounds, strict=True))
    assert all(lo <= x <= hi for lo, x, hi in zip(lower, outcome.x, upper, strict=True))
    assert bounded(dict(objective), spaces, outcome.multipliers, lower, upper) == outcome.value


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


@settings(max_examples=100, deadline=None)
@given(programs(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_point_or_a_proof_that_there_is_none(program, strict):
    _, forms, bounds, lower, upper = program
    rows = [(form, a, s) for form, a, s in zip(forms, bounds, strict, strict=False)]
    found = point_or_proof(rows, lower, upper)
    if isinstance(found, dict):
        values = [(sum(v * found[i] for i, v in form), a, s) for form, a, s in rows]
        assert all(value < a if s else value <= a for value, a, s in values)
        assert all(lower[i] <= v <= upper[i] for i, v in found.items())
        return
    total = bounded({}, [(dict(form), a) for form, a, _ in rows], found, lower, upper)
    assert total < 0 or (total == 0 and any(m > 0 and s for m, (*_, s) in zip(found, rows, strict=True)))


def test_degenerate_program_ends():
    # Beale's example cycles under the greedy rule without a tie-breaker.
    rows = [
        [(0, F(1, 4)), (1, F(-60)), (2, F(-1, 25)), (3, F(9))],
        [(0, F(1, 2)), (1, F(-90)), (2, F(-1, 50)), (3, F(3))],
        [(2, F(1))],
    ]
    outcome = maximize(
        [(0, F(3, 4)), (1, F(-150)), (2, F(1, 50)), (3, F(-6))],
        list(zip(rows, [F(0), F(0), F(1)], strict=True)),
        [F(0)] * 4,
        [None] * 4,
    )
    assert isinstance(outcome, ExactOptimal)
    assert outcome.value == F(1, 20)


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="as many lower as upper"):
        maximize([], [], [F(0)], [])
    with pytest.raises(ValueError, match="empty range for variable 0"):
        maximize([], [], [F(1)], [F(0)])
