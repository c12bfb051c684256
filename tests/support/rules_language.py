"""Random rules, and an independent evaluation of their trees to hold compiled rules against.

The evaluation knows nothing of normal forms. It is three-valued because of ties between scores: True, False, or
None where a tie leaves the answer to the runtime. A requirement is met only by True.
"""

from __future__ import annotations

import operator
from fractions import Fraction
from itertools import product

from hypothesis import strategies as st

from smle.rules import Categorical, Choice, Label, Number, NumericInput
from smle.rules.expressions import (
    And,
    Call,
    Compare,
    Implies,
    Member,
    Name,
    Negative,
    Node,
    Not,
    Num,
    Or,
    Product,
    Sum,
    Truth,
    add,
    conjunction,
    disjunction,
    multiply,
)

F = Fraction
INPUTS = (
    NumericInput("speed", F(0), F(40)),
    NumericInput("road friction", F(-5), F(5)),
    NumericInput("lanes", F(0), F(6), integer=True),
    Categorical("road", ("dry", "wet", "black ice")),
    NumericInput("doors", F(-3), F(3), integer=True),
    NumericInput("mass", F(1, 2), F(5)),
    NumericInput("drop", F(-5), F(-1, 4)),
)
OUTPUTS = (
    Number("y"),
    Number("z"),
    Label("cat"),
    Label("dog"),
    Label("or"),
    Choice("advice", ("clear", "left", "right")),
    Choice("turn", ("1", "left"), "min"),
)
CONSTANTS = (("near", F(1)), ("tenth", F(1, 10)), ("third", F(1, 3)))

COMPARISONS = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
COUNTS = {"at_most": operator.le, "at_least": operator.ge, "exactly": operator.eq}
VALUES = [F(v) for v in ("-2", "-1", "-1/2", "0", "1/10", "1/3", "1/2", "1", "2", "3")]


# --- points ---------------------------------------------------------------------------------------------------


@st.composite
def points(draw):
    """A point as names see it, and the same point as columns see it."""
    number = st.sampled_from(VALUES) | st.fractions(-5, 5, max_denominator=7)
    env = {"speed": draw(number), "road friction": draw(number)}
    env["lanes"] = F(draw(st.integers(0, 6)))
    env["road"] = draw(st.sampled_from(("dry", "wet", "black ice")))
    env["doors"] = F(draw(st.integers(-3, 3)))
    for name in ("y", "z", "cat", "dog", "or"):
        env[name] = draw(number)
    scores = st.sampled_from(VALUES[:5])
    env["advice"] = {option: draw(scores) for option in ("clear", "left", "right")}
    env["turn"] = {option: draw(scores) for option in ("1", "left")}
    x = [env["speed"], env["road friction"], env["lanes"]]
    x += [F(env["road"] == category) for category in ("dry", "wet", "black ice")]
    env["mass"] = draw(st.sampled_from([F(1, 2), F(1), F(2)]) | st.fractions(F(1, 2), 5, max_denominator=7))
    env["drop"] = -draw(st.sampled_from([F(1, 4), F(1), F(2)]) | st.fractions(F(1, 4), 5, max_denominator=7))
    x += [env["doors"], env["mass"], env["drop"]]
    y = [env[name] for name in ("y", "z", "cat", "dog", "or")]
    y += [*env["advice"].values(), *env["turn"].values()]
    return env, x, y


# --- evaluation -----------------------------------------------------------------------------------------------


def value_of(node: Node, env) -> Fraction:
    match node:
        case Num(value=value):
            return value
        case Name(name=name):
            if name.startswith("road="):
                return F(env["road"] == name.removeprefix("road="))
            return dict(CONSTANTS)[name] if name in dict(CONSTANTS) else env[name]
        case Negative(operand=operand):
            return -value_of(operand, env)
        case Sum(terms=terms):
            return sum((sign * value_of(term, env) for sign, term in terms), F(0))
        case Product(factors=factors):
            result = F(1)
            for operator, factor in factors:
                value = value_of(factor, env)
                result = result / value if operator == "/" else result * value
            return result
        case Call(function="abs", arguments=(inner,)):
            return abs(value_of(inner, env))
        case Call(function=("max" | "min") as function, arguments=arguments):
            return {"max": max, "min": min}[function](value_of(a, env) for a in arguments)
        case Call(function="logit", arguments=(Name(name=name),)):
            return env[name]
        case Call(function="score", arguments=(Name(name=choice), option)):
            return env[choice][option.name if isinstance(option, Name) else "1"]
    raise AssertionError(node)


def _not(value):
    return None if value is None else not value


def _and(values):
    values = list(values)
    return False if False in values else (None if None in values else True)


def _or(values):
    return _not(_and(_not(v) for v in values))


def _picked(choice: str, chosen, env):
    """Whether the pick is one of `chosen`: None at a tie between one of them and another."""
    sign = -1 if choice == "turn" else 1
    scores = {option: sign * value for option, value in env[choice].items()}
    inside = [v for o, v in scores.items() if o in chosen]
    outside = [v for o, v in scores.items() if o not in chosen]
    if not outside:
        return True
    if max(inside) == max(outside):
        return None
    return max(inside) > max(outside)


def _words(options):
    return {option.name if isinstance(option, Name) else str(option.value) for option in options}


def truth_of(node: Node, env):
    match node:
        case Truth(value=value):
            return value
        case Name(name=name):
            return env[name] >= 0
        case Not(operand=operand):
            return _not(truth_of(operand, env))
        case And(parts=parts):
            return _and(truth_of(p, env) for p in parts)
        case Or(parts=parts):
            return _or(truth_of(p, env) for p in parts)
        case Implies(condition=condition, conclusion=conclusion):
            return _or([_not(truth_of(condition, env)), truth_of(conclusion, env)])
        case Member(operand=Name(name=name), options=options) if name not in ("road", "advice", "turn"):
            return env[name] in {value_of(option, env) for option in options}
        case Member(operand=Name(name=name), options=options):
            return env[name] in _words(options) if name == "road" else _picked(name, _words(options), env)
        case Compare(operands=(Name(name="road"), option), operators=(operator,)):
            return (env["road"] == option.name) == (operator == "==")
        case Compare(operands=(Name(name=("advice" | "turn") as name), option), operators=(operator,)):
            picked = _picked(name, _words([option]), env)
            return picked if operator == "==" else _not(picked)
        case Compare(operands=operands, operators=operators):
            values = [value_of(o, env) for o in operands]
            return all(COMPARISONS[op](a, b) for op, a, b in zip(operators, values, values[1:], strict=False))
        case Call(function=function, arguments=arguments):
            count, first = (1, 0) if function.endswith("_one") else (value_of(arguments[0], env), 1)
            values = [truth_of(a, env) for a in arguments[first:]]
            fits = COUNTS[function.removesuffix("_one")]
            answers = {
                fits(sum(values), count) for values in product(*([True, False] if v is None else [v] for v in values))
            }
            return answers.pop() if len(answers) == 1 else None
    raise AssertionError(node)


# --- random trees ---------------------------------------------------------------------------------------------

small = st.sampled_from([Num(F(v)) for v in ("0", "1", "2", "0.5", "0.1", "3")])
names = st.sampled_from([Name("near"), Name("tenth"), Name("third")])
divided = st.builds(lambda a, b: multiply(a, [("/", b)]), small, small.filter(lambda n: n.value))
constants = small | names | divided | st.builds(Negative, small)

input_variables = st.sampled_from(
    [Name("speed"), Name("road friction"), Name("lanes"), Name("doors"), Name("road=black ice")]
)
output_variables = st.sampled_from(
    [
        Name("y"),
        Name("z"),
        Call("logit", (Name("cat"),)),
        Call("logit", (Name("or"),)),
        Call("score", (Name("advice"), Name("left"))),
        Call("score", (Name("turn"), Num(F(1)))),
    ]
)


@st.composite
def terms(draw, variables):
    def scaled():
        variable = draw(variables)
        return multiply(draw(constants), [("*", variable)]) if draw(st.booleans()) else variable

    def total():
        more = [(draw(st.sampled_from([1, -1])), scaled() if draw(st.booleans()) else draw(constants))]
        return add(scaled(), more * draw(st.integers(0, 2))) if draw(st.booleans()) else scaled()

    def extreme(inner):
        more = [
            draw(st.just(inner) | constants) if draw(st.booleans()) else total() for _ in range(draw(st.integers(1, 2)))
        ]
        return Call(draw(st.sampled_from(["max", "min"])), (inner, *more))

    match draw(st.integers(0, 8)):
        case 0:
            return Negative(total())
        case 1:
            return Call("abs", (total(),))
        case 2:
            return add(Call("abs", (total(),)), [(draw(st.sampled_from([1, -1])), total())])
        case 3:
            inner = Call("abs", (total(),))
            return add(inner, [(draw(st.sampled_from([1, -1])), multiply(draw(constants), [("*", inner)]))])
        case 4:
            return extreme(total())
        case 5:
            inner = extreme(Call("abs", (total(),)))
            return add(total(), [(draw(st.sampled_from([1, -1])), multiply(draw(constants), [("*", inner)]))])
        case 6:
            return Call("abs", (add(extreme(extreme(total())), [(-1, draw(constants))]),))
    return total()


@st.composite
def comparisons(draw, variables, operators):
    chain = draw(st.lists(st.sampled_from(operators), min_size=1, max_size=2))
    operands = [draw(terms(variables)), draw(terms(variables) | constants), draw(constants)]
    if draw(st.booleans()):
        operands = operands[: len(chain) + 1][::-1]
    return Compare(tuple(operands[: len(chain) + 1]), tuple(chain))


@st.composite
def quotients(draw, variables, operators):
    """Comparisons with numbers divided by an input that is never 0, or by a sum of such inputs."""
    divisor = draw(
        st.sampled_from(
            [
                Name("mass"),
                Name("drop"),
                Negative(Name("mass")),
                add(Name("mass"), [(-1, Name("drop"))]),
                multiply(Num(F(2)), [("*", Name("mass"))]),
                add(Name("mass"), [(1, Name("road=dry"))]),
            ]
        )
    )

    def quotient():
        term = draw(variables) if draw(st.booleans()) else add(draw(variables), [(-1, draw(variables))])
        made = multiply(term, [("/", divisor)])
        return multiply(Num(F(3)), [("*", made)]) if draw(st.booleans()) else made

    def expression():
        match draw(st.integers(0, 4)):
            case 0:
                return Call("abs", (add(quotient(), [(-1, draw(constants))]),))
            case 1:
                return Call(draw(st.sampled_from(["max", "min"])), (quotient(), draw(constants)))
            case 2:
                return add(draw(constants), [(draw(st.sampled_from([1, -1])), quotient())])
            case 3:
                return add(Negative(quotient()), [(1, multiply(Num(F(1)), [("/", divisor)]))])
        return quotient()

    operands = [expression(), draw(constants) if draw(st.booleans()) else expression()]
    return Compare(tuple(operands), (draw(st.sampled_from(operators)),))


def listed(numbers):
    """One of several numbers: one of them, or three and more; two may be a range."""
    values = small.filter(lambda n: n.value != F(1, 10))  # which is no float
    options = st.lists(values, min_size=3, max_size=4) | st.lists(values, min_size=1, max_size=1)
    return st.builds(lambda name, values: Member(Name(name), tuple(values)), st.sampled_from(numbers), options)


def memberships(group, options):
    nodes = st.sampled_from(options)
    equal = st.builds(lambda o, op: Compare((Name(group), o), (op,)), nodes, st.sampled_from(["==", "!="]))
    member = st.lists(nodes, min_size=1, max_size=3).map(lambda os: Member(Name(group), tuple(os)))
    return equal | member


def formulas(atoms):
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.lists(inner, min_size=2, max_size=3).map(conjunction),
            st.lists(inner, min_size=2, max_size=3).map(disjunction),
            st.builds(Implies, inner, inner),
            st.builds(
                lambda f, a: Call(f, tuple(a)),
                st.sampled_from(["at_most_one", "at_least_one", "exactly_one"]),
                st.lists(inner, min_size=2, max_size=3),
            ),
            st.builds(
                lambda f, k, a: Call(f, (k, *a)),
                st.sampled_from(["at_most", "at_least", "exactly"]),
                st.sampled_from([Num(F(1)), Num(F(2)), add(Name("near"), [(1, Num(F(1)))])]),
                st.lists(inner, min_size=3, max_size=4),
            ),
        ),
        max_leaves=5,
    )


ORDER = ["<=", "<", ">=", ">"]
whens = formulas(
    comparisons(input_variables, [*ORDER, "==", "!="])
    | quotients(input_variables, [*ORDER, "==", "!="])
    | listed(["speed", "lanes", "doors"])
    | memberships("road", [Name("dry"), Name("wet"), Name("black ice")])
)
output_atoms = (
    comparisons(output_variables, [*ORDER, "!="])
    | quotients(output_variables, [*ORDER, "!="])
    | listed(["y", "z"])
    | st.sampled_from([Name("cat"), Name("dog"), Name("or")])
    | memberships("advice", [Name("clear"), Name("left"), Name("right")])
    | memberships("turn", [Num(F(1)), Name("left")])
)
output_thens = formulas(output_atoms)
thens = formulas(comparisons(output_variables | input_variables, ORDER) | output_atoms)
