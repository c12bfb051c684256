"""`max(...)` and `min(...)` of linear forms, and functions of one's own that expand to them."""

import itertools
from fractions import Fraction

import pytest

from smle.errors import RuleError
from smle.rules import Specification, maximum, rule

STATED = {"inputs": {"x": (0, 4), "w": (0, 4)}, "outputs": ["a", "b"]}
LEVELS = [Fraction(v) for v in ("-2", "0", "1/2", "1", "3", "4")]


def spec(then, when=None, **parts):
    return Specification.build(**STATED, rules=[rule("r", when, then)], **parts)


@pytest.mark.parametrize(
    ("then", "literals"),
    [
        ("max(a, b) <= 3", [1, 1]),
        ("max(a, b) >= 3", [2]),
        ("min(a, b) >= 3", [1, 1]),
        ("min(a, b) < 3", [2]),
        ("max(a, min(b - x, 2 - b)) <= 3", [1, 2]),
        ("max(a, 1, 2) <= 3", [1]),
        ("max(a, b) - min(a, b) <= 3", [1, 1]),
        ("abs(abs(a) - 2) <= 1", [1, 1, 2]),
    ],
)
def test_an_extreme_is_a_conjunction_or_an_alternative(then, literals):
    made = spec(then)
    assert [len(clause.literals) for clause in made.rules[0].requirement.clauses] == literals
    assert Specification.from_yaml(made.to_yaml()) == made
    for a, b, x in itertools.product(LEVELS, LEVELS, [Fraction(0), Fraction(4)]):
        assert (made.violated([x, x], [a, b]) == ()) == eval(then, {"a": a, "b": b, "x": x})


def test_regions_may_be_stated_by_extremes():
    made = spec("a >= 0", "max(x, w) <= 3 and min(x, w) >= 1")
    assert len(made.rules[0].regions) == 1
    assert len(spec("a >= 0", "max(x, w) >= 3").rules[0].regions) == 2
    for x, w in itertools.product(range(5), range(5)):
        assert any(region.contains([x, w]) for region in made.rules[0].regions) == (max(x, w) <= 3 and min(x, w) >= 1)


def ramp(limit, *steps):
    """Neighbors are at most `limit` apart."""
    size = maximum(*(abs(later - sooner) for sooner, later in itertools.pairwise(steps)), 0)
    return size <= limit


def test_a_function_of_ones_own_expands_and_leaves_no_trace():
    made = spec("ramp(0.5, a, b, x)", functions={"ramp": ramp})
    assert made == spec("max(abs(b - a), abs(x - b), 0) <= 0.5")
    assert Specification.from_yaml(made.to_yaml()) == made, "the stored rules do not need the function"
    head = "inputs: {x: [0, 4]}\noutputs: [a, b]\nrules:\n"
    text = head + "  - {name: r, when: far(x), then: 'a >= 0 and ramp(-1 + 2, a, b)'}\n"
    read = Specification.from_yaml(text, functions={"ramp": ramp, "far": lambda place: place >= 3})
    assert read.rules[0].when == "x >= 3"
    assert read.rules[0].then == "a >= 0 and max(abs(b - a), 0) <= -1 + 2"


def test_functions_get_numbers_terms_and_conditions():
    seen = []

    def note(*arguments):
        seen.extend(type(argument).__name__ for argument in arguments)
        return arguments[-1]

    spec("note(2, -0.5, a, max(a, b), a <= 1)", functions={"note": note})
    assert seen == ["Fraction", "Fraction", "Term", "Term", "Condition"]


@pytest.mark.parametrize(
    ("functions", "then", "message"),
    [
        ({"ramp": lambda a: a / 0}, "ramp(a) <= 1", "function 'ramp' failed: RuleError|Division by zero"),
        ({"ramp": lambda a: {}["b"]}, "ramp(a) <= 1", "The function 'ramp' failed: KeyError"),
        ({"ramp": lambda a: a}, "ramp(a, b) <= 1", "The function 'ramp' failed: TypeError"),
        (
            {"ramp": lambda a: [a]},
            "ramp(a) <= 1",
            "In 'ramp(...)': Expected a finite number, a variable or a condition",
        ),
        ({"ramp": lambda a: a * a}, "ramp(a) <= 1", "Not linear"),
        ({"ramp": ramp}, "rampe(1, a, b)", "Did you mean 'ramp'"),
        ({"max": ramp}, "a <= 1", "none of the names"),
        ({"in": ramp}, "a <= 1", "none of the names"),
        ({"ramp": 3}, "a <= 1", "Expected functions by name"),
    ],
)
def test_what_goes_wrong_in_a_function_is_said(functions, then, message):
    with pytest.raises(RuleError) as caught:
        spec(then, functions=functions)
    assert any(part in str(caught.value) for part in message.split("|"))
