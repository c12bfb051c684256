"""Merges rules that differ only in category and numbers into one that looks the numbers up.

A thousand rules like `when article == a, then price <= 10` mean the same as `price <= cap[article]`. The merged rule is
what is proved and served: one limit instead of a thousand. Each rule keeps its name, as an entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from smle.rules.formula import CNF, Clause, Literal, Polytope, Row, linear

if TYPE_CHECKING:
    from smle.rules.specification import Rule, Specification

__all__ = ["merged"]

_MANY = 24  # fewer rules are served as quickly one by one
_ONE = Fraction(1)


@dataclass(frozen=True)
class _Member:
    """A rule about one member of a group: its other conditions, and the bounds of its literals."""

    index: int
    member: int
    group: int
    rows: tuple[Row, ...]
    bounds: tuple[Fraction, ...]
    alike: Hashable


def merged(spec: Specification) -> Specification:
    """Merge rules that differ only in category and numbers; return the same object if there are none."""
    buckets: dict[Hashable, list[_Member]] = {}
    repeated: dict[Hashable, int] = {}
    for part in _parts(spec):
        again = repeated[part.alike, part.member] = repeated.get((part.alike, part.member), -1) + 1
        buckets.setdefault((part.alike, again), []).append(part)
    large = [own for own in buckets.values() if len(own) >= _MANY]
    if not large:
        return spec
    first = {own[0].index: own for own in large}
    gone = {part.index for own in large for part in own}
    names = {rule.name for rule in spec.rules}
    rules = []
    for i, rule in enumerate(spec.rules):
        if i in first:
            rules.append(_table(spec, first[i], names))
        elif i not in gone:
            rules.append(rule)
    return replace(spec, rules=tuple(rules))


def _parts(spec: Specification) -> Iterator[_Member]:
    """Yield the rules that require one member of a group and limit numbers there."""
    from smle.rules.specification import Number

    group = {k: g for g, own in enumerate(spec.one_hot) if len(own) >= _MANY for k in own}
    numbers = {place.start for item, place in spec.output_slices if isinstance(item, Number)}
    for i, rule in enumerate(spec.rules):
        if len(rule.regions) != 1 or len(rule.requirement.exclusions) or not group:
            continue
        rows = rule.regions[0].rows
        asked = [row for row in rows if row.member in group]
        literals = [literal for clause in rule.requirement.clauses for literal in clause.literals]
        read = {k for literal in literals for k, _ in literal.inputs}
        read |= {k for row in rows if row not in asked for k, _ in row.coefficients}
        if len(asked) != 1 or not all(k in numbers for literal in literals for k, _ in literal.outputs):
            continue
        member = asked[0].member
        if any(group.get(k) == group[member] for k in read):
            continue
        others = tuple(row for row in rows if row is not asked[0])
        shape = tuple(
            tuple((literal.outputs, literal.inputs, literal.strict, literal.equal) for literal in clause.literals)
            for clause in rule.requirement.clauses
        )
        bounds = tuple(literal.bound for literal in literals)
        yield _Member(i, member, group[member], others, bounds, (group[member], others, shape))


def _table(spec: Specification, parts: Sequence[_Member], names: set[str]) -> Rule:
    """Merge several rules into one."""
    parts = sorted(parts, key=lambda part: part.member)
    rows, whole = list(parts[0].rows), spec.one_hot[parts[0].group]
    if len(parts) < len(whole):  # leave out the members that have no rule
        rows.append(Row(tuple((part.member, -_ONE) for part in parts), -_ONE))
    rule = spec.rules[min(part.index for part in parts)]
    clauses, place = [], 0
    for clause in rule.requirement.clauses:
        literals = []
        for literal in clause.literals:
            looked_up = [(part.member, -part.bounds[place]) for part in parts]
            literals.append(
                Literal(literal.outputs, linear([*literal.inputs, *looked_up]), Fraction(0), literal.strict)
            )
            place += 1
        clauses.append(Clause(tuple(literals)))
    name = f"{rule.name}, and {len(parts) - 1:,} more"
    while name in names:
        name += " of its kind"
    names.add(name)
    entries = tuple((part.member, spec.rules[part.index].name) for part in parts)
    return replace(
        rule,
        name=name,
        regions=(Polytope(tuple(rows)),),
        requirement=CNF(tuple(clauses)),
        entries=entries,
        trees=(None, None),
    )
