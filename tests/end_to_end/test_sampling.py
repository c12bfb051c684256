"""Attack by sampling: what is certified has no exact violation; what is not certified is found out."""

import numpy as np
import pytest

from smle import NetworkRegressor, SafeRegressor, Specification
from smle.estimators import without_rules
from smle.heads.box.network.deployed import gate_program
from smle.regions.search import find_cells
from support.sampling import Judge, hard_points

COUNT = 60_000


def _violations(model, spec, dtype, count=COUNT, change=None):
    judge, found = Judge(spec), []
    for X in hard_points(spec, np.random.default_rng(0), count, dtype=dtype):
        Y = model.deployed_.answer(model.deployed_.reader.opened(X, X), "clip", count=False).served
        found += judge.violations(X, Y if change is None else change(Y))
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certified_model_never_violates(braking_model, braking_spec, dtype):
    assert _violations(braking_model, braking_spec, dtype) == []


def test_the_attack_finds_a_network_without_rules(braking_spec, braking_table):
    plain = SafeRegressor(without_rules(braking_spec), NetworkRegressor(max_epochs=3), random_state=0)
    plain.fit(braking_table[list(braking_spec.columns)], braking_table["brake"])
    assert plain.certificate_ is None
    assert _violations(plain, braking_spec, np.float32, 2000)


def test_the_attack_finds_one_ulp(braking_model, braking_spec):
    """A model that answers exactly on the border is safe; moved by one number of the format it is not."""
    border = np.float32(0.8)  # above four fifths
    below = np.nextafter(border, np.float32(0))
    x = np.array([[10.0, 20.0, 0.5]], dtype=np.float32)
    judge = Judge(braking_spec)
    assert judge.violations(x, np.array([[border]])) == []
    assert {v.rule for v in judge.violations(x, np.array([[below]]))} == {"emergency braking"}


OBLIQUE = """
inputs: {a: [-3, 5], b: [-7, 2], c: [0.1, 90]}
outputs: [y]
rules:
  - {name: one, when: a - 0.7 * b + 0.3 * c <= 1.7, then: y <= 1}
  - {name: two, when: 0.1 * a + 0.7 * b >= -0.9 and c < 0.7, then: y >= 0}
"""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_guard_never_misses_and_a_plain_float32_gate_does(dtype):
    """Without slack, float32 rows call points outside that are exactly inside; the deployed gate calls none."""
    spec = Specification.from_yaml(OBLIQUE)
    judge, cells = Judge(spec), find_cells(spec)
    gate = gate_program(spec, cells)
    missed = 0
    for X in hard_points(spec, np.random.default_rng(1), 100_000, dtype=dtype):
        bits = gate.bits_of(X)
        for position, region in enumerate(cells.gated):
            rows = cells.polytope(region).rows
            inside = np.all([judge._inside(row, X) for row in rows], axis=0)
            assert not (inside & ~bits[:, position]).any()
            for row in (r for r in rows if not r.is_comparison):
                weights = np.zeros(3, dtype=np.float32)
                for column, value in row.coefficients:
                    weights[column] = float(value)
                plain = X.astype(np.float32) @ weights <= np.float32(float(row.bound))
                missed += int((judge._inside(row, X) & ~plain).sum())
    assert missed > 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e38])
def test_whatever_the_backbone_computes(braking_model, braking_spec, value):
    head, judge = braking_model.deployed_.head, Judge(braking_spec)
    rng = np.random.default_rng(2)
    units = head.width
    for X in hard_points(braking_spec, rng, 5000, dtype=np.float32):
        z = rng.normal(size=(len(X), units)).astype(np.float32)
        z[rng.random(z.shape) < 0.3] = value
        Y = head(X, z)
        cells = [i for i, v in enumerate(Y) if np.isnan(v).any()]
        assert cells == [], "every cell of the demo is bound by a rule, so NaN never gets out"
        assert judge.violations(X, Y) == []


def test_corners_of_the_box_are_safe(braking_model, braking_spec):
    """The backbone may hide a reachable corner: put the embedding there on purpose."""
    head, judge, rng = braking_model.deployed_.head, Judge(braking_spec), np.random.default_rng(3)
    W = braking_model.record().weights["heads.weight"]
    for X in hard_points(braking_spec, rng, 20_000, dtype=np.float64):
        signs = np.sign(W[rng.integers(len(W), size=len(X)), 0])
        z = np.where(rng.random((len(X), 1)) < 0.5, signs, -signs) * rng.choice([1.0, 1e30])
        Y = head(X, z.astype(np.float32))
        assert judge.violations(X, Y) == []
