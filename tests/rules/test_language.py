"""What the language means, case by case; the laws are in tests/laws/test_rules_language.py."""

from fractions import Fraction

import numpy as np
import pytest

from smle.errors import RuleError
from smle.rules import Categorical, Clause, Literal, NumericInput, Polytope, Row, Specification
from smle.rules.expressions import to_text
from smle.rules.parser import parse

F = Fraction
FILE = """
inputs:                     # every input with its range, in the user's units
  distance: [0, 200]
  road friction: {range: [0.1, 1/3], missing: 0.2}
  lanes: {range: [1, 8], integer: true}
  road: {categories: [dry, wet, icy], missing: dry}
  cylinders: {categories: [4, 6, 8]}
outputs: [brake, steer]
labels: [cat, dog, animal]
choices:
  advice: [clear, left, right]
  gear: {options: [1, 2], pick: min}
constants: {near: 10, tenth: 0.1}
rules: []
"""
DISTANCE, FRICTION, LANES, DRY, WET, ICY, FOUR = range(7)
BRAKE, STEER, CAT, DOG, ANIMAL, CLEAR, LEFT, RIGHT, FIRST, SECOND = range(10)


@pytest.fixture(scope="module")
def base():
    return Specification.from_yaml(FILE)


def made(base, then="brake >= 0", when=None):
    stated = {"r": (when, then)} if when else {"r": then}
    outputs = base.outputs
    return Specification.build(inputs=base.inputs, outputs=outputs, constants=dict(base.constants), rules=stated).rules[
        0
    ]


def below(*columns, strict=True, bound=0):
    return tuple(Literal(((c, F(1)),), (), F(bound), strict) for c in columns)


def less(low, high):
    """The literal y_low < y_high, first coefficient 1 or -1."""
    return Literal(tuple(sorted(((low, F(1)), (high, F(-1))))), (), F(0), True)


def test_a_file_keeps_names_order_and_exact_numbers(base):
    assert base.columns[:6] == ("distance", "road friction", "lanes", "road=dry", "road=wet", "road=icy")
    assert base.targets[:5] == ("brake", "steer", "cat", "dog", "animal")
    assert base.targets[5:] == ("advice=clear", "advice=left", "advice=right", "gear=1", "gear=2")
    assert base.inputs[1] == NumericInput("road friction", F(1, 10), F(1, 3), missing=F(1, 5))
    assert base.inputs[3] == Categorical("road", ("dry", "wet", "icy"), "dry")
    assert base.constants == (("near", F(10)), ("tenth", F(1, 10)))


@pytest.mark.parametrize(
    ("when", "rows"),
    [
        ("distance <= near", [(((DISTANCE, F(1)),), F(10), False)]),
        ("not (distance <= near)", [(((DISTANCE, F(-1)),), F(-10), True)]),
        ("3 * distance < 0.1", [(((DISTANCE, F(1)),), F(1, 30), True)]),
        ("road == icy", [(((ICY, F(-1)),), F(-1), False)]),
        ("road != icy", [(((ICY, F(1)),), F(0), False)]),
        ("icy == road", [(((ICY, F(-1)),), F(-1), False)]),
        ("road in [dry, wet]", [(((ICY, F(1)),), F(0), False)]),
        ("road not in [dry, wet]", [(((DRY, F(1)),), F(0), False), (((WET, F(1)),), F(0), False)]),
        ("cylinders == 4", [(((FOUR, F(-1)),), F(-1), False)]),
        ("lanes > 2", [(((LANES, F(-1)),), F(-3), False)]),
        ("lanes < 3", [(((LANES, F(1)),), F(2), False)]),
        ("lanes >= 2.5", [(((LANES, F(-1)),), F(-3), False)]),
        ("lanes + `road=icy` < 3", [(((LANES, F(1)), (ICY, F(1))), F(2), False)]),
        ("distance <= 5 and distance <= 3", [(((DISTANCE, F(1)),), F(3), False)]),
        ("true", []),
        ("distance <= 7 or 1 <= 2", []),
    ],
)
def test_one_region(base, when, rows):
    assert made(base, when=when).regions == (Polytope(tuple(Row(*row) for row in rows)),)


@pytest.mark.parametrize(
    ("when", "count"),
    [
        ("distance <= 5 or lanes == 2", 2),
        ("distance != 5", 2),
        ("lanes != 2", 2),
        ("abs(distance - 50) >= 10", 2),
        ("abs(distance - 50) <= 10", 1),
        ("distance <= 5 or distance <= 5 and lanes == 2", 1),  # the second lies in the first
        ("(distance <= 1 or distance >= 2) and (distance <= 1 or distance >= 3)", 2),  # one piece is empty
        ("road == icy implies distance <= 5", 2),
        ("not (lanes == 2 and distance == 5)", 4),
    ],
)
def test_several_regions(base, when, count):
    assert len(made(base, when=when).regions) == count


@pytest.mark.parametrize(
    ("then", "clauses"),
    [
        ("cat", [(Literal(((CAT, F(-1)),), (), F(0)),)]),
        ("not cat", [below(CAT)]),
        ("dog implies animal", [(*below(DOG), Literal(((ANIMAL, F(-1)),), (), F(0)))]),
        ("abs(brake - steer) <= 0.5", None),
        ("brake <= 0.5 * distance + tenth", [(Literal(((BRAKE, F(1)),), ((DISTANCE, F(-1, 2)),), F(1, 10)),)]),
        ("advice == left", [(less(CLEAR, LEFT),), (less(RIGHT, LEFT),)]),
        ("advice != left", [(less(LEFT, CLEAR), less(LEFT, RIGHT))]),
        ("not (advice == left)", [(less(LEFT, CLEAR), less(LEFT, RIGHT))]),
        ("advice in [left, right]", [(less(CLEAR, LEFT), less(CLEAR, RIGHT))]),
        ("gear == 1", [(less(FIRST, SECOND),)]),
        ("gear != 1", [(less(SECOND, FIRST),)]),
        ("score(left) <= 2", [below(LEFT, strict=False, bound=2)]),
        ("score(gear, 1) <= 2", [below(FIRST, strict=False, bound=2)]),
        ("logit(cat) < 2", [below(CAT, bound=2)]),
        ("brake <= 1 or brake <= 2", [below(BRAKE, strict=False, bound=2)]),
        ("brake <= 1 and (brake <= 1 or cat)", [below(BRAKE, strict=False, bound=1)]),
        ("brake <= 1 and (brake <= 3 or brake > 2)", [below(BRAKE, strict=False, bound=1)]),  # always true: dropped
    ],
)
def test_clauses(base, then, clauses):
    requirement = made(base, then).requirement
    if clauses is None:
        up = Clause((Literal(((BRAKE, F(1)), (STEER, F(-1))), (), F(1, 2)),))
        down = Clause((Literal(((BRAKE, F(-1)), (STEER, F(1))), (), F(1, 2)),))
        assert set(requirement.clauses) == {up, down}
    else:
        assert requirement.clauses == tuple(Clause(c) for c in clauses)
    assert not len(requirement.exclusions)


@pytest.mark.parametrize(
    "then",
    [
        "not (cat and dog)",
        "not cat or not dog",
        "cat implies not dog",
        "at_most_one(cat, dog)",
        "logit(dog) < 0 or 2 * logit(cat) < 0",
        "not (dog and cat)",
    ],
)
def test_exclusions_of_two_labels_become_a_pair(base, then):
    requirement = made(base, then).requirement
    assert requirement.clauses == ()
    assert requirement.exclusions.tolist() == [[CAT, DOG]]


def test_what_is_nearly_an_exclusion_stays_a_clause(base):
    for then in ("logit(cat) <= 0 or not dog", "brake < 0 or steer < 0", "logit(cat) < 1 or not dog"):
        assert len(made(base, then).requirement.clauses) == 1


def test_exactly_one_is_pairs_and_one_clause(base):
    requirement = made(base, "exactly_one(cat, dog, animal)").requirement
    assert requirement.exclusions.tolist() == [[CAT, DOG], [CAT, ANIMAL], [DOG, ANIMAL]]
    assert requirement.clauses == (Clause(tuple(Literal(((c, F(-1)),), (), F(0)) for c in (CAT, DOG, ANIMAL))),)


def test_a_condition_on_inputs_in_then_is_the_same_as_in_when(base):
    inside = made(base, "distance <= 5 implies brake >= 0.5")
    outside = made(base, "brake >= 0.5", "distance <= 5")
    assert (inside.regions, inside.requirement) == (outside.regions, outside.requirement)
    pair = made(base, "distance <= 5 implies not (cat and dog)")
    assert pair.requirement.exclusions.tolist() == [[CAT, DOG]]
    icy = made(base, "road == icy implies brake >= 0.5")
    assert icy.regions == made(base, when="road == icy").regions


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("distance<=near  and not(lanes>2)", "distance <= near and not (lanes > 2)"),
        ("(a and b) and (c and d)", "a and b and c and d"),
        ("(a or b) and c", "(a or b) and c"),
        ("a implies b implies c", "a implies b implies c"),
        ("(a implies b) implies c", "(a implies b) implies c"),
        ("x ≤ .50", "x <= 0.5"),
        ("1e3 < x", "1000 < x"),
        ("x < 1e-40", "x < 1e-40"),
        ("a - (b + c) <= 2", "a - (b + c) <= 2"),
        ("(a + b) - c <= 2*(x)", "a + b - c <= 2 * x"),
        ("-(x) <= - 3", "-x <= -3"),
        ("x in ['a', b]", "x in [a, b]"),
        ("not x in [a]", "x not in [a]"),
        ("'road friction' < \"it's\"", "`road friction` < `it's`"),
        ("`and` and `a``b`", "`and` and `a``b`"),
        ("not not a", "not not a"),
    ],
)
def test_canonical_text(text, canonical):
    assert to_text(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_long_sums_are_no_problem():
    count = 10_000
    text = " + ".join(f"{i}.5 * x{i}" for i in range(count)) + " <= 3"
    specification = Specification.build(
        inputs={f"x{i}": (0, 1) for i in range(count)}, outputs=["y"], rules={"r": f"{text} -> y <= 1"}
    )
    (region,) = specification.rules[0].regions
    assert len(region.rows[0].coefficients) == count


def test_decimals_are_what_they_say():
    text = FILE.replace("rules: []", "rules:\n  - {name: r, when: distance <= 0.1, then: brake <= 1e-9}")
    rule = Specification.from_yaml(text).rules[0]
    assert rule.regions[0].rows[0].bound == F(1, 10)
    assert rule.requirement.clauses[0].literals[0].bound == F(1, 10**9)


def test_a_file_on_disk(tmp_path):
    path = tmp_path / "braking.yaml"
    path.write_text(FILE, encoding="utf-8")
    assert Specification.from_file(path) == Specification.from_file(str(path)) == Specification.from_yaml(FILE)
    assert Specification.of(path) == Specification.of(FILE) == Specification.of(Specification.from_yaml(FILE))
    path.write_text(FILE + "rules: []\n", encoding="utf-8")
    with pytest.raises(RuleError, match=r"braking.yaml: line 15: the key 'rules' appears twice"):
        Specification.from_file(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RuleError, match="UTF-8"):
        Specification.from_file(path)
    for place in (tmp_path, "no\0file", tmp_path / "none.yaml"):
        with pytest.raises(RuleError, match="Cannot read"):
            Specification.from_file(place)
    for wrong in (None, path):
        with pytest.raises(RuleError, match="from_file"):
            Specification.from_yaml(wrong)
    with pytest.raises(RuleError, match="from_file"):
        Specification.from_yaml("braking.yaml")
    with pytest.raises(RuleError, match="from_yaml"):
        Specification.of("inputs: {x: [0, 1]}")
    with pytest.raises(RuleError, match="path of a rules file"):
        Specification.from_file(None)


def test_yaml_types_are_not_guessed():
    text = "inputs: {answer: {categories: [yes, no, 1_000, 2020-01-01, null]}}\noutputs: [on]\n"
    text += "rules: [{name: off, when: answer == yes, then: on <= 012}]\n"
    specification = Specification.from_yaml(text)
    assert specification.inputs[0].categories == ("yes", "no", "1_000", "2020-01-01", "null")
    assert specification.rules[0].requirement.clauses[0].literals[0].bound == 12
    assert Specification.from_yaml(specification.to_yaml()) == specification


def test_a_rule_prints_as_a_sentence(base):
    assert str(made(base, "brake >= 0.8", "distance <= near")) == "r: when distance <= near, then brake >= 0.8"
    assert str(made(base, "brake >= 0.8")) == "r: always brake >= 0.8"


def test_a_specification_is_valid_when_made():
    inputs, outputs = (NumericInput("x", F(0), F(1)),), Specification.from_yaml(FILE).outputs
    rule = Specification.build(inputs={"x": (0, 1), "z": (0, 1)}, outputs=["y"], rules={"r": "z <= 1 -> y <= 1"}).rules[
        0
    ]
    with pytest.raises(RuleError, match="columns"):
        Specification(inputs, outputs, (rule,))
    with pytest.raises(RuleError, match="used twice"):
        Specification((*inputs, *inputs), outputs, ())
    with pytest.raises(RuleError, match="used twice"):
        Specification((NumericInput("a=b", F(0), F(1)), Categorical("a", ("b", "c"))), outputs, ())


@pytest.mark.parametrize("groups", [{"inputs": {"a": ["top", "3"]}}, {"choices": {"a": ["top", "3"]}}])
@pytest.mark.parametrize("rule", ["a == top", "a != '3'", "a in [top]", "y <= top"])
def test_categories_and_options_are_no_constants(groups, rule):
    parts = {"inputs": {"x": (0, 1)}, "outputs": ["y"], **groups}
    stated = (rule, "y >= 1") if "inputs" in groups and "a" in rule else rule
    with pytest.raises(RuleError, match=r"'top' is used twice: for an? (category|option) of 'a' and for a constant"):
        Specification.build(constants={"top": 3}, rules={"r": stated}, **parts)
    if "<=" not in rule:
        assert Specification.build(constants={"low": 3}, rules={"r": stated}, **parts).rules


def test_python_numbers_of_all_kinds():
    from decimal import Decimal

    stated = {
        "a": (0.1, np.float32(0.7)),
        "b": (np.int64(-3), Decimal("2.5")),
        "c": (F(1, 3), "2/3"),
        "d": ["x", "y"],
        "e": {"range": (0, 9), "integer": True, "missing": 3},
    }
    specification = Specification.build(inputs=stated, outputs=["y"])
    assert specification.lower[:3] == (F(1, 10), F(-3), F(1, 3))
    assert specification.upper[:3] == (F(7, 10), F(5, 2), F(2, 3))
    assert Specification.from_yaml(specification.to_yaml()) == specification
    for wrong in (
        float("nan"),
        float("inf"),
        None,
        True,
        object(),
        "abc",
        "x",
        10**5000,
        "1e999999",
        Decimal("1e99999"),
    ):
        with pytest.raises(RuleError):
            Specification.build(inputs={"a": (0, wrong)}, outputs=["y"])


@pytest.mark.parametrize("condition", ["work == self-employed", "work in [none, self-employed]"])
def test_a_category_with_a_minus_sign_wants_backticks(condition):
    head = "inputs: {work: {categories: [none, self-employed]}}\noutputs: [y]\nrules:\n"
    with pytest.raises(
        RuleError, match=r"Got 'self - employed', which computes. Put the name in backticks: `self-employed`"
    ):
        Specification.from_yaml(f"{head}- {{name: r, when: '{condition}', then: y <= 1}}\n")
