"""Laws of the rule language: compiled rules mean what their text says, and text survives the round trip."""

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smle.errors import RuleError
from smle.rules import Categorical, Choice, Condition, Label, Number, NumericInput, Specification, rule, score, variable
from smle.rules.expressions import Implies, Node, to_text
from smle.rules.parser import parse
from smle_check.names import twins
from support.rules_language import (
    CONSTANTS,
    INPUTS,
    OUTPUTS,
    comparisons,
    input_variables,
    output_thens,
    points,
    thens,
    truth_of,
    whens,
)

# What a random rule may rightly be refused for; any other refusal is a failure.
REFUSALS = (
    "exact equality",
    "comparisons",
    "always true",
    "can never hold",
    "is never true",
    "only a part of the requirement",
    "mentions no output",
    "Distributing",
)


def compiled(when: Node | None, then: Node) -> Specification:
    stated = rule("r", None if when is None else to_text(when), to_text(then))
    try:
        return Specification.build(inputs=INPUTS, outputs=OUTPUTS, constants=dict(CONSTANTS), rules=[stated])
    except RuleError as error:
        if not any(text in str(error) for text in REFUSALS):
            raise
        assume(False)
        raise


@settings(deadline=None, max_examples=80)
@given(whens, points())
def test_regions_mean_what_when_says(when, point):
    env, x, _ = point
    (made,) = compiled(when, parse("y >= 0")).rules
    assert any(region.contains(x) for region in made.regions) == truth_of(when, env)


@settings(deadline=None, max_examples=120)
@given(thens, points())
def test_the_requirement_means_what_then_says(then, point):
    env, x, y = point
    specification = compiled(None, then)
    assert specification.violated(x, y) == (() if truth_of(then, env) is True else ("r",))


@settings(deadline=None, max_examples=100)
@given(whens, thens, points())
def test_a_rule_is_violated_where_its_text_says_so(when, then, point):
    env, x, y = point
    broken = truth_of(when, env) and truth_of(then, env) is not True
    assert compiled(when, then).violated(x, y) == (("r",) if broken else ())


@settings(deadline=None, max_examples=30)
@given(whens, comparisons(input_variables, ["<=", "<", "=="]), output_thens, points())
def test_a_condition_on_inputs_inside_then_moves_into_the_region(when, inner, then, point):
    env, x, y = point
    specification = compiled(when, Implies(inner, then))
    broken = truth_of(when, env) and truth_of(Implies(inner, then), env) is not True
    assert specification.violated(x, y) == (("r",) if broken else ())


@settings(deadline=None, max_examples=80)
@given(whens | thens)
def test_text_reads_back_as_the_same_tree(node):
    text = to_text(node)
    assert parse(text) == node
    assert to_text(parse(text)) == text


# --- round trip of whole specifications -------------------------------------------------------------------------

odd_names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=8)
printable = odd_names.filter(str.isprintable)
fractions = st.fractions(max_denominator=50) | st.decimals(-1000, 1000, places=4).map(Fraction)


@st.composite
def specifications(draw):
    names = draw(st.lists(printable, min_size=9, max_size=9, unique_by=lambda n: n.casefold()))
    assume(not any("=" in name for name in names))
    number, whole, kind, y, cat, dog, advice, near, rule_name = names
    low, width, value = draw(fractions), draw(fractions.filter(lambda f: f > 0)), draw(fractions)
    start = draw(st.integers(-5, 5))
    words = draw(st.lists(printable, min_size=2, max_size=4, unique=True))
    options = draw(st.lists(printable, min_size=2, max_size=4, unique=True))
    assume(twins(names) is None and twins(words) is None and twins(options) is None)
    inputs = (
        NumericInput(number, low, low + width, missing=draw(st.sampled_from([None, low, low + width / 3]))),
        NumericInput(whole, Fraction(start), Fraction(start + 3), integer=True),
        Categorical(kind, tuple(words), draw(st.sampled_from([None, *words]))),
    )
    outputs = (Number(y), Label(cat), Label(dog), Choice(advice, tuple(options), draw(st.sampled_from(["max", "min"]))))
    v = {name: variable(name) for name in names}
    bound = draw(fractions)
    rules = [
        rule(rule_name, (v[number] <= bound) & (v[kind] == words[0]) | (v[whole] > draw(fractions)), v[y] >= bound),
        rule(rule_name + " 2", None, ~(v[cat] & v[dog]) & (v[advice] != options[0])),
        rule(
            rule_name + " 3", ~v[kind].isin(words[:1]), score(v[advice], options[-1]) <= v[near] * v[number] / 3 + bound
        ),
    ]
    return Specification.build(inputs=inputs, outputs=outputs, constants={near: value}, rules=rules)


@settings(deadline=None, max_examples=50)
@given(specifications())
def test_a_specification_survives_the_round_trip_through_yaml(specification):
    text = specification.to_yaml()
    again = Specification.from_yaml(text)
    assert again == specification
    assert again.to_yaml() == text


@settings(deadline=None, max_examples=30)
@given(whens, thens)
def test_operators_text_and_yaml_give_the_same_rule(when, then):
    stated = {"inputs": INPUTS, "outputs": OUTPUTS, "constants": dict(CONSTANTS)}
    by_text = compiled(when, then)
    by_operators = Specification.build(**stated, rules=[rule("r", Condition(when), Condition(then))])
    by_arrow = Specification.build(**stated, rules={"r": f"{to_text(when)} -> {to_text(then)}"})
    by_pair = Specification.build(**stated, rules={"r": (to_text(when), Condition(then))})
    assert by_text == by_operators == by_arrow == by_pair == Specification.from_yaml(by_text.to_yaml())


# --- anything at all ----------------------------------------------------------------------------------------------

FRAGMENTS = """speed y cat advice left road dry near 0.1 1e3 <= < == != and or not implies in ( ) [ ] , + - * /
abs( max( min( score( logit( at_most_one( at_most( exactly(2, true false ` ' ** & ->"""
fragments = st.sampled_from(FRAGMENTS.split())
SKELETON = "inputs: {speed: [0, 1], road: {categories: [dry, wet]}}\noutputs: [y]\nlabels: [cat]\n"


def read_or_refuse(read, *arguments):
    try:
        return read(*arguments)
    except RuleError:
        return None


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60) | st.lists(fragments, max_size=25).map(" ".join))
def test_any_text_is_read_or_refused(text):
    for when, then in ((text, "y >= 0"), (None, text)):
        read_or_refuse(
            lambda w=when, t=then: Specification.build(
                inputs=INPUTS, outputs=OUTPUTS, constants=dict(CONSTANTS), rules=[rule("r", w, t)]
            )
        )


PIECES = """inputs: outputs: labels: rules: choices: constants: never_together: range: categories: name: when: then:
x y [0, 1] { } [ ] - & * ! | > ' # : , --- ... ? % @ ` !!python/object: &a *a << 1e9 nan .inf"""
yaml_pieces = st.sampled_from([*PIECES.split(), "\n", "\n  ", "\t", '"'])


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=80) | st.lists(yaml_pieces, max_size=30).map(" ".join))
def test_any_yaml_is_read_or_refused(text):
    read_or_refuse(Specification.from_yaml, text + "\n")
    read_or_refuse(Specification.from_yaml, SKELETON + text + "\n")
