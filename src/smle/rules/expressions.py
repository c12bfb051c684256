"""The expression tree of a rule, and the canonical text it prints to.

YAML, Python text and Python operators build the same nodes, and `parse(to_text(node)) == node`. Nodes do not know what
is an input or an output: names get their meaning when a rule is compiled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from numbers import Rational

import numpy as np

from smle.errors import RuleError
from smle.rules.dates import date_text

__all__ = [
    "CASES",
    "COUNTS",
    "FUNCTIONS",
    "KEYWORDS",
    "MAX_BITS",
    "MAX_DEPTH",
    "And",
    "Call",
    "Compare",
    "Day",
    "Implies",
    "Lookup",
    "Member",
    "Missing",
    "Name",
    "Negative",
    "Node",
    "Not",
    "Num",
    "Or",
    "Percent",
    "Product",
    "Sum",
    "Truth",
    "add",
    "conjunction",
    "decimal_text",
    "disjunction",
    "exact_number",
    "exact_text",
    "is_condition",
    "multiply",
    "nodes_in",
    "quote",
    "quote_name",
    "shown",
    "to_text",
]

MAX_DEPTH = 50
"""Deepest nesting of one expression; long sums and long `and` chains are flat and do not count."""

KEYWORDS = frozenset({"and", "or", "not", "implies", "in", "true", "false"})
COUNTS = ("at_most_one", "at_least_one", "exactly_one", "at_most", "at_least", "exactly")
"""Functions that count conditions; those without `_one` have the number as their first argument."""
CASES = ("abs", "max", "min")
"""Functions of numbers that are written out as cases."""
FUNCTIONS = (*CASES, "score", "logit", *COUNTS)

MAX_BITS = 8192
"""Longest numerator or denominator of a number."""

_MAX_NUMBER_TEXT = 400
_PLAIN_DIGITS = 25
_SHOWN = 80  # characters of a value or a text in an error message
_EXACTLY = Context(prec=8 * _MAX_NUMBER_TEXT, traps=[Inexact])
_BARE_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Node:
    """A node of an expression. `depth` counts nesting; it is bounded, so walks over a tree may recurse."""

    depth: int = field(init=False, repr=False, compare=False, default=1)

    def __post_init__(self) -> None:
        depth = 1 + max([part.depth for part in self.children()], default=0)
        if depth > MAX_DEPTH:
            raise RuleError(f"Expected at most {MAX_DEPTH} levels of nesting. Got more. Split the rule into several.")
        object.__setattr__(self, "depth", depth)

    def children(self) -> Iterator[Node]:
        """Yield the child nodes, from left to right."""
        for value in vars(self).values():
            for item in value if isinstance(value, tuple) else (value,):
                part = item[1] if isinstance(item, tuple) else item  # skip the sign or operator in front
                if isinstance(part, Node):
                    yield part


@dataclass(frozen=True)
class Num(Node):
    """A non-negative decimal, stored exactly: `0.1` is one tenth."""

    value: Fraction

    def __post_init__(self) -> None:
        if self.value < 0 or len(decimal_text(self.value) or "x" * 999) > _MAX_NUMBER_TEXT:
            raise RuleError(f"Expected a decimal number of at most {_MAX_NUMBER_TEXT} characters.")


@dataclass(frozen=True)
class Percent(Num):
    """A number written in percent: `10 %` is one tenth."""


@dataclass(frozen=True)
class Day(Node):
    """A date, as days since 1970-01-01."""

    value: int


@dataclass(frozen=True)
class Name(Node):
    """The name of an input, output, constant, category or option; context decides which."""

    name: str


@dataclass(frozen=True)
class Lookup(Node):
    """`table[keys]`: the number in a table for the categories of some inputs, or for given categories."""

    table: str
    keys: tuple[Node, ...]


@dataclass(frozen=True)
class Truth(Node):
    """`true` or `false`."""

    value: bool


@dataclass(frozen=True)
class Negative(Node):
    """`-operand`."""

    operand: Node


@dataclass(frozen=True)
class Sum(Node):
    """Signed terms (1 or -1); the first sign is 1."""

    terms: tuple[tuple[int, Node], ...]


@dataclass(frozen=True)
class Product(Node):
    """Factors with the operator in front of each (`*` or `/`), from left to right; the first is `*`."""

    factors: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class Call(Node):
    """`function(arguments)`."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Compare(Node):
    """A chain `a <= b < c`, with one operator fewer than operands."""

    operands: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Member(Node):
    """`operand in [options]`."""

    operand: Node
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Missing(Node):
    """`operand is missing`; `operand is known` is its negation."""

    operand: Name


@dataclass(frozen=True)
class Not(Node):
    """`not operand`."""

    operand: Node


@dataclass(frozen=True)
class And(Node):
    """All parts hold. Build it with `conjunction`, which flattens nested ones."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Or(Node):
    """Some part holds. Build it with `disjunction`, which flattens nested ones."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Implies(Node):
    """`conclusion` holds wherever `condition` does."""

    condition: Node
    conclusion: Node


def nodes_in(*trees: Node | None) -> Iterator[Node]:
    """Yield the nodes of trees, from left to right; a node that several parents share, once."""
    todo, seen = [tree for tree in reversed(trees) if tree is not None], set[int]()
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            todo += reversed([*node.children()])


def is_condition(node: Node) -> bool:
    """Return whether a node is true or false by its form. The name of a label is not: only its meaning says so."""
    if isinstance(node, Call):
        return node.function in COUNTS
    return isinstance(node, Truth | Compare | Member | Missing | Not | And | Or | Implies)


def conjunction(parts: Iterable[Node]) -> Node:
    """Join parts with `and`, flattening nested ones; a single part is returned as it is."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, And) else (part,))]
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def disjunction(parts: Iterable[Node]) -> Node:
    """Join parts with `or`, flattening nested ones; a single part is returned as it is."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Or) else (part,))]
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def add(first: Node, more: Iterable[tuple[int, Node]]) -> Node:
    """Return first + signed terms; a sum on the left is extended, so `(a + b) + c` is `a + b + c`."""
    start = first.terms if isinstance(first, Sum) else ((1, first),)
    terms = (*start, *more)
    return first if len(terms) == 1 else Sum(terms)


def multiply(first: Node, more: Iterable[tuple[str, Node]]) -> Node:
    """Return first times or over the factors; a product on the left is extended."""
    start = first.factors if isinstance(first, Product) else (("*", first),)
    factors = (*start, *more)
    return first if len(factors) == 1 else Product(factors)


def shown(value: object) -> str:
    """Format a value for an error message, cut to a readable length."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        text = f"[{', '.join(value)}]"
    else:
        try:
            text = f"'{value}'" if isinstance(value, str) else repr(value)
        except ValueError:  # more digits than Python prints
            return "a very long number"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def exact_number(value: object) -> Fraction | None:
    """Return a Python or NumPy number exactly; a float is read as the decimal it prints.

    Returns None if the value is not a number, not finite, or of unreasonable size.
    """
    if isinstance(value, np.generic):
        value = Decimal(str(value)) if isinstance(value, np.floating) else value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | Rational | Decimal):
        return None
    if isinstance(value, float | Decimal):
        reasonable = math.isfinite(value) and abs(Decimal(value).adjusted()) <= _MAX_NUMBER_TEXT
        return Fraction(str(value)) if reasonable else None
    result = Fraction(value)
    return result if max(result.numerator.bit_length(), result.denominator.bit_length()) <= MAX_BITS else None


def decimal_text(value: Fraction) -> str | None:
    """Return a number as exact decimal text, with an exponent if that is shorter, or None if the decimals never end."""
    if value.numerator.bit_length() > 4 * _MAX_NUMBER_TEXT or value.denominator.bit_length() > 12 * _MAX_NUMBER_TEXT:
        return None
    try:
        number = _EXACTLY.divide(Decimal(value.numerator), Decimal(value.denominator))
    except Inexact:
        return None
    sign, digits, exponent = number.as_tuple()
    if max(len(digits), -int(exponent)) > _PLAIN_DIGITS:
        sign, digits, exponent = number.normalize(_EXACTLY).as_tuple()
        if exponent:
            return f"{Decimal((sign, digits, 0)):f}e{exponent}"
    return f"{number:f}"


def exact_text(value: Fraction) -> str:
    """Return a number exactly: as a decimal if it has one, else as numerator / denominator."""
    return decimal_text(value) or f"{value.numerator} / {value.denominator}"


def quote_name(name: str) -> str:
    """Write a name as rule text: bare if possible, else in backticks (with inner backticks doubled)."""
    if _BARE_NAME.fullmatch(name) and name not in KEYWORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


# Binding strengths, loosest first; a part that binds more loosely than its place allows gets parentheses.
_IMPLIES, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(1, 10)


def to_text(node: Node) -> str:
    """Print a node as canonical rule text."""
    return _print(node)[0]


def quote(node: Node) -> str:
    """Print a node for an error message, quoted and cut to a readable length."""
    text = to_text(node)
    return f"'{text}'" if len(text) <= _SHOWN else f"'{text[: _SHOWN - 4]} ...'"


def _at(node: Node, level: int) -> str:
    text, binding = _print(node)
    return text if binding >= level else f"({text})"


def _print(node: Node) -> tuple[str, int]:
    """Return the text and the binding strength of its outermost operator."""
    match node:
        case Percent(value=value):
            return f"{decimal_text(100 * value)} %", _ATOM
        case Num(value=value):
            return decimal_text(value) or "?", _ATOM
        case Day(value=value):
            return date_text(value), _ATOM
        case Name(name=name):
            return quote_name(name), _ATOM
        case Truth(value=truth):
            return "true" if truth else "false", _ATOM
        case Call(function=function, arguments=arguments):
            return f"{function}({', '.join(_at(a, _IMPLIES) for a in arguments)})", _ATOM
        case Lookup(table=table, keys=keys):
            return f"{quote_name(table)}[{', '.join(_at(key, _SUM) for key in keys)}]", _ATOM
        case Negative(operand=operand):
            return f"-{_at(operand, _UNARY)}", _UNARY
        case Product(factors=factors):
            first, *rest = factors
            return _at(first[1], _UNARY) + "".join(f" {op} {_at(f, _UNARY)}" for op, f in rest), _PRODUCT
        case Sum(terms=terms):
            head, *tail = terms
            signs = "".join(f" {'+' if sign > 0 else '-'} {_at(t, _PRODUCT)}" for sign, t in tail)
            return _at(head[1], _PRODUCT) + signs, _SUM
        case _:
            return _print_condition(node)


def _print_condition(node: Node) -> tuple[str, int]:
    match node:
        case Compare(operands=operands, operators=operators):
            start = _at(operands[0], _SUM)
            return start + "".join(
                f" {op} {_at(o, _SUM)}" for op, o in zip(operators, operands[1:], strict=True)
            ), _COMPARE
        case Member(operand=operand, options=options):
            return f"{_at(operand, _SUM)} in [{', '.join(_at(o, _SUM) for o in options)}]", _COMPARE
        case Not(operand=Member(operand=operand, options=options)):
            return f"{_at(operand, _SUM)} not in [{', '.join(_at(o, _SUM) for o in options)}]", _COMPARE
        case Missing(operand=operand):
            return f"{_at(operand, _ATOM)} is missing", _COMPARE
        case Not(operand=Missing(operand=operand)):
            return f"{_at(operand, _ATOM)} is known", _COMPARE
        case Not(operand=operand):
            return f"not {_at(operand, _NOT if isinstance(operand, Not) else _UNARY)}", _NOT
        case And(parts=parts):
            return " and ".join(_at(p, _NOT) for p in parts), _AND
        case Or(parts=parts):
            return " or ".join(_at(p, _AND) for p in parts), _OR
        case Implies(condition=condition, conclusion=conclusion):
            return f"{_at(condition, _OR)} implies {_at(conclusion, _IMPLIES)}", _IMPLIES
    raise AssertionError(f"not an expression: {node!r}")  # pragma: no cover
