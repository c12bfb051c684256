"""Rules to VNN-LIB 1.0, for outside verifiers: the file asserts that some rule is broken somewhere in the domain."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from smle.errors import RuleError
from smle.rules import Categorical, Literal, Polytope, Row, Specification
from smle.rules.expressions import decimal_text

__all__ = ["write_vnnlib"]

_MAX_CLAUSES = 100_000


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
