"""The solver of the paper's own programs in studies: right on small ones, and every word of it is read."""

from types import SimpleNamespace

import numpy as np
import pytest

from smle.solvers import QuadraticProgram, Status, solve
from support import scip


def test_mixed_integer_quadratic_optimum_equals_enumeration() -> None:
    pytest.importorskip("pyscipopt")
    for seed in range(5):
        rng = np.random.default_rng(seed)
        q = np.concatenate([rng.normal(size=2), 0.1 * rng.normal(size=2)])
        rows = np.hstack([rng.normal(size=(2, 2)), -np.eye(2)]), np.full(2, -np.inf), np.zeros(2)
        lower, upper, curvature = np.array([-5.0, -5, 0, 0]), np.array([5.0, 5, 1, 1]), np.array([1.0, 1, 0, 0])
        values = []
        for binary in np.array(np.meshgrid([0.0, 1], [0.0, 1])).reshape(2, -1).T:
            low, high = lower.copy(), upper.copy()
            low[2:] = high[2:] = binary
            values.append(solve(QuadraticProgram(np.diag(curvature), q, *rows, low, high)).objective)
        found = scip.solve_miqp(curvature, q, rows, lower, upper, np.arange(4) >= 2)
        assert found.objective == pytest.approx(min(values), abs=1e-5)


def test_an_unknown_word_is_an_error() -> None:
    silent = SimpleNamespace(getStatus=lambda: "something new", getNSols=lambda: 0)
    assert scip._read(silent, []).status is Status.ERROR
