"""Laws of VNN-LIB: a point is a counterexample of the file if and only if it violates the rules read from it."""

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smle.errors import RuleError
from smle.rules import Specification
from support.vnnlib import write_vnnlib

numbers = st.sampled_from(["0", "1", "-1", "0.5", "-0.25", "2.0", "1e-1"])
variables = st.sampled_from(["X_0", "X_1", "Y_0", "Y_1"])
values = st.sampled_from([Fraction(v) for v in ("-1", "-1/4", "0", "1/10", "1/2", "1", "2")])
DECLARED = "\n".join(f"(declare-const {name} Real)" for name in ("X_0", "X_1", "Y_0", "Y_1"))
RANGES = [(-1, 2), (-1, 2)]

terms = st.recursive(
    variables | numbers,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-"), inner, inner),
        st.tuples(st.sampled_from("+-"), inner, inner, inner),
        st.tuples(st.just("*"), numbers, inner),
        st.tuples(st.just("-"), inner),
    ),
    max_leaves=3,
)
conditions = st.recursive(
    st.tuples(st.sampled_from(["<=", ">=", "<", ">", "="]), terms, terms),
    lambda inner: st.one_of(
        st.builds(
            lambda op, parts: (op, *parts), st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)
        ),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=4,
)


def text_of(node):
    return node if isinstance(node, str) else f"({' '.join(map(text_of, node))})"


def value_of(node, point):
    if isinstance(node, str):
        return point[node] if node in point else Fraction(node)
    operator, *parts = node
    first, *rest = [value_of(part, point) for part in parts]
    match operator:
        case "+":
            return first + sum(rest)
        case "*":
            return first * rest[0]
    return first - sum(rest) if rest else -first


def truth_of(node, point):
    operator, *parts = node
    if operator in ("and", "or", "not"):
        truths = [truth_of(part, point) for part in parts]
        return {"and": all(truths), "or": any(truths), "not": not truths[0]}[operator]
    a, b = (value_of(part, point) for part in parts)
    return {"<=": a <= b, ">=": a >= b, "<": a < b, ">": a > b, "=": a == b}[operator]


def read(text, **options):
    try:
        return Specification.from_vnnlib(text, **options)
    except RuleError as error:
        refusals = ("whatever the outputs", "never be met", "always true", "can never hold", "equality", "never true")
        if not any(text in str(error) for text in refusals):
            raise
        assume(False)
        raise


@settings(deadline=None, max_examples=150)
@given(st.lists(conditions, min_size=1, max_size=2), st.tuples(values, values, values, values))
def test_a_counterexample_is_a_violation(assertions, numbers):
    text = "\n".join([DECLARED, *(f"(assert {text_of(c)})" for c in assertions)])
    specification = read(text, inputs=RANGES)
    point = dict(zip(("X_0", "X_1", "Y_0", "Y_1"), numbers, strict=True))
    violated = bool(specification.violated(numbers[:2], numbers[2:]))
    assert violated == all(truth_of(c, point) for c in assertions)
    assert Specification.from_yaml(specification.to_yaml()) == specification


@settings(deadline=None, max_examples=100)
@given(conditions, st.tuples(values, values, values, values))
def test_writing_and_reading_again_violates_the_same_points(condition, numbers):
    specification = read(f"{DECLARED}\n(assert {text_of(condition)})", inputs=RANGES)
    again = read(write_vnnlib(specification), inputs=RANGES)
    x, y = numbers[:2], numbers[2:]
    assert bool(again.violated(x, y)) == bool(specification.violated(x, y))


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60) | st.text("()<=>+-*/XY_01 .e andort;|\n", max_size=80))
def test_any_text_is_read_or_refused(text):
    for whole in (text + "\n", f"{DECLARED}\n{text}\n", f"{DECLARED}\n(assert {text})\n"):
        try:
            Specification.from_vnnlib(whole, inputs=RANGES)
        except RuleError:
            continue
