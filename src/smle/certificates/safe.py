"""Safe answers: for every leaf of a small tree over the gate, one affine answer that obeys all clauses, proved.

A linear program proposes it, in outputs divided by their scale: most room, capped, and near a typical answer. First
a constant, then an affine function of the inputs that rules mention, then the leaf is split. The exact checker decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.certificates.multipliers import best_multipliers, has_rows
from smle.guarantees import (
    Domain,
    Layout,
    Node,
    Region,
    RegionMaximum,
    RobustRow,
    branch_and_bound,
    choose_literals,
    roomy_center,
)
from smle_check import Rejected
from smle_check.floats import BINARY64, FORMATS, TINY
from smle_check.heads.candidates import Checked, Safe, check_leaf, move_forms, without_zeros
from smle_check.heads.clips import Clip
from smle_check.heads.known import ROOT, Boxes, Facts, Form, Known, Leaf, Members
from smle_check.specification import Literal, exclusion

__all__ = ["NoSafeAnswer", "SafeAnswers", "find_safe"]

Array = npt.NDArray[np.float64]
Only = tuple[int, int] | None  # a one-hot group, and the member of it that is looked at
_ZERO = Fraction(0)
MAX_LEAVES = 64
_CAP = 0.5  # of the room, in scales
_ENOUGH = 1e-3  # room with which the search for literals ends
_NODES = 300
_TABLE_DEPTH = 2  # of leaves in which each member of a group is looked at
_MANY_LIMITS = 50  # of which a constant answer looks at the tightest alone
_CANDIDATES = 12  # for a split
_NEAR = 64.0  # scales around the typical answer in which literals are chosen first
_MOST_PAIRS = 5_000


class NoSafeAnswer(Exception):  # noqa: N818 - an outcome that the caller explains
    """No safe answer was proved in a leaf, which cannot be split further."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__("no safe answer")
        self.leaf = leaf


class SafeAnswers(NamedTuple):
    """A tree, the stored answers of its leaves, and their proofs."""

    tree: Any
    slope: npt.NDArray[np.float32]
    offset: npt.NDArray[np.float32]
    proofs: list[dict[str, Any]]
    moved: list[dict[str, Any]]


class Need(NamedTuple):
    """A literal over a part of a leaf, in scaled units, and the maximum of linear functions over that part."""

    row: RobustRow
    support: RegionMaximum

    def slack(self, point: Point) -> float:
        """Return what is left of the bound at the worst input."""
        most, *_ = self.support((self.row.g @ point.slope + self.row.s)[None])
        return self.row.h - float(self.row.g @ point.offset) - float(most[0])


class Point(NamedTuple):
    """A proposed answer in scaled units: slope (outputs read, inputs used), offset, and the room that it leaves."""

    slope: Array
    offset: Array
    room: float


@dataclass
class _Search:
    boxes: Boxes
    clips: list[Clip]
    checked: Checked
    typical: Array
    scale: Array
    leaves: list[tuple[Leaf, list[tuple[Form, Fraction]]]] = field(default_factory=list)
    proofs: list[dict[str, Any]] = field(default_factory=list)
    moved: list[dict[str, Any]] = field(default_factory=list)
    parts: dict[tuple[Leaf, int | None, int | None, Only], RegionMaximum | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec = self.boxes.spec
        literals = self.checked.literals
        pairs = [pair for rule in self.checked.excluding for pair in self.spec.rules[rule].exclusions]
        read = {i for literal in literals for i in literal.y} | {label for pair in pairs for label in pair}
        self.read = sorted(read)
        self.limits = [clip for clip in self.clips if clip.limit.output in read]
        moving = {k for literal in literals for k in literal.x} | {k for c in self.limits for k in c.limit.slope}
        tied = [row for row in self.spec.rows[: self.spec.stated] if len(row.terms) > 1]
        oblique = {k for row in tied if self.boxes.group_of(row) is None for k in row.terms}
        self.moving, self.used = sorted(moving), sorted(moving | oblique)
        self.places = [{number: place for place, number in enumerate(own)} for own in (self.read, self.used)]
        ends = self.spec.passed[BINARY64]
        low, high = (np.array([float(side[k]) for k in self.used], dtype=np.float64) for side in ends)
        self.middle, self.half = (low + high) / 2, np.where(high > low, (high - low) / 2, 1.0)
        own = {c.rule for c in self.checked.clauses} | {*self.checked.excluding} | {c.limit.rule for c in self.limits}
        self.regions = {g for rule in own for g in self.spec.rules[rule].regions}
        self.of_member: dict[int, dict[int, set[int]]] = {}
        self.unit, self.near = self.scale[self.read], self.typical[self.read] / self.scale[self.read]

    # --- the tree

    def grow(self, leaf: Leaf) -> Any:
        """Return the tree below a leaf, and note its leaves."""
        ways = [(affine, hurting) for hurting in (False, True) for affine in (False, True) if self.moving or not affine]
        for affine, hurting in ways:
            point = _Literals(self, leaf, affine=affine, hurting=hurting).run()
            if point is not None and self.accept(leaf, self.rounded(point)):
                return None
        groups = self.groups(leaf) if len(leaf.on) + len(leaf.off) <= _TABLE_DEPTH else []
        if any((stored := self.table(leaf, g)) is not None and self.accept(leaf, stored) for g in groups):
            return None
        region = self.split(leaf) if len(self.leaves) < MAX_LEAVES else None
        if region is None:
            raise NoSafeAnswer(leaf)
        on, off = leaf._replace(on=(*leaf.on, region)), leaf._replace(off=(*leaf.off, region))
        return [region, self.grow(on), self.grow(off)]

    def split(self, leaf: Leaf) -> int | None:
        """Return the region without which there is most room; None: nothing is left to split on."""
        open_ = [g for g in sorted(self.regions) if g not in leaf.on + leaf.off and self.spec.regions[g]]
        open_ = [g for g in open_ if any(self.boxes.meeting([*leaf.on, g], f, leaf.off) is not None for f in FORMATS)]
        best: tuple[float, int] | None = None
        for g in open_[:_CANDIDATES]:
            without = leaf._replace(off=(*leaf.off, g))
            point = _Literals(self, without, affine=bool(self.moving), nodes=30).run()
            room = -1.0 if point is None else point.room
            if best is None or room > best[0]:
                best = room, g
        return None if best is None else best[1]

    def groups(self, leaf: Leaf) -> list[int]:
        """Return the one-hot groups of which regions ask for members, and more than one is left in a leaf."""
        named = {g for region in self.regions for g in self.boxes.of(region, BINARY64).members}
        known = self.boxes.meeting(leaf.on, BINARY64, leaf.off)
        return [g for g in sorted(named) if known is None or self.boxes.count(g, known.members.get(g)) > 1]

    def table(self, leaf: Leaf, g: int) -> list[tuple[Form, Fraction]] | None:
        """Return an answer for each member of a group, as a table; None: some member has none."""
        known = self.boxes.meeting(leaf.on, BINARY64, leaf.off)
        members = None if known is None else known.members.get(g)
        found: dict[int, list[tuple[Form, Fraction]]] = {}
        for k in self.spec.groups[g]:
            if members is None or k in members:
                point = _Literals(self, leaf, affine=False, hurting=True, only=(g, k)).run()
                if point is None:
                    return None
                found[k] = self.rounded(point)
        tables: list[tuple[Form, Fraction]] = []
        for i in range(len(self.typical)):
            values = {k: stored[i][1] for k, stored in found.items()}
            alike = set(values.values())
            tables.append(({}, alike.pop()) if len(alike) == 1 else ({k: v for k, v in values.items() if v}, _ZERO))
        return tables

    # --- proofs

    def accept(self, leaf: Leaf, stored: list[tuple[Form, Fraction]]) -> bool:
        """Prove an answer; note the leaf if that succeeds."""
        facts, number = Facts(self.boxes, leaf), len(self.leaves)
        plain = Safe(facts, self.clips, stored, {})
        moves = {j: mu for j in range(len(self.clips)) if (mu := self.move(plain, j))}
        safe, proofs = Safe(facts, self.clips, stored, moves), dict[tuple[int, ...], list[Any]]()
        for rule, c, _ in self.checked.clauses:
            for region in self.spec.rules[rule].regions:
                if region not in leaf.off and (found := self.prove(safe, self.spec.rules[rule].clauses[c], region)):
                    proofs[number, rule, region, c] = found
        try:
            check_leaf(safe, number, self.checked, dict(proofs))
        except Rejected:
            return False
        self.leaves.append((leaf, stored))
        for (_, rule, region, c), (literal, mu) in proofs.items():
            key = {"leaf": number, "rule": rule, "region": region, "clause": c}
            self.proofs.append({**key, "literal": literal, "mu": mu})
        self.moved += [{"leaf": number, "clip": j, "mu": mu} for j, mu in sorted(moves.items())]
        return True

    def rounded(self, point: Point) -> list[tuple[Form, Fraction]]:
        """Return an answer in the units of the rules, in float32 numbers that are 0 or normal."""
        slope = np.where(np.abs(point.slope) < 1e-7, 0.0, point.slope) * self.unit[:, None] / self.half
        offset = point.offset * self.unit - slope @ self.middle
        result: list[tuple[Form, Fraction]] = [({}, _float32(value)) for value in self.typical]
        for i, output in enumerate(self.read):
            own = {k: _float32(v) for k, v in zip(self.used, slope[i], strict=True)}
            result[output] = {k: v for k, v in own.items() if v}, _float32(offset[i])
        return result

    def move(self, safe: Safe, j: int) -> list[list[Any]]:
        """Return multipliers that show best how little a clip moves the stored answer; none where none are needed."""
        clip, facts = self.clips[j], safe.facts
        i, region = clip.limit.output, clip.limit.region
        if i not in self.places[0] or region in facts.leaf.off or not has_rows(facts, None, region):
            return []
        forms = move_forms(clip, safe.slope(i, region), safe.stored[i][1], safe.rounded[i])

        def largest(mu: list[list[Any]]) -> Fraction:
            found = [facts.most(form, constant, None, clip.limit.region, mu) for form, constant in forms]
            return max((f for f in found if f is not None), default=Fraction(0))

        least, best = largest([]), []
        if least <= 0:
            return []
        for form, constant in forms:
            for mu, _ in best_multipliers(facts, form, constant, seen=clip.limit.region):
                if (found := largest(mu)) < least:
                    least, best = found, mu
        return best

    def prove(self, safe: Safe, clause: list[Literal], region: int) -> list[Any] | None:
        """Return the literal and the multipliers that prove a clause in a leaf; None: none are needed, or known."""
        try:
            safe.clause(clause, region, None)
        except Rejected:
            pass
        else:
            return None
        if not has_rows(safe.facts, region, None):
            return None
        for number, literal in enumerate(map(without_zeros, clause)):
            for mu, _ in best_multipliers(safe.facts, *safe.form(literal, region), stated=region):
                found = safe.excess(literal, region, mu)
                if found is None or found < 0 or (found == 0 and not literal.strict):
                    return [number, mu]
        return None

    # --- in scaled units

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
        """Return the inputs of a leaf where a region holds as stated and another as the gate sees it; None: none.

        `only`: of a group, one of its members alone.
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
        ends = [self.ends(known, k) for k in self.used]
        low, high = ((np.array([float(end[i]) for end in ends]) - self.middle) / self.half for i in (0, 1))
        for g, group in enumerate(self.spec.groups):
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
        return None if found.located[1] is not None else found

    def ends(self, known: Known, k: int) -> tuple[Fraction, Fraction]:
        """Return the range of an input; of a member of a group the values that it may have."""
        g = self.boxes.group.get(k)
        if g is None:
            low, high = (side[k] for side in self.spec.passed[BINARY64])
            return known.ends.get(k, (low, high))
        members = known.members.get(g)
        if members is not None and k not in members:
            return Fraction(0), Fraction(0)
        return Fraction(int(self.boxes.count(g, members) == 1)), Fraction(1)

    def need(self, literal: Literal, part: RegionMaximum, *, roomy: bool = True) -> Need:
        """Return a literal in scaled units, divided by its largest coefficient."""
        g, s = np.zeros(len(self.read)), np.zeros(len(self.used))
        for places, form, row in ((self.places[0], literal.y, g), (self.places[1], literal.x, s)):
            for k, v in form.items():
                row[places[k]] = float(v)
        g, bound, s = g * self.unit, float(literal.bound) - s @ self.middle, s * self.half
        size = np.abs(g).max()
        return Need(RobustRow(g / size, s / size, bound / size, part.region, roomy=roomy), part)


class _Literals:
    """The search for one literal per clause and the answer that satisfies them, in one leaf."""

    def __init__(
        self, search: _Search, leaf: Leaf, *, affine: bool, nodes: int = _NODES, hurting: bool = False,
        only: Only = None,
    ) -> None:  # fmt: skip
        self.search, self.nodes = search, nodes
        self.layout = Layout(len(search.read), 0, len(search.used), affine)
        self.base: list[Need] = []
        self.limits: list[tuple[int, int, Need]] = []  # of which those that hurt are added to what is chosen
        self.open: list[list[Need]] = []
        self.pairs: list[tuple[RegionMaximum, npt.NDArray[np.intp]]] = []
        rules, place = search.spec.rules, search.places[0]
        meets = search.meeting(only)
        for clip in search.limits:
            limit = clip.limit
            if limit.region in meets and (part := search.part(leaf, None, limit.region, only)) is not None:
                sign = Fraction(-limit.side)
                x = {k: -sign * v for k, v in limit.slope.items()}
                literal = Literal({limit.output: sign}, x, sign * limit.offset, limit.strict)
                self.limits.append((place[limit.output], limit.side, search.need(literal, part, roomy=False)))
        if not affine and len(self.limits) > _MANY_LIMITS:
            self.limits = _tightest(self.limits)
        if not hurting:
            self.base, self.limits = [need for *_, need in self.limits], []
        for clause in search.checked.clauses:
            literals = [search.checked.literals[k] for k in clause.literals]
            for region in rules[clause.rule].regions:
                if region in meets and (part := search.part(leaf, region, None, only)) is not None:
                    needs = [search.need(literal, part) for literal in literals]
                    self.base += needs if len(needs) == 1 else []
                    self.open += [needs] if len(needs) > 1 else []
        for rule in search.checked.excluding:
            for region in rules[rule].regions:
                if region in meets and (part := search.part(leaf, region, None, only)) is not None:
                    own = [[place[label] for label in pair] for pair in rules[rule].exclusions]
                    self.pairs.append((part, np.array(own, dtype=np.intp)))

    def run(self) -> Point | None:
        """Return an answer that leaves room, or the one that leaves most; None: none was found."""
        best: Point | None = None
        for start in (self.guessed(), []) if self.open or self.pairs else ([],):
            if start is None or (best is not None and best.room >= _ENOUGH):
                continue
            found = branch_and_bound(
                partial(self.node, start),
                max_nodes=self.nodes,
                below=np.inf if best is None else -best.room,
                enough=-_ENOUGH,
            )
            best = best if found.answer is None else found.answer
        return best

    def guessed(self) -> list[Need] | None:
        """Return one literal per clause that some constant answer satisfies with room; None: none was found."""
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
            near=search.near,
            reach=np.full(len(search.read), _NEAR),
            room=np.array([float(need.row.roomy) for need in needs]),
            most=_CAP,
        )
        return None if chosen is None else [needs[k] for k in chosen[len(self.base) :]]

    def exclusion(self, part: RegionMaximum, pair: list[int]) -> list[Need]:
        """Return "not both" of two labels, numbered among the outputs read."""
        h, k = (self.search.read[i] for i in pair)
        return [self.search.need(literal, part) for literal in exclusion((h, k))]

    def node(self, start: list[Need], chosen: tuple[Need, ...]) -> Node[Point, Need] | None:
        """Return the answer with most room, affine in some inputs, and the clause that it breaks most."""
        search, layout = self.search, self.layout
        near, cost = np.zeros((layout.outputs, layout.stride)), np.full((layout.outputs, layout.stride), 1e-4)
        near[:, -1], cost[:, -1] = search.near, 1e-3 / layout.outputs
        fixed = np.zeros(near.shape, dtype=bool)
        fixed[:, :-1] = ~np.isin(search.used, search.moving)[: layout.stride - 1]
        asked = (*self.base, *start, *chosen)
        ways = {(int(i), int(np.sign(need.row.g[i]))) for need in asked for i in np.flatnonzero(need.row.g)}
        found = roomy_center(
            [need.row for need in (*asked, *(need for i, side, need in self.limits if (i, side) in ways))],
            layout,
            room=(0.0, _CAP),
            near=near.reshape(-1),
            cost=cost.reshape(-1),
            fixed=fixed.reshape(-1),
        )
        if found is None:
            return None
        table = found[0].reshape(near.shape)
        slope = table[:, :-1] if layout.passthrough else np.zeros((layout.outputs, layout.inputs))
        point = Point(slope, table[:, -1], found[1])
        return Node(-point.room, point, [need for _, need in sorted(self.broken(point), key=lambda item: -item[0])])

    def broken(self, point: Point) -> list[tuple[float, Need]]:
        """Return the literals, each with its slack, of the clause that is broken most; none if all hold."""
        least = min(1e-6, point.room)
        moved: dict[tuple[int, int], float] = {}  # how far clips move it, by output and side
        for i, side, need in self.limits:
            moved[i, side] = max(moved.get((i, side), 0.0), -need.slack(point))

        def slack(need: Need) -> float:
            hurt = [abs(v) * moved.get((i, 1 if v > 0 else -1), 0.0) for i, v in enumerate(need.row.g.tolist()) if v]
            return float(need.slack(point) - sum(hurt))

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


def _tightest(limits: list[tuple[int, int, Need]]) -> list[tuple[int, int, Need]]:
    """Return the limits that a constant answer has to obey: of each output and side the tightest."""
    found: dict[tuple[int, int], tuple[float, Need]] = {}
    for i, side, need in limits:
        least = need.row.h - (float(need.support(need.row.s[None])[0][0]) if need.row.s.any() else 0.0)
        if (i, side) not in found or least < found[i, side][0]:
            found[i, side] = least, need
    return [(i, side, need) for (i, side), (_, need) in found.items()]


def _float32(value: float) -> Fraction:
    single = float(np.float32(value))
    return Fraction(single) if abs(single) >= TINY else Fraction(0)


def find_safe(boxes: Boxes, clips: list[Clip], checked: Checked, *, typical: Array, scale: Array) -> SafeAnswers:
    """Return proved safe answers for all inputs.

    Args:
        boxes: The kernel's specification, with what its comparisons leave.
        clips: The clips behind which answers are served.
        checked: What is checked on candidates.
        typical: An answer that safe ones should be near, (m,).
        scale: Units of the outputs, (m,).

    Raises:
        NoSafeAnswer: If none is proved; names the leaf.
    """
    search = _Search(boxes, clips, checked, typical, scale)
    tree = search.grow(ROOT)
    m, d = len(scale), len(search.spec.inputs)
    slope, offset = np.zeros((len(search.leaves), m, d), np.float32), np.zeros((len(search.leaves), m), np.float32)
    for number, (_, stored) in enumerate(search.leaves):
        for i, (form, constant) in enumerate(stored):
            offset[number, i] = float(constant)
            for k, v in form.items():
                slope[number, i, k] = float(v)
    return SafeAnswers(tree, slope, offset, search.proofs, search.moved)
