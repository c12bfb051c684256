"""`at_most(k, ...)`, `at_least(k, ...)`, `exactly(k, ...)`: what they mean, by trying every pattern."""

import itertools
import operator
from fractions import Fraction

import pytest

from smle.errors import RuleError
from smle.rules import Specification, rule

FITS = {"at_most": operator.le, "at_least": operator.ge, "exactly": operator.eq}
LABELS = ["a", "b", "c", "d", "e"]


def spec(then, when=None, **constants):
    return Specification.build(
        inputs={"x": (0, 8), "z": (0, 8)},
        outputs=["y"],
        labels=LABELS,
        choices={"advice": ["keep", "left"]},
        constants=constants,
        rules=[rule("r", when, then)],
    )


def answer(on, y=0, advice=(1, 0)):
    return [y, *(0 if v else Fraction(-1, 7) for v in on), *advice]


@pytest.mark.parametrize("function", FITS)
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_counts_of_labels_agree_with_counting(function, negated, size):
    for k in range(size + 2):
        text = f"{'not ' * negated}{function}({k}, {', '.join(LABELS[:size])})"
        patterns = list(itertools.product([False, True], repeat=size))
        expected = [FITS[function](sum(p), k) != negated for p in patterns]
        if all(expected) or not any(expected):
            with pytest.raises(
                RuleError, match="is always true, so it has no effect" if all(expected) else "never hold"
            ):
                spec(text)
            continue
        made = spec(text)
        found = [made.violated([0, 0], answer([*p, *[True] * (5 - size)])) == () for p in patterns]
        assert found == expected, text
        assert Specification.from_yaml(made.to_yaml()) == made


@pytest.mark.parametrize("function", FITS)
def test_counts_of_mixed_conditions_agree_with_counting(function):
    parts = ["a", "not b", "y <= 2", "advice == left", "c or y > 4", "a"]  # a counts twice
    for k in range(1, 6):
        made = spec(f"{function}({k}, {', '.join(parts)})")
        for a, b, c, left in itertools.product([False, True], repeat=4):
            for y in (1, 2, 3, 5):
                holds = [a, not b, y <= 2, left, c or y > 4, a]
                point = answer([a, b, c, False, False], y, (0, 1) if left else (1, 0))
                assert (made.violated([0, 0], point) == ()) == FITS[function](sum(holds), k), (k, a, b, c, y, left)


@pytest.mark.parametrize("function", FITS)
def test_a_tie_of_scores_counts_for_neither_side(function):
    made = spec(f"{function}(1, advice == left, a)")
    for on in (False, True):
        certain = all(FITS[function](on + left, 1) for left in (False, True))
        assert (made.violated([0, 0], answer([on] * 5, advice=(1, 1))) == ()) == certain


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("function", FITS)
def test_counts_in_when_give_the_regions_where_they_hold(function, negated):
    parts = ["x <= 2", "z <= 2", "x + z <= 5", "x >= 6", "z > 1"]
    for k in range(1, 5):
        text = f"{'not ' * negated}{function}({k}, {', '.join(parts)})"
        made = spec("y >= 0", text)
        assert Specification.from_yaml(made.to_yaml()) == made
        for x, z in itertools.product(range(9), range(9)):
            count = sum([x <= 2, z <= 2, x + z <= 5, x >= 6, z > 1])
            inside = any(region.contains([x, z]) for region in made.rules[0].regions)
            assert inside == (FITS[function](count, k) != negated), (text, x, z)


def test_a_count_in_when_needs_no_more_regions_than_groups():
    rows = [f"x <= {i}" for i in range(6)] + [f"z <= {i}" for i in range(6)]
    spec("y >= 0", f"exactly(4, {', '.join(rows)})")  # 495 groups; distributed, its clauses would give millions
    with pytest.raises(RuleError, match=r"more than 1,000 parts"):
        spec("y >= 0", f"at_least(6, {', '.join(f'x + {i} * z <= {7 * i}' for i in range(14))})")


def test_a_count_of_one_is_the_same_as_its_short_form():
    for function in FITS:
        short, long = spec(f"{function}_one(a, b, c)"), spec(f"{function}(1, a, b, c)")
        assert short.rules[0].requirement == long.rules[0].requirement
    assert spec("at_most(1, a, b, c)").rules[0].requirement.clauses == ()


def test_the_number_may_be_a_constant():
    assert spec("at_most(few, a, b, c)", few=2).rules[0].requirement == spec("at_most(2, a, b, c)").rules[0].requirement
    assert "at_most(few - 1, a, b, c)" in spec("at_most(few - 1, a, b, c)", few=3).to_yaml()


@pytest.mark.parametrize(
    "number", ["-1", "1.5", "1/3", "a", "y", "unknown", "x", "a or b", "true", "advice == left", "few", "1e390 / 7"]
)
def test_what_is_no_whole_number_is_refused(number):
    with pytest.raises(RuleError, match="whole number, 0 or more, in front of the conditions"):
        spec(f"at_most({number}, a, b, c)", few=Fraction(1, 2))


@pytest.mark.parametrize("text", ["at_most(2)", "exactly(1, a)", "at_least(1e390, a)"])
def test_too_few_conditions_are_refused(text):
    with pytest.raises(RuleError, match="at least two conditions"):
        spec(text)


def test_counts_that_grow_too_large_are_refused():
    names = [f"l{i}" for i in range(301)]

    def read(text):
        Specification.build(inputs={"x": (0, 1)}, labels=names, rules={"r": text})

    for k in (5, 20, 35):
        with pytest.raises(RuleError, match=r"groups of its 40 conditions. Expected at most 10,000"):
            read(f"at_most({k}, {', '.join(names[:40])})")
    with pytest.raises(RuleError, match="at most 300 conditions"):
        read(f"at_most(150, {', '.join(names)})")
    read(f"at_least(99, {', '.join(names[:100])})")
