"""VNN-LIB 1.0: the file asserts the counterexample, the rule forbids it."""

import os
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

from smle.errors import RuleError
from smle.rules import Choice, Label, Polytope, Row, Specification
from support.vnnlib import write_vnnlib

DECLARED = """; a comment
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(declare-const Y_2 Real)
"""
BOX = "(assert (<= X_0 0.679857769))(assert (>= X_0 6e-1)) (assert (<= X_1 0.5)) (assert (>= X_1 -0.5))\n"


def read(text, **options):
    return Specification.from_vnnlib(DECLARED + text, **options)


def sentences(specification):
    return [(rule.when, rule.then) for rule in specification.rules]


REGION = "X_0 <= 0.679857769 and X_0 >= 0.6 and X_1 <= 0.5 and X_1 >= -0.5"


def test_a_bound():
    specification = read(BOX + "(assert (>= Y_0 3.991125645861615))")
    assert sentences(specification) == [(REGION, "Y_0 < 3.991125645861615")]
    assert specification.lower == (Fraction(3, 5), Fraction(-1, 2))
    assert specification.upper == (Fraction(679857769, 10**9), Fraction(1, 2))
    (region,) = specification.rules[0].regions
    assert Row(((0, Fraction(-1)),), Fraction(-3, 5)) in region.rows


def test_and_over_outputs_becomes_one_clause():
    specification = read(BOX + "(assert (<= Y_1 Y_0)) (assert (<= Y_2 Y_0))")
    assert sentences(specification) == [(REGION, "Y_0 < Y_1 or Y_0 < Y_2")]


def test_or_over_outputs_becomes_several_clauses():
    specification = read(BOX + "(assert (or (and (<= Y_0 Y_2)) (and (<= Y_1 Y_2) (>= Y_2 1))))")
    assert sentences(specification) == [(REGION, "Y_2 < Y_0 and (Y_2 < Y_1 or Y_2 < 1)")]


def test_or_over_inputs_becomes_regions_and_rules():
    text = (
        BOX + "(assert (or (and (<= X_1 0) (>= Y_0 1)) (and (>= X_1 0.25) (>= Y_0 1)) (and (>= X_1 0.3) (<= Y_0 -2))))"
    )
    specification = read(text)
    first = "X_0 <= 0.679857769 and X_0 >= 0.6"
    left, middle, right = (
        f"{first} and X_1 <= {high} and X_1 >= {low}" for low, high in ((-0.5, 0), (0.25, 0.5), (0.3, 0.5))
    )
    assert sentences(specification) == [(f"{left} or {middle}", "Y_0 < 1"), (right, "Y_0 > -2")]
    assert [rule.name for rule in specification.rules] == ["property 1 (1)", "property 1 (2)"]
    assert specification.lower[1] == Fraction(-1, 2)


def test_an_input_held_at_a_value_gets_a_range_around_it():
    text = "(assert (<= X_0 0.0)) (assert (>= X_0 0.0)) (assert (<= X_1 1)) (assert (>= X_1 0)) (assert (<= Y_0 Y_1))"
    specification = read(text)
    assert specification.rules[0].when == "X_0 <= 0 and X_0 >= 0 and X_1 <= 1 and X_1 >= 0"
    assert (specification.lower[0], specification.upper[0]) == (-1, 1)
    assert len(specification.rules[0].regions[0].rows) == 4


def test_the_domain_and_the_names_can_be_given():
    ranges = {"rho": (-1, 1), "theta": ("-1/3", 0.5)}
    choice = Choice("advice", ("clear", "left", "right"), "min")
    specification = read(BOX + "(assert (<= Y_1 Y_0))", inputs=ranges, outputs=[choice])
    assert specification.upper == (1, Fraction(1, 2))
    assert specification.columns == ("rho", "theta")
    assert specification.rules[0].then == "score(advice, clear) < score(advice, left)"
    mixed = read("(assert (<= Y_1 Y_0))", inputs=[(0, 1), (0, 1)], outputs=["y", Label("cat"), Label("dog")])
    assert mixed.rules[0].then == "y < logit(cat)"
    assert mixed.rules[0].regions == (Polytope(),)
    with pytest.raises(RuleError, match="columns"):
        read(BOX + "(assert (<= Y_1 Y_0))", outputs=["a"])
    with pytest.raises(RuleError, match="ranges of 2 inputs"):
        read(BOX + "(assert (<= Y_1 Y_0))", inputs=[(0, 1)])
    for wrong in ([(0, 1), 3], [(0, 1), (1, 0)], [(0, 1), ("a", 2)]):
        with pytest.raises(RuleError):
            read(BOX + "(assert (<= Y_1 Y_0))", inputs=wrong)


def test_several_files(tmp_path):
    for name, text in (("a", "(assert (>= Y_0 1))"), ("b", "(assert (<= Y_0 -1))")):
        (tmp_path / f"{name}.vnnlib").write_text(DECLARED + BOX + text, encoding="utf-8")
    specification = Specification.from_vnnlib(tmp_path / "a.vnnlib", str(tmp_path / "b.vnnlib"), tmp_path / "a.vnnlib")
    assert [rule.name for rule in specification.rules] == ["a", "b", "a #2"]
    other = (
        "(declare-const X_0 Real)\n(declare-const Y_0 Real)(assert (<= X_0 1))(assert (>= X_0 0))(assert (<= Y_0 1))"
    )
    with pytest.raises(RuleError, match="same network"):
        Specification.from_vnnlib(tmp_path / "a.vnnlib", other)
    with pytest.raises(RuleError, match="Cannot read"):
        Specification.from_vnnlib(tmp_path / "c.vnnlib")
    with pytest.raises(RuleError, match="at least one"):
        Specification.from_vnnlib()


def test_equalities_and_negations_are_read_exactly():
    specification = read(BOX + "(assert (= Y_0 Y_1)) (assert (not (<= Y_2 3)))")
    assert specification.rules[0].then == "Y_1 < Y_0 or Y_0 < Y_1 or Y_2 <= 3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(assert)",
        "(assert X_0)",
        "(assert (<= X_0))",
        "(assert (foo X_0 1))",
        "(assert (<= X_9 1))",
        "(assert (<= (/ 1 0) Y_0))",
        "(assert (<= (* Y_0 Y_1) 1))",
        "(assert (<= Y_0 1e99999999))",
        "(assert (<= Y_0 |a b|))",
        "(assert (or))",
        "()",
        "(())",
        ")",
        "word",
        "(declare-const X_0 Real)",
        "(declare-const X_2 Int)",
        "(declare-const Z Real)",
        "(declare-fun X_2 (Real) Real)",
        "(assert (and (<= X_0 0) (>= X_0 1) (<= Y_0 0)))",
        "(assert true)",
        "(assert false)",
        "(push 1)",
        "(" * 10_000,
        "(assert " + "(not " * 60 + "(<= Y_0 1)" + ")" * 61,
        "(assert (<= " + "(+ 1 " * 60 + "Y_0" + ")" * 60 + " 1))",
        "(assert (and " + " ".join(f"(or (<= Y_0 {i}) (<= Y_1 {i}))" for i in range(40)) + "))",
    ],
)
def test_what_is_not_vnnlib_is_refused(text):
    with pytest.raises(RuleError):
        read(BOX + text)


def test_the_writer_is_exact():
    specification = Specification.build(
        inputs={"a": (0, "1/3"), "b": (-1, 1)},
        outputs=["y"],
        labels=["cat", "dog"],
        rules={
            "range": "a + b / 3 <= 0.5 -> y <= 2 * a + 1/7",
            "pair": "not (cat and dog)",
            "or": "b < 0 or b > 0.5 -> y > 0 or cat",
        },
    )
    text = write_vnnlib(specification)
    assert "(* 21 Y_0)" in text or "(* 7 Y_0)" in text
    again = Specification.from_vnnlib(text, inputs={"a": (0, "1/3"), "b": (-1, 1)}, outputs=specification.outputs)
    ends, signs, third = (
        (Fraction(-1), Fraction(0), Fraction(1, 2), Fraction(1)),
        (Fraction(-1), Fraction(0)),
        Fraction(1, 3),
    )
    for a, b, cat, dog in product((0, third), ends, (*signs, Fraction(1)), signs):
        for y in (Fraction(0), Fraction(1, 7), 2 * a + Fraction(1, 7), Fraction(9)):
            point = [a, b], [y, cat, dog]
            assert bool(again.violated(*point)) == bool(specification.violated(*point))
    only = write_vnnlib(specification, rule="pair")
    assert "(assert (>= Y_1 0))" in only


def test_the_writer_refuses_what_vnnlib_cannot_say():
    whole = Specification.build(inputs={"n": {"range": (0, 3), "integer": True}}, outputs=["y"], rules={"r": "y <= 1"})
    with pytest.raises(RuleError, match="real inputs"):
        write_vnnlib(whole)
    real = Specification.build(inputs={"n": (0, 3)}, outputs=["y"], rules={"r": "y <= 1"})
    with pytest.raises(RuleError, match="named 'q'"):
        write_vnnlib(real, rule="q")


def large(inputs: int, held: int = 0) -> tuple[str, list[tuple[str, str]]]:
    """Declarations of many inputs and three outputs, and the ends of a box, of which the first have one value."""
    declared = "".join(f"(declare-const X_{i} Real)\n" for i in range(inputs))
    declared += "".join(f"(declare-const Y_{i} Real)\n" for i in range(3))
    return declared, [(f"-0.{i + 1:04d}", f"-0.{i + 1:04d}" if i < held else f"{i}.5") for i in range(inputs)]


def inside(ends: list[tuple[str, str]]) -> str:
    return " ".join(f"(>= X_{i} {low}) (<= X_{i} {high})" for i, (low, high) in enumerate(ends))


@pytest.mark.parametrize("form", ["alone", "in every way"])
def test_a_box_of_many_inputs_is_their_ranges(form):
    declared, ends = large(1200)
    if form == "alone":
        text = f"(assert (and {inside(ends)}))\n(assert (or (>= Y_1 Y_0) (and (>= Y_2 Y_0) (<= Y_2 1))))\n"
    else:
        ways = (f"(and {inside(ends)} {own})" for own in ("(>= Y_1 Y_0)", "(>= Y_2 Y_0) (<= Y_2 1)"))
        text = f"(assert (or {' '.join(ways)}))\n"
    specification = Specification.from_vnnlib(declared + text)
    assert sentences(specification) == [(None, "Y_1 < Y_0 and (Y_2 < Y_0 or Y_2 > 1)")]
    assert specification.rules[0].regions == (Polytope(),)
    assert list(zip(specification.lower, specification.upper, strict=True)) == [
        (Fraction(low), Fraction(high)) for low, high in ends
    ]
    assert Specification.from_yaml(specification.to_yaml()) == specification


def test_values_and_tighter_ranges_stay_conditions_in_a_large_box():
    declared, ends = large(600, held=3)
    text = f"(assert (and {inside(ends)}))\n"
    text += "(assert (or (and (<= X_7 0.25) (>= Y_0 1)) (and (> X_8 -0.0009) (>= Y_0 2))))\n"
    specification = Specification.from_vnnlib(declared + text)
    held = " and ".join(f"X_{i} >= -0.{i + 1:04d} and X_{i} <= -0.{i + 1:04d}" for i in range(3))
    first, second = specification.rules
    assert (first.when, first.then) == (f"{held} and X_7 <= 0.25", "Y_0 < 1")
    assert (second.when, second.then) == (f"{held} and X_8 > -0.0009", "Y_0 < 2")  # strict: not all of the domain
    wider = Specification.from_vnnlib(declared + text, inputs=[(-1, 1000)] * 600)
    assert len(wider.rules[0].regions[0].rows) == 1200  # nothing holds in the whole domain


def test_what_is_too_large_is_refused_with_its_size():
    declared, ends = large(1100)
    others = [(low, f"{i}.25") for i, (low, _) in enumerate(ends)]
    lower = [(f"-{i}.5", f"{i}.125") for i in range(1100)]
    ways = " ".join(f"(and {inside(own)})" for own in (others, lower))
    with pytest.raises(RuleError, match=r"the largest of 2,200 comparisons, 4,400 in all") as error:
        Specification.from_vnnlib(declared + f"(assert (or {ways}))(assert (>= Y_0 1))", inputs=[(-9999, 9999)] * 1100)
    assert "Split the file" in str(error.value)


@pytest.mark.skipif("SMLE_DATA" not in os.environ, reason="SMLE_DATA does not name a folder with acasxu/*.vnnlib")
def test_the_acas_xu_files():
    paths = sorted(Path(os.environ["SMLE_DATA"], "acasxu").glob("*.vnnlib"))
    assert paths
    specification = Specification.from_vnnlib(*paths)
    assert len(specification.rules) == len(paths)
    assert Specification.from_yaml(specification.to_yaml()) == specification
    by_name = {rule.name: rule for rule in specification.rules}
    assert by_name["prop_2"].then == "Y_0 < Y_1 or Y_0 < Y_2 or Y_0 < Y_3 or Y_0 < Y_4"
    assert by_name["prop_5"].then == "Y_4 < Y_0 and Y_4 < Y_1 and Y_4 < Y_2 and Y_4 < Y_3"
