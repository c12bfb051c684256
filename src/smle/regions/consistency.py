"""Exact checks on whether rules can hold together: smallest conflicts, pinned outputs, redundant rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from time import monotonic

from smle.regions.decide import Decider, Excluded, HalfSpace, OneOf, Undecided, Witness
from smle.rules import CNF, Rule, Specification

__all__ = ["EXPANDED_PAIRS", "Clash", "Consistency", "room_at", "statements"]

_SECONDS = 10.0  # time limit for explaining a refusal
_SUBSETS = 200  # smaller sets to try before reporting a minimal conflict
EXPANDED_PAIRS = 300
"""Check the exclusions of a rule one by one up to this many."""


@dataclass(frozen=True)
class Clash:
    """Rules (by index) that no y satisfies together at x. The set is minimal: without any one of them, some y does.

    `x` is None if the rules only touch: they meet through the guard's rounding, not in their regions.
    """

    rules: tuple[int, ...]
    x: tuple[Fraction, ...] | None


class Consistency:
    """Exact answers about sets of rules of one specification."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.decider = Decider(spec)
        self._clauses = [
            [self.decider.clause(clause, index) for clause in rule.requirement.clauses]
            for index, rule in enumerate(spec.rules)
        ]

    def has_x_terms(self, rules: Iterable[int]) -> bool:
        """Return whether the requirement of some rule mentions an input."""
        return any(
            literal.inputs
            for r in rules
            for clause in self.spec.rules[r].requirement.clauses
            for literal in clause.literals
        )

    def _needs(self, rules: Iterable[int], *, room: bool = False) -> tuple[list[OneOf], list[Excluded]]:
        """Return the clauses and exclusions of some rules; with `room`, every literal is strict."""
        chosen = list(rules)
        clauses = [clause for r in chosen for clause in self._clauses[r]]
        if room:
            clauses = [OneOf(tuple(o._replace(strict=True) for o in clause.options), clause.tag) for clause in clauses]
        exclusions = (Excluded(self.spec.rules[r].requirement.exclusions, r) for r in chosen)
        return clauses, [listed for listed in exclusions if len(listed.pairs)]

    def satisfiable_at(self, x: Sequence[Fraction], rules: Iterable[int], *, room: bool = False) -> Witness | None:
        """Return a witness (x, y) whose y satisfies the rules at the given x, or None. Its x is arbitrary."""
        clauses, pairs = self._needs(rules, room=room)
        return self.decider.find([], [self.decider.at(x, clause) for clause in clauses], pairs=pairs)

    def point(self, region: Sequence[HalfSpace]) -> tuple[Fraction, ...] | None:
        """Return a point of a region, or None if it is empty."""
        found = self.decider.find(region)
        return None if found is None else found.x

    def clash(self, region: Sequence[HalfSpace], rules: Sequence[int]) -> Clash | None:
        """Return a conflict among rules that are all active on a region, or None if every x has a y.

        Raises Undecided if the search was cut off.
        """
        clauses, pairs = self._needs(rules)
        if self.has_x_terms(rules):
            x = self.decider.uncovered(region, clauses, pairs=pairs)
            return None if x is None else Clash(self._smallest(x, rules), x)
        if self.decider.find([], clauses, pairs=pairs) is not None:
            return None
        inside = self.point(region)
        anywhere = self.spec.lower if inside is None else inside
        return Clash(self._smallest(anywhere, rules), inside)

    def pinned(self, rules: Sequence[int]) -> tuple[int, ...] | None:
        """Return a minimal set of rules (without x-terms) that leaves no room, or None if there is room.

        Assumes that the rules can hold together.
        """
        origin = self.spec.lower
        if self.satisfiable_at(origin, rules, room=True) is not None:
            return None
        return self._smallest(origin, rules, room=True)

    def _smallest(self, x: Sequence[Fraction], rules: Sequence[int], *, room: bool = False) -> tuple[int, ...]:
        """Shrink a conflicting set at x: drop rules one by one, then look for still smaller sets."""

        def conflicting(subset: Sequence[int]) -> bool:
            try:
                return self.satisfiable_at(x, subset, room=room) is None
            except Undecided:
                return False

        core = [r for r in rules if r in self.decider.core] if conflicting(rules) else list(rules)
        if not conflicting(core):
            core = list(rules)
        for rule in list(core):
            fewer = [r for r in core if r != rule]
            if conflicting(fewer):
                core = fewer
        tried = 0
        for size in range(1, len(core)):
            for subset in combinations(rules, size):
                tried += 1
                if tried > _SUBSETS:
                    return tuple(core)
                if conflicting(subset):
                    return subset
        return tuple(core)

    def implied_by_others(self, rule: int, others: Sequence[int]) -> tuple[int, ...] | None:
        """Return the rules that already imply a rule on its whole region, or None if it adds something.

        Checks every exclusion of the rule: use it only for rules with at most `EXPANDED_PAIRS`. Raises Undecided if the
        search was cut off.
        """
        stated = self.spec.rules[rule]
        background, pairs = statements(self.decider, {r: self.spec.rules[r] for r in others})
        used: set[int] = set()
        for region in stated.regions:
            for clause in stated.requirement.expanded():
                units = [*region.rows, *(o.negated() for o in self.decider.clause(clause).options)]
                if self.decider.find(units, background, pairs=pairs) is not None:
                    return None
                used |= {tag for tag in self.decider.core if isinstance(tag, int)}
        return tuple(sorted(used))


def statements(decider: Decider, rules: Mapping[int, Rule]) -> tuple[list[OneOf], list[Excluded]]:
    """Return rules, by tag, as clauses over (x, y); long lists of exclusions are kept as arrays."""
    clauses, lists = list[OneOf](), list[Excluded]()
    for tag, rule in rules.items():
        requirement = rule.requirement
        is_long = len(requirement.exclusions) > EXPANDED_PAIRS
        stated = CNF(requirement.clauses) if is_long else requirement
        for region in rule.regions:
            outside = tuple(row.negated() for row in region.rows)
            clauses += [OneOf((*outside, *decider.clause(clause).options), tag) for clause in stated.expanded()]
            lists += [Excluded(requirement.exclusions, tag, outside)] if is_long else []
    return clauses, lists


def room_at(
    spec: Specification, points: Iterable[Sequence[Fraction]]
) -> Iterator[tuple[tuple[Fraction, ...], tuple[int, ...], str]]:
    """Yield inputs at which rules leave no answer ("contradiction") or no room ("point"), with the rules to blame.

    Rules apply where their conditions hold exactly. Inputs that take too long are skipped, and so are all that remain
    after some seconds, since a refusal must end.
    """
    consistency = Consistency(spec)
    consistency.decider.end = monotonic() + _SECONDS
    for x in points:
        rules = [r for r, rule in enumerate(spec.rules) if any(part.contains(x) for part in rule.regions)]
        for kind, room in (("contradiction", False), ("point", True)):
            try:
                if consistency.satisfiable_at(x, rules, room=room) is None:
                    yield tuple(x), consistency._smallest(x, rules, room=room), kind
                    break
            except Undecided:
                break
