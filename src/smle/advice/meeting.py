"""Tells which rules may affect each other: those that may apply together and whose outputs are tied.

Large rule sets need this: rules that never meet do not affect each other. The test is exact but partial: rules that it
does not separate may still never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from smle.nearest.clauses import tied_together
from smle.rules import Polytope, Specification

__all__ = ["Meeting"]


class _Box(NamedTuple):
    """The inputs that the comparisons of a region allow: (low, open, high, open) by column, members by group."""

    ends: dict[int, tuple[Fraction, bool, Fraction, bool]]
    members: dict[int, frozenset[int]]
    is_whole: bool  # no other conditions, and no inputs that must be whole numbers

    @property
    def is_empty(self) -> bool:
        """Whether no input is left."""
        if not all(self.members.values()):
            return True
        return any(low > high or (low == high and (a or b)) for low, a, high, b in self.ends.values())


class Meeting:
    """Boxes of all regions, and the rules by the outputs they tie and by the category members they require."""

    def __init__(self, spec: Specification) -> None:
        self._spec = spec
        self._group = {k: g for g, group in enumerate(spec.one_hot) for k in group}
        self._boxes = [[self._box(region) for region in rule.regions] for rule in spec.rules]
        self._ties = self._tied_outputs()
        self._by_member: list[dict[int, list[int]]] = [{} for _ in spec.one_hot]
        self._anywhere: list[list[int]] = [[] for _ in spec.one_hot]
        for r in range(len(spec.rules)):
            for g in range(len(spec.one_hot)):
                asked = self._asked(r, g)
                for k in asked or ():
                    self._by_member[g].setdefault(k, []).append(r)
                self._anywhere[g] += [] if asked is not None else [r]

    def is_open(self, region: Polytope) -> bool:
        """Return whether a region surely contains an input; if False, only a search can tell."""
        box = self._box(region)
        return box.is_whole and not box.is_empty

    def others(self, rule: int, among: Sequence[int]) -> list[int]:
        """Return the rules that may imply a rule: they may apply together with it, and their outputs are tied to its.

        Rules about other outputs say nothing about it, unless they contradict each other.
        """
        found = self._ties[rule]
        for g in range(len(self._spec.one_hot)):
            asked = self._asked(rule, g)
            if asked is not None:
                own = {*self._anywhere[g], *(r for k in asked for r in self._by_member[g].get(k, ()))}
                found = own if len(own) < len(found) else found
        return [r for r in among if r != rule and r in found and r in self._ties[rule] and self._meet(rule, r)]

    def _tied_outputs(self) -> list[set[int]]:
        """Return, for every rule, the rules whose outputs are tied to its own, directly or through others."""
        needs = [rule.requirement for rule in self._spec.rules]
        outputs = [
            {i for clause in need.clauses for literal in clause.literals for i, _ in literal.outputs} for need in needs
        ]
        outputs = [own | set(need.exclusions.reshape(-1).tolist()) for own, need in zip(outputs, needs, strict=True)]
        group = {int(i): g for g, own in enumerate(tied_together(outputs, [], len(self._spec.targets))) for i in own}
        groups = [group[min(own)] if own else -1 for own in outputs]
        rules: dict[int, set[int]] = {}
        for r, g in enumerate(groups):
            rules.setdefault(g, set()).add(r)
        return [rules[g] for g in groups]

    def _asked(self, rule: int, g: int) -> frozenset[int] | None:
        """Return the members of a group that the regions of a rule require, or None if some region requires none."""
        found = [box.members.get(g) for box in self._boxes[rule]]
        named = [members for members in found if members is not None]
        return frozenset().union(*named) if len(named) == len(found) else None

    def _box(self, region: Polytope) -> _Box:
        ends: dict[int, tuple[Fraction, bool, Fraction, bool]] = {}
        members: dict[int, frozenset[int]] = {}
        is_whole = True
        for row in region.rows:
            if len(row.coefficients) != 1:
                is_whole = False
                continue
            ((k, v),) = row.coefficients
            bound = row.bound / v
            if k in self._group:
                g = self._group[k]
                at = [value < row.bound if row.strict else value <= row.bound for value in (0, v)]
                left = {i for i in self._spec.one_hot[g] if at[i == k]}
                members[g] = members.get(g, frozenset(left)) & left
                continue
            is_whole = is_whole and k not in self._spec.integral
            low, a, high, b = ends.get(k, (self._spec.lower[k], False, self._spec.upper[k], False))
            if v > 0:
                high, b = min((high, not b), (bound, not row.strict))
                b = not b
            elif (bound, row.strict) > (low, a):
                low, a = bound, row.strict
            ends[k] = low, a, high, b
        return _Box(ends, members, is_whole)

    def _meet(self, first: int, second: int) -> bool:
        return any(_joined(a, b) for a in self._boxes[first] for b in self._boxes[second])


def _joined(first: _Box, second: _Box) -> bool:
    """Return whether two boxes overlap."""
    if first.is_empty or second.is_empty:
        return False
    for g, members in first.members.items():
        if g in second.members and not members & second.members[g]:
            return False
    for k, (low, a, high, b) in first.ends.items():
        if k in second.ends:
            other_low, other_a, other_high, other_b = second.ends[k]
            if low > other_high or (low == other_high and (a or other_b)):
                return False
            if other_low > high or (other_low == high and (other_a or b)):
                return False
    return True
