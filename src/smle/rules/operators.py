"""Rules as Python operators: `(distance <= 10) & (speed >= 20)` builds the same tree as the text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from fractions import Fraction
from typing import NoReturn

import numpy as np

from smle.errors import RuleError
from smle.rules.dates import day_of
from smle.rules.expressions import (
    Call,
    Compare,
    Day,
    Implies,
    Lookup,
    Member,
    Missing,
    Name,
    Negative,
    Node,
    Not,
    Num,
    add,
    conjunction,
    decimal_text,
    disjunction,
    exact_number,
    is_condition,
    multiply,
    shown,
    to_text,
)

__all__ = [
    "Condition",
    "Term",
    "at_least",
    "at_least_one",
    "at_most",
    "at_most_one",
    "exactly",
    "exactly_one",
    "expression_of",
    "logit",
    "maximum",
    "minimum",
    "node_of",
    "score",
    "variable",
    "variables",
]


def node_of(value: object) -> Node:
    """Convert a term, a condition, a finite number or a string (as a name) to a tree, or raise RuleError."""
    if isinstance(value, _Expression):
        return value.node
    if isinstance(value, Node):
        return value
    if isinstance(value, str):
        return Name(str(value))
    value = value.item() if isinstance(value, np.datetime64) else value
    if isinstance(value, date):
        return Day(day_of(value))
    fraction = exact_number(value)
    if fraction is None:
        raise RuleError(f"Expected a finite number, a variable or a condition. Got {shown(value)}.")
    magnitude = abs(fraction)
    if decimal_text(magnitude) is None:
        node = multiply(Num(Fraction(magnitude.numerator)), [("/", Num(Fraction(magnitude.denominator)))])
    else:
        node = Num(magnitude)
    return Negative(node) if fraction < 0 else node


def expression_of(node: Node) -> Term | Condition | Fraction:
    """Wrap a tree as what a Python function computes with: a number, a term or a condition."""
    if isinstance(node, Num):
        return node.value
    if isinstance(node, Negative) and isinstance(node.operand, Num):
        return -node.operand.value
    return Condition(node) if is_condition(node) else Term(node)


class _Expression:
    """What terms and conditions share: a tree, its text, and no truth value."""

    __slots__ = ("node",)
    __array_ufunc__ = None  # so that NumPy numbers leave `2.5 * term` to the term

    def __init__(self, node: Node) -> None:
        self.node = node

    def __str__(self) -> str:
        return to_text(self.node)

    def __repr__(self) -> str:
        return f"<{to_text(self.node)}>"

    def __bool__(self) -> NoReturn:
        raise RuleError(
            f"'{self}' has no truth value in Python. Join conditions with & | ~ in parentheses, and write "
            "term.between(low, high) for low <= term <= high, maximum(a, b) for the larger one."
        )

    def __and__(self, other: object) -> Condition:
        return Condition(conjunction([self.node, node_of(other)]))

    def __or__(self, other: object) -> Condition:
        return Condition(disjunction([self.node, node_of(other)]))

    def __invert__(self) -> Condition:
        return Condition(Not(self.node))

    def implies(self, conclusion: object) -> Condition:
        """Require the conclusion wherever this holds."""
        return Condition(Implies(self.node, node_of(conclusion)))


class Condition(_Expression):
    """An expression that is true or false."""

    __slots__ = ()


class Term(_Expression):
    """A number, a label, a choice or a category, by name or as a linear expression."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __add__(self, other: object) -> Term:
        return Term(add(self.node, [(1, node_of(other))]))

    def __radd__(self, other: object) -> Term:
        # sum([...]) starts from an int 0, which is not part of the rule
        return self if isinstance(other, int) and other == 0 else Term(add(node_of(other), [(1, self.node)]))

    def __sub__(self, other: object) -> Term:
        return Term(add(self.node, [(-1, node_of(other))]))

    def __rsub__(self, other: object) -> Term:
        return Term(add(node_of(other), [(-1, self.node)]))

    def __mul__(self, other: object) -> Term:
        return Term(multiply(self.node, [("*", node_of(other))]))

    def __rmul__(self, other: object) -> Term:
        return Term(multiply(node_of(other), [("*", self.node)]))

    def __truediv__(self, other: object) -> Term:
        return Term(multiply(self.node, [("/", node_of(other))]))

    def __rtruediv__(self, other: object) -> Term:
        return Term(multiply(node_of(other), [("/", self.node)]))

    def __neg__(self) -> Term:
        return Term(Negative(self.node))

    def __abs__(self) -> Term:
        return Term(Call("abs", (self.node,)))

    __iter__ = None  # `__getitem__` alone would make terms iterable

    def __getitem__(self, keys: object) -> Term:
        """Look up the number of a table: `cap[article]`, `cap[article, region]`."""
        if not isinstance(self.node, Name):
            raise RuleError(f"Expected the name of a table in front of '[...]'. Got '{self}'.")
        listed = keys if isinstance(keys, tuple) else (keys,)
        return Term(Lookup(self.node.name, tuple(map(node_of, listed))))

    def _compared(self, operator: str, other: object) -> Condition:
        return Condition(Compare((self.node, node_of(other)), (operator,)))

    def __le__(self, other: object) -> Condition:
        return self._compared("<=", other)

    def __lt__(self, other: object) -> Condition:
        return self._compared("<", other)

    def __ge__(self, other: object) -> Condition:
        return self._compared(">=", other)

    def __gt__(self, other: object) -> Condition:
        return self._compared(">", other)

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("!=", other)

    def between(self, low: object, high: object) -> Condition:
        """Return low <= self <= high."""
        return Condition(Compare((node_of(low), self.node, node_of(high)), ("<=", "<=")))

    def is_missing(self) -> Condition:
        """Test whether an input with a stand-in is missing: `score is missing`."""
        if not isinstance(self.node, Name):
            raise RuleError(f"Expected the name of an input in front of 'is missing'. Got '{self}'.")
        return Condition(Missing(self.node))

    def is_known(self) -> Condition:
        """Test whether an input with a stand-in is not missing: `score is known`."""
        return ~self.is_missing()

    def isin(self, options: Iterable[object]) -> Condition:
        """Test whether a number, a category or a choice is one of the options."""
        nodes = tuple(node_of(option) for option in options)
        if not nodes:
            raise RuleError(f"Expected at least one option in '{self}.isin(...)'. Got none.")
        # Two numbers could be read as a range.
        if len(nodes) == 2 and not any(isinstance(node, Name) for node in nodes):
            return Condition(disjunction([Compare((self.node, node), ("==",)) for node in nodes]))
        return Condition(Member(self.node, nodes))


def variable(name: str) -> Term:
    """Return the term for one name, which may contain any characters."""
    return Term(Name(name))


def variables(*names: str | Iterable[str]) -> tuple[Term, ...]:
    """Return one term per name: `variables("a b")`, `variables("a", "b")` or `variables(["a", "b c"])`.

    A single string is split at spaces.
    """
    if len(names) == 1 and isinstance(names[0], str):
        return tuple(variable(name) for name in names[0].split())
    return tuple(variable(name) for part in names for name in ([part] if isinstance(part, str) else part))


def score(*arguments: object) -> Term:
    """Return the raw score of an option: `score("left")`, or `score("advice", "left")`."""
    return Term(_call("score", arguments))


def logit(label: object) -> Term:
    """Return the raw logit of a label."""
    return Term(_call("logit", (label,)))


def maximum(*terms: object) -> Term:
    """Return the largest of several terms. Python's `max` cannot compare terms."""
    return Term(_call("max", terms))


def minimum(*terms: object) -> Term:
    """Return the smallest of several terms."""
    return Term(_call("min", terms))


def at_most_one(*conditions: object) -> Condition:
    """Require that no two of the conditions hold together."""
    return Condition(_call("at_most_one", _listed(conditions)))


def at_least_one(*conditions: object) -> Condition:
    """Require that at least one of the conditions holds."""
    return Condition(_call("at_least_one", _listed(conditions)))


def exactly_one(*conditions: object) -> Condition:
    """Require that one of the conditions holds and the others do not."""
    return Condition(_call("exactly_one", _listed(conditions)))


def at_most(count: object, *conditions: object) -> Condition:
    """Require that no more than `count` of the conditions hold."""
    return Condition(_call("at_most", (count, *_listed(conditions))))


def at_least(count: object, *conditions: object) -> Condition:
    """Require that at least `count` of the conditions hold."""
    return Condition(_call("at_least", (count, *_listed(conditions))))


def exactly(count: object, *conditions: object) -> Condition:
    """Require that exactly `count` of the conditions hold."""
    return Condition(_call("exactly", (count, *_listed(conditions))))


def _call(function: str, arguments: Iterable[object]) -> Call:
    return Call(function, tuple(map(node_of, arguments)))


def _listed(conditions: Iterable[object]) -> Iterable[object]:
    """Yield conditions one by one, unpacking lists."""
    for condition in conditions:
        yield from condition if isinstance(condition, list | tuple) else [condition]
