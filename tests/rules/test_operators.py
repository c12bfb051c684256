"""Python operators build the tree that the text would."""

from fractions import Fraction

import numpy as np
import pytest

from smle.errors import RuleError
from smle.rules import (
    at_least,
    at_least_one,
    at_most,
    at_most_one,
    exactly,
    exactly_one,
    logit,
    maximum,
    minimum,
    score,
    variable,
    variables,
)
from smle.rules.parser import parse

x, y, cat, dog, advice = variables("x y cat dog advice")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (x <= 3, "x <= 3"),
        (x >= y, "x >= y"),
        (x < y, "x < y"),
        (x > 0.1, "x > 0.1"),
        ((x >= 1) & (y >= 2) & (x <= 9), "x >= 1 and y >= 2 and x <= 9"),
        ((x >= 1) | (y >= 2), "x >= 1 or y >= 2"),
        (~(cat & dog), "not (cat and dog)"),
        (cat.implies(dog), "cat implies dog"),
        (x.between(0, 1), "0 <= x <= 1"),
        (2 * x + y / 3 - 1 <= -y, "2 * x + y / 3 - 1 <= -y"),
        (1 - x <= 1 / Fraction(3) * y, "1 - x <= 1 / 3 * y"),
        (abs(x - y) <= 0.01, "abs(x - y) <= 0.01"),
        (maximum(x, 2 * y, 3) <= minimum(y, 1), "max(x, 2 * y, 3) <= min(y, 1)"),
        (advice == "left", "advice == left"),
        (advice != "far left", "advice != `far left`"),
        (advice.isin(["left", 4]), "advice in [left, 4]"),
        (~advice.isin(["left"]), "advice not in [left]"),
        (score("left") <= logit("cat"), "score(left) <= logit(cat)"),
        (score(advice, "left") <= 1, "score(advice, left) <= 1"),
        (at_most_one(cat, dog), "at_most_one(cat, dog)"),
        (at_least_one(cat, "dog"), "at_least_one(cat, dog)"),
        (exactly_one(cat, dog), "exactly_one(cat, dog)"),
        (at_most(2, cat, dog, x <= 1), "at_most(2, cat, dog, x <= 1)"),
        (at_most(2, ["cat", "dog", "a cow"]), "at_most(2, cat, dog, `a cow`)"),
        (exactly_one([cat, dog]), "exactly_one(cat, dog)"),
        (at_least(variable("few"), cat, "dog"), "at_least(few, cat, dog)"),
        (exactly(np.int64(1), cat, ~dog), "exactly(1, cat, not dog)"),
        (sum([x, y, x]) <= 1, "x + y + x <= 1"),
        (variable("road friction") <= 1, "`road friction` <= 1"),
        (np.float64(0.1) * x <= np.float32(0.1), "0.1 * x <= 0.1"),
        (np.int64(2) + x >= 1, "2 + x >= 1"),
        (-2 * x <= 1, "-2 * x <= 1"),
    ],
)
def test_an_expression_prints_the_text_that_reads_back_as_it(expression, text):
    assert str(expression) == text
    assert parse(text) == expression.node
    assert repr(expression) == f"<{text}>"


@pytest.mark.parametrize("wrong", [None, object(), True, float("inf"), float("nan"), [1], 1j])
def test_operands_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(RuleError):
        _ = x <= wrong
    with pytest.raises(RuleError):
        _ = x + wrong


def test_python_chains_and_truth_values_are_refused():
    with pytest.raises(RuleError, match="between"):
        _ = 0 <= x <= 1
    with pytest.raises(RuleError, match=r"maximum\(a, b\) for the larger one"):
        max(x, y)
    with pytest.raises(RuleError, match="truth value"):
        bool(x <= 1)
    with pytest.raises(RuleError):
        _ = (x <= 1) and (y <= 1)


def test_deep_expressions_are_refused_not_crashed():
    def negate(times):
        deep = x
        for _ in range(times):
            deep = -deep
        return deep

    assert str(negate(10)).count("-") == 10
    with pytest.raises(RuleError, match="nesting"):
        negate(1000)


def test_long_sums_from_python():
    total = sum(variable(f"x{i}") for i in range(2000))
    assert len(str(total <= 1).split(" + ")) == 2000


def test_variables_take_names_in_every_form():
    wanted = [str(term) for term in variables("a b")]
    for names in (("a", "b"), (["a", "b"],), (("a",), "b")):
        assert [str(term) for term in variables(*names)] == wanted
    assert [str(term) for term in variables(["a b"])] == ["`a b`"]
