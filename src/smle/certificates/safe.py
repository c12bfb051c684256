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

from smle.certificates.multipliers import best_multipliers
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
from smle_check.heads.candidates import Checked, Safe, check_leaf, move_forms, rounding, without_zeros
from smle_check.heads.clips import Clip
from smle_check.heads.known import ROOT, Boxes, Facts, Form, Known, Leaf
from smle_check.specification import Literal, exclusion

__all__ = ["NoSafeAnswer", "SafeAnswers", "find_safe"]

Array = npt.NDArray[np.float64]
MAX_LEAVES = 64
_CAP = 0.5  # of the room, in scales
_ENOUGH = 1e-3  # room with which the search for literals ends
_NODES = 300
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
    parts: dict[tuple[Leaf, int | None, int | None], RegionMaximum | None] = field(default_factory=dict)

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
        self.unit, self.near = self.scale[self.read], self.typical[self.read] / self.scale[self.read]

    # --- the tree

    def grow(self, leaf: Leaf) -> Any:
        """Return the tree below a leaf, and note its leaves."""
        for affine in (False, True) if self.moving else (False,):
            point = _Literals(self, leaf, affine=affine).run()
            if point is not None and self.accept(leaf, point):
                return None
        region = self.split(leaf) if len(self.leaves) < MAX_LEAVES else None
        if region is None:
            raise NoSafeAnswer(leaf)
        on, off = leaf._replace(on=(*leaf.on, region)), leaf._replace(off=(*leaf.off, region))
        return [region, self.grow(on), self.grow(off)]

    def split(self, leaf: Leaf) -> int | None:
        """Return the region without which there is most room; None: nothing is left to split on."""
        own = [c.rule for c in self.checked.clauses] + self.checked.excluding + [c.limit.rule for c in self.limits]
        regions = {g for rule in own for g in self.spec.rules[rule].regions}
        open_ = [g for g in sorted(regions) if g not in leaf.on + leaf.off and self.spec.regions[g]]
        open_ = [g for g in open_ if any(self.boxes.meeting([*leaf.on, g], f, leaf.off) is not None for f in FORMATS)]
        best: tuple[float, int] | None = None
        for g in open_[:_CANDIDATES]:
            without = leaf._replace(off=(*leaf.off, g))
            point = _Literals(self, without, affine=bool(self.moving), nodes=30).run()
            room = -1.0 if point is None else point.room
            if best is None or room > best[0]:
                best = room, g
        return None if best is None else best[1]

    # --- proofs

    def accept(self, leaf: Leaf, point: Point) -> bool:
        """Round an answer and prove it; note the leaf if that succeeds."""
        stored, facts, number = self.rounded(point), Facts(self.boxes, leaf), len(self.leaves)
        moves = {j: mu for j, clip in enumerate(self.clips) if (mu := self.move(facts, clip, stored))}
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

    def move(self, facts: Facts, clip: Clip, stored: list[tuple[Form, Fraction]]) -> list[list[Any]]:
        """Return multipliers that show best how little a clip moves the stored answer; none where none are needed."""
        slope, offset = stored[clip.limit.output]
        if clip.limit.output not in self.read or clip.limit.region in facts.leaf.off:
            return []
        own = rounding(self.spec, slope, offset)
        forms = move_forms(clip, slope, offset, own)

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
        for number, literal in enumerate(map(without_zeros, clause)):
            for mu, _ in best_multipliers(safe.facts, *safe.form(literal), stated=region):
                found = safe.excess(literal, region, mu)
                if found is None or found < 0 or (found == 0 and not literal.strict):
                    return [number, mu]
        return None

    # --- in scaled units

    def part(self, leaf: Leaf, stated: int | None, seen: int | None) -> RegionMaximum | None:
        """Return the inputs of a leaf where a region holds as stated and another as the gate sees it; None: none."""
        key = leaf, stated, seen
        if key not in self.parts:
            self.parts[key] = None if stated in leaf.off or seen in leaf.off else self._part(*key)
        return self.parts[key]

    def _part(self, leaf: Leaf, stated: int | None, seen: int | None) -> RegionMaximum | None:
        regions = sorted({*leaf.on, *(g for g in (stated, seen) if g is not None)})
        known = self.boxes.meeting(regions, BINARY64, leaf.off)
        if known is None:
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

    def __init__(self, search: _Search, leaf: Leaf, *, affine: bool, nodes: int = _NODES) -> None:
        self.search, self.nodes = search, nodes
        self.layout = Layout(len(search.read), 0, len(search.used), affine)
        self.base: list[Need] = []
        self.open: list[list[Need]] = []
        self.pairs: list[tuple[RegionMaximum, npt.NDArray[np.intp]]] = []
        rules, place = search.spec.rules, search.places[0]
        for clip in search.limits:
            limit = clip.limit
            if (part := search.part(leaf, None, limit.region)) is not None:
                sign = Fraction(-limit.side)
                x = {k: -sign * v for k, v in limit.slope.items()}
                literal = Literal({limit.output: sign}, x, sign * limit.offset, limit.strict)
                self.base.append(search.need(literal, part, roomy=False))
        for clause in search.checked.clauses:
            literals = [search.checked.literals[k] for k in clause.literals]
            for region in rules[clause.rule].regions:
                if (part := search.part(leaf, region, None)) is not None:
                    needs = [search.need(literal, part) for literal in literals]
                    self.base += needs if len(needs) == 1 else []
                    self.open += [needs] if len(needs) > 1 else []
        for rule in search.checked.excluding:
            for region in rules[rule].regions:
                if (part := search.part(leaf, region, None)) is not None:
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
        found = roomy_center(
            [need.row for need in (*self.base, *start, *chosen)],
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
        slacks = [[(need.slack(point), need) for need in needs] for needs in self.open]
        worst = min(slacks, key=lambda own: max(slack for slack, _ in own), default=None)
        if worst is not None and max(slack for slack, _ in worst) < least:
            return worst
        for part, pairs in self.pairs:
            tops = point.offset + part(point.slope)[0]
            both = pairs[(tops[pairs] > -least).all(axis=1)]
            if len(both):
                return [(need.slack(point), need) for need in self.exclusion(part, both[0].tolist())]
        return []


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
