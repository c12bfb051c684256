"""Safe answers: for every leaf of a small tree over the gate, one affine answer that provably obeys all clauses.

A linear program proposes it: the answer with most room, up to a cap, near a typical one, in outputs divided by their
scale. The search tries a constant, then an affine function of the inputs that rules mention, then splits the leaf. The
exact checker decides.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.multipliers import best_multipliers, has_rows, largest
from smle.heads.rules.label_answers import LabelRule, TooMany, obeying, smallest
from smle.heads.rules.safe_literals import CAP, ENOUGH, LITTLE, LiteralSearch, SafePoint, Scaled, Stored
from smle.nearest.clauses import sign_of
from smle.regions.simplex import ExactOptimal
from smle_check import Rejected
from smle_check.floats import BINARY64, FORMATS, TINY
from smle_check.heads.candidates import Checked, Safe, check_leaf, move_forms, without_zeros
from smle_check.heads.clips import Clip
from smle_check.heads.known import ROOT, Boxes, Facts, Leaf
from smle_check.stated import StatedLiteral

__all__ = ["NoSafeAnswer", "SafeTree"]

Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
_ZERO = Fraction(0)
MAX_LEAVES = 64
_MANY_LABELS = 10  # with more outputs, the first set of labels that obeys is taken
_CANDIDATES = 12  # regions tried for a split
_ANSWERS = 32  # answers of members of a group, kept to be tried for the next one


class NoSafeAnswer(Exception):  # noqa: N818 - an outcome that the caller explains
    """No safe answer was proved in a leaf that cannot be split further.

    `rules` contradict each other at `x`, if known.
    """

    def __init__(self, leaf: Leaf, rules: tuple[int, ...] = (), x: tuple[Fraction, ...] | None = None) -> None:
        super().__init__("no safe answer")
        self.leaf, self.rules, self.x = leaf, rules, x


class SafeTree(Scaled):
    """A growing tree of safe answers: `leaves`, `proofs` that they obey, and how far clips move them (`moved`).

    `boxes` holds the kernel's specification, with what its comparisons leave. Safe answers are near `typical` (m,), in
    units of `scale` (m,).
    """

    def __init__(self, boxes: Boxes, clips: list[Clip], checked: Checked, typical: Array, scale: Array) -> None:
        super().__init__(boxes, clips, checked, typical, scale)
        self.leaves: list[tuple[Leaf, Stored]] = []
        self.proofs: list[dict[str, Any]] = []
        self.moved: list[dict[str, Any]] = []

    # --- the tree

    def answers(self) -> tuple[Any, Single, Single]:
        """Return a tree for all inputs, and slopes (leaves, m, d) and offsets (leaves, m). Raises NoSafeAnswer."""
        tree, (m, d) = self.grow(ROOT), (len(self.scale), len(self.spec.inputs))
        slope, offset = np.zeros((len(self.leaves), m, d), np.float32), np.zeros((len(self.leaves), m), np.float32)
        for number, (_, stored) in enumerate(self.leaves):
            for i, (form, constant) in enumerate(stored):
                offset[number, i] = float(constant)
                for k, v in form.items():
                    slope[number, i, k] = float(v)
        return tree, slope, offset

    def grow(self, leaf: Leaf) -> Any:
        """Return the tree below a leaf, and record its leaves."""
        try:
            chosen = self.labels(leaf)
        except TooMany:
            chosen = None
        if chosen is not None:
            if not chosen and self.all_meet(leaf):
                raise self.conflict(leaf)
            if len(chosen) > _MANY_LABELS and self.accept(leaf, chosen):
                return None
        if chosen == []:
            return self.branch(leaf)
        ways = [(affine, hurting) for hurting in (False, True) for affine in (False, True) if self.moving or not affine]
        for affine, hurting in ways:
            point = LiteralSearch(self, leaf, affine=affine, hurting=hurting).run()
            if point is not None and self.accept(leaf, self.rounded(point)):
                return None
        groups = self.groups(leaf)
        for g, enough in product(groups, (ENOUGH, LITTLE)):
            stored = self.table(leaf, g, enough)
            if stored is not None and self.accept(leaf, stored):
                return None
        return self.branch(leaf)

    def branch(self, leaf: Leaf) -> Any:
        """Split a leaf that has no answer of its own; return the tree below it."""
        region = self.split(leaf) if len(self.leaves) < MAX_LEAVES else None
        if region is None:
            raise NoSafeAnswer(leaf)
        on, off = leaf._replace(on=(*leaf.on, region)), leaf._replace(off=(*leaf.off, region))
        return [region, self.grow(on), self.grow(off)]

    def split(self, leaf: Leaf) -> int | None:
        """Return the region whose absence leaves most room, or None if nothing is left to split on."""
        open_ = [g for g in sorted(self.regions) if g not in leaf.on + leaf.off and self.spec.regions[g]]
        open_ = [g for g in open_ if self.meets(leaf, g)]
        best: tuple[float, int] | None = None
        for g in open_[:_CANDIDATES]:
            without = leaf._replace(off=(*leaf.off, g))
            point = LiteralSearch(self, without, affine=bool(self.moving), nodes=30).run()
            room = -1.0 if point is None else point.room
            if best is None or room > best[0]:
                best = room, g
        return None if best is None else best[1]

    def labels(self, leaf: Leaf) -> Stored | None:
        """Return a set of labels that obeys all rules that may apply in a leaf, or [] if there is none.

        None if rules say more than which labels are on.
        """
        stated = self.label_rules(leaf)
        if stated is None:
            return None
        found = obeying(stated.values(), self.typical >= 0)
        if found is None:
            return []
        stored: Stored = [({}, _float32(value)) for value in self.typical]
        for i in self.read:
            value, room = float(self.typical[i]), CAP * float(self.scale[i])
            stored[i] = {}, _float32(max(value, room) if found[i] else min(value, -room))
        return stored

    def label_rules(self, leaf: Leaf) -> dict[int, LabelRule] | None:
        """Return what each rule that may apply in a leaf says about labels, or None if one says something else."""
        spec, signs = self.spec, [sign_of(literal) for literal in self.checked.literals]
        limits = [(clip.limit, sign_of(literal)) for clip, literal in self.limiting]
        if None in signs or any(sign is None for _, sign in limits):
            return None
        is_open = {g: g not in leaf.off and self.meets(leaf, g) for g in self.regions}
        found: dict[int, LabelRule] = {}
        for limit, sign in limits:
            if is_open[limit.region] and sign is not None:
                found.setdefault(limit.rule, LabelRule([], [])).clauses.append((sign,))
        for rule, _, literals in self.checked.clauses:
            if any(is_open[g] for g in spec.rules[rule].regions):
                own = tuple(sign for k in literals if (sign := signs[k]) is not None)
                found.setdefault(rule, LabelRule([], [])).clauses.append(own)
        for rule in self.checked.excluding:
            if any(is_open[g] for g in spec.rules[rule].regions):
                pairs = np.array(spec.rules[rule].exclusions.flat, dtype=np.intp).reshape(-1, 2)
                found.setdefault(rule, LabelRule([], [])).pairs.append(pairs)
        return found

    def conflict(self, leaf: Leaf) -> NoSafeAnswer:
        """Return an error with rules about labels that contradict each other, at an input where all of them apply."""
        regions = [g for g in sorted(self.regions) if g not in leaf.off and self.meets(leaf, g)]
        known = self.boxes.meeting([*leaf.on, *regions], BINARY64, leaf.off)
        found = None if known is None else largest(self.boxes, known, BINARY64, {}, [])
        stated = self.label_rules(leaf) or {}
        rules = smallest(stated, self.typical >= 0)
        return NoSafeAnswer(leaf, rules, found.x if isinstance(found, ExactOptimal) else None)

    def meets(self, leaf: Leaf, region: int) -> bool:
        """Return whether a region holds somewhere in a leaf, judged by ranges and members."""
        return any(self.boxes.meeting([*leaf.on, region], fmt, leaf.off) is not None for fmt in FORMATS)

    def all_meet(self, leaf: Leaf) -> bool:
        """Return whether some input of a leaf lies in all regions open there, judged by ranges and members."""
        regions = [g for g in sorted(self.regions) if g not in leaf.off and self.meets(leaf, g)]
        rows = [self.spec.rows[r] for g in (*regions, *leaf.on, *leaf.off) for r in self.spec.regions[g]]
        if any(len(row.terms) > 1 and self.boxes.group_of(row) is None for row in rows):
            return False
        if any(self.boxes.beyond(g, BINARY64) == ({}, {}) for g in leaf.off):  # nothing is known about it
            return False
        return self.boxes.meeting([*leaf.on, *regions], BINARY64, leaf.off) is not None

    def groups(self, leaf: Leaf) -> list[int]:
        """Return the one-hot groups that rules refer to, with more than one member left in a leaf."""
        named = {g for region in self.regions for g in self.boxes.of(region, BINARY64).members} | self.looked_up
        known = self.boxes.meeting(leaf.on, BINARY64, leaf.off)
        return [g for g in sorted(named) if known is None or self.boxes.count(g, known.members.get(g)) > 1]

    def table(self, leaf: Leaf, g: int, enough: float) -> Stored | None:
        """Return an answer for each member of a group, as a table, with enough room each, or None if some has none."""
        known = self.boxes.meeting(leaf.on, BINARY64, leaf.off)
        members = None if known is None else known.members.get(g)
        found: dict[int, Stored] = {}
        answers: list[Stored] = []  # another member's answer often works; the last one that did comes first
        for k in self.spec.groups[g]:
            if members is None or k in members:
                literals = LiteralSearch(self, leaf, affine=False, hurting=True, only=(g, k), enough=enough)
                clipped = ((stored, literals.clipped(stored, (g, k))) for stored in answers)
                stored, own = next((pair for pair in clipped if literals.allows(pair[1])), (None, None))
                if stored is None:
                    point, size = literals.run(), literals.size
                    if point is None:
                        return None
                    stored = self.rounded(SafePoint(point.slope * size, point.offset * size, point.room * size))
                answers = [stored, *(other for other in answers if other is not stored)][:_ANSWERS]
                found[k] = own or literals.clipped(stored, (g, k))
        tables: Stored = []
        for i in range(len(self.typical)):
            values = {k: own[i][1] for k, own in found.items()}
            alike = set(values.values())
            tables.append(({}, alike.pop()) if len(alike) == 1 else ({k: v for k, v in values.items() if v}, _ZERO))
        return tables

    # --- proofs

    def accept(self, leaf: Leaf, stored: Stored) -> bool:
        """Prove an answer; record the leaf on success."""
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

    def rounded(self, point: SafePoint) -> Stored:
        """Return an answer in the units of the rules, in float32 numbers that are 0 or normal."""
        slope = np.where(np.abs(point.slope) < 1e-7, 0.0, point.slope) * self.unit[:, None] / self.half
        offset = point.offset * self.unit - slope @ self.middle
        result: Stored = [({}, _float32(value)) for value in self.typical]
        for i, output in enumerate(self.read):
            own = {k: _float32(v) for k, v in zip(self.used, slope[i], strict=True)}
            result[output] = {k: v for k, v in own.items() if v}, _float32(offset[i])
        return result

    def move(self, safe: Safe, j: int) -> list[list[Any]]:
        """Return the multipliers that best bound how far a clip moves the stored answer; none if not needed."""
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

    def prove(self, safe: Safe, clause: list[StatedLiteral], region: int) -> list[Any] | None:
        """Return the literal and multipliers that prove a clause in a leaf, or None if none are needed or known."""
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


def _float32(value: float) -> Fraction:
    single = float(np.float32(value))
    return Fraction(single) if abs(single) >= TINY else Fraction(0)
