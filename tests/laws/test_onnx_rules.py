"""Heads of rules in onnxruntime: whatever the model answers, every rule holds; the graph is the certified one."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import helper, numpy_helper

import smle_check
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.rules.clip_list import ClipList
from smle.heads.rules.rules_author import certify_rules
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle_check.onnx.nodes import EMBEDDING
from support.exported import accepted, columns_of, feed, session
from support.joined import ANSWERS, KINDS, asked, every_constant_counts, every_node_counts, joined
from support.limit_rules import EVERYDAY, answers_for, at_a_border, limit_rules, spec_of
from support.sampling import Judge, hard_points

PLAIN = {
    "one constant": "  - {name: p, when: a <= 3, then: dose <= 0.2}\n",
    "two conditions": "  - {name: p, when: a < 3 and w >= 100.5, then: dose > 0.3 * w - 8}\n",
    "always": "  - {name: p, then: 0 <= dose <= 1}\n  - {name: q, then: dose <= 0.7}\n",
    "one region, two outputs": "  - {name: p, when: a > -0.5, then: dose >= 0.1 and limit >= 0.2 * w}\n",
    "some outputs": "  - {name: p, then: limit <= 3 * a}\n  - {name: q, then: dose >= 1}\n",
    "always and sometimes": "  - {name: p, then: dose <= 3}\n  - {name: q, when: a >= 0, then: limit >= 1}\n",
    "many": "".join(f"  - {{name: r{i}, when: a <= 8{i}, then: dose <= {9 - i} + 0.0{i + 1} * w}}\n" for i in range(7)),
}  # fmt: skip
ALL = {**EVERYDAY, **PLAIN}
LAYOUTS = {"monitored": True, "not monitored": False}


def points(spec: Specification, rng: np.random.Generator, count: int) -> np.ndarray:
    return np.concatenate(list(hard_points(spec, rng, count, dtype=np.float32)))


@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_every_limit_holds_exactly(name, monitor):
    spec = spec_of(ALL[name])
    exported = joined(spec, monitor=monitor)
    assert smle_check.check_onnx(exported.onnx, exported.companion).proved
    running, judge, rng = session(exported.onnx), Judge(spec), np.random.default_rng(0)
    program = ClipList(exported.record.certificate)
    X = points(spec, rng, 3000)
    Y = answers_for(spec, X, rng)
    answers = asked(running, spec, X, Y)
    served = columns_of(spec, answers)
    assert judge.violations(X, served) == []
    expected = program(X, Y)
    close = np.isclose(served, expected, rtol=1e-6, atol=1e-30) | at_a_border(spec, X)[:, None]
    assert close.all()
    assert (served == expected).mean() > 0.99
    assert (served != Y).any(axis=1).sum() > 100
    for rows in (1, 2, 3):
        few = columns_of(spec, asked(running, spec, X[:rows], Y[:rows]))
        assert judge.violations(X[:rows], few) == []
    none = columns_of(spec, asked(running, spec, X[:0], Y[:0]))
    assert none.shape == (0, len(spec.targets))
    if monitor:
        inside = (([float(v) for v in spec.lower] <= X) & ([float(v) for v in spec.upper] >= X)).all(axis=1)
        assert np.array_equal(answers["in_domain"], inside)


@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_subnormal_numbers_read_as_zero(name, monitor):
    """As the statement assumes, no input is subnormal; answers may be."""
    spec, rng = spec_of(ALL[name]), np.random.default_rng(1)
    exported = joined(spec, monitor=monitor)
    X = points(spec, rng, 3000)
    X[(X != 0) & (np.abs(X) < 2.0**-126)] = 0
    Y = answers_for(spec, X, rng)
    Y[::3, 0] = rng.choice(np.float32([1e-42, -1e-42, 2.0**-126, -(2.0**-127)]), len(Y[::3]))
    served = columns_of(spec, asked(session(exported.onnx, flush=True), spec, X, Y))
    assert Judge(spec).violations(X, served) == []


@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["bank", "oblique", "one constant", "two conditions", "some outputs"])
def test_inputs_outside_are_clamped(name, monitor):
    """NaN to the lower end; the rules hold at the clamped input."""
    spec, rng = spec_of(ALL[name]), np.random.default_rng(2)
    exported = joined(spec, monitor=monitor)
    X = points(spec, rng, 1500)
    numbers = X[:, :3]
    odd = rng.random(numbers.shape) < 0.3
    numbers[odd] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42]), odd.sum())
    lower, upper = (np.float32([float(v) for v in side]) for side in (spec.lower, spec.upper))
    clamped = np.where(lower <= X, X, lower)
    clamped = np.where(clamped <= upper, clamped, upper)
    served = columns_of(spec, asked(session(exported.onnx), spec, X, answers_for(spec, X, rng)))
    assert Judge(spec).violations(clamped, served) == []


@settings(max_examples=40, deadline=None)
@given(rules=limit_rules(), seed=st.integers(0, 2**32 - 1), monitor=st.booleans())
def test_random_limits_hold(rules, seed, monitor):
    try:
        spec = spec_of(rules)
        certificate = certify_rules(spec)
    except (ContradictionError, NotCertifiedError, RuleError):
        return
    exported, rng = joined(spec, certificate, monitor=monitor), np.random.default_rng(seed)
    assert accepted(exported.onnx, exported.companion) is not None
    X = points(spec, rng, 300)
    Y = answers_for(spec, X, rng)
    assert Judge(spec).violations(X, columns_of(spec, asked(session(exported.onnx), spec, X, Y))) == []
    X[(X != 0) & (np.abs(X) < 2.0**-126)] = 0
    assert Judge(spec).violations(X, columns_of(spec, asked(session(exported.onnx, flush=True), spec, X, Y))) == []


# --- changed graphs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["bank", "one constant", "one region, two outputs"])
def test_every_node_counts(name, monitor):
    assert every_node_counts(joined(spec_of(ALL[name]), monitor=monitor), 1, branches=False) > 10


@pytest.mark.audit
@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_every_node_counts_in_every_way(name, monitor):
    exported = joined(spec_of(ALL[name]), monitor=monitor)
    assert every_node_counts(exported, len(KINDS), branches=False) > 10 * len(KINDS)


@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["bank", "oblique", "one constant", "one region, two outputs", "many"])
def test_every_constant_counts(name, monitor):
    exported = joined(spec_of(ALL[name]), monitor=monitor)
    assert "clips.default" in every_constant_counts(exported, ("value", "shape", "removed", "narrower"))


@pytest.mark.parametrize("rows", [0, 1, 2, 4])
@pytest.mark.parametrize("monitor", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["bank", "one constant", "always"])
def test_answers_with_other_rows_than_the_inputs_are_never_served(name, monitor, rows):
    spec = spec_of(ALL[name])
    constant = numpy_helper.from_array(np.full((rows, len(spec.targets)), 1e30, dtype=np.float32), "backbone/fixed")
    model = Backbone([helper.make_node("Identity", ["backbone/fixed"], [EMBEDDING])], [constant])
    exported = joined(spec, monitor=monitor, model=model)
    assert accepted(exported.onnx, exported.companion) is not None
    running = session(exported.onnx)
    for batch in (1, 2, 3, 5):
        X = np.zeros((batch, len(spec.columns)), dtype=np.float32)
        if batch == rows:
            assert {len(answer) for answer in running.run(None, feed(spec, X))} == {batch}
            continue
        with pytest.raises(Exception, match=r"[Rr]eshape"):
            running.run(None, feed(spec, X))


@pytest.mark.parametrize("kind", ["DOUBLE", "INT64", "FLOAT16", "STRING"])
def test_answers_of_other_types_obey_too(kind):
    """What the model hands over is cast to float64 first, whatever it is."""
    spec, rng = spec_of(EVERYDAY["bank"]), np.random.default_rng(3)
    to = getattr(onnx.TensorProto, kind)
    value = helper.make_tensor_value_info(ANSWERS, onnx.TensorProto.FLOAT, ["N", 2])
    nodes = [helper.make_node("Cast", [ANSWERS], [EMBEDDING], to=to)]
    exported = joined(spec, model=Backbone(nodes, [], [value]))
    assert accepted(exported.onnx, exported.companion) is not None
    X = points(spec, rng, 600)
    Y = np.nan_to_num(answers_for(spec, X, rng), nan=7.0, posinf=9.0, neginf=-9.0)
    served = columns_of(spec, asked(session(exported.onnx), spec, X, Y))
    assert Judge(spec).violations(X, served) == []
