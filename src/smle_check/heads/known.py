"""What is known of x where regions hold, or do not: ranges from comparisons, rows from the others (sections 12, 13)."""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.floats import FORMATS, Binary, above, below
from smle_check.kernel import bounded, multipliers_of
from smle_check.specification import Specification

Ends = dict[int, tuple[Fraction, Fraction]]  # of some inputs; the others have their whole range
Form = dict[int, Fraction]


class Boxes:
    """The ranges that comparisons of a region, or of two, leave to inputs of a format; each region is read once."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.domain = {fmt: [dict(enumerate(side)) for side in spec.passed[fmt]] for fmt in FORMATS}
        self.known: dict[tuple[int, Binary], Ends] = {}

    def of(self, region: int, fmt: Binary) -> Ends:
        """Return the ranges that the comparisons of one region leave; low > high where that is none."""
        if (region, fmt) in self.known:
            return self.known[region, fmt]
        low, high = self.spec.passed[fmt]
        ends: Ends = {}
        for row in (self.spec.rows[r] for r in self.spec.regions[region] if len(self.spec.rows[r].terms) == 1):
            ((k, sign),) = row.terms.items()
            bound, strict = row.compared[fmt]
            a, b = ends.get(k, (low[k], high[k]))
            if sign > 0:
                ends[k] = a, min(b, below(bound, fmt) if strict else bound)
            else:
                ends[k] = max(a, above(-bound, fmt) if strict else -bound), b
        self.known[region, fmt] = ends
        return ends

    def meeting(self, regions: Iterable[int], fmt: Binary, outside: Iterable[int] = ()) -> Ends | None:
        """Return the ranges where some regions meet, outside of others; None: no input is there.

        Regions of one comparison have an outside that is a range; of others nothing is used here.
        """
        ends: Ends = {}
        for own in [*(self.of(region, fmt) for region in regions), *(self.beyond(region, fmt) for region in outside)]:
            for k, (low, high) in own.items():
                a, b = ends.get(k, (low, high))
                ends[k] = max(a, low), min(b, high)
                if ends[k][0] > ends[k][1]:
                    return None
        for group in self.spec.groups:  # exactly one is 1, the others 0
            own = {k: ends.get(k, (Fraction(0), Fraction(1))) for k in group}
            ones = [k for k in group if own[k][0] > 0]
            if len(ones) > 1 or all(b < 1 for _, b in own.values()):
                return None
            if ones:
                ends |= {k: (own[k][0], min(own[k][1], Fraction(int(k in ones)))) for k in group}
        return None if any(a > b for a, b in ends.values()) else ends

    def beyond(self, region: int, fmt: Binary) -> Ends:
        """Return the ranges outside of a region that is one comparison."""
        rows = [self.spec.rows[r] for r in self.spec.regions[region]]
        if len(rows) != 1 or len(rows[0].terms) != 1:
            return {}
        ((k, sign),) = rows[0].terms.items()
        low, high = (side[k] for side in self.spec.passed[fmt])
        bound, strict = rows[0].compared[fmt]
        if sign > 0:
            return {k: (max(low, bound if strict else above(bound, fmt)), high)}
        return {k: (low, min(high, -bound if strict else below(-bound, fmt)))}

    def sides(self, ends: Ends, fmt: Binary) -> tuple[Mapping[int, Fraction], Mapping[int, Fraction]]:
        """Return the lower and the upper ends of all inputs."""
        low, high = self.domain[fmt]
        lower, upper = ({k: pair[i] for k, pair in ends.items()} for i in (0, 1))
        return ChainMap(lower, low), ChainMap(upper, high)


class Leaf(NamedTuple):
    """A leaf of the tree: the bits on its path, by region."""

    on: tuple[int, ...]
    off: tuple[int, ...]


ROOT = Leaf((), ())


class Facts:
    """What is known of x in a leaf, where further regions hold: the maximum of affine functions there."""

    def __init__(self, boxes: Boxes, leaf: Leaf = ROOT) -> None:
        self.boxes, self.spec, self.leaf = boxes, boxes.spec, leaf

    def complement(self, region: int) -> tuple[Form, Fraction] | None:
        """Return a row that holds outside of a region that is one oblique row: there x is outside it as stated."""
        rows = [self.spec.rows[r] for r in self.spec.regions[region]]
        if len(rows) != 1 or len(rows[0].terms) == 1:
            return None
        return {k: -v for k, v in rows[0].terms.items()}, -rows[0].bound

    def rows(self, stated: int | None, seen: int | None) -> dict[int, bool]:
        """Return the rows that hold, by number, and whether as stated (else as the gate sees them).

        Numbers from len(rows) on are the outsides of regions.
        """
        spec, found = self.spec, dict.fromkeys(range(self.spec.stated, len(self.spec.rows)), False)
        regions = [*self.leaf.on, *(() if seen is None else (seen,))]
        found |= {r: False for region in regions for r in spec.regions[region]}
        found |= dict.fromkeys(spec.regions[stated] if stated is not None else (), True)
        return found | {len(spec.rows) + g: True for g in self.leaf.off if self.complement(g) is not None}

    def row(self, r: int, as_stated: bool, fmt: Binary) -> tuple[Form, Fraction]:
        """Return a row by its number."""
        if r >= len(self.spec.rows):
            return self.complement(r - len(self.spec.rows)) or ({}, Fraction(0))
        row = self.spec.rows[r]
        return row.terms, row.bound if as_stated and len(row.terms) > 1 else row.compared[fmt][0]

    def most(
        self, form: Form, constant: Fraction, stated: int | None, seen: int | None, mu_data: Any
    ) -> Fraction | None:
        """Bound form.x + constant where a region holds as stated and another as the gate sees it; None: nowhere."""
        known = self.rows(stated, seen) if mu_data else {}
        mu = multipliers_of(mu_data, set(known), "mu") if mu_data else {}
        regions = {*self.leaf.on, *(g for g in (stated, seen) if g is not None)}
        found = []
        for fmt in FORMATS:
            ends = self.boxes.meeting(sorted(regions), fmt, self.leaf.off)
            if ends is not None:
                rows = [self.row(r, known[r], fmt) for r in mu]
                found.append(constant + bounded(form, rows, list(mu.values()), *self.boxes.sides(ends, fmt)))
        return max(found, default=None)
