"""Safe answers: for every leaf of a small tree over the gate, one affine answer that obeys all clauses, proved.

A linear program proposes it, in outputs divided by their scale: most room, capped, and near a typical answer. First
a constant, then an affine function of the inputs that rules mention, then the leaf is split. The exact checker decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.certificates.multipliers import best_multipliers
from smle.solvers import LinearProgram, MixedIntegerProgram, solve
from smle_check import Rejected
from smle_check.floats import BINARY64, FORMATS, TINY
from smle_check.heads.candidates import Checked, Safe, move_forms, rounding, without_zeros
from smle_check.heads.clips import Clip
from smle_check.heads.known import ROOT, Boxes, Facts, Form, Leaf
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


class Polytope(NamedTuple):
    """Inputs in units of their half range: lower <= u <= upper, A u <= b. Shapes (d,), (rows, d), (rows,)."""

    lower: Array
    upper: Array
    A: Array
    b: Array

    def most(self, slope: Array) -> float:
        """Return the maximum of slope.u; minus infinity if it is empty."""
        if not slope.any():
            return 0.0
        if not len(self.A):
            return float(np.where(slope > 0, slope * self.upper, slope * self.lower).sum())
        found = solve(LinearProgram(-slope, self.A, np.full(len(self.b), -np.inf), self.b, self.lower, self.upper))
        return float(slope @ found.x) if found.x is not None else -np.inf


class Need(NamedTuple):
    """outputs.w + inputs.u <= bound - room over a polytope; outputs (m,) in scales, inputs (d,) in half ranges."""

    outputs: Array
    inputs: Array
    bound: float
    polytope: Polytope
    is_limit: bool = False


class Point(NamedTuple):
    """A proposed answer in scaled units: slope (m, d), offset (m,), and the room that it leaves."""

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
    ranges: Array
    leaves: list[tuple[Leaf, list[tuple[Form, Fraction]]]] = field(default_factory=list)
    proofs: list[dict[str, Any]] = field(default_factory=list)
    moved: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec = self.boxes.spec
        low, high = (np.array([float(v) for v in side]) for side in self.spec.passed[BINARY64])
        self.middle, self.half = (low + high) / 2, np.where(high > low, (high - low) / 2, 1.0)
        literals = self.checked.literals
        pairs = [pair for rule in self.checked.excluding for pair in self.spec.rules[rule].exclusions]
        read = {i for literal in literals for i in literal.y} | {label for pair in pairs for label in pair}
        self.read = sorted(read)
        self.limits = [clip for clip in self.clips if clip.limit.output in read]
        moving = {k for literal in literals for k in literal.x} | {k for c in self.limits for k in c.limit.slope}
        self.moving = sorted(moving)

    # --- the tree

    def grow(self, leaf: Leaf) -> Any:
        """Return the tree below a leaf, and note its leaves."""
        for columns in ([], self.moving) if self.moving else ([],):
            point = _Literals(self, leaf, columns).run()
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
            point = _Literals(self, without, self.moving, nodes=30).run()
            room = -1.0 if point is None else point.room
            if best is None or room > best[0]:
                best = room, g
        return None if best is None else best[1]

    # --- proofs

    def accept(self, leaf: Leaf, point: Point) -> bool:
        """Round an answer and prove it; note the leaf if that succeeds."""
        stored, facts = self.rounded(point), Facts(self.boxes, leaf)
        moves = {j: mu for j, clip in enumerate(self.clips) if (mu := self.move(facts, clip, stored))}
        safe = Safe(facts, self.clips, stored, moves)
        number, proofs = len(self.leaves), []
        for rule, c, _ in self.checked.clauses:
            for region in self.spec.rules[rule].regions:
                if region in leaf.off:
                    continue
                found = self.prove(safe, self.spec.rules[rule].clauses[c], region)
                if found is None:
                    return False
                if found[1]:
                    key = {"leaf": number, "rule": rule, "region": region, "clause": c}
                    proofs.append({**key, "literal": found[0], "mu": found[1]})
        off: dict[int, bool] = {}
        for rule in self.checked.excluding:
            regions = [g for g in self.spec.rules[rule].regions if g not in leaf.off]
            if all(facts.most({}, Fraction(0), g, None, []) is None for g in regions):
                continue
            for pair in self.spec.rules[rule].exclusions:
                for label in pair:
                    if label not in off:
                        off[label] = safe.is_off(label)
                if not (off[pair[0]] or off[pair[1]]):
                    return False
        self.leaves.append((leaf, stored))
        self.proofs += proofs
        self.moved += [{"leaf": number, "clip": j, "mu": mu} for j, mu in sorted(moves.items())]
        return True

    def rounded(self, point: Point) -> list[tuple[Form, Fraction]]:
        """Return an answer in the units of the rules, in float32 numbers that are 0 or normal."""
        slope = point.slope * self.scale[:, None] / self.half
        slope[np.abs(point.slope) < 1e-7] = 0.0
        offset = point.offset * self.scale - slope @ self.middle
        result = []
        for i in range(len(offset)):
            form = {k: v for k in np.flatnonzero(slope[i]).tolist() if (v := _float32(slope[i, k]))}
            result.append((form, _float32(offset[i])))
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
            for mu in _multipliers(facts, form, constant, None, clip.limit.region):
                if (found := largest(mu)) < least:
                    least, best = found, mu
        return best

    def prove(self, safe: Safe, clause: list[Literal], region: int) -> tuple[int, list[list[Any]]] | None:
        """Return the literal and the multipliers that prove a clause in a leaf; None: not proved."""
        try:
            safe.clause(clause, region, None)
        except Rejected:
            pass
        else:
            return 0, []
        for number, literal in enumerate(map(without_zeros, clause)):
            form, constant = safe.form(literal)
            for mu in _multipliers(safe.facts, form, constant, region, None):
                found = safe.excess(literal, region, mu)
                if found is None or found < 0 or (found == 0 and not literal.strict):
                    return number, mu
        return None

    # --- in scaled units

    def polytope(self, leaf: Leaf, stated: int | None, seen: int | None) -> Polytope | None:
        """Return the inputs of a leaf where a region holds as stated and another as the gate sees it; None: none."""
        regions = sorted({*leaf.on, *(g for g in (stated, seen) if g is not None)})
        ends = self.boxes.meeting(regions, BINARY64, leaf.off)
        if ends is None:
            return None
        low, high = (
            np.array([float(side[k]) for k in range(len(self.middle))]) for side in self.boxes.sides(ends, BINARY64)
        )
        facts = Facts(self.boxes, leaf)
        rows = [facts.row(r, as_stated, BINARY64) for r, as_stated in facts.rows(stated, seen).items()]
        rows = [row for row in rows if len(row[0]) > 1]
        A, b = np.zeros((len(rows), len(self.middle))), np.zeros(len(rows))
        for i, (terms, bound) in enumerate(rows):
            for k, v in terms.items():
                A[i, k] = float(v)
            b[i] = float(bound)
        b = b - A @ self.middle
        return Polytope((low - self.middle) / self.half, (high - self.middle) / self.half, A * self.half, b)

    def need(self, literal: Literal, polytope: Polytope, *, is_limit: bool = False) -> Need:
        """Return a literal in scaled units, divided by its largest coefficient."""
        outputs, inputs = np.zeros(len(self.scale)), np.zeros(len(self.middle))
        for i, v in literal.y.items():
            outputs[i] = float(v) * self.scale[i]
        for k, v in literal.x.items():
            inputs[k] = float(v)
        bound = float(literal.bound) - inputs @ self.middle
        size = np.abs(outputs).max() if literal.y else max(np.abs(inputs * self.half).max(), abs(bound), 1e-300)
        return Need(outputs / size, inputs * self.half / size, bound / size, polytope, is_limit)


class _Literals:
    """The search for one literal per clause and the answer that satisfies them, in one leaf."""

    def __init__(self, search: _Search, leaf: Leaf, columns: list[int], *, nodes: int = _NODES) -> None:
        self.search, self.leaf, self.columns, self.nodes = search, leaf, columns, nodes
        self.best: Point | None = None
        self.base: list[Need] = []
        self.open: list[list[Need]] = []
        self.pairs: list[tuple[Polytope, npt.NDArray[np.intp]]] = []
        spec = search.spec
        for clip in search.limits:
            limit = clip.limit
            polytope = None if limit.region in leaf.off else search.polytope(leaf, None, limit.region)
            if polytope is not None:
                sign = Fraction(-limit.side)
                x = {k: -sign * v for k, v in limit.slope.items()}
                literal = Literal({limit.output: sign}, x, sign * limit.offset, limit.strict)
                self.base.append(search.need(literal, polytope, is_limit=True))
        for clause in search.checked.clauses:
            literals = [search.checked.literals[k] for k in clause.literals]
            for region in spec.rules[clause.rule].regions:
                polytope = None if region in leaf.off else search.polytope(leaf, region, None)
                if polytope is not None:
                    needs = [search.need(literal, polytope) for literal in literals]
                    self.base += needs if len(needs) == 1 else []
                    self.open += [needs] if len(needs) > 1 else []
        for rule in search.checked.excluding:
            for region in spec.rules[rule].regions:
                polytope = None if region in leaf.off else search.polytope(leaf, region, None)
                if polytope is not None:
                    self.pairs.append((polytope, np.array(spec.rules[rule].exclusions, dtype=np.intp)))

    def run(self) -> Point | None:
        """Return an answer that leaves room, or the one that leaves most; None: none was found."""
        for room in (0.05, 1e-4) if self.open or self.pairs else ():
            if self.best is None:
                self.descend(self.guessed(room))
        if self.best is None or self.best.room < _ENOUGH:
            self.descend([])
        return self.best

    def guessed(self, room: float) -> list[Need]:
        """Return one literal per clause that some constant answer satisfies with room; none if none is found."""
        lp, search = _Builder(), self.search
        wanted = {
            int(i) for needs in [self.base, *self.open] for need in needs for i in np.flatnonzero(need.outputs < 0)
        }
        typical, reach = search.typical / search.scale, np.minimum(search.ranges / search.scale, _NEAR)
        offset = {i: lp.variable(typical[i] - reach[i], typical[i] + reach[i]) for i in search.read}
        for need in self.base:
            terms = [(offset[int(i)], need.outputs[i]) for i in np.flatnonzero(need.outputs)]
            most = need.polytope.most(need.inputs)
            if most > -np.inf:
                lp.row(terms, need.bound - most - (0.0 if need.is_limit else room))
        clauses = list(self.open)
        for polytope, pairs in self.pairs:
            own = [pair for pair in pairs.tolist() if wanted.issuperset(pair)][:_MOST_PAIRS]
            clauses += [[search.need(literal, polytope) for literal in exclusion((h, k))] for h, k in own]
        chosen: list[list[tuple[int, Need]]] = []
        for needs in clauses:
            switches = []
            for need in needs:
                own_outputs = np.flatnonzero(need.outputs)
                most = need.polytope.most(need.inputs)
                if most == -np.inf:
                    continue
                switch = lp.variable(0.0, 1.0, integer=True)
                terms = [(offset[int(i)], need.outputs[i]) for i in own_outputs]
                spare = need.bound - most - room
                beyond = max(float(np.abs(need.outputs) @ (np.abs(typical) + reach)) - spare, 0.0)
                lp.row([*terms, (switch, beyond)], spare + beyond)
                switches.append((switch, need))
            if len(switches) == len(needs):
                lp.row([(switch, -1.0) for switch, _ in switches], -1.0)
                chosen.append(switches)
        x = lp.solve()
        if x is None:
            return []
        return [max(((x[switch], i, need) for i, (switch, need) in enumerate(own)))[2] for own in chosen]

    def descend(self, chosen: list[Need]) -> None:
        """Solve with the chosen literals, and branch on a clause that the answer breaks."""
        self.nodes -= 1
        point = _solved(self.search, [*self.base, *chosen], self.columns) if self.nodes >= 0 else None
        if point is None or (self.best is not None and point.room <= self.best.room):
            return
        broken = self.broken(point)
        if broken is None:
            self.best = point
            return
        for _, need in sorted(broken, key=lambda item: -item[0]):
            self.descend([*chosen, need])
            if self.nodes < 0 or (self.best is not None and self.best.room >= _ENOUGH):
                return

    def broken(self, point: Point) -> list[tuple[float, Need]] | None:
        """Return the literals, each with its slack, of the clause that is broken most; None: all hold."""
        worst: tuple[float, list[tuple[float, Need]]] | None = None
        least = min(1e-6, point.room)
        for needs in self.open:
            slacks = [(_slack(need, point), need) for need in needs]
            most = max(slack for slack, _ in slacks)
            if most < least and (worst is None or most < worst[0]):
                worst = most, slacks
        if worst is not None:
            return worst[1]
        for polytope, pairs in self.pairs:
            tops = np.array([point.offset[i] + polytope.most(point.slope[i]) for i in range(len(point.offset))])
            both = pairs[(tops[pairs] > -least).all(axis=1)]
            if len(both):
                literals = exclusion((int(both[0, 0]), int(both[0, 1])))
                needs = [self.search.need(literal, polytope) for literal in literals]
                return [(_slack(need, point), need) for need in needs]
        return None


def _slack(need: Need, point: Point) -> float:
    slope = need.outputs @ point.slope + need.inputs
    return need.bound - float(need.outputs @ point.offset) - need.polytope.most(slope)


class _Builder:
    """Rows of a linear program: a w + ... <= bound."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.objective: list[float] = []
        self.integers: list[bool] = []
        self.bounds: list[float] = []
        self.floors: list[float] = []

    def variable(self, lower: float, upper: float, gain: float = 0.0, *, integer: bool = False) -> int:
        """Add a variable that is worth `gain` each."""
        self.integers.append(integer)
        self.lower.append(lower)
        self.upper.append(upper)
        self.objective.append(-gain)
        return len(self.lower) - 1

    def row(self, terms: Sequence[tuple[int, float]], upper: float, lower: float = -np.inf) -> None:
        """Add lower <= terms <= upper."""
        self.entries += [(len(self.bounds), j, v) for j, v in terms if v]
        self.bounds.append(upper)
        self.floors.append(lower)

    def solve(self) -> Array | None:
        """Return the optimum, or None."""
        rows, columns, numbers = zip(*self.entries, strict=True) if self.entries else ((), (), ())
        shape = len(self.bounds), len(self.lower)
        A = sparse.csr_matrix((numbers, (rows, columns)), shape=shape)
        objective, floors, bounds = np.array(self.objective), np.array(self.floors), np.array(self.bounds)
        lower, upper, integers = np.array(self.lower), np.array(self.upper), np.array(self.integers, dtype=bool)
        program = LinearProgram(objective, A, floors, bounds, lower, upper)
        if integers.any():
            program = MixedIntegerProgram(objective, A, floors, bounds, lower, upper, integrality=integers)
        x = solve(program, time_limit=10.0).x
        return x if x is not None and np.isfinite(x).all() else None


def _solved(search: _Search, needs: list[Need], columns: list[int]) -> Point | None:
    """Return the answer, affine in some inputs, with most room over all needs; None: there is none."""
    lp, m, d = _Builder(), len(search.scale), len(search.middle)
    typical, reach = search.typical / search.scale, search.ranges / search.scale
    room, limit_room = lp.variable(0.0, _CAP, 1.0), lp.variable(0.0, _CAP, 0.1)
    offset, slope = {}, {}
    for i in search.read:
        offset[i] = lp.variable(-reach[i], reach[i])
        away = lp.variable(0.0, np.inf, -1e-3 / len(search.read))
        lp.row([(offset[i], 1.0), (away, -1.0)], typical[i])
        lp.row([(offset[i], -1.0), (away, -1.0)], -typical[i])
        for k in columns:
            slope[i, k] = lp.variable(-reach[i], reach[i])
            size = lp.variable(0.0, np.inf, -1e-4)
            lp.row([(slope[i, k], 1.0), (size, -1.0)], 0.0)
            lp.row([(slope[i, k], -1.0), (size, -1.0)], 0.0)
    for need in needs:
        own = np.flatnonzero(need.outputs)
        terms = [(offset[int(i)], need.outputs[i]) for i in own]
        terms.append((limit_room if need.is_limit else room, 1.0))
        polytope = need.polytope
        sloped = {k for k in columns if any((int(i), k) in slope for i in own)}
        if not sloped:
            most = polytope.most(need.inputs)
            if most > -np.inf:
                lp.row(terms, need.bound - most)
            continue
        keys = sorted(
            sloped | set(np.flatnonzero(need.inputs).tolist()) | set(np.flatnonzero(polytope.A.any(axis=0)).tolist())
        )
        weights = [lp.variable(0.0, np.inf) for _ in polytope.b]
        terms += list(zip(weights, polytope.b, strict=True))
        for k in keys:
            up, down = lp.variable(0.0, np.inf), lp.variable(0.0, np.inf)
            terms += [(up, polytope.upper[k]), (down, -polytope.lower[k])]
            balance = [(slope[int(i), k], need.outputs[i]) for i in own if (int(i), k) in slope]
            balance += [(w, -polytope.A[r, k]) for r, w in enumerate(weights)]
            lp.row([*balance, (up, -1.0), (down, 1.0)], -need.inputs[k], -need.inputs[k])
        lp.row(terms, need.bound)
    x = lp.solve()
    if x is None:
        return None
    slopes, offsets = np.zeros((m, d)), typical.copy()
    for i in search.read:
        offsets[i] = x[offset[i]]
        for k in columns:
            slopes[i, k] = x[slope[i, k]]
    return Point(slopes, offsets, float(x[room]))


def _float32(value: float) -> Fraction:
    single = float(np.float32(value))
    return Fraction(single) if abs(single) >= TINY else Fraction(0)


def _multipliers(
    facts: Facts, form: Form, constant: Fraction, stated: int | None, seen: int | None
) -> Iterator[list[list[Any]]]:
    """Yield multipliers that bound form.x + constant best over the facts, one set per format."""
    regions = sorted({*facts.leaf.on, *(g for g in (stated, seen) if g is not None)})
    for fmt in FORMATS:
        ends = facts.boxes.meeting(regions, fmt, facts.leaf.off)
        if ends is None:
            continue
        rows = {r: facts.row(r, as_stated, fmt) for r, as_stated in facts.rows(stated, seen).items()}
        rows = {r: row for r, row in sorted(rows.items()) if len(row[0]) > 1}
        low, high = ([side[k] for k in range(len(facts.spec.inputs))] for side in facts.boxes.sides(ends, fmt))
        weights, _ = best_multipliers(form, constant, rows, low, high)
        yield [[r, str(mu)] for r, mu in sorted(weights.items())]


def find_safe(
    boxes: Boxes, clips: list[Clip], checked: Checked, *, typical: Array, scale: Array, ranges: Array
) -> SafeAnswers:
    """Return proved safe answers for all inputs.

    Args:
        boxes: The kernel's specification, with what its comparisons leave.
        clips: The clips behind which answers are served.
        checked: What is checked on candidates.
        typical: An answer that safe ones should be near, (m,).
        scale: Units of the outputs, (m,).
        ranges: How large outputs may be, (m,).

    Raises:
        NoSafeAnswer: If none is proved; names the leaf.
    """
    search = _Search(boxes, clips, checked, typical, scale, ranges)
    tree = search.grow(ROOT)
    m, d = len(scale), len(search.middle)
    slope, offset = np.zeros((len(search.leaves), m, d), np.float32), np.zeros((len(search.leaves), m), np.float32)
    for number, (_, stored) in enumerate(search.leaves):
        for i, (form, constant) in enumerate(stored):
            offset[number, i] = float(constant)
            for k, v in form.items():
                slope[number, i, k] = float(v)
    return SafeAnswers(tree, slope, offset, search.proofs, search.moved)
