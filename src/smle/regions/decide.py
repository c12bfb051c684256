"""Decides exactly whether some pair (x, y) satisfies linear statements over inputs and outputs.

A statement is an AND of half-spaces and clauses (ORs of half-spaces) over the variables (x, y): inputs in the domain
first, outputs free. The search is depth-first over the literals of clauses that fail at the current point, with an LP
in rationals at each node; from a refuted node it jumps back to the choices that the proof used. Where a table is looked
up, each category is searched separately, which leaves small problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from time import monotonic
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from smle.regions.simplex import point_or_proof
from smle.rules import Clause, Specification, exclusion, label_columns
from smle.rules.formula import HalfSpace

__all__ = ["Decider", "Excluded", "HalfSpace", "OneOf", "Undecided", "Witness", "eliminate"]

ZERO, ONE = Fraction(0), Fraction(1)
Core = frozenset[Hashable]
"""The tags that a refutation used."""
Unit = tuple[HalfSpace, Hashable]
MAX_NODES = 3000
MAX_ROWS = 600
_FEW_MEMBERS = 8  # smaller groups are left to the linear program


class Undecided(Exception):  # noqa: N818 - an outcome that callers report, not an error
    """The search reached its limit."""


@dataclass(frozen=True)
class OneOf:
    """A clause: one of the half-spaces holds. `tag` says where it comes from."""

    options: tuple[HalfSpace, ...]
    tag: Hashable = None

    def fixed(self, values: Mapping[int, Fraction]) -> OneOf:
        """Return the clause with some variables fixed."""
        options = []
        for form, bound, strict in self.options:
            known = sum((v * values[i] for i, v in form if i in values), ZERO)
            options.append(HalfSpace(tuple((i, v) for i, v in form if i not in values), bound - known, strict))
        return OneOf(tuple(options), self.tag)


class Excluded(NamedTuple):
    """Pairs of labels (n, 2) that are not both on, unless one of the half-spaces `outside` holds."""

    pairs: npt.NDArray[np.int32]
    tag: Hashable = None
    outside: tuple[HalfSpace, ...] = ()


@dataclass(frozen=True)
class Witness:
    """A pair (x, y) that satisfies a statement."""

    x: tuple[Fraction, ...]
    y: tuple[Fraction, ...]


class Decider:
    """A search that decides statements over the domain of a specification."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.d, self.m = len(spec.columns), len(spec.targets)
        self._integer = sorted(spec.integral)
        self._groups = {i: group for group in spec.one_hot for i in group}
        # Most rules about labels are satisfied with all labels off.
        self._default = tuple(-ONE if is_label else ZERO for is_label in label_columns(spec))
        # Values of inputs that no half-space mentions.
        self._typical = [(lo + hi) / 2 for lo, hi in zip(spec.lower, spec.upper, strict=True)]
        for i in self._integer:
            self._typical[i] = Fraction(math.ceil(spec.lower[i]))
        for own in spec.one_hot:
            self._typical[own[0]] = ONE
        self.core: frozenset[Hashable] = frozenset()
        self._nodes, self._most = 0, MAX_NODES
        self.end = math.inf  # deadline, on the clock of `monotonic`

    # --- translation ------------------------------------------------------------------------------------------

    def clause(self, clause: Clause, tag: Hashable = None) -> OneOf:
        """Return a clause over outputs as one over (x, y)."""
        forms = ((*own.inputs, *((self.d + i, v) for i, v in own.outputs)) for own in clause.literals)
        options = (HalfSpace(form, own.bound, own.strict) for form, own in zip(forms, clause.literals, strict=True))
        return OneOf(tuple(options), tag)

    def at(self, x: Sequence[Fraction], clause: OneOf) -> OneOf:
        """Return a clause with the inputs fixed."""
        return clause.fixed(dict(enumerate(x)))

    # --- search -----------------------------------------------------------------------------------------------

    def find(
        self, units: Iterable[HalfSpace], clauses: Iterable[OneOf] = (), *, pairs: Sequence[Excluded] = ()
    ) -> Witness | None:
        """Return a pair that satisfies all half-spaces, clauses and exclusions, or None.

        If None, `core` holds the tags of the clauses and exclusions that the refutation used. Raises Undecided after
        too many nodes, or after the deadline `end`.
        """
        self._nodes, self._most = 0, MAX_NODES
        start: list[Unit] = [(unit, None) for unit in units]
        waiting = []
        for clause in clauses:
            if len(clause.options) == 1:
                start.append((clause.options[0], clause.tag))
            else:
                waiting.append(clause)
        waiting.sort(key=lambda clause: len(clause.options))
        outcome = self._by_member(start, waiting, pairs, self._looked_up(start, waiting))
        if isinstance(outcome, Witness):
            return outcome
        self.core = outcome - {None}
        return None

    def _looked_up(self, units: list[Unit], clauses: Sequence[OneOf]) -> list[tuple[int, ...]]:
        """Return the large groups of which a half-space reads several members, or a unit requires one."""
        found: dict[tuple[int, ...], None] = {}
        spaces = [unit for unit, _ in units] + [option for clause in clauses for option in clause.options]
        for form, *_ in spaces:
            groups = [self._groups[i] for i, _ in form if i in self._groups] if len(form) > 1 else []
            found |= dict.fromkeys(g for g in set(groups) if len(g) > _FEW_MEMBERS and groups.count(g) > 1)
        for unit, _ in units:
            group = self._groups.get(unit.member, ())
            if len(group) > _FEW_MEMBERS:
                found[group] = None
        return list(found)

    def _by_member(
        self, units: list[Unit], clauses: list[OneOf], pairs: Sequence[Excluded], groups: Sequence[tuple[int, ...]]
    ) -> Witness | Core:
        """Search for each member of the groups in turn: sums over a group are then constants."""
        if not groups:
            return self._descend(units, clauses, pairs)
        group, *others = groups
        own, core = set(group), set[Hashable]()
        split_units = [(*_split(unit, own), tag) for unit, tag in units]
        split_clauses = [([_split(option, own) for option in clause.options], clause) for clause in clauses]
        split_pairs = [([_split(row, own) for row in listed.outside], listed) for listed in pairs]
        apart = self._descend([(rest, tag) for rest, part, tag in split_units if not part], [], [])
        if isinstance(apart, frozenset):  # it does not depend on the member
            return apart
        self._most += len(group)
        members = group
        for unit, tag in units:  # if one member is required, skip the others
            if unit.member in own:
                members = (unit.member,)
                core.add(tag)
                break
        for member in members:
            fixed = [(_with(rest, part, member), tag) for rest, part, tag in split_units]
            open_clauses = [(_open(options, member), clause) for options, clause in split_clauses]
            left = [replace(clause, options=options) for options, clause in open_clauses if options is not None]
            open_pairs = [(_open(rows, member), listed) for rows, listed in split_pairs]
            excluded = [listed._replace(outside=rows) for rows, listed in open_pairs if rows is not None]
            false = [tag for unit, tag in fixed if not unit.coefficients and not unit.holds(())]
            false += [clause.tag for clause in left if not clause.options]
            if false:
                core.add(false[0])
                continue
            open_ = [(unit, tag) for unit, tag in fixed if unit.coefficients]
            open_ += [(clause.options[0], clause.tag) for clause in left if len(clause.options) == 1]
            outcome = self._by_member(open_, [c for c in left if len(c.options) > 1], excluded, others)
            if isinstance(outcome, Witness):
                x = list(outcome.x)
                for i in group:
                    x[i] = ONE if i == member else ZERO
                return Witness(tuple(x), outcome.y)
            core |= outcome
        return frozenset(core)

    def _descend(self, units: list[Unit], clauses: list[OneOf], pairs: Sequence[Excluded]) -> Witness | Core:
        self._nodes += 1
        if self._nodes > self._most or monotonic() > self.end:
            raise Undecided
        point = self._solve(units)
        if isinstance(point, frozenset):
            return point
        broken = self._broken(point, clauses, pairs)
        if broken is None:
            return Witness(tuple(point[: self.d]), tuple(point[self.d :]))
        core: set[Hashable] = {broken.tag}
        for option in broken.options:
            token = object()  # marks this choice
            outcome = self._descend([*units, (option, token)], clauses, pairs)
            if isinstance(outcome, Witness) or token not in outcome:
                return outcome
            core |= outcome - {token}
        return frozenset(core)

    def _broken(self, point: Sequence[Fraction], clauses: list[OneOf], pairs: Sequence[Excluded]) -> OneOf | None:
        for clause in clauses:
            if not any(option.holds(point) for option in clause.options):
                return clause
        positive = np.array([v >= 0 for v in point[self.d :]])
        for array, tag, outside in pairs:
            bad = np.flatnonzero(positive[array].all(axis=1))
            if len(bad) and not any(row.holds(point) for row in outside):
                off = self.clause(exclusion(*array[bad[0]].tolist())).options
                return OneOf((*outside, *off), tag)
        for i in self._integer:
            if point[i].denominator != 1:
                low = Fraction(point[i].numerator // point[i].denominator)
                return OneOf((HalfSpace(((i, ONE),), low), HalfSpace(((i, -ONE),), -low - 1)))
        return None

    def _solve(self, units: list[Unit]) -> list[Fraction] | Core:
        """Return a point (d + m) of the half-spaces, or the tags that a refutation uses."""
        groups = {self._groups[i] for unit, _ in units for i, _ in unit.coefficients if i in self._groups}
        sums = [HalfSpace(tuple((i, s) for i in group), s) for group in groups for s in (ONE, -ONE)]
        units = [*units, *((row, None) for row in sums)]
        free = [None] * self.m
        found = point_or_proof([unit for unit, _ in units], [*self.spec.lower, *free], [*self.spec.upper, *free])
        if not isinstance(found, dict):
            return frozenset(tag for (_, tag), m in zip(units, found, strict=True) if m)
        point = [*self._typical, *self._default]
        for i, value in found.items():
            point[i] = value
        return point

    # --- for every x some y ------------------------------------------------------------------------------------

    def uncovered(
        self, region: Sequence[HalfSpace], clauses: Sequence[OneOf], *, pairs: Sequence[Excluded] = ()
    ) -> tuple[Fraction, ...] | None:
        """Return an x of the region for which no y satisfies the clauses, or None if there is none.

        At a point with an answer, the literals that hold there are projected to the inputs. The answer covers that
        whole polytope, and the search continues outside it. `pairs` are excluded everywhere. Raises Undecided if it
        grows too large.
        """
        stack: list[list[HalfSpace]] = [[]]
        steps = 0
        while stack:
            extra = stack.pop()
            steps += 1
            if steps > MAX_NODES:
                raise Undecided
            inside = self.find([*region, *extra])
            if inside is None:
                continue
            x = inside.x
            answer = self.find([], [self.at(x, clause) for clause in clauses], pairs=pairs)
            if answer is None:
                return x
            point = (*x, *answer.y)
            rows = [next(o for o in clause.options if o.holds(point)) for clause in clauses]
            below = ~np.array([v >= 0 for v in answer.y])
            rows += [
                HalfSpace(((self.d + int(k), ONE),), ZERO, strict=True)
                for array, *_ in pairs
                for k in np.unique(array[below[array]])
            ]
            passed: list[HalfSpace] = []
            for face in eliminate(self._tied_to_inputs(rows), lambda i: i >= self.d):
                stack.append([*extra, *passed, face.negated()])
                passed.append(face)
        return None

    def _tied_to_inputs(self, rows: Sequence[HalfSpace]) -> list[HalfSpace]:
        """Return the rows that mention an input, and the rows that share outputs with these."""
        chosen = [row for row in rows if row.coefficients[0][0] < self.d]
        rest = [row for row in rows if row.coefficients[0][0] >= self.d]
        outputs = {i for row in chosen for i, _ in row.coefficients if i >= self.d}
        grown = True
        while grown:
            more = [row for row in rest if any(i in outputs for i, _ in row.coefficients)]
            rest = [row for row in rest if not any(i in outputs for i, _ in row.coefficients)]
            chosen += more
            outputs |= {i for row in more for i, _ in row.coefficients}
            grown = bool(more)
        return chosen


def _split(row: HalfSpace, group: Collection[int]) -> tuple[HalfSpace, dict[int, Fraction]]:
    """Split a half-space into the part without the columns of a group, and the group's coefficients."""
    part = {i: v for i, v in row.coefficients if i in group}
    rest = tuple((i, v) for i, v in row.coefficients if i not in group)
    return (HalfSpace(rest, row.bound, row.strict) if part else row), part


def _with(row: HalfSpace, part: Mapping[int, Fraction], member: int) -> HalfSpace:
    """Add the coefficient of the one member that is 1 to a half-space."""
    value = part.get(member)
    return row if not value else HalfSpace(row.coefficients, row.bound - value, row.strict)


def _open(options: Iterable[tuple[HalfSpace, Mapping[int, Fraction]]], member: int) -> tuple[HalfSpace, ...] | None:
    """Return the split options that stay open with one member at 1, or None if one of them holds."""
    fixed = [_with(*option, member) for option in options]
    if any(not option.coefficients and option.holds(()) for option in fixed):
        return None
    return tuple(option for option in fixed if option.coefficients)


def eliminate(rows: Iterable[HalfSpace], gone: Callable[[int], bool]) -> list[HalfSpace]:
    """Project a polytope onto the remaining variables (Fourier-Motzkin), exactly.

    Rows that lose all variables are dropped: they are true if the polytope has a point, which callers ensure. Raises
    Undecided if there are too many rows.
    """
    current = list(dict.fromkeys(row.scaled() for row in rows))
    while True:
        counts: dict[int, list[int]] = {}
        for row in current:
            for i, v in row.coefficients:
                if gone(i):
                    counts.setdefault(i, [0, 0])[v > 0] += 1
        if not counts:
            return [row for row in current if row.coefficients]
        i = min(counts, key=lambda k: (counts[k][0] * counts[k][1], k))
        kept: list[HalfSpace] = []
        positive: list[HalfSpace] = []
        negative: list[HalfSpace] = []
        for row in current:
            value = dict(row.coefficients).get(i, ZERO)
            (positive if value > 0 else negative if value < 0 else kept).append(row)
        for up in positive:
            for down in negative:
                kept.append(_combined(up, down, i).scaled())
        current = list(dict.fromkeys(kept))
        if len(current) > MAX_ROWS:
            raise Undecided


def _combined(up: HalfSpace, down: HalfSpace, i: int) -> HalfSpace:
    """Add two rows so that variable i cancels."""
    a, b = dict(up.coefficients), dict(down.coefficients)
    total = {k: a.get(k, ZERO) / a[i] - b.get(k, ZERO) / b[i] for k in {*a, *b}}
    return HalfSpace(
        tuple(sorted((k, v) for k, v in total.items() if v)),
        up.bound / a[i] - down.bound / b[i],
        up.strict or down.strict,
    )
