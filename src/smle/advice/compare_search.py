"""The search behind comparisons: what does one specification forbid that another allows?

Inputs and outputs are the same in both; ranges, whole numbers, stand-ins for missing values and rules may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations, islice

import numpy as np

from smle.regions.consistency import statements
from smle.regions.decide import Decider, Excluded, HalfSpace, OneOf, Undecided, Witness
from smle.rules import Linear, Polytope, Rule, Specification

__all__ = ["Difference", "forbidden_by_first_only"]

ONE = Fraction(1)
_GAPS = 64  # sets of missing inputs to try
_STEPS = 200  # whole numbers that a search for a fraction may run into


@dataclass(frozen=True)
class Difference:
    """A row and an output that one specification forbids by `rule` and the other allows.

    `x` is the row as the forbidding one reads it; inputs in `missing` have no value in the row.
    """

    rule: str
    x: tuple[Fraction, ...]
    y: tuple[Fraction, ...]
    missing: tuple[str, ...] = ()


def _in_domain(spec: Specification, x: tuple[Fraction, ...]) -> bool:
    whole = all(x[i].denominator == 1 for i in spec.integral)
    return whole and all(lo <= v <= hi for lo, v, hi in zip(spec.lower, x, spec.upper, strict=True))


def forbidden_by_first_only(first: Specification, second: Specification) -> tuple[Difference | None, bool]:
    """Return a row and an output that the first forbids and the second allows, and whether a search was cut off."""
    decider = Decider(first)
    gaps, cut_off = _gaps(first, second)
    for gap in gaps:
        found, gave_up = _RuleSearch(decider, second, gap).run()
        cut_off |= gave_up
        if found is not None:
            return found, cut_off
    return None, cut_off


def _gaps(first: Specification, second: Specification) -> tuple[list[frozenset[str]], bool]:
    """Return the sets of missing inputs to try, and whether some were left out.

    An input that both read alike, and that no rule tests with `is missing`, may as well have its stand-in. The first
    does not forbid rows that it refuses. For rows that the second refuses, one missing input is enough: more would only
    add equations.
    """
    pairs = zip(first.inputs, second.inputs, strict=True)
    differing = [(a, b) for a, b in pairs if a.missing != b.missing or a.name in first.flags]
    refused = [a.name for a, b in differing if a.missing is not None and b.missing is None]
    read = [a.name for a, b in differing if a.missing is not None and b.missing is not None]
    subsets = chain.from_iterable(combinations(read, size) for size in range(len(read) + 1))
    gaps = [frozenset(names) for names in islice(subsets, _GAPS)] + [frozenset({name}) for name in refused]
    return gaps, 2 ** len(read) > _GAPS


def _stand_ins(spec: Specification, gap: frozenset[str]) -> dict[int, Fraction] | None:
    """Return the column values of missing inputs and of all flags, or None if one of the inputs is refused."""
    values = {column: Fraction(name in gap) for name, column in spec.flag_columns.items()}
    for item, place in spec.input_slices:
        if item.name in gap:
            if item.missing is None:
                return None
            values |= dict(zip(range(place.start, place.stop), item.stand_in, strict=True))
    return values


@dataclass(frozen=True)
class _Allowed:
    """A way in which the second specification allows a pair.

    Its rules hold (`clauses`, `pairs`), the row is outside a range (`units`), or column `fraction` is not a whole
    number.
    """

    units: tuple[HalfSpace, ...] = ()
    clauses: tuple[OneOf, ...] = ()
    pairs: tuple[Excluded, ...] = ()
    fraction: int | None = None


class _RuleSearch:
    """Searches for what the first specification forbids and the second allows, with the inputs of a gap missing.

    The variables are a row as the first reads it. Statements of the second are rewritten with its own stand-ins.
    """

    def __init__(self, decider: Decider, second: Specification, gap: frozenset[str]) -> None:
        self.decider, self.first, self.second, self.gap = decider, decider.spec, second, gap
        here = _stand_ins(self.first, gap)
        assert here is not None
        self.here, self.there = here, _stand_ins(second, gap)
        self.pinned = [HalfSpace(((i, sign),), sign * v) for i, v in here.items() for sign in (ONE, -ONE)]
        self.ends = [row for i in range(decider.d) if i not in here for row in self._ends_within(i)]
        self.whole = [
            place.start
            for (a, place), (b, _) in zip(self.first.input_slices, second.input_slices, strict=True)
            if b.integer and not a.integer and b.name not in gap
        ]
        self.covered = self.there is not None and not self.ends and not self.whole
        self.shared = {
            (region, clause) for rule in second.rules for region in rule.regions for clause in rule.requirement.clauses
        }

    def _ends_within(self, i: int) -> Iterator[HalfSpace]:
        """Yield the ends of the second's range that cut into the first's."""
        for sign, end, own in (
            (ONE, self.second.upper[i], self.first.upper[i]),
            (-ONE, -self.second.lower[i], -self.first.lower[i]),
        ):
            if own > end:
                yield HalfSpace(((i, sign),), end)

    def run(self) -> tuple[Difference | None, bool]:
        """Return a difference, and whether a search was cut off."""
        alternatives = list(self._alternatives())
        cut_off = False
        for rule in self.first.rules:
            for way in self._ways(rule):
                for allowed in alternatives:
                    try:
                        found = self._pair([*self.pinned, *way, *allowed.units], allowed)
                    except Undecided:
                        cut_off = True
                        continue
                    if found is not None:
                        return Difference(rule.name, found.x, found.y, tuple(sorted(self.gap))), cut_off
        return None, cut_off

    def _pair(self, units: list[HalfSpace], allowed: _Allowed) -> Witness | None:
        """Return a difference of this kind, or None if there is provably none. Raises Undecided after too long."""
        if allowed.fraction is not None:
            found = self._fraction(units, allowed.fraction)
        else:
            found = self.decider.find(units, allowed.clauses, pairs=allowed.pairs)
        if found is not None and not self._is_difference(found):
            raise Undecided
        return found

    def _is_difference(self, found: Witness) -> bool:
        """Check a witness against the definition of "forbids"."""
        if not (_in_domain(self.first, found.x) and self.first.violated(found.x, found.y)):
            return False
        if self.there is None:
            return True
        x = tuple(self.there.get(i, v) for i, v in enumerate(found.x))  # as the second reads it
        return not (_in_domain(self.second, x) and self.second.violated(x, found.y))

    def _fraction(self, units: list[HalfSpace], i: int) -> Witness | None:
        """Return a pair whose input column i is not a whole number, or None if there is none."""
        stack = [units]
        for _ in range(_STEPS):
            if not stack:
                return None
            rows = stack.pop()
            found = self.decider.find(rows)
            if found is None:
                continue
            if found.x[i].denominator != 1:
                return found
            for sign in (ONE, -ONE):  # the open unit intervals on both sides, then what lies beyond them
                at = sign * found.x[i]
                near = [HalfSpace(((i, sign),), at, strict=True), HalfSpace(((i, -sign),), ONE - at, strict=True)]
                between = self.decider.find([*rows, *near])
                if between is not None:
                    return between
                stack.append([*rows, HalfSpace(((i, sign),), at - 1)])
        raise Undecided

    def _ways(self, rule: Rule) -> Iterator[list[HalfSpace]]:
        """Yield the ways to break a rule, except those that the second specification states literally."""
        for region in rule.regions:
            rows = region.rows
            same = self.covered and not any(self._touches(row.coefficients) for row in rows)
            for clause in rule.requirement.clauses:
                own = same and not any(self._touches(literal.inputs) for literal in clause.literals)
                if not (own and (region, clause) in self.shared):
                    yield [*rows, *(option.negated() for option in self.decider.clause(clause).options)]
            pairs = rule.requirement.exclusions
            if self.covered and len(pairs):
                m = self.decider.m
                known = [
                    other.requirement.exclusions
                    for other in self.second.rules
                    if len(other.requirement.exclusions) and any(self._within(rows, r) for r in other.regions)
                ]
                codes = [p[:, 0].astype(np.int64) * m + p[:, 1] for p in known]
                mine = pairs[:, 0].astype(np.int64) * m + pairs[:, 1]
                pairs = pairs[~np.isin(mine, np.concatenate(codes) if codes else mine[:0])]
            for pair in pairs.tolist():
                yield [*rows, *(HalfSpace(((self.decider.d + k, -ONE),), Fraction(0)) for k in pair)]

    def _within(self, rows: Sequence[HalfSpace], region: Polytope) -> bool:
        """Return whether rows of the first specification provably lie in a region of the second."""
        try:
            return all(
                self.decider.find([*self.pinned, *rows, *self._as_read(OneOf((row.negated(),))).options]) is None
                for row in region.rows
            )
        except Undecided:
            return False

    def _touches(self, form: Linear) -> bool:
        return any(i in self.here for i, _ in form)

    def _alternatives(self) -> Iterator[_Allowed]:
        """Yield the ways in which the second specification allows a pair: its rules hold, or x is outside.

        If it requires whole numbers, all fractions are outside, so its rules are not asked about them.
        """
        if self.there is None:
            yield _Allowed()
            return
        stated, lists = statements(self.decider, dict(enumerate(self.second.rules)))
        pairs = (own._replace(outside=self._as_read(OneOf(own.outside)).options) for own in lists)
        yield _Allowed(tuple(self.ends), tuple(map(self._as_read, stated)), tuple(pairs))
        for row in self.ends:
            yield _Allowed((row.negated(),))
        for i in self.whole:
            yield _Allowed(fraction=i)

    def _as_read(self, clause: OneOf) -> OneOf:
        """Replace missing inputs in a clause of the second specification by its stand-ins."""
        return clause.fixed(self.there) if self.there else clause
