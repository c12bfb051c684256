"""VNN-LIB 1.0 in and out, exactly.

A VNN-LIB file asserts a counterexample: inputs in a region and outputs that must not be. Reading it gives the
rule that forbids it: each way `x in P and g_1(x, y) <= 0 and ...` of meeting the assertions becomes the clause
`g_1 > 0 or ...` over the region P. Ways that share a region share a rule. Writing asserts that some rule is broken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from smle.errors import RuleError
from smle.rules.build import to_fraction
from smle.rules.compiler import compile_rule, distribute, plainly_empty, tightest
from smle.rules.expressions import Call, Compare, Name, Node, add, conjunction, decimal_text, disjunction, multiply
from smle.rules.formula import Literal
from smle.rules.normalize import All, Formula, Some, normal_form
from smle.rules.operators import node_of
from smle.rules.polytope import Polytope, Row
from smle.rules.sexpressions import read_assertions
from smle.rules.specification import Categorical, Choice, Label, Number, NumericInput, Rule, Specification
from smle.rules.vocabulary import Vocabulary

__all__ = ["read_vnnlib", "write_vnnlib"]

_MAX_WAYS = 10_000
_MAX_CLAUSES = 100_000
_MAX_BYTES = 64 * 2**20
Literals = tuple[Literal, ...]


class _Property(NamedTuple):
    """What one file forbids: for each requirement (a tuple of clauses) the regions where it is asked."""

    name: str
    sizes: tuple[int, int]
    asked: dict[tuple[Literals, ...], list[Literals]]


def read_vnnlib(
    *sources: str | PathLike[str],
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
) -> Specification:
    """Read VNN-LIB 1.0 files (paths, or texts with a line break) into one specification.

    Args:
        sources: Files over the same inputs X_0, X_1, ... and outputs Y_0, Y_1, ...
        inputs: The domain: name to (low, high), in the order of X_0, X_1, ...; or a list of (low, high). Default:
            the box around all regions; an input that is held at one value v gets [v - 1, v + 1].
        outputs: Names of the outputs, or Number, Label and Choice objects with as many columns.

    Raises:
        RuleError: If a file cannot be read; the message names the file.
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
    rules = [rule for item in properties for rule in _rules(item, spec)]
    domain = spec.inputs if inputs is not None else _domain(rules, d)
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
        declared, assertions = read_assertions(text)
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
        formula = normal_form(assertion, names)
        for part in formula.parts if isinstance(formula, All) else (formula,):
            (others if _mentions_output(part) else about_inputs).append(part)
    regions = distribute(All(tuple(about_inputs)), Some, _MAX_WAYS, longest=200_000)
    ways = distribute(All(tuple(others)), Some, _MAX_WAYS)
    if len(regions) * len(ways) > _MAX_WAYS:
        raise RuleError(f"Expected at most {_MAX_WAYS:,} ways of meeting the assertions. Got more.")
    clauses: dict[frozenset[Literal], tuple[Literals, list[Literals]]] = {}
    for region in regions:
        for way in ways:
            tight = tightest((*region, *(literal for literal in way if not literal.outputs)), names)
            if plainly_empty(tight):
                continue
            rows = tuple(Literal((), row.coefficients, row.bound, row.strict) for row in tight)
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


def _mentions_output(formula: Formula) -> bool:
    if isinstance(formula, Literal):
        return bool(formula.outputs)
    return any(_mentions_output(part) for part in formula.parts)


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
    """Return a literal as a comparison without minus signs: positive terms on the left, negative ones on the right."""
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


def _domain(rules: Iterable[Rule], count: int) -> tuple[NumericInput, ...]:
    """Return the box around all regions."""
    lower: list[list[Fraction]] = [[] for _ in range(count)]
    upper: list[list[Fraction]] = [[] for _ in range(count)]
    for rule in rules:
        for region in rule.regions:
            ends = {row.coefficients[0]: row.bound for row in region.rows if row.is_comparison}
            for i in range(count):
                if (i, -1) not in ends or (i, 1) not in ends:
                    raise RuleError(f"{rule.name}: X_{i} has no finite range. State the domain with inputs=...")
                lower[i].append(-ends[i, Fraction(-1)])
                upper[i].append(ends[i, Fraction(1)])
    made = []
    for i, (low, high) in enumerate(zip(map(min, lower), map(max, upper), strict=True)):
        # A range needs a width; a wider domain leaves the regions as they are.
        made.append(NumericInput(f"X_{i}", low - (low == high), high + (low == high)))
    return tuple(made)


def _renamed(rules: Sequence[Rule]) -> Iterator[Rule]:
    """Number the rules of files with the same name apart."""
    used: dict[str, int] = {}
    for rule in rules:
        used[rule.name] = used.get(rule.name, 0) + 1
        yield rule if used[rule.name] == 1 else replace(rule, name=f"{rule.name} #{used[rule.name]}")


def write_vnnlib(specification: Specification, *, rule: str | None = None) -> str:
    """Print VNN-LIB 1.0 text that a network satisfies if and only if it breaks a rule (or the named one).

    Inputs are X_0, X_1, ... in column order, outputs Y_0, Y_1, ... The complement of `y <= 1` is `y > 1`: strict
    comparisons are written as such.

    Raises:
        RuleError: If an input is categorical or integer (VNN-LIB has real inputs only), or the rule is unknown.
    """
    for item in specification.inputs:
        if isinstance(item, Categorical) or item.integer:
            raise RuleError(f"Input '{item.name}': VNN-LIB 1.0 has real inputs only. Got categories or whole numbers.")
    rules = [r for r in specification.rules if rule in (None, r.name)]
    if not rules:
        raise RuleError(f"Expected a rule to write. Got none named '{rule}'." if rule else "Expected a rule to write.")
    lines = [f"; {'; '.join(r.name for r in rules)}".replace("\n", " ")]
    lines += [f"(declare-const X_{i} Real) ; {name}" for i, name in enumerate(specification.columns)]
    lines += [f"(declare-const Y_{i} Real) ; {name}" for i, name in enumerate(specification.targets)]
    one = Fraction(1)
    for i, (low, high) in enumerate(zip(specification.lower, specification.upper, strict=True)):
        lines.append(f"(assert {_row(Row(((i, one),), high))})")
        lines.append(f"(assert {_row(Row(((i, -one),), -low))})")
    if sum(len(r.requirement) * len(r.regions) for r in rules) > _MAX_CLAUSES:
        raise RuleError(f"Expected at most {_MAX_CLAUSES:,} clauses to write. Got more.")
    ways = [(region, clause) for r in rules for region in r.regions for clause in r.requirement.expanded()]
    shared = ways[0][0] if len({region for region, _ in ways}) == 1 else Polytope()
    lines += [f"(assert {_row(row)})" for row in shared.rows]
    cases = [
        [
            *(_row(row) for row in region.rows if row not in shared.rows),
            *(_text(literal.negated) for literal in clause.literals),
        ]
        for region, clause in ways
    ]
    if len(cases) == 1:
        lines += [f"(assert {part})" for part in cases[0]]
    else:
        lines += ["(assert (or", *(f"    (and {' '.join(case)})" for case in cases), "))"]
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    return _text(Literal((), row.coefficients, row.bound, row.strict))


def _text(literal: Literal) -> str:
    """Return a literal, scaled where a coefficient has no finite decimal."""
    outputs, inputs, bound = literal.outputs, literal.inputs, literal.bound
    numbers = [bound, *(v for _, v in (*outputs, *inputs))]
    if any(decimal_text(abs(n)) is None for n in numbers):
        scale = math.lcm(*(n.denominator for n in numbers))
        outputs = tuple((i, v * scale) for i, v in outputs)
        inputs = tuple((i, v * scale) for i, v in inputs)
        bound *= scale
    terms = [(v, f"Y_{i}") for i, v in outputs] + [(v, f"X_{i}") for i, v in inputs]
    left, right = [t for t in terms if t[0] > 0], [(-v, n) for v, n in terms if v < 0]
    operator, opposite = ("<", ">") if literal.strict else ("<=", ">=")
    if not left:
        return f"({opposite} {_sum(right)} {_decimal(-bound)})"
    if not right:
        return f"({operator} {_sum(left)} {_decimal(bound)})"
    end = _sum(right) if not bound else f"(+ {_sum(right)} {_decimal(bound)})"
    return f"({operator} {_sum(left)} {end})"


def _sum(terms: Iterable[tuple[Fraction, str]]) -> str:
    parts = [name if value == 1 else f"(* {_decimal(value)} {name})" for value, name in terms]
    return parts[0] if len(parts) == 1 else f"(+ {' '.join(parts)})"


def _decimal(value: Fraction) -> str:
    text = decimal_text(value)
    if text is None:
        raise RuleError(f"Expected numbers of reasonable size. Got one of {value.numerator.bit_length()} bits.")
    return text
