"""VNN-LIB 1.0 text to expression trees: `(assert (<= Y_1 Y_0))` becomes the tree of `Y_1 <= Y_0`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from smle.errors import RuleError
from smle.rules.expressions import (
    MAX_DEPTH,
    Compare,
    Implies,
    Name,
    Negative,
    Node,
    Not,
    Truth,
    add,
    conjunction,
    disjunction,
    multiply,
)
from smle.rules.parser import did_you_mean, parse

__all__ = ["read_assertions"]

_TOKEN = re.compile(r";[^\n]*|[()]|\|[^|]*\||\"(?:[^\"]|\"\")*\"|[^\s();|\"]+|\S")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,6})")
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
_OPERATORS = ("and", "or", "not", "=>", "<=", ">=", "<", ">", "=", "+", "-", "*", "/")

Expression = str | list["Expression"]


def read_assertions(text: str) -> tuple[tuple[int, int], list[Node]]:
    """Return how many inputs and outputs a VNN-LIB 1.0 text declares, and what it asserts.

    Raises:
        RuleError: If the text is not VNN-LIB 1.0.
    """
    declared: set[tuple[str, int]] = set()
    assertions: list[Node] = []
    for command in _commands(text):
        head = command[0] if command else ""
        if head in ("declare-const", "declare-fun"):
            declared.add(_declaration(command, declared))
        elif head == "assert":
            if len(command) != 2:
                raise RuleError(f"Expected one condition in an assertion. Got {_shown(command)}.")
            assertions.append(_Reader(declared).condition(command[1]))
        elif isinstance(head, str) and head.startswith(("vnnlib-version", "declare-network")):
            raise RuleError("This is VNN-LIB 2.0. Only VNN-LIB 1.0 is read.")
        elif head not in _IGNORED:
            raise RuleError(f"Expected declare-const or assert. Got {_shown(command)}.")
    sizes = {kind: {i for k, i in declared if k == kind} for kind in "XY"}
    for kind, indices in sizes.items():
        if not indices:
            raise RuleError(f"Expected declarations of {kind}_0, {kind}_1, ... Got none.")
        if indices != set(range(len(indices))):
            missing = min(set(range(len(indices))) - indices)
            raise RuleError(f"Expected {kind}_0 to {kind}_{max(indices)} without gaps. {kind}_{missing} is missing.")
    if not assertions:
        raise RuleError("Expected assertions. Got none.")
    return (len(sizes["X"]), len(sizes["Y"])), assertions


def _commands(text: str) -> Iterator[list[Expression]]:
    """Yield the top-level lists, read without recursion."""
    stack: list[list[Expression]] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith(";"):
            continue
        if token == "(":  # noqa: S105
            if len(stack) > MAX_DEPTH:
                raise RuleError(f"Expected at most {MAX_DEPTH} levels of parentheses. Got more.")
            stack.append([])
        elif token == ")":  # noqa: S105
            if not stack:
                raise RuleError(f"Unexpected ')' in line {text.count(chr(10), 0, match.start()) + 1}.")
            done = stack.pop()
            if stack:
                stack[-1].append(done)
            else:
                yield done
        elif stack:
            stack[-1].append(token)
        else:
            raise RuleError(f"Expected '('. Got '{token[:40]}' in line {text.count(chr(10), 0, match.start()) + 1}.")
    if stack:
        raise RuleError(f"Expected {len(stack)} more ')' at the end.")


def _shown(expression: Expression, limit: int = 60) -> str:
    """Return the beginning of an expression, for messages."""
    words: list[str] = []
    todo: list[Expression] = [expression]
    while todo and len(words) < limit:
        item = todo.pop()
        if isinstance(item, str):
            words.append(item)
        else:
            words.append("(")
            todo += [")", *reversed(item)]
    text = " ".join(words).replace("( ", "(").replace(" )", ")")
    return f"'{text}'" if len(text) <= limit else f"'{text[:limit]} ...'"


def _declaration(command: Sequence[Expression], declared: set[tuple[str, int]]) -> tuple[str, int]:
    *start, kind = command
    if kind != "Real" or len(start) != (2 if start[:1] == ["declare-const"] else 3) or (len(start) == 3 and start[2]):
        raise RuleError(f"Expected (declare-const X_0 Real). Got {_shown(list(command))}.")
    match = _VARIABLE.fullmatch(start[1]) if isinstance(start[1], str) else None
    if match is None:
        raise RuleError(f"Expected a variable X_0, X_1, ... or Y_0, Y_1, ... Got {_shown(start[1])}.")
    variable = (match[1], int(match[2]))
    if variable in declared:
        raise RuleError(f"{start[1]} is declared twice.")
    return variable


class _Reader:
    """Turns lists into trees, knowing the variables declared so far."""

    def __init__(self, declared: set[tuple[str, int]]) -> None:
        self._declared = declared

    def condition(self, expression: Expression) -> Node:
        if isinstance(expression, str):
            if expression in ("true", "false"):
                return Truth(expression == "true")
            raise RuleError(f"Expected a condition. Got {_shown(expression)}.")
        operator, *rest = expression or [""]
        if operator in ("and", "or") and rest:
            parts = [self.condition(part) for part in rest]
            return conjunction(parts) if operator == "and" else disjunction(parts)
        if operator == "not" and len(rest) == 1:
            return Not(self.condition(rest[0]))
        if operator == "=>" and len(rest) == 2:
            return Implies(self.condition(rest[0]), self.condition(rest[1]))
        if operator in ("<=", ">=", "<", ">") and len(rest) >= 2:
            operands = tuple(self.term(part) for part in rest)
            return Compare(operands, (str(operator),) * (len(operands) - 1))
        if operator == "=" and len(rest) >= 2:
            # As two inequalities: what is asserted here gets forbidden, so an equality of outputs does no harm.
            pairs = pairwise([self.term(part) for part in rest])
            return conjunction(Compare(pair, (sign,)) for pair in pairs for sign in ("<=", ">="))
        raise self._unknown(expression, "a condition")

    def term(self, expression: Expression) -> Node:
        if isinstance(expression, str):
            return self._leaf(expression)
        operator, *rest = expression or [""]
        if operator in ("+", "-", "*", "/") and rest:
            first, *more = [self.term(part) for part in rest]
            if operator == "-" and not more:
                return Negative(first)
            if operator in ("+", "-"):
                return add(first, [(1 if operator == "+" else -1, node) for node in more])
            return multiply(first, [(str(operator), node) for node in more])
        raise self._unknown(expression, "a number")

    def _leaf(self, token: str) -> Node:
        if _NUMBER.fullmatch(token):
            number = parse(token.lstrip("+-"))
            return Negative(number) if token.startswith("-") else number
        match = _VARIABLE.fullmatch(token)
        if match is None or (match[1], int(match[2])) not in self._declared:
            known = [f"{kind}_{index}" for kind, index in sorted(self._declared)]
            raise RuleError(f"Unknown name '{token[:40]}'.{did_you_mean(token, known)}")
        return Name(token)

    @staticmethod
    def _unknown(expression: list[Expression], expected: str) -> RuleError:
        head = expression[0] if expression else ""
        hint = ""
        if isinstance(head, str) and head not in _OPERATORS:
            hint = f" Known: {', '.join(_OPERATORS)}."
        return RuleError(f"Expected {expected}. Got {_shown(expression)}.{hint}")
