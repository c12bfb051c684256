"""Equalities that two rules state together are named, and offered as one `==`; on a grid they hold exactly."""

import numpy as np
import pytest

import smle
from smle.heads.grid.grid_author import certify_grid
from smle.heads.grid.grid_program import GridProgram
from smle.rules import Specification


def rules(first: str, second: str, outputs: str = "[a, b]") -> Specification:
    return Specification.from_yaml(
        f"inputs: {{x: [0, 9], d: {{range: [0, 9], integer: true}}}}\noutputs: {outputs}\nrules:\n"
        "  - {name: caps, then: 0 <= a <= 9 and 0 <= b <= 9}\n"
        f"  - {{name: one, {first}}}\n  - {{name: other, {second}}}\n"
    )


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("then: a <= b", "then: b <= a", "`then: a - b == 0`"),
        ("then: 2 * a + 2 * b <= 2 * d", "then: a + b >= d", "`then: a + b - d == 0`"),
        ("then: a + b <= x", "then: a + b >= x", "`integer` or `step` for 'x'"),
        ("when: x > 3, then: a <= b", "when: x > 3, then: b <= a", "without a condition"),
    ],
)
def test_two_rules_that_state_an_equality(first, second, said):
    found = [f for f in smle.diagnose(rules(first, second)).findings if f.kind == "hidden equality"]
    assert [f.rules for f in found] == [("one", "other")]
    assert said in found[0].text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("then: a <= b", "then: b < a"),
        ("then: a <= b", "then: b <= a + 1"),
        ("when: x > 3, then: a <= b", "when: x <= 3, then: b <= a"),
        ("then: a <= b or a >= 5", "then: b <= a"),
    ],
)
def test_rules_that_do_not(first, second):
    assert not any(f.kind == "hidden equality" for f in smle.diagnose(rules(first, second)).findings)


def test_on_a_grid_they_are_solved_as_one():
    outputs = "{a: {integer: true}, b: {integer: true}}"
    apart = GridProgram(certify_grid(rules("then: a + b <= d", "then: a + b >= d", outputs)))
    X = np.stack([np.zeros(10), np.arange(10)], axis=1)
    answers = np.random.default_rng(0).uniform(-1, 9, (10, 2)).astype(np.float32)
    y, by = apart.explained(X, answers)
    assert len(apart.proposals.reduction.derived) == 1
    assert (y.sum(axis=1) == X[:, 1]).all()
    assert (by < 2).all()
