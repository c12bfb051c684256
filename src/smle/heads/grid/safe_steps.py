"""Safe answers on the grid: for every leaf, whole numbers `slope.kx + offset` that provably obey all rules there.

A mixed-integer program proposes them, near a typical answer. The search tries a constant, then an answer that moves
with stepped inputs, then splits the leaf, at the bit of a region or in the middle of an input. Equalities are solved
first. The exact checker decides; nothing is rounded, so no room is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.multipliers import best_multipliers, range_of
from smle.heads.grid.reduction import Reduction
from smle.heads.grid.whole_numbers import Part, Problem, WholeRow, whole_row
from smle_check import Rejected
from smle_check.floats import BINARY32, FORMATS, nearest
from smle_check.heads.candidates import Checked
from smle_check.heads.grid import GridLeaf, SafeAnswer, check_leaf, cut_leaves
from smle_check.heads.known import ROOT, Form
from smle_check.heads.steps import SMALLEST_INPUT, Lattice, ReadBoxes, ReadFacts
from smle_check.stated import StatedLiteral

__all__ = ["NoGridAnswer", "SafeSearch", "feasible"]

Array = npt.NDArray[np.float64]
MAX_LEAVES, MAX_DEPTH = 200, 40
_ROUNDED = 1e-12  # share of a limit that rounding may take
_CANDIDATES = 12  # regions, and inputs, to try for a split


class NoGridAnswer(Exception):  # noqa: N818 - an outcome that the author explains
    """No safe answer was proved in a leaf; `x` is an input at which none obeys, if one is known."""

    def __init__(self, leaf: GridLeaf, x: Array | None = None) -> None:
        super().__init__("no safe answer")
        self.leaf, self.x = leaf, x


@dataclass
class SafeSearch:
    """The search for a tree of safe answers: its problem, and what was found so far.

    `leaves` has slopes (m, d) and offsets (m,) of each leaf, `proofs` why they obey.
    """

    spec: Lattice
    listed: Checked
    reduction: Reduction
    typical: Array  # in steps
    weight: Array  # of a step, in units of distances
    leaves: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = field(default_factory=list)
    proofs: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec, m = self.spec, len(self.spec.outputs)
        self.boxes = ReadBoxes(spec)
        self.rows = [whole_row(spec, self.reduction, literal) for literal in self.listed.literals]
        self.ranges = []
        for i in range(m):
            low, high = spec.output_ranges[i]
            b = {int(j): float(self.reduction.T[i, j]) for j in np.flatnonzero(self.reduction.T[i])}
            t, a = float(self.reduction.t[i]), self.reduction.B[i].astype(np.float64)
            self.ranges.append(WholeRow(a, b, {}, high - t, 1.0))
            self.ranges.append(WholeRow(-a, {j: -v for j, v in b.items()}, {}, t - low, 1.0))
        moving = {j for row in (*self.rows, *self.ranges) for j in row.b}
        self.stepped = sorted(moving)

    # --- the tree

    def answers(self) -> tuple[Any, Array, Array]:
        """Return a tree for all inputs, and slopes (leaves, m, d) and offsets (leaves, m). Raises NoGridAnswer."""
        tree = self.grow(GridLeaf(ROOT, {}))
        slopes, offsets = (np.array(side, dtype=np.float64) for side in zip(*self.leaves, strict=True))
        return tree, slopes, offsets

    def grow(self, leaf: GridLeaf, depth: int = 0) -> Any:
        """Return the tree below a leaf, and record its leaves."""
        whole = self.part(leaf, None)
        if whole is None:  # the leaf has no inputs, so any whole numbers will do
            self.leaves.append((np.zeros_like(self.reduction.T), np.array(self.spec.output_ranges)[:, 0]))
            return None
        for affine in (False, True) if self.stepped else (False,):
            for room in (1.0, 0.0):
                found = self.problem(leaf, affine=affine, room=room).solved()
                if found is not None and self.accept(leaf, found):
                    return None
        for x in self.tried(whole):
            if not feasible(self, x, self.active(x), whole=True):
                raise NoGridAnswer(leaf, x)
        split = self.split(leaf, whole) if len(self.leaves) < MAX_LEAVES and depth < MAX_DEPTH else None
        if split is None:
            raise NoGridAnswer(leaf)
        question, first, second = split
        return [question, self.grow(first, depth + 1), self.grow(second, depth + 1)]

    def split(self, leaf: GridLeaf, whole: Part) -> tuple[Any, GridLeaf, GridLeaf] | None:
        """Return the best split of a leaf: at the bit of a region, or in the middle of an input."""
        best: tuple[float, tuple[Any, GridLeaf, GridLeaf]] | None = None
        for one in (*self.regions(leaf), *self.cuts(leaf, whole)):
            missed = sum(self.missed(part) for part in one[1:])
            if best is None or missed < best[0] - 1e-6:
                best = missed, one
        return None if best is None else best[1]

    def tried(self, whole: Part) -> list[Array]:
        """Return inputs of a leaf at which to try rules before it is split: its middle, and two corners."""
        stepped = np.array([step is not None for step in self.spec.input_steps])
        middle = (whole.low + whole.high) / 2
        corners = [np.where(stepped, np.floor(middle), middle), whole.low, whole.high]
        return [self.sorted(x, whole) for x in corners]

    def sorted(self, x: Array, whole: Part) -> Array:
        """Return an input with one category per group that the leaf allows."""
        x = x.copy()
        for group in self.spec.groups:
            best = max(group, key=lambda j: (whole.low[j], whole.high[j]))
            x[group] = 0.0
            x[best] = 1.0
        return x

    def exact(self, x: Array) -> tuple[Fraction, ...]:
        """Convert an input from steps to numbers."""
        return tuple(Fraction(float(v)) * (step or 1) for v, step in zip(x, self.spec.input_steps, strict=True))

    def active(self, x: Array) -> set[int]:
        """Return the rules that apply at an input, as stated; none if categories are mixed."""
        spec, at = self.spec, self.exact(x)
        if any(sum(at[j] for j in group) != 1 for group in spec.groups):
            return set()

        def holds(r: int) -> bool:
            row = spec.rows[r]
            total = sum((v * at[j] for j, v in row.terms.items()), Fraction(0))
            return total < row.bound if row.strict else total <= row.bound

        return {r for r, rule in enumerate(spec.rules) if any(all(map(holds, spec.regions[g])) for g in rule.regions)}

    def regions(self, leaf: GridLeaf) -> list[tuple[Any, GridLeaf, GridLeaf]]:
        """Return splits at the bits of regions."""
        spec, bits = self.spec, leaf.bits
        listed = {g for rule, *_ in self.listed.clauses for g in spec.rules[rule].regions if spec.regions[g]}
        open_ = [g for g in sorted(listed) if g not in bits.on + bits.off and self.part(leaf, g) is not None]
        return [
            (
                g,
                leaf._replace(bits=bits._replace(on=(*bits.on, g))),
                leaf._replace(bits=bits._replace(off=(*bits.off, g))),
            )
            for g in open_[:_CANDIDATES]
        ]

    def cuts(self, leaf: GridLeaf, whole: Part) -> list[tuple[Any, GridLeaf, GridLeaf]]:
        """Return cuts in the middle of the inputs that move limits most."""
        reach: dict[int, float] = {}
        for row in (*self.rows, *self.ranges):
            for j, v in (*row.b.items(), *row.s.items()):
                reach[j] = max(reach.get(j, 0.0), abs(v) * float(whole.high[j] - whole.low[j]))
        found: list[tuple[Any, GridLeaf, GridLeaf]] = []
        for j in sorted(reach, key=lambda j: -reach[j])[:_CANDIDATES]:
            middle = (whole.low[j] + whole.high[j]) / 2
            at = Fraction(int(np.floor(middle)))
            if self.spec.input_steps[j] is None:
                at = nearest(Fraction(float(middle)), BINARY32)
            usable = reach[j] > 0 and (not at or abs(at) >= SMALLEST_INPUT)
            if usable and whole.low[j] <= float(at) < whole.high[j]:
                found.append(({"input": j, "at": str(at)}, *cut_leaves(self.spec, leaf, j, str(at))))
        return found

    def missed(self, leaf: GridLeaf) -> float:
        """Return the least by which rules are missed in a leaf, in steps; offsets may be real."""
        if self.part(leaf, None) is None:
            return 0.0
        return self.problem(leaf, affine=bool(self.stepped), room=0.0).missed()

    def part(self, leaf: GridLeaf, region: int | None) -> Part | None:
        """Return the ends of the inputs of a leaf where a region holds; None if there are none."""
        spec, bits = self.spec, leaf.bits
        if region in bits.off:
            return None
        regions = sorted({*bits.on, *(() if region is None else (region,))})
        found = [ReadBoxes(spec, leaf.cuts, self.boxes).meeting(regions, fmt, bits.off) for fmt in FORMATS]
        left = [(known, fmt) for known, fmt in zip(found, FORMATS, strict=True) if known is not None]
        if not left:
            return None
        low, high = np.empty(len(spec.inputs)), np.empty(len(spec.inputs))
        for j, step in enumerate(spec.input_steps):
            ends = [range_of(self.boxes, known, fmt, j) for known, fmt in left]
            low[j], high[j] = (float(end / (step or 1)) for end in (min(a for a, _ in ends), max(b for _, b in ends)))
        return Part(low, high)

    # --- answers

    def problem(self, leaf: GridLeaf, *, affine: bool, room: float) -> Problem:
        """Return the problem of a leaf."""
        whole = self.part(leaf, None)
        assert whole is not None

        def parts_of(rule: int) -> list[Part]:
            found = [self.part(leaf, region) for region in self.spec.rules[rule].regions]
            return [part for part in found if part is not None]

        return Problem(self, whole, parts_of, affine=affine, room=room)

    def accept(self, leaf: GridLeaf, found: tuple[Array, Array]) -> bool:
        """Prove an answer; record the leaf on success."""
        spec, number = self.spec, len(self.leaves)
        base, slopes = found
        B, T = self.reduction.B, self.reduction.T
        offset = self.reduction.t + B @ base.astype(np.int64)
        slope = T + B @ slopes.astype(np.int64)
        stored = [{int(j): Fraction(int(row[j])) for j in np.flatnonzero(row)} for row in slope]
        facts = ReadFacts(ReadBoxes(spec, leaf.cuts, self.boxes), leaf.bits)
        proofs: dict[tuple[int, ...], list[Any]] = {}
        try:
            safe = SafeAnswer(spec, facts, stored, [Fraction(int(v)) for v in offset])
            for rule, c, numbers in self.listed.clauses:
                clause = [self.listed.literals[k] for k in numbers]
                forms = [safe.form(literal) for literal in clause]
                for region in spec.rules[rule].regions:
                    if region not in leaf.bits.off and (proof := prove(safe, clause, forms, region)):
                        proofs[number, rule, region, c] = proof
            check_leaf(safe, number, self.listed, dict(proofs))
        except Rejected:
            return False
        self.leaves.append((slope, offset))
        for (_, rule, region, c), (literal, mu) in proofs.items():
            key = {"leaf": number, "rule": rule, "region": region, "clause": c}
            self.proofs.append({**key, "literal": literal, "mu": mu})
        return True


def prove(
    safe: SafeAnswer, clause: list[StatedLiteral], forms: list[tuple[Form, Fraction]], region: int
) -> list[Any] | None:  # fmt: skip
    """Return the literal and multipliers that prove a clause in a leaf, or None if none are needed or known."""
    try:
        safe.clause(clause, forms, region, None)
    except Rejected:
        pass
    else:
        return None
    for number, (literal, form) in enumerate(zip(clause, forms, strict=True)):
        for mu, _ in best_multipliers(safe.facts, *form, stated=region):
            found = safe.facts.most(*form, region, None, mu)
            if found is None or found < 0 or (found == 0 and not literal.strict):
                return [number, mu]
    return None


def feasible(search: SafeSearch, x: Array, rules: set[int], *, whole: bool) -> bool:
    """Return whether an answer in whole or real numbers obeys some rules at one input (d,), judged in floats."""
    part = Part(x, x)
    problem = Problem(search, part, lambda rule: [part] if rule in rules else [])
    if not whole:
        problem.whole = [False] * problem.f + problem.whole[problem.f :]
        # A single real answer, such as five shares of 0.2, is lost if floats round its limits: solvers differ there.
        problem.sides = [side + _ROUNDED * abs(side) for side in problem.sides]
    return problem.solution() is not None
