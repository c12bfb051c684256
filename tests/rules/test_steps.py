"""Steps and equalities in the rule language: what is read, chosen, printed back and refused."""

from fractions import Fraction

import pytest

from smle import diagnose
from smle.errors import ContradictionError, RuleError
from smle.heads.table import certify_head
from smle.rules import Number, NumericInput, Specification

TEXT = """
inputs:
  demand: {range: [0, 220], integer: true}
  weight: {range: [1, 200], step: 0.1}
  age: [0, 100]
outputs:
  limit: {step: 100}
  pieces: {integer: true}
  net: {step: 0.01, range: [0, 5000]}
  rest: {}
rules:
  - name: range
    then: 0 <= limit <= 5000 and 0 <= pieces and 0 <= rest
  - name: parts
    then: pieces + rest == demand
"""


def test_steps_are_read_and_printed_back():
    spec = Specification.from_yaml(TEXT)
    assert Specification.from_yaml(spec.to_yaml()) == spec
    assert spec.outputs[0] == Number("limit", Fraction(100))
    assert spec.outputs[2] == Number("net", Fraction(1, 100), Fraction(0), Fraction(5000))
    assert spec.inputs[1] == NumericInput("weight", Fraction(1), Fraction(200), step=Fraction(1, 10))
    grid = spec.grid
    assert grid.steps == (100, 1, Fraction(1, 100), 1)
    assert grid.chosen == (False, False, False, True)
    assert grid.upper == (5000, 220, 5000, 220)  # what the sum leaves
    assert grid.input_steps == (1, Fraction(1, 10), None)


def test_python_says_the_same():
    made = Specification.build(
        inputs={
            "demand": {"range": (0, 220), "integer": True},
            "weight": {"range": (1, 200), "step": Fraction(1, 10)},
            "age": (0, 100),
        },
        outputs={
            "limit": {"step": 100},
            "pieces": {"integer": True},
            "net": {"step": "0.01", "range": (0, 5000)},
            "rest": {},
        },
        rules={"range": "0 <= limit <= 5000 and 0 <= pieces and 0 <= rest", "parts": "pieces + rest == demand"},
    )
    assert made == Specification.from_yaml(TEXT)


def test_without_steps_and_equalities_there_is_no_grid():
    spec = Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [a, b]\nrules: [{name: r, then: a <= b}]\n")
    assert spec.grid is None
    assert "step" not in spec.to_yaml()


@pytest.mark.parametrize(
    ("reach", "step"),
    [("1", Fraction(1, 2**24)), ("0.3", Fraction(1, 2**25)), ("220", Fraction(1, 2**16)), ("256", Fraction(1, 2**16))],
)
def test_a_chosen_step_is_a_power_of_two_that_just_fits(reach, step):
    text = f"inputs: {{x: [0, 1]}}\noutputs: {{a: {{range: [0, {reach}]}}, b: {{range: [0, {reach}]}}}}\n"
    spec = Specification.from_yaml(text + "rules: [{name: r, then: a == b}]\n")
    assert spec.grid.steps == (step, step)


def stated(outputs, *rules, inputs="x: [0, 10], n: {range: [0, 9], integer: true}"):
    listed = "".join(f"  - {{name: r{i}, then: '{rule}'}}\n" for i, rule in enumerate(rules))
    return f"inputs: {{{inputs}}}\noutputs: {{{outputs}}}\nrules:\n{listed}"


TWO = "a: {range: [0, 1]}, b: {range: [0, 1]}"
WHOLE = "a: {integer: true, range: [0, 9]}, b: {integer: true, range: [0, 9]}"
REFUSED = {
    "a decimal on a binary grid": (
        stated(TWO, "a + b == 0.3"),
        "no power-of-two grid holds 0.3. Give 'a' and 'b' a decimal step",
    ),
    "a real input": (stated(TWO, "a + b == x"), "State `integer` or `step` for 'x', or a tolerance"),
    "no range": (stated("a: {}, b: {}", "a == b"), "nothing says how large it may get. State its range"),
    "too fine": (stated("a: {step: 0.01, range: [0, 200000]}", "a >= 0"), "apart above 131,072. Use a coarser step"),
    "too fine an input": (
        stated("a: {step: 1}", "0 <= a <= x", inputs="x: {range: [0, 1e9], step: 0.01}"),
        "Input 'x' may reach",
    ),
    "different steps": (stated("a: {step: 1, range: [0, 9]}, b: {step: 0.5, range: [0, 9]}", "a == b"), "steps differ"),
    "no whole solution": (stated(WHOLE, "6 * a + 4 * b == 7"), "no whole numbers of steps of 'a' and 'b' give 7"),
    "a step of 0": (stated("a: {step: 0}", "a >= 0"), "expected a step above 0"),
    "two words for it": (stated("a: {step: 1, integer: true}", "a >= 0"), "either 'integer' or 'step'"),
    "an unknown word": (stated("a: {stepp: 1}", "a >= 0"), "unknown key 'stepp'"),
    "an alternative": (stated(WHOLE, "a == b or a >= 5"), "as one of several alternatives"),
    "a largest value": (stated(WHOLE, "max(a, b) == 3"), "largest, smallest or absolute value"),
    "two inequalities": (stated(WHOLE, "a <= b and b <= a"), "Write '==' if that is meant"),
    "a condition": (
        "inputs: {x: [0, 1]}\noutputs: {" + WHOLE + "}\nrules: [{name: r, when: x > 0.5, then: a == b}]\n",
        "under a condition",
    ),
    "labels": (
        "inputs: {x: [0, 1]}\noutputs: {a: {step: 1}}\nlabels: [l]\nrules: [{name: r, then: 0 <= a <= 3}]\n",
        "do not go together with labels",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    text, message = REFUSED[name]
    with pytest.raises(RuleError) as caught:
        Specification.from_yaml(text)
    assert message in str(caught.value)


CONTRADICTIONS = {
    "nothing between": (stated("a: {integer: true}", "0.3 <= a <= 0.7"), "No whole number lies between 0.3 and 0.7"),
    "nothing between moving limits": (
        stated("a: {integer: true}", "a >= 0.3 * x", "a <= 0.7 * x", inputs="x: [0.5, 10]"),
        "No whole number lies between 0.15 and 0.35 (at x=0.5)",
    ),
    "five shares": (
        stated(
            ", ".join(f"s{i}: {{}}" for i in range(5)),
            " and ".join(f"0 <= s{i} <= 0.2" for i in range(5)),
            " + ".join(f"s{i}" for i in range(5)) + " == 1",
        ),
        "0.2 becomes 0.199999988. State a decimal step",
    ),
    "two sums": (stated(WHOLE, "a + b == 4", "a + b == 5"), "contradict"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_named_with_an_input(name):
    text, message = CONTRADICTIONS[name]
    spec = Specification.from_yaml(text)
    with pytest.raises(ContradictionError) as caught:
        certify_head(spec)
    assert message in str(caught.value)
    assert any(finding.severe for finding in diagnose(spec).findings)


def test_an_equality_without_a_unit_is_refused():
    with pytest.raises(RuleError, match="coefficient 1 or -1"):
        certify_head(Specification.from_yaml(stated(WHOLE, "3 * a + 5 * b == 8")))


def test_five_shares_in_decimal_steps_are_fine():
    text = CONTRADICTIONS["five shares"][0].replace("{}", "{step: 0.001}")
    assert certify_head(Specification.from_yaml(text)).proved


def test_a_sum_that_says_how_far_floats_may_be_off():
    spec = Specification.from_yaml(
        stated("a: {step: 0.01, range: [0, 100]}, b: {step: 0.01, range: [0, 100]}", "a == b")
    )
    bound = spec.grid.bound_on_sums(spec.rules[0].requirement.clauses[0].literals[0])
    assert bound == Fraction(200, 2**24)
    binary = Specification.from_yaml(stated(TWO, "a == b"))
    assert binary.grid.bound_on_sums(binary.rules[0].requirement.clauses[0].literals[0]) == 0
