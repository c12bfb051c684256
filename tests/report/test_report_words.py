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
from smle.rules.expressions import KEYWORDS, to_text
from smle.rules.parser import parse
from support.rules_language import COMPARISONS
from support.sentence_reader import UnreadableError, read, read_sentence

VALUES = {
    name: Fraction(value)
    for name, value in (("most", "3"), ("least", "-1.5"), ("between", "0.25"), ("near", "2"), ("third", "1/3"))
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

# A generated part is (text of the rules language with all parentheses, its meaning as a function of a world).
_small = st.sampled_from(["0", "1", "2", "0.5", "2.25", "0.001"])
_number = _small.map(lambda t: (t, lambda w: Fraction(t)))
_names = st.sampled_from(NUMBERS).map(lambda n: (f"`{n}`", lambda w: w["numbers"][n]))
_constants = st.sampled_from(sorted(VALUES)).map(lambda n: (n, lambda w: VALUES[n]))


def _joined(sign, operation):
    return lambda pair: (f"({pair[0][0]} {sign} {pair[1][0]})", lambda w: operation(pair[0][1](w), pair[1][1](w)))


def _arithmetic(inner):
    factor, pairs = _number | _constants, st.tuples(inner, inner)
    return (
        pairs.map(_joined("+", lambda a, b: a + b))
        | pairs.map(_joined("-", lambda a, b: a - b))
        | st.tuples(factor, inner).map(_joined("*", lambda a, b: a * b))
        | st.tuples(inner, _constants).map(_joined("/", lambda a, b: a / b))
        | inner.map(lambda p: (f"(-{p[0]})", lambda w: -p[1](w)))
        | inner.map(lambda p: (f"abs({p[0]})", lambda w: abs(p[1](w))))
        | pairs.map(lambda p: (f"max({p[0][0]}, {p[1][0]})", lambda w: max(p[0][1](w), p[1][1](w))))
        | pairs.map(lambda p: (f"min({p[0][0]}, {p[1][0]})", lambda w: min(p[0][1](w), p[1][1](w))))
    )


numbers = st.recursive(_number | _names | _constants, _arithmetic, max_leaves=4)


@st.composite
def _comparisons(draw):
    count = draw(st.sampled_from([2, 2, 3, 3, 4]))
    operands = draw(st.lists(numbers, min_size=count, max_size=count))
    falling = draw(st.sampled_from([("<=",), ("<=", "<"), (">=",), (">=", ">"), tuple(COMPARISONS)]))
    operators = draw(st.lists(st.sampled_from(falling), min_size=count - 1, max_size=count - 1))
    text = operands[0][0] + "".join(f" {op} {o[0]}" for op, o in zip(operators, operands[1:], strict=True))

    def meaning(world):
        values = [operand[1](world) for operand in operands]
        return all(COMPARISONS[op](a, b) for op, a, b in zip(operators, values, values[1:], strict=False))

    return f"({text})", meaning


@st.composite
def _picks(draw):
    group = draw(st.sampled_from(sorted(PICKED)))
    chosen = draw(st.lists(st.sampled_from(PICKED[group]), min_size=1, max_size=3, unique=True))
    negated = draw(st.booleans())
    if len(chosen) == 1 and draw(st.booleans()):
        text = f"{group} {'!=' if negated else '=='} '{chosen[0]}'"
    else:
        text = f"{group} {'not ' if negated else ''}in [{', '.join(f'`{c}`' for c in chosen)}]"
    return f"({text})", lambda w: (w["picked"][group] in chosen) != negated


def _connected(inner):
    pairs, several = st.tuples(inner, inner), st.lists(inner, min_size=2, max_size=3)

    def counted(function, fits):
        return several.map(
            lambda parts: (f"{function}({', '.join(p[0] for p in parts)})", lambda w: fits(sum(p[1](w) for p in parts)))
        )

    def counted_by(function, fits):
        return st.tuples(_number | _constants, several).map(
            lambda stated: (
                f"{function}({stated[0][0]}, {', '.join(p[0] for p in stated[1])})",
                lambda w: fits(sum(p[1](w) for p in stated[1]), stated[0][1](w)),
            )
        )

    return (
        pairs.map(_joined("and", lambda a, b: a and b))
        | pairs.map(_joined("or", lambda a, b: a or b))
        | pairs.map(_joined("implies", lambda a, b: not a or b))
        | inner.map(lambda p: (f"(not {p[0]})", lambda w: not p[1](w)))
        | counted("at_most_one", lambda n: n <= 1)
        | counted("at_least_one", lambda n: n >= 1)
        | counted("exactly_one", lambda n: n == 1)
        | counted_by("at_most", lambda n, k: n <= k)
        | counted_by("at_least", lambda n, k: n >= k)
        | counted_by("exactly", lambda n, k: n == k)
    )


_labels = st.sampled_from(LABELS).map(lambda n: (n, lambda w: w["labels"][n]))
conditions = st.recursive(_comparisons() | _comparisons() | _picks() | _labels, _connected, max_leaves=5)
_LEVELS = [Fraction(v) for v in ("-1.5", "0", "0.25", "1/3", "1", "2", "3", "7")]


def _worlds(seed, count=8):
    rng = random.Random(seed)
    for _ in range(count):
        yield {
            "numbers": {name: rng.choice(_LEVELS) for name in NUMBERS},
            "picked": {name: rng.choice(options) for name, options in PICKED.items()},
            "labels": {name: rng.random() < 0.5 for name in LABELS},
            "constants": VALUES,
        }


@given(conditions, st.none() | conditions, st.integers(0, 999))
@settings(max_examples=120, deadline=None)
def test_sentences_say_what_the_rule_says(then, when, seed):
    trees = [None if part is None else parse(part[0]) for part in (when, then)]
    texts = [None if tree is None else to_text(tree) for tree in trees]
    sentence = words(Rule("rule", (), CNF(), *texts, tuple(trees)), SPEC)
    assume("(shortened)" not in sentence)
    for world in _worlds(seed):
        expected = (when is None or when[1](world), then[1](world))
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
        assert read(row_text(SPEC, row), world, KEYWORDS) == row.contains(x), row_text(SPEC, row)
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
