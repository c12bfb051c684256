"""Searches for one literal per clause, and an answer that satisfies them, in outputs divided by their scale."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from smle.certificates.multipliers import range_of
from smle.nearest.literals import SearchNode, branch_and_bound, choose_literals
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.regions.robust import Layout, RobustRow, roomy_center
from smle_check.floats import BINARY32, BINARY64, TINY, round_up
from smle_check.heads.candidates import Checked, move_forms
from smle_check.heads.clips import Clip, Limit
from smle_check.heads.known import Boxes, Facts, Form, Known, Leaf, Members
from smle_check.stated import StatedLiteral, exclusion

__all__ = ["CAP", "ENOUGH", "LITTLE", "LiteralSearch", "Need", "SafePoint", "Scaled", "Stored"]

Array = npt.NDArray[np.float64]
Stored = list[tuple[Form, Fraction]]  # a safe answer: a slope and an offset for each output
Only = tuple[int, int] | None  # a one-hot group, and the one member to consider
CAP = 0.5  # the most room that counts, in scales
ENOUGH, LITTLE = 1e-3, 1e-9  # room with which the search for literals ends; members of a group may need the second
_NODES, _FEW_NODES = 300, 20
_MANY_LIMITS = 50  # with more, a constant answer considers only the tightest
_NEAR = 64.0  # scales around the typical answer in which literals are chosen first
_MOST_PAIRS = 5_000


class Need(NamedTuple):
    """A literal over a part of a leaf, in scaled units, and the maximum of linear functions over that part."""

    row: RobustRow
    support: RegionMaximum

    def slack(self, point: SafePoint) -> float:
        """Return what is left of the bound at the worst input."""
        most, *_ = self.support((self.row.g @ point.slope + self.row.s)[None])
        return self.row.h - float(self.row.g @ point.offset) - float(most[0])


class SafePoint(NamedTuple):
    """A proposed answer in scaled units: slope (outputs read, inputs used), offset, and the room it leaves."""

    slope: Array
    offset: Array
    room: float


class Scaled:
    """What rules ask besides limits, and the limits that matter, in scaled units."""

    def __init__(self, boxes: Boxes, clips: list[Clip], checked: Checked, typical: Array, scale: Array) -> None:
        self.boxes, self.spec, self.clips, self.checked = boxes, boxes.spec, clips, checked
        self.typical, self.scale = typical, scale
        self.parts: dict[tuple[Leaf, int | None, int | None, Only], RegionMaximum | None] = {}
        literals = self.checked.literals
        pairs = [pair for rule in self.checked.excluding for pair in self.spec.rules[rule].exclusions]
        read = {i for literal in literals for i in literal.y} | {label for pair in pairs for label in pair}
        self.read = sorted(read)
        self.limits = [clip for clip in self.clips if clip.limit.output in read]
        moving = {k for literal in literals for k in literal.x} | {k for c in self.limits for k in c.limit.slope}
        tied = [row for row in self.spec.rows[: self.spec.stated] if len(row.terms) > 1]
        oblique = {k for row in tied if self.boxes.group_of(row) is None for k in row.terms}
        group = self.boxes.group
        # If no condition ties a group to other inputs, what literals look up in it is largest at one of its members.
        apart = set(range(len(self.spec.groups))) - {group[k] for k in oblique if k in group}
        self.looked_up = {group[k] for k in moving if group.get(k) in apart}
        moving = {k for k in moving if group.get(k) not in apart}
        self.moving, self.used = sorted(moving), sorted(moving | oblique)
        self.left: dict[int, Known] = {}  # what is known in a part, by its identity
        self.places = [{number: place for place, number in enumerate(own)} for own in (self.read, self.used)]
        ends = self.spec.passed[BINARY64]
        low, high = (np.array([float(side[k]) for k in self.used], dtype=np.float64) for side in ends)
        self.middle, self.half = (low + high) / 2, np.where(high > low, (high - low) / 2, 1.0)
        own = {c.rule for c in self.checked.clauses} | {*self.checked.excluding} | {c.limit.rule for c in self.limits}
        self.regions = {g for rule in own for g in self.spec.rules[rule].regions}
        self.of_member: dict[int, dict[int, set[int]]] = {}
        self.unit, self.near = self.scale[self.read], self.typical[self.read] / self.scale[self.read]
        self.tied = [g for g, own in enumerate(self.spec.groups) if not self.places[1].keys().isdisjoint(own)]
        self.limiting = [(clip, _literal(clip.limit)) for clip in self.limits]
        self.looked: dict[int, dict[int, dict[int, Fraction]]] = {}  # what literals look up, by their identity

    def meeting(self, only: Only) -> set[int]:
        """Return the regions of limits and clauses that meet a member of a group."""
        if only is None:
            return self.regions
        g, k = only
        if g not in self.of_member:
            by_member: dict[int, set[int]] = {name: set() for name in (-1, *self.spec.groups[g])}
            for region in self.regions:
                members = self.boxes.of(region, BINARY64).members.get(g)
                for name in members.names if members is not None and members.among else (-1,):
                    by_member[name].add(region)
            self.of_member[g] = by_member
        return self.of_member[g][-1] | self.of_member[g][k]

    def part(self, leaf: Leaf, stated: int | None, seen: int | None, only: Only = None) -> RegionMaximum | None:
        """Return the inputs of a leaf where a region holds as stated and another as the gate sees it, or None.

        `only` restricts a group to one of its members.
        """
        key = leaf, stated, seen, only
        if key not in self.parts:
            self.parts[key] = None if stated in leaf.off or seen in leaf.off else self._part(*key)
        return self.parts[key]

    def _part(self, leaf: Leaf, stated: int | None, seen: int | None, only: Only) -> RegionMaximum | None:
        regions = sorted({*leaf.on, *(g for g in (stated, seen) if g is not None)})
        known = self.boxes.meeting(regions, BINARY64, leaf.off)
        if known is not None and only is not None:
            self.boxes.note(known, Known({}, {only[0]: Members(frozenset({only[1]}), True)}))
        if known is None or self.boxes.is_empty(known):
            return None
        facts = Facts(self.boxes, leaf)
        rows = [facts.row(r, as_stated, BINARY64) for r, as_stated in facts.rows(stated, seen).items()]
        rows = [row for row in rows if self.places[1].keys() >= row[0].keys() and len(row[0]) > 1]
        ends = [range_of(self.boxes, known, BINARY64, k) for k in self.used]
        low, high = ((np.array([float(end[i]) for end in ends]) - self.middle) / self.half for i in (0, 1))
        for g in self.tied:
            group = self.spec.groups[g]
            left = [k for k in group if g not in known.members or k in known.members[g]]
            ones = {k: Fraction(1) for k in left if k in self.places[1]}
            if len(ones) > 1:
                rows.append((ones, Fraction(1)))
            if len(left) == len(ones) > 1:
                rows.append(({k: -v for k, v in ones.items()}, Fraction(-1)))
        A = np.array([[float(terms.get(k, 0)) for k in self.used] for terms, _ in rows])
        A = A.reshape(len(rows), len(self.used))
        b = np.array([float(bound) for _, bound in rows]) - A @ self.middle
        domain = Domain(low, high, np.maximum(np.abs(low), np.abs(high)))
        found = RegionMaximum(Region(domain, tuple(range(len(rows))), A * self.half, b))
        self.left[id(found)] = known
        return None if found.located[1] is not None else found

    def lookups(self, literal: StatedLiteral) -> dict[int, dict[int, Fraction]]:
        """Return what a literal looks up, by group."""
        if id(literal) not in self.looked:
            found: dict[int, dict[int, Fraction]] = {}
            for k, v in literal.x.items():
                if k not in self.places[1]:
                    found.setdefault(self.boxes.group[k], {})[k] = v
            self.looked[id(literal)] = found
        return self.looked[id(literal)]

    def reach(self, clip: Clip, known: Known, only: tuple[int, int]) -> list[Fraction]:
        """Return how far a clip moves answers to its side at one member of a group, for both ways of rounding."""
        if clip.error:
            forms = move_forms(clip, {}, Fraction(0), Fraction(0))
            return [constant + self.boxes.most(form, known, BINARY64) for form, constant in forms]
        if clip.slope and self.boxes.group[next(iter(clip.slope))] != only[0]:
            own = {k: clip.limit.side * v for k, v in clip.slope.items()}
            return [self.boxes.most(own, known, BINARY64)]
        return [clip.limit.side * (clip.offset + clip.slope.get(only[1], Fraction(0)))]

    def need(self, literal: StatedLiteral, part: RegionMaximum, only: Only = None, *, roomy: bool = True) -> Need:
        """Return a literal in scaled units, divided by its largest coefficient. `only` as for the part."""
        g, s = np.zeros(len(self.read)), np.zeros(len(self.used))
        groups = self.lookups(literal)
        looked_up: dict[int, Fraction] = {}
        for i, form in groups.items():
            if only is None or i != only[0]:
                looked_up |= form
            elif only[1] in form:
                looked_up[only[1]] = form[only[1]]
        most = self.boxes.most(looked_up, self.left[id(part)], BINARY64) if looked_up else Fraction(0)
        own = literal.x if not groups else {k: literal.x[k] for k in self.used if k in literal.x}
        for places, form, row in ((self.places[0], literal.y, g), (self.places[1], own, s)):
            for k, v in form.items():
                row[places[k]] = float(v)
        g, bound, s = g * self.unit, float(literal.bound - most) - s @ self.middle, s * self.half
        size = np.abs(g).max()
        return Need(RobustRow(g / size, s / size, bound / size, part.region, roomy=roomy), part)


class LiteralSearch:
    """A search for one literal per clause, and an answer that satisfies them, in one leaf."""

    def __init__(
        self, search: Scaled, leaf: Leaf, *, affine: bool, nodes: int = _NODES, hurting: bool = False,
        only: Only = None, enough: float = ENOUGH,
    ) -> None:  # fmt: skip
        self.search, self.nodes = search, nodes if only is None else min(nodes, _FEW_NODES)
        self.enough = enough
        self.layout = Layout(len(search.read), 0, len(search.used), affine)
        self.base: list[Need] = []
        self.limits: list[tuple[int, int, Need]] = []  # limits that may hurt a chosen literal
        self.clips: list[tuple[Clip, RegionMaximum]] = []
        self.open: list[list[Need]] = []
        self.pairs: list[tuple[RegionMaximum, npt.NDArray[np.intp]]] = []
        rules, place = search.spec.rules, search.places[0]
        meets = search.meeting(only)
        for clip, literal in search.limiting:
            limit = clip.limit
            if limit.region in meets and (part := search.part(leaf, None, limit.region, only)) is not None:
                self.limits.append((place[limit.output], limit.side, search.need(literal, part, only, roomy=False)))
                self.clips.append((clip, part))
        if not affine and len(self.limits) > _MANY_LIMITS:
            self.limits = _tightest(self.limits)
        if not hurting:
            self.base, self.limits = [need for *_, need in self.limits], []
        for clause in search.checked.clauses:
            literals = [search.checked.literals[k] for k in clause.literals]
            for region in rules[clause.rule].regions:
                if region in meets and (part := search.part(leaf, region, None, only)) is not None:
                    needs = [search.need(literal, part, only) for literal in literals]
                    self.base += needs if len(needs) == 1 else []
                    self.open += [needs] if len(needs) > 1 else []
        for rule in search.checked.excluding:
            for region in rules[rule].regions:
                if region in meets and (part := search.part(leaf, region, None, only)) is not None:
                    own = [[place[label] for label in pair] for pair in rules[rule].exclusions]
                    self.pairs.append((part, np.array(own, dtype=np.intp)))

        self.size = self.grown() if only is not None else 1.0

    def grown(self) -> float:
        """Scale a member's bounds up to the size of the scales; return the factor that shrinks answers again.

        In a table, one member's numbers may be a million times another's: room for one may be none for the other.
        """
        every = [self.base, [need for *_, need in self.limits], *self.open]
        sizes = [abs(need.row.h) for needs in every for need in needs]
        size = min(1.0, max(sizes, default=1.0)) or 1.0

        def larger(need: Need) -> Need:
            return need._replace(row=replace(need.row, h=need.row.h / size, s=need.row.s / size))

        self.base, self.open = [larger(need) for need in self.base], [[larger(n) for n in own] for own in self.open]
        self.limits = [(i, side, larger(need)) for i, side, need in self.limits]
        return size

    def run(self) -> SafePoint | None:
        """Return an answer with enough room, or the one with most; None if none was found."""
        best: SafePoint | None = None
        for start in (self.guessed(), []) if self.open or self.pairs else ([],):
            if start is None or (best is not None and best.room >= self.enough):
                continue
            found = branch_and_bound(
                partial(self.node, start),
                max_nodes=self.nodes,
                below=np.inf if best is None else -best.room,
                enough=-self.enough,
            )
            best = best if found.answer is None else found.answer
        return best

    def allows(self, stored: Stored) -> bool:
        """Return whether a constant answer, as clips leave it, has enough room; another member's often has."""
        search, inputs = self.search, len(self.search.used)
        own = np.array([float(stored[i][1]) for i in search.read]) / search.unit / self.size
        point = SafePoint(np.zeros((len(own), inputs)), own, self.enough)
        if any(need.slack(point) < self.enough for need in self.base):
            return False
        return not self.pairs and not self.broken(point)

    def clipped(self, stored: Stored, only: tuple[int, int]) -> Stored:
        """Clip a constant answer to the limits of one member, where they leave it a range.

        No clip moves it afterwards. If one did, the move would count against the answers of all other members.
        """
        ends: dict[tuple[int, int], Fraction] = {}  # by output and side, times the side
        for clip, part in self.clips:
            key, known = (clip.limit.output, clip.limit.side), self.search.left[id(part)]
            reach = round_up(max(self.search.reach(clip, known, only)), BINARY32)
            reach = reach if abs(reach) >= TINY else TINY if reach > 0 else Fraction(0)
            ends[key] = max(reach, ends.get(key, reach))
        result = list(stored)
        for i in self.search.read:
            low, high = ends.get((i, 1)), -ends[i, -1] if (i, -1) in ends else None
            value = stored[i][1]
            if low is None or high is None or low <= high:
                value = value if low is None else max(value, low)
                result[i] = {}, value if high is None else min(value, high)
        return result

    def guessed(self) -> list[Need] | None:
        """Return one literal per clause that some constant answer satisfies with room, or None."""
        search = self.search
        rows = [need.row for needs in (self.base, *self.open) for need in needs]
        wanted = {int(i) for row in rows for i in np.flatnonzero(row.g < 0)}
        clauses = [*([need] for need in self.base), *self.open]
        for part, pairs in self.pairs:
            own = [pair for pair in pairs.tolist() if wanted.issuperset(pair)][:_MOST_PAIRS]
            clauses += [self.exclusion(part, pair) for pair in own]
        needs = [need for own in clauses for need in own]
        if not needs:  # exclusions alone
            return None
        chosen = choose_literals(
            np.stack([need.row.g for need in needs]),
            np.array([need.row.h - float(need.support(need.row.s[None])[0][0]) for need in needs]),
            np.repeat(np.arange(len(clauses)), [len(own) for own in clauses]),
            near=search.near / self.size,
            reach=np.full(len(search.read), _NEAR),
            room=np.array([float(need.row.roomy) for need in needs]),
            most=CAP,
        )
        return None if chosen is None else [needs[k] for k in chosen[len(self.base) :]]

    def exclusion(self, part: RegionMaximum, pair: list[int]) -> list[Need]:
        """Return "not both" of two labels, numbered among the outputs read."""
        h, k = (self.search.read[i] for i in pair)
        return [self.search.need(literal, part) for literal in exclusion((h, k))]

    def node(self, start: list[Need], chosen: tuple[Need, ...]) -> SearchNode[SafePoint, Need] | None:
        """Return the answer with most room, affine in some inputs, and the clause it breaks most."""
        search, layout = self.search, self.layout
        near, cost = np.zeros((layout.outputs, layout.stride)), np.full((layout.outputs, layout.stride), 1e-4)
        near[:, -1], cost[:, -1] = search.near / self.size, 1e-3 / layout.outputs
        fixed = np.zeros(near.shape, dtype=bool)
        fixed[:, :-1] = ~np.isin(search.used, search.moving)[: layout.stride - 1]
        asked = (*self.base, *start, *chosen)
        ways = {(int(i), int(np.sign(need.row.g[i]))) for need in asked for i in np.flatnonzero(need.row.g)}
        found = roomy_center(
            [need.row for need in (*asked, *(need for i, side, need in self.limits if (i, side) in ways))],
            layout,
            room=(0.0, CAP),
            near=near.reshape(-1),
            cost=cost.reshape(-1),
            fixed=fixed.reshape(-1),
        )
        if found is None:
            return None
        table = found[0].reshape(near.shape)
        slope = table[:, :-1] if layout.passthrough else np.zeros((layout.outputs, layout.inputs))
        point = SafePoint(slope, table[:, -1], found[1])
        return SearchNode(
            -point.room, point, [need for _, need in sorted(self.broken(point), key=lambda item: -item[0])]
        )

    def broken(self, point: SafePoint) -> list[tuple[float, Need]]:
        """Return the literals, each with its slack, of the clause broken most; none if all hold."""
        least = min(1e-6, point.room)
        moved: dict[tuple[int, int], float] = {}  # how far clips move it, by output and side
        for i, side, need in self.limits:
            moved[i, side] = max(moved.get((i, side), 0.0), -need.slack(point))

        def slack(need: Need) -> float:
            hurt = [abs(v) * moved.get((i, 1 if v > 0 else -1), 0.0) for i, v in enumerate(need.row.g.tolist()) if v]
            return need.slack(point) - float(sum(hurt))

        slacks = [[(slack(need), need) for need in needs] for needs in self.open]
        worst = min(slacks, key=lambda own: max(slack for slack, _ in own), default=None)
        if worst is not None and max(slack for slack, _ in worst) < least:
            return worst
        for part, pairs in self.pairs:
            tops = point.offset + part(point.slope)[0]
            both = pairs[(tops[pairs] > -least).all(axis=1)]
            if len(both):
                return [(slack(need), need) for need in self.exclusion(part, both[0].tolist())]
        return []


def _literal(limit: Limit) -> StatedLiteral:
    sign = Fraction(-limit.side)
    return StatedLiteral(
        {limit.output: sign}, {k: -sign * v for k, v in limit.slope.items()}, sign * limit.offset, limit.strict
    )


def _tightest(limits: list[tuple[int, int, Need]]) -> list[tuple[int, int, Need]]:
    """Return the limits that a constant answer must obey: the tightest for each output and side."""
    found: dict[tuple[int, int], tuple[float, Need]] = {}
    for i, side, need in limits:
        least = need.row.h - (float(need.support(need.row.s[None])[0][0]) if need.row.s.any() else 0.0)
        if (i, side) not in found or least < found[i, side][0]:
            found[i, side] = least, need
    return [(i, side, need) for (i, side), (_, need) in found.items()]
