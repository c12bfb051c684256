"""What is known about x where regions hold, or do not: ranges, members of one-hot groups, rows (sections 12, 13).

Exactly one column of a one-hot group is 1, the others are 0. So a comparison of one of them, or a row over columns of
one group alone, leaves certain members, and an affine function is largest at one of these.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.floats import FORMATS, Binary, above, below
from smle_check.kernel import multipliers_of, residual_of
from smle_check.stated import StatedRow, StatedSpecification

Ends = dict[int, tuple[Fraction, Fraction]]  # of some inputs; the others have their whole range
Form = dict[int, Fraction]


class Members(NamedTuple):
    """The members left of a one-hot group: those in `names` if `among`, else all others."""

    names: frozenset[int]
    among: bool

    def meeting(self, other: "Members") -> "Members":
        """Return the intersection."""
        if self.among and other.among:
            return Members(self.names & other.names, True)
        if self.among or other.among:
            few, left_out = (self, other) if self.among else (other, self)
            return Members(few.names - left_out.names, True)
        return Members(self.names | other.names, False)

    def __contains__(self, column: object) -> bool:
        return (column in self.names) is self.among

    def opposite(self) -> "Members":
        """Return the complement."""
        return self._replace(among=not self.among)


class Known(NamedTuple):
    """What is left of x in a format: ranges of numeric inputs, and members of groups, by number."""

    ends: Ends
    members: dict[int, Members]


class Boxes:
    """What comparisons of regions leave to inputs of a format; cached by region."""

    def __init__(self, spec: StatedSpecification) -> None:
        self.spec = spec
        self.group = spec.group
        self.known: dict[tuple[int, Binary], Known] = {}

    def of(self, region: int, fmt: Binary) -> Known:
        """Return what the rows of one region leave as the gate sees them: comparisons, and rows over one group."""
        if (region, fmt) not in self.known:
            known = Known({}, {})
            for row in (self.spec.rows[r] for r in self.spec.regions[region]):
                self.note(known, self.kept(row, fmt))
            self.known[region, fmt] = known
        return self.known[region, fmt]

    @staticmethod
    def note(known: Known, more: Known) -> None:
        """Add further knowledge. If nothing is left, low > high, or no member remains."""
        for k, (low, high) in more.ends.items():
            a, b = known.ends.get(k, (low, high))
            known.ends[k] = max(a, low), min(b, high)
        for g, members in more.members.items():
            known.members[g] = members.meeting(known.members.get(g, members))

    def kept(self, row: StatedRow, fmt: Binary) -> Known:
        """Return what is left where one row holds, as the gate sees it."""
        g = self.group_of(row)
        if g is not None:
            bound, strict = row.compared[fmt]
            return Known({}, {g: self.chosen(row, bound, strict)})
        if len(row.terms) > 1:
            return Known({}, {})
        ((k, sign),) = row.terms.items()
        low, high = (side[k] for side in self.spec.passed[fmt])
        bound, strict = row.compared[fmt]
        if sign > 0:
            return Known({k: (low, min(high, below(bound, fmt) if strict else bound))}, {})
        return Known({k: (max(low, above(-bound, fmt) if strict else -bound), high)}, {})

    def group_of(self, row: StatedRow) -> int | None:
        """Return the group that has all columns of a row, or None."""
        groups = {self.group.get(k) for k in row.terms}
        return groups.pop() if len(groups) == 1 else None

    @staticmethod
    def chosen(row: StatedRow, bound: Fraction, strict: bool) -> Members:
        """Return the members at which a row over their group holds, with that member 1 and all others 0."""
        holds = {k: v < bound if strict else v <= bound for k, v in row.terms.items()}
        others = bound > 0 if strict else bound >= 0  # at members that the row does not name
        return Members(frozenset(k for k, inside in holds.items() if inside is not others), not others)

    def beyond(self, region: int, fmt: Binary) -> Known:
        """Return what is left outside a region as stated, if it is one comparison or has rows over one group alone."""
        rows = [self.spec.rows[r] for r in self.spec.regions[region]]
        g = self.group_of(rows[0]) if rows else None
        if g is not None and all(self.group_of(row) == g for row in rows):
            inside = Members(frozenset(), False)
            for row in rows:
                bound, strict = row.compared[fmt] if len(row.terms) == 1 else (row.bound, row.strict)
                inside = inside.meeting(self.chosen(row, bound, strict))
            return Known({}, {g: inside.opposite()})
        if len(rows) != 1 or len(rows[0].terms) != 1:
            return Known({}, {})
        ((k, sign),) = rows[0].terms.items()
        low, high = (side[k] for side in self.spec.passed[fmt])
        bound, strict = rows[0].compared[fmt]
        if sign > 0:
            return Known({k: (max(low, bound if strict else above(bound, fmt)), high)}, {})
        return Known({k: (low, min(high, -bound if strict else below(-bound, fmt)))}, {})

    def meeting(self, regions: Iterable[int], fmt: Binary, outside: Iterable[int] = ()) -> Known | None:
        """Return what is left where some regions meet, outside others; None if no input is there."""
        known = Known({}, {})
        for region in regions:
            self.note(known, self.of(region, fmt))
        for region in outside:
            self.note(known, self.beyond(region, fmt))
        return None if self.is_empty(known) else known

    def is_empty(self, known: Known) -> bool:
        """Return whether no input is left."""
        if any(low > high for low, high in known.ends.values()):
            return True
        return any(not self.count(g, members) for g, members in known.members.items())

    def count(self, g: int, members: Members | None) -> int:
        """Return how many members of a group are left."""
        size = len(self.spec.groups[g])
        if members is None:
            return size
        return len(members.names) if members.among else size - len(members.names)

    def most(self, form: Form, known: Known, fmt: Binary) -> Fraction:
        """Return the largest form.x over what is left: a range for each number, a member for each group."""
        low, high = self.spec.passed[fmt]
        total, groups = Fraction(0), dict[int, dict[int, Fraction]]()
        for k, e in form.items():
            g = self.group.get(k)
            if g is None:
                a, b = known.ends.get(k, (low[k], high[k]))
                total += max(e * a, e * b)
            else:
                groups.setdefault(g, {})[k] = e
        for g, own in groups.items():
            left = known.members.get(g)
            values = [e for k, e in own.items() if left is None or k in left]
            if len(values) < self.count(g, left):  # a member without a coefficient
                values.append(Fraction(0))
            total += max(values)
        return total


class Leaf(NamedTuple):
    """A leaf of the tree: the bits on its path, by region."""

    on: tuple[int, ...]
    off: tuple[int, ...]


ROOT = Leaf((), ())


class Facts:
    """What is known about x in a leaf, where further regions hold: the maximum of affine functions there."""

    def __init__(self, boxes: Boxes, leaf: Leaf = ROOT) -> None:
        self.boxes, self.spec, self.leaf = boxes, boxes.spec, leaf
        self.left: dict[tuple[tuple[int, ...], Binary], Known | None] = {}

    def complement(self, region: int) -> tuple[Form, Fraction] | None:
        """Return a row that holds outside a region made of one oblique row: there x is outside it as stated."""
        rows = [self.spec.rows[r] for r in self.spec.regions[region]]
        if len(rows) != 1 or len(rows[0].terms) == 1:
            return None
        return {k: -v for k, v in rows[0].terms.items()}, -rows[0].bound

    def rows(self, stated: int | None, seen: int | None) -> dict[int, bool]:
        """Return the rows that hold, by number, and whether as stated (else as the gate sees them).

        Numbers from len(rows) on are the complements of regions.
        """
        spec = self.spec
        regions = [*self.leaf.on, *(() if seen is None else (seen,))]
        found = {r: False for region in regions for r in spec.regions[region]}
        found |= dict.fromkeys(spec.regions[stated] if stated is not None else (), True)
        return found | {len(spec.rows) + g: True for g in self.leaf.off if self.complement(g) is not None}

    def row(self, r: int, as_stated: bool, fmt: Binary) -> tuple[Form, Fraction]:
        """Return a row by its number."""
        if r >= len(self.spec.rows):
            return self.complement(r - len(self.spec.rows)) or ({}, Fraction(0))
        row = self.spec.rows[r]
        return row.terms, row.bound if as_stated and len(row.terms) > 1 else row.compared[fmt][0]

    def known(self, stated: int | None, seen: int | None, fmt: Binary) -> Known | None:
        """Return what is left where a region holds as stated and another as the gate sees it; None if nothing."""
        regions = tuple(sorted({*self.leaf.on, *(g for g in (stated, seen) if g is not None)}))
        if (regions, fmt) not in self.left:
            self.left[regions, fmt] = self.boxes.meeting(regions, fmt, self.leaf.off)
        return self.left[regions, fmt]

    def most(
        self, form: Form, constant: Fraction, stated: int | None, seen: int | None, mu_data: Any
    ) -> Fraction | None:
        """Bound form.x + constant where a region holds as stated and another as the gate sees it; None if nowhere."""
        rows = self.rows(stated, seen) if mu_data else {}
        mu = multipliers_of(mu_data, set(rows), "mu", self.spec.work) if mu_data else {}
        found = []
        for fmt in FORMATS:
            known = self.known(stated, seen, fmt)
            if known is not None:
                priced = [self.row(r, rows[r], fmt) for r in mu]
                rest, total = residual_of(form, priced, list(mu.values()))
                found.append(constant + total + self.boxes.most(rest, known, fmt))
        return max(found, default=None)

    def by_member(self, form: Form, constant: Fraction, stated: int, g: int) -> dict[int, Fraction]:
        """Bound form.x + constant where a region holds as stated, for each remaining member of a group."""
        rest = {k: v for k, v in form.items() if self.boxes.group.get(k) != g}
        found: dict[int, Fraction] = {}
        for fmt in FORMATS:
            known = self.known(stated, None, fmt)
            if known is not None:
                most, left = constant + self.boxes.most(rest, known, fmt), known.members.get(g)
                for k in self.spec.groups[g]:
                    if left is None or k in left:
                        value = most + form.get(k, Fraction(0))
                        found[k] = max(value, found.get(k, value))
        return found
