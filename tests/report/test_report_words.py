"""Sentences and formulas say what the rule says: they are read again by a reader of the tests' own."""

import random
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smle.report.sentences import rule_view, words
from smle.rules import (
    CNF,
    Categorical,
    Choice,
    Clause,
    Label,
    Literal,
    Number,
    NumericInput,
    Row,
    Rule,
    Specification,
    clause_text,
    linear,
    row_text,
)
from smle.rules.expressions import KEYWORDS, Call, Compare, Name, Negative, Num, add, multiply, to_text
from smle.rules.parser import parse
from support.rules_language import COMPARISONS, formulas, memberships, truth_of
from support.sentence_reader import UnreadableError, read, read_sentence

VALUES = {
    name: Fraction(value)
    for name, value in (("most", "3"), ("least", "-1.5"), ("between", "0.25"), ("near", "1"), ("third", "1/3"))
}
SPEC = Specification(
    inputs=(
        *(NumericInput(name, Fraction(0), Fraction(9)) for name in ("a", "is", "x - y")),
        Categorical("road", ("dry", "icy", "near", "at most")),
    ),
    outputs=(
        *(Number(name) for name in ("u", "below", "u >= 1")),
        *(Label(name) for name in ("cat", "dog", "at")),
        Choice("advice", ("keep", "most", "not")),
    ),
    rules=(),
    constants=tuple(VALUES.items()),
)
NUMBERS = ("a", "is", "x - y", "road=icy", "u", "below", "u >= 1")
PICKED = {"road": ("dry", "icy", "near", "at most"), "advice": ("keep", "most", "not")}
LABELS = ("cat", "dog", "at")

_spoken = st.sampled_from([*map(Name, (*NUMBERS, *VALUES)), *(Num(Fraction(t)) for t in ("0", "2.25", "0.001"))])
_constants = st.sampled_from([*map(Name, VALUES), Num(Fraction(2)), Num(Fraction("0.5"))])


def _arithmetic(inner):
    pairs = st.tuples(inner, inner)
    return (
        st.builds(Negative, inner)
        | st.builds(lambda a, sign, b: add(a, [(sign, b)]), inner, st.sampled_from([1, -1]), inner)
        | st.builds(lambda k, a: multiply(k, [("*", a)]), _constants, inner)
        | st.builds(lambda a, k: multiply(a, [("/", k)]), inner, _constants)
        | st.builds(Call, st.sampled_from(["max", "min"]), pairs)
        | st.builds(Call, st.just("abs"), st.tuples(inner))
    )


numbers = st.recursive(_spoken, _arithmetic, max_leaves=4)


@st.composite
def _comparisons(draw):
    operators = draw(st.sampled_from([("<=",), ("<=", "<"), (">=",), (">=", ">"), tuple(COMPARISONS)]))
    count = draw(st.sampled_from([1, 1, 2, 2, 3]))
    operands = draw(st.lists(numbers, min_size=count + 1, max_size=count + 1))
    return Compare(tuple(operands), tuple(draw(st.sampled_from(operators)) for _ in range(count)))


_picks = st.one_of(*(memberships(group, [*map(Name, options)]) for group, options in PICKED.items()))
conditions = formulas(_comparisons() | _comparisons() | _picks | st.sampled_from([*map(Name, LABELS)]))
_LEVELS = [Fraction(v) for v in ("-1.5", "0", "0.25", "1/3", "1", "2", "3", "7")]


def _worlds(seed, count=8):
    """Yield what the reader knows of a world, and the same as `truth_of` reads it."""
    rng = random.Random(seed)
    for _ in range(count):
        picked = {name: rng.choice(options) for name, options in PICKED.items()}
        labels = {name: rng.random() < 0.5 for name in LABELS}
        values = {name: rng.choice(_LEVELS) for name in NUMBERS} | {"road=icy": Fraction(picked["road"] == "icy")}
        scores = {option: int(option == picked["advice"]) for option in PICKED["advice"]}
        signs = {name: 1 if on else -1 for name, on in labels.items()}
        world = {"numbers": values, "picked": picked, "labels": labels, "constants": VALUES}
        yield world, {**VALUES, **values, **signs, "road": picked["road"], "advice": scores}


@given(conditions, st.none() | conditions, st.integers(0, 999))
@settings(max_examples=120, deadline=None)
def test_sentences_say_what_the_rule_says(then, when, seed):
    texts = [None if tree is None else to_text(tree) for tree in (when, then)]
    assert [None if text is None else parse(text) for text in texts] == [when, then]
    sentence = words(Rule("rule", (), CNF(), *texts, (when, then)), SPEC)
    assume("(shortened)" not in sentence)
    for world, env in _worlds(seed):
        expected = (when is None or truth_of(when, env), truth_of(then, env))
        assert read_sentence(sentence, world) == expected, (texts, sentence)


_coefficients = st.sampled_from([Fraction(v) for v in ("-2", "-1", "-1/3", "0.5", "1", "1", "2.25")])
_columns = st.dictionaries(st.integers(0, len(SPEC.columns) - 1), _coefficients, max_size=3).map(
    lambda d: linear(sorted(d.items()))
)
_targets = st.dictionaries(st.integers(0, len(SPEC.targets) - 1), _coefficients, min_size=1, max_size=3).map(
    lambda d: linear(sorted(d.items()))
)
_bounds = st.sampled_from([Fraction(v) for v in ("-1", "0", "1", "1.5", "-1/3")])
rows = st.builds(Row, _columns.filter(bool), _bounds, st.booleans())
literals = st.builds(Literal, _targets, _columns, _bounds, st.booleans())


@given(rows, st.lists(literals, min_size=1, max_size=3), st.integers(0, 999))
@settings(max_examples=80, deadline=None)
def test_formulas_say_what_rows_and_clauses_say(row, disjuncts, seed):
    clause, rng = Clause(tuple(disjuncts)), random.Random(seed)
    for _ in range(8):
        category = rng.choice(PICKED["road"])
        x = [rng.choice(_LEVELS) for _ in range(3)] + [Fraction(int(category == c)) for c in PICKED["road"]]
        y = [rng.choice(_LEVELS) for _ in SPEC.targets]
        named = dict(zip((*SPEC.columns, *SPEC.targets), (*x, *y), strict=True))
        world = {"numbers": named, "picked": {"road": category}, "labels": {}, "constants": {}}
        assert read(row_text(SPEC, row), world, KEYWORDS) == row.holds(x), row_text(SPEC, row)
        assert read(clause_text(SPEC, clause), world, KEYWORDS) == clause.holds(y, x), clause_text(SPEC, clause)


_AUDITED = [
    ("brake - 1 <= z <= 4", "Always: z is at least brake − 1 and at most 4."),
    ("0.5 + 0.1 * x <= brake <= 3", "Always: brake is at least 0.5 + 0.1 · x and at most 3."),
    ("z + `road=icy` >= 1.5", "Always: z + `road=icy` is at least 1.5."),
    ("z <= most and brake <= near", "Always: z is at most `most` (3) and brake is at most near (2)."),
    ("z <= 2 * near", "Always: z is at most 2 · near (= 2)."),
    ("x >= near implies z >= 0", "Always: x is at least near (2) implies z is at least 0."),
    (
        "exactly(2, z <= 1, z >= near, brake <= 1)",
        "Always: exactly 2 of (z is at most 1, z is at least near (2), brake is at most 1).",
    ),
    (
        "z <= 1 and at_most(near, z <= 1, brake <= 1, z >= 3)",
        "Always: z is at most 1 and (at most near (2) of (z is at most 1, brake is at most 1, z is at least 3)).",
    ),
    ("-1 <= z <= near", "Always: z is between −1 and near (2)."),
    ("near >= z >= -1", "Always: z is between −1 and near (2)."),
    ("near < z <= 7", "Always: z is above near (2) and at most 7."),
    ("z <= 1 or z >= 2 and brake <= 1", "Always: z is at most 1 or (z is at least 2 and brake is at most 1)."),
]


def _stated(then, when=None):
    return Specification.build(
        inputs={"x": (0, 1), "road": ["dry", "wet", "icy"]},
        outputs=["brake", "z"],
        constants={"most": 3, "near": 2},
        rules={"rule": (when, then)},
    )


@pytest.mark.parametrize(("then", "sentence"), _AUDITED)
def test_sentences(then, sentence):
    spec = _stated(then)
    assert words(spec.rules[0], spec) == sentence


def test_a_condition_on_numbers_alone_is_not_turned_around():
    spec = _stated("z >= -3", when="x / 2 <= 0.3 <= 1")
    sentence = "When 0.3 is at least x / 2 and at most 1, then z is at least −3."
    assert words(spec.rules[0], spec) == sentence
    assert rule_view(spec.rules[0], spec)["formula"] == ["x <= 0.6  ⟹  z >= -3"]


def test_categories_are_named_only_where_a_row_says_just_that():
    spec = _stated("z - `road=icy` >= 1 and z + `road=icy` <= 1.5", when="road == icy or x + `road=wet` >= 1")
    first, second = rule_view(spec.rules[0], spec)["formula"]
    assert first == "(road == icy) or (x + `road=wet` >= 1)  ⟹  z - `road=icy` >= 1"
    assert second == "and z + `road=icy` <= 1.5"


def test_text_that_is_no_formula_is_shown_as_it_is():
    rule = Rule("rule", (), CNF(), "what ever", "never_together: 7 pairs of labels")
    assert words(rule, SPEC) == "When what ever, then never_together: 7 pairs of labels."


@pytest.mark.parametrize("text", ["u is at most 1 or u is at least 2 and a is 3", "u is between 1", "u at most 1"])
def test_the_reader_refuses_what_is_no_clear_sentence(text):
    world = {"numbers": dict.fromkeys(NUMBERS, Fraction(0)), "picked": {}, "labels": {}, "constants": {}}
    with pytest.raises(UnreadableError):
        read(text, world)
