"""Reads VNN-LIB 1.0, exactly.

A VNN-LIB file asserts a counterexample: inputs in a region, and outputs that must not occur there. Reading it gives the
rule that forbids it: each way `x in P and g_1(x, y) <= 0 and ...` to satisfy the assertions becomes the clause `g_1 > 0
or ...` over the region P. Ways with the same region share a rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from smle.errors import RuleError
from smle.rules.build import to_fraction
from smle.rules.compiler import MAX_LITERALS, MAX_REGIONS, compile_rule, distribute, plainly_empty, tightest
from smle.rules.expressions import (
    MAX_DEPTH,
    And,
    Call,
    Compare,
    Implies,
    Name,
    Negative,
    Node,
    Not,
    Num,
    Or,
    Truth,
    add,
    conjunction,
    disjunction,
    multiply,
)
from smle.rules.formula import Linear, Literal
from smle.rules.instead import did_you_mean
from smle.rules.normalize import All, Formula, Some, normal_form
from smle.rules.operators import node_of
from smle.rules.parser import parse
from smle.rules.specification import Choice, Label, Number, NumericInput, Rule, Specification
from smle.rules.vocabulary import Vocabulary

__all__ = ["read_vnnlib"]

_MAX_WAYS = 10_000
_MAX_LITERALS = 200_000  # literals of one way
_MAX_BYTES = 64 * 2**20
_LONG = 1_000  # longer regions leave out comparisons that hold in the whole domain
_SHOWN = 60  # characters of an expression in an error message
Literals = tuple[Literal, ...]


class _Property(NamedTuple):
    """What one file forbids: each requirement (a tuple of clauses) with the regions where it applies."""

    name: str
    sizes: tuple[int, int]
    asked: dict[tuple[Literals, ...], list[Literals]]


def read_vnnlib(
    *sources: str | PathLike[str],
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
) -> Specification:
    """Read VNN-LIB 1.0 files (paths, or texts with a line break) into one specification. A RuleError names the file.

    Args:
        sources: Files over the same inputs X_0, X_1, ... and outputs Y_0, Y_1, ...
        inputs: The domain: name to (low, high), in the order of X_0, X_1, ...; or a list of (low, high). Default: the
            box around all regions; an input fixed at v gets [v - 1, v + 1]. Regions of more than 1,000 comparisons omit
            comparisons that hold in the whole domain.
        outputs: Names of the outputs, or Number, Label and Choice objects with as many columns.
    """
    if not sources:
        raise RuleError("Expected at least one VNN-LIB file. Got none.")
    properties = [_read_one(source, index) for index, source in enumerate(sources)]
    (d, m), first = properties[0].sizes, properties[0].name
    for other in properties[1:]:
        if other.sizes != (d, m):
            raise RuleError(
                f"Expected files over the same network. '{first}' has {d} inputs and {m} outputs, '{other.name}' has "
                f"{other.sizes[0]} and {other.sizes[1]}."
            )
    spec = _numbered(d, m)
    if inputs is not None:
        spec = replace(spec, inputs=_stated_inputs(inputs))
    if outputs is not None:
        made = (item if isinstance(item, Number | Label | Choice) else Number(str(item)) for item in outputs)
        spec = replace(spec, outputs=tuple(made))
    if len(spec.columns) != d:
        raise RuleError(f"Expected ranges of {d} inputs. Got {len(spec.columns)}.")
    if len(spec.targets) != m:
        raise RuleError(f"Expected outputs with {m} columns in all. Got {len(spec.targets)}.")
    domain = _stated_inputs(inputs) if inputs is not None else _domain(properties, d)
    rules = [rule for item in properties for rule in _rules(_within(item, domain), spec)]
    return replace(spec, inputs=domain, rules=tuple(_renamed(rules)))


def _numbered(inputs: int, outputs: int) -> Specification:
    """Return a specification over X_0, X_1, ... and Y_0, Y_1, ..."""
    x = tuple(NumericInput(f"X_{i}", Fraction(0), Fraction(1)) for i in range(inputs))
    return Specification(x, tuple(Number(f"Y_{i}") for i in range(outputs)), ())


def _stated_inputs(stated: Any) -> tuple[NumericInput, ...]:
    listed = isinstance(stated, Sequence) and not isinstance(stated, str)
    items = stated if isinstance(stated, Mapping) else {f"X_{i}": r for i, r in enumerate(stated if listed else ())}
    return tuple(_ranged(str(name), ends) for name, ends in items.items())


def _ranged(name: str, ends: Any) -> NumericInput:
    if isinstance(ends, NumericInput):
        return ends
    if isinstance(ends, str) or not isinstance(ends, Sequence) or len(ends) != 2:
        raise RuleError(f"Input '{name}': expected a range (low, high). Got {ends!r:.80}.")
    return NumericInput(name, to_fraction(ends[0], f"Input '{name}'"), to_fraction(ends[1], f"Input '{name}'"))


def _read_one(source: str | PathLike[str], index: int) -> _Property:
    if isinstance(source, str) and "\n" in source:
        name, text = f"property {index + 1}", source
    else:
        path = Path(source)
        name = path.stem
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise RuleError(f"{path.name}: expected at most {_MAX_BYTES:,} bytes. Got {path.stat().st_size:,}.")
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise RuleError(f"{path.name}: expected a text file in UTF-8. Got other bytes.") from None
        except (OSError, ValueError) as error:
            if isinstance(error, RuleError):
                raise
            raise RuleError(f"Cannot read '{path}': {getattr(error, 'strerror', None) or error}.") from None
    try:
        declared, assertions = _assertions(text)
        return _Property(name, declared, _forbidden(assertions, Vocabulary(_numbered(*declared))))
    except RuleError as error:
        raise RuleError(f"{name}: {error}") from None
    except RecursionError:
        raise RuleError(f"{name}: the assertions are nested too deeply.") from None


def _forbidden(assertions: Iterable[Node], names: Vocabulary) -> dict[tuple[Literals, ...], list[Literals]]:
    """Return the requirements (tuples of clauses) that forbid the assertions, each with its regions."""
    about_inputs: list[Formula] = []
    others: list[Formula] = []
    for assertion in assertions:
        formula = _formula(assertion, names)
        for part in formula.parts if isinstance(formula, All) else (formula,):
            (others if _mentions_output(part) else about_inputs).append(part)
    regions, ways = (
        distribute(All(tuple(parts)), Some, _MAX_WAYS, longest=_MAX_LITERALS) for parts in (about_inputs, others)
    )
    if len(regions) * len(ways) > _MAX_WAYS:
        raise RuleError(f"Expected at most {_MAX_WAYS:,} ways of meeting the assertions. Got more.")
    clauses: dict[frozenset[Literal], tuple[Literals, list[Literals]]] = {}
    for region in regions:
        for way in ways:
            rows = tuple(tightest((*region, *(literal for literal in way if not literal.outputs)), names))
            if plainly_empty(rows):
                continue
            forbidden = tuple(dict.fromkeys(literal.negated for literal in way if literal.outputs))
            if not forbidden:
                raise RuleError("The assertions can be met whatever the outputs are, so no output could avoid them.")
            clauses.setdefault(frozenset(rows), (rows, []))[1].append(forbidden)
    if not clauses:
        raise RuleError("The assertions can never be met, so the file forbids nothing.")
    asked: dict[tuple[Literals, ...], list[Literals]] = {}
    for rows, required in clauses.values():
        asked.setdefault(tuple(dict.fromkeys(required)), []).append(rows)
    return asked


def _formula(node: Node, names: Vocabulary) -> Formula:
    """Return a condition in normal form, with a fast path for a variable compared with a number."""
    if isinstance(node, And | Or):
        parts = tuple(_formula(part, names) for part in node.parts)
        return All(parts) if isinstance(node, And) else Some(parts)
    if isinstance(node, Compare) and len(node.operands) == 2 and isinstance(node.operands[0], Name):
        name, number, operator = node.operands[0].name, node.operands[1], node.operators[0]
        sign = Fraction(-1 if operator.startswith(">") else 1)
        value = number.operand if isinstance(number, Negative) else number
        if isinstance(value, Num):
            bound = sign * (-value.value if value is not number else value.value)
            form: Linear = ((int(name[2:]), sign),)
            nothing: Linear = ()
            outputs, inputs = (form, nothing) if name.startswith("Y") else (nothing, form)
            return Literal(outputs, inputs, bound, len(operator) == 1)
    return normal_form(node, names)


def _mentions_output(formula: Formula) -> bool:
    if isinstance(formula, Literal):
        return bool(formula.outputs)
    return any(_mentions_output(part) for part in formula.parts)


def _within(item: _Property, domain: Sequence[NumericInput]) -> _Property:
    """Drop from long regions the comparisons that the domain already implies."""

    def beside(region: Literals) -> Literals:
        return region if len(region) <= _LONG else tuple(row for row in region if not _holds(row, domain))

    asked = {required: [beside(region) for region in regions] for required, regions in item.asked.items()}
    for regions in asked.values():
        most, count = max(map(len, regions)), sum(map(len, regions))
        if most > MAX_LITERALS or len(regions) > MAX_REGIONS or count > _MAX_LITERALS:
            raise RuleError(
                f"{item.name}: expected at most {MAX_REGIONS:,} regions of at most {MAX_LITERALS:,} comparisons each, "
                f"and {_MAX_LITERALS:,} in all, beside the ranges of the domain. Got {len(regions):,} regions, the "
                f"largest of {most:,} comparisons, {count:,} in all. Split the file by regions, and read each part "
                "alone: its own box becomes the domain."
            )
    return item._replace(asked=asked)


def _holds(row: Literal, domain: Sequence[NumericInput]) -> bool:
    """Return whether a comparison of one input holds in the whole domain."""
    if len(row.inputs) != 1:
        return False
    ((i, v),) = row.inputs
    most = v * (domain[i].upper if v > 0 else domain[i].lower)
    return most < row.bound or (most == row.bound and not row.strict)


def _rules(item: _Property, spec: Specification) -> list[Rule]:
    x: list[Node] = [Name(name) for name in spec.columns]
    y = [node for output in spec.outputs for node in _columns(output)]
    names = Vocabulary(spec)
    made = []
    for index, (required, regions) in enumerate(item.asked.items()):
        when = None
        if all(regions):
            when = disjunction(conjunction(_comparison(row, x, y) for row in region) for region in regions)
        then = conjunction(disjunction(_comparison(literal, x, y) for literal in clause) for clause in required)
        name = item.name if len(item.asked) == 1 else f"{item.name} ({index + 1})"
        made.append(compile_rule(name, when, then, names))
    return made


def _columns(item: Number | Label | Choice) -> list[Node]:
    if isinstance(item, Choice):
        return [Call("score", (Name(item.name), Name(option))) for option in item.options]
    return [Call("logit", (Name(item.name),))] if isinstance(item, Label) else [Name(item.name)]


def _comparison(literal: Literal, x: Sequence[Node], y: Sequence[Node]) -> Node:
    """Write a literal as a comparison without minus signs: positive terms left, negative ones right."""
    terms = [(v, y[i]) for i, v in literal.outputs] + [(v, x[i]) for i, v in literal.inputs]
    left, right = [t for t in terms if t[0] > 0], [(-v, node) for v, node in terms if v < 0]
    operator, bound = "<" if literal.strict else "<=", literal.bound
    if not left:
        return Compare((_total(right), node_of(-bound)), (operator.replace("<", ">"),))
    if not right:
        return Compare((_total(left), node_of(bound)), (operator,))
    end = _total(right) if not bound else add(_total(right), [(1 if bound > 0 else -1, node_of(abs(bound)))])
    return Compare((_total(left), end), (operator,))


def _total(terms: Sequence[tuple[Fraction, Node]]) -> Node:
    nodes = [node if value == 1 else multiply(node_of(value), [("*", node)]) for value, node in terms]
    return add(nodes[0], ((1, node) for node in nodes[1:]))


def _domain(properties: Iterable[_Property], count: int) -> tuple[NumericInput, ...]:
    ends: dict[tuple[int, Fraction], Fraction] = {}
    for item in properties:
        for region in (region for regions in item.asked.values() for region in regions):
            own = {row.inputs[0]: row.bound for row in region if len(row.inputs) == 1}
            for i, sign in ((i, Fraction(sign)) for i in range(count) for sign in (-1, 1)):
                if (i, sign) not in own:
                    raise RuleError(f"{item.name}: X_{i} has no finite range. State the domain with inputs=...")
                ends[i, sign] = max(own[i, sign], ends.get((i, sign), own[i, sign]))
    made = []
    for i in range(count):
        low, high = -ends[i, Fraction(-1)], ends[i, Fraction(1)]
        # A range needs a width; widening the domain does not change the regions.
        made.append(NumericInput(f"X_{i}", low - (low == high), high + (low == high)))
    return tuple(made)


def _renamed(rules: Sequence[Rule]) -> Iterator[Rule]:
    used: dict[str, int] = {}
    for rule in rules:
        used[rule.name] = used.get(rule.name, 0) + 1
        yield rule if used[rule.name] == 1 else replace(rule, name=f"{rule.name} #{used[rule.name]}")


# --- VNN-LIB text to expression trees: `(assert (<= Y_1 Y_0))` becomes the tree of `Y_1 <= Y_0`

_TOKEN = re.compile(r";[^\n]*|[()]|\|[^|]*\||\"(?:[^\"]|\"\")*\"|[^\s();|\"]+|\S")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,6})")
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
_OPERATORS = ("and", "or", "not", "=>", "<=", ">=", "<", ">", "=", "+", "-", "*", "/")

Expression = str | list["Expression"]


def _assertions(text: str) -> tuple[tuple[int, int], list[Node]]:
    """Return the numbers of declared inputs and outputs, and the assertions, of a VNN-LIB 1.0 text."""
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


def _shown(expression: Expression) -> str:
    words: list[str] = []
    todo: list[Expression] = [expression]
    while todo and len(words) < _SHOWN:
        item = todo.pop()
        if isinstance(item, str):
            words.append(item)
        else:
            words.append("(")
            todo += [")", *reversed(item)]
    text = " ".join(words).replace("( ", "(").replace(" )", ")")
    return f"'{text}'" if len(text) <= _SHOWN else f"'{text[:_SHOWN]} ...'"


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
    """A reader that turns nested lists into trees, given the declared variables."""

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
            # As two inequalities: assertions get forbidden, so an equality of outputs does no harm.
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
