"""The paper's properties: each helper says the same as the text that one would write by hand."""

from fractions import Fraction

import numpy as np
import pytest

from smle.errors import RuleError
from smle.rules import Specification, bounded_change, forbidden_pairs_from_data, linear_rule, mutually_exclusive, rule


def test_linear_rules_from_matrices():
    Q, q = np.array([[1.0, 0.0], [-0.1, 2.5]]), np.array([0.3, 1.0])
    R, r = np.array([[1, -1]]), np.array([0.5])
    stated = linear_rule(Q, q, R, r, inputs=["a", "b"], outputs=["y", "z"], name="p")
    build = {"inputs": {"a": (0, 1), "b": (0, 1)}, "outputs": ["y", "z"]}
    by_hand = {"p": "a <= 0.3 and -0.1 * a + 2.5 * b <= 1 -> y - z <= 0.5"}
    one, two = (Specification.build(**build, rules=rules).rules[0] for rules in ([stated], by_hand))
    assert (one.regions, one.requirement) == (two.regions, two.requirement)
    always = linear_rule(None, None, R, r, inputs=["a", "b"], outputs=["y", "z"])
    assert Specification.build(**build, rules=[always]).rules[0].when is None
    with pytest.raises(RuleError, match="row of zeros"):
        linear_rule(None, None, [[0, 0]], [1], inputs=["a"], outputs=["y", "z"])


def test_bounded_change():
    outputs = ["t1", "t2", "t3"]
    stated = {"inputs": {"x": (0, 1)}, "outputs": outputs}
    made = Specification.build(**stated, rules={"r": bounded_change(0.25, outputs)})
    assert made == Specification.build(**stated, rules={"r": "abs(t2 - t1) <= 0.25 and abs(t3 - t2) <= 0.25"})
    x, zero = [Fraction(0)], Fraction(0)
    assert made.violated(x, [zero, Fraction(1, 4), zero]) == ()
    assert made.violated(x, [zero, Fraction(1, 4), Fraction(51, 100)]) == ("r",)
    for wrong in (["t1"], "t1"):
        with pytest.raises(RuleError):
            bounded_change(1, wrong)


def test_forbidden_pairs_are_the_rare_ones():
    Y = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [0, 1, 0]])
    # together: (0, 1) twice, (0, 2) once, (1, 2) never
    assert forbidden_pairs_from_data(Y, 0.0).tolist() == [[1, 2]]
    assert forbidden_pairs_from_data(Y, 0.5).tolist() == [[0, 2], [1, 2]]
    assert forbidden_pairs_from_data(Y, 1.0).tolist() == [[0, 1], [0, 2], [1, 2]]
    for wrong in (np.ones(3), np.ones((3, 1)), np.full((3, 3), 2), np.empty((0, 3)), np.full((2, 2), np.nan)):
        with pytest.raises(RuleError):
            forbidden_pairs_from_data(wrong, 0.5)
    with pytest.raises(RuleError):
        forbidden_pairs_from_data(Y, 1.5)


def test_mutually_exclusive_by_number_by_name_and_by_text():
    stated = {"inputs": {"x": (0, 1)}, "outputs": ["y"], "labels": ["cat", "dog", "or"]}
    by_number = Specification.build(**stated, rules=[rule("r", then=mutually_exclusive(np.array([[2, 0], [0, 1]])))])
    by_name = Specification.build(**stated, rules={"r": mutually_exclusive([("cat", "dog"), ("cat", "or")])})
    by_text = Specification.build(**stated, rules={"r": "not (cat and dog) and not (cat and `or`)"})
    assert by_number == by_name == by_text
    assert by_number.rules[0].requirement.exclusions.tolist() == [[1, 2], [1, 3]]
