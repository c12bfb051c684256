"""The head behind any model: the clip list, then a check of what clips alone do not settle (section 13).

Limits of single outputs are clips. Clauses that couple outputs or have alternatives, and exclusions of labels, are
checked on candidates, which may come from anywhere:

    y = settled(clip list(x, candidate)) of the first candidate with ok(x, y); else of safe(x) = slope.x + offset
    ok: every clause of an active rule has a literal that holds, and none of its excluded pairs has y_h >= 0, y_k >= 0
    a literal holds: sum64(g.y + k.|y| + s.x) <= threshold, where k covers rounding (`sums`)

A number nearer to 0 than 2^-126 is settled as 0. A tree over the bits of the gate chooses safe(x), which is proved to
obey every clause, leaf by leaf. Without such clauses there is one candidate and no check.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Claim, DerivedObligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import BINARY64, FORMATS, TINY, U
from smle_check.guard import GUARD_NAMES, packed
from smle_check.heads.clips import (
    Clip,
    Limit,
    by_side,
    check_clips,
    is_limit,
    limits_of,
    names_of,
    read_clips,
    read_proofs,
)
from smle_check.heads.known import ROOT, Facts, Form, Leaf
from smle_check.heads.sums import WIDE, columns_of, sum_of
from smle_check.reading import Rejected, Tensor, fields, index, require, values
from smle_check.stated import StatedLiteral, StatedSpecification

MAX_LEAVES, MAX_DEPTH, MAX_CHECKED = 1_000, 64, 200_000
SHORT = 8  # up to this many slopes are used as they are
PER_PROOF = 50  # steps for each clip, and each literal of a clause in a region, of a leaf


class CheckedClause(NamedTuple):
    """A checked clause of a rule, with the numbers of its literals."""

    rule: int
    clause: int
    literals: tuple[int, ...]


class Checked(NamedTuple):
    """What is checked: distinct literals, first the ones that move with inputs; clauses; rules with exclusions."""

    literals: list[StatedLiteral]
    moving: int
    clauses: list[CheckedClause]
    excluding: list[int]

    @property
    def is_empty(self) -> bool:
        """Whether clips settle everything."""
        return not (self.clauses or self.excluding)


def checked_of(spec: StatedSpecification) -> Checked:
    """Return what the rules require besides limits of single outputs."""
    return collected(spec, is_limit, lambda literal: bool(literal.x))


def collected(
    spec: StatedSpecification, is_settled: Callable[[list[StatedLiteral]], bool], moves: Callable[[StatedLiteral], bool]
) -> Checked:
    """Return the clauses, without zeros, that nothing else has settled; literals that move with inputs come first."""
    require(sum(len(rule.clauses) for rule in spec.rules) <= MAX_CHECKED, "rules: too many clauses")
    stated = [(i, c, clause) for i, rule in enumerate(spec.rules) for c, clause in enumerate(rule.clauses)]
    stated = [(i, c, [without_zeros(literal) for literal in clause]) for i, c, clause in stated]
    stated = [(i, c, clause) for i, c, clause in stated if not is_settled(clause)]
    found = {key_of(literal): literal for _, _, clause in stated for literal in clause}
    literals = sorted(found.values(), key=lambda literal: not moves(literal))  # a stable sort
    numbers = {key_of(literal): k for k, literal in enumerate(literals)}
    clauses = [CheckedClause(i, c, tuple(numbers[key_of(literal)] for literal in clause)) for i, c, clause in stated]
    excluding = [i for i, rule in enumerate(spec.rules) if rule.exclusions]
    return Checked(literals, sum(map(moves, literals)), clauses, excluding)


def without_zeros(literal: StatedLiteral) -> StatedLiteral:
    """Drop zero coefficients from a literal."""
    y, x = ({k: v for k, v in form.items() if v} for form in (literal.y, literal.x))
    return literal._replace(y=y, x=x)


def key_of(literal: StatedLiteral) -> tuple[Any, ...]:
    """Return a key that identifies a literal."""
    return tuple(literal.y.items()), tuple(literal.x.items()), literal.bound, literal.strict


# --- The check ---------------------------------------------------------------------------------------------------


def check_tensors(spec: StatedSpecification, checked: Checked) -> dict[str, Tensor]:
    """Return the numbers of the check that section 13 prescribes, literal by literal, for the columns it reads."""
    sums = [sum_of(spec, literal) for literal in checked.literals]
    return {
        "check.outputs": listed([v for s in sums for v in s.outputs.values()]),
        "check.sizes": listed([s.sizes.get(i, Fraction(0)) for s in sums for i in s.outputs]),
        "check.inputs": listed([v for s in sums for v in s.inputs.values()]),
        "check.thresholds": listed([s.threshold for s in sums]),
    }


def listed(numbers: list[Fraction]) -> Tensor:
    """Pack float64 numbers into a tensor."""
    return packed(numbers, BINARY64, len(numbers))


# --- Safe answers ------------------------------------------------------------------------------------------------


def read_tree(data: Any, gated: list[int], leaf: Leaf = ROOT) -> list[Leaf]:
    """Read a tree: null is a leaf, [region, tree if its bit is on, tree if it is off] a branch."""
    if data is None:
        return [leaf]
    require(isinstance(data, list) and len(data) == 3, "tree: expected null or [region, tree, tree]")
    region = data[0]
    require(type(region) is int and region in gated, "tree: expected a region of the gate")
    require(region not in leaf.on + leaf.off, "tree: a region is asked twice on a path")
    require(len(leaf.on) + len(leaf.off) < MAX_DEPTH, "tree: too deep")
    found = read_tree(data[1], gated, leaf._replace(on=(*leaf.on, region)))
    found += read_tree(data[2], gated, leaf._replace(off=(*leaf.off, region)))
    require(len(found) <= MAX_LEAVES, "tree: too many leaves")
    return found


def move_forms(clip: Clip, slope: Form, offset: Fraction, own: Fraction) -> list[tuple[Form, Fraction]]:
    """Return affine functions of x; the largest bounds how far a clip moves an answer to its side, beyond `own`."""
    side = clip.limit.side
    result = []
    for factor in (1 - U, 1 + U) if clip.error else (Fraction(1),):
        lost = factor * clip.error + 2 * TINY if clip.error else Fraction(0)
        keys = {*clip.slope, *slope}
        form = {k: side * (factor * clip.slope.get(k, Fraction(0)) - slope.get(k, Fraction(0))) for k in keys}
        form |= {k: form[k] + factor * v for k, v in clip.more.items()}
        constant = side * (factor * clip.offset - offset) + lost - own
        result.append((form, constant))
    return result


def rounding(spec: StatedSpecification, slope: Form, offset: Fraction) -> Fraction:
    """Bound |float32(sum64(slope.x) + offset), settled - (slope.x + offset)|.

    A constant is stored exactly. So is a table (slopes over one group, no offset): its sum is one stored number times
    1, plus others times 0.
    """
    if not slope or spec.is_table(slope, offset):
        return Fraction(0)
    error = spec.error(slope, offset, "safe answer")
    return error + U * (spec.largest(slope, offset) + error) + 2 * TINY


class Safe:
    """The safe answers of one leaf, moved by the clips like any candidate."""

    def __init__(self, facts: Facts, clips: list[Clip], stored: list[tuple[Form, Fraction]], moves: dict[int, Any]):
        self.facts, self.spec, self.clips, self.stored, self.moves = facts, facts.spec, clips, stored, moves
        self.rounded = [rounding(self.spec, *answer) for answer in stored]
        self.sides, self.ways = by_side(clips), dict[tuple[int, int], Fraction]()
        self.others: dict[tuple[int, int], Form] = {}

    def way(self, i: int, side: int) -> Fraction:
        """Bound how far the served output i may be above (side 1) or below the stored one."""
        if (i, side) not in self.ways:
            most = Fraction(0)
            for j in self.sides.get((i, side), ()):
                most = max(most, self.moved(j, most))
            self.ways[i, side] = self.rounded[i] + most
        return self.ways[i, side]

    def moved(self, j: int, least: Fraction) -> Fraction:
        """Bound how far a clip may move the stored answer to its side, beyond rounding; return 0 if below `least`."""
        clip, most = self.clips[j], Fraction(0)
        limit: Limit = clip.limit
        if limit.region in self.facts.leaf.off:  # a clip whose bit is off does nothing
            return most
        slope, offset = self.slope(limit.output, limit.region), self.stored[limit.output][1]
        for form, constant in move_forms(clip, slope, offset, self.rounded[limit.output]):
            if form or constant > least:
                found = self.facts.most(form, constant, None, limit.region, self.moves.get(j, []))
                most = max(most, found if found is not None else Fraction(0))
        return most

    def slope(self, i: int, region: int | None) -> Form:
        """Return the slope of a stored answer, restricted to a region if it is a long table."""
        slope, boxes = self.stored[i][0], self.facts.boxes
        if region is None or len(slope) <= SHORT:
            return slope
        known = [boxes.of(region, fmt).members for fmt in FORMATS]
        for g in known[0]:
            left = [members.get(g) for members in known]
            if all(members is not None and members.among for members in left):
                names = {k for members in left if members is not None for k in members.names}
                if (i, g) not in self.others:
                    self.others[i, g] = {k: v for k, v in slope.items() if boxes.group.get(k) != g}
                return self.others[i, g] | {k: slope[k] for k in names if k in slope}
        return slope

    def form(self, literal: StatedLiteral, region: int | None) -> tuple[Form, Fraction]:
        """Return an affine function of x that bounds g.y + s.x - h for the served safe answer in a region."""
        form, constant = dict(literal.x), -literal.bound
        for i, g in literal.y.items():
            constant += g * self.stored[i][1] + abs(g) * self.way(i, 1 if g > 0 else -1)
            for k, v in self.slope(i, region).items():
                form[k] = form.get(k, Fraction(0)) + g * v
        return form, constant

    def excess(self, literal: StatedLiteral, region: int | None, mu: Any) -> Fraction | None:
        """Bound g.y + s.x - h for the served safe answer where a region holds as stated; None if it holds nowhere."""
        return self.facts.most(*self.form(literal, region), region, None, mu)

    def clause(self, clause: list[StatedLiteral], region: int, proof: list[Any] | None) -> None:
        """Prove that the safe answer satisfies a clause: one literal with multipliers, or any literal without.

        Without multipliers, each member of a one-hot group may use a different literal.
        """
        chosen = clause if proof is None else [clause[index(proof[0], len(clause), "literal")]]
        short = []
        for literal in chosen:
            found = self.excess(without_zeros(literal), region, [] if proof is None else proof[1])
            if found is None or found < 0 or (found == 0 and not literal.strict):
                return
            short.append(found)
        if proof is None and self.by_member(clause, region):
            return
        raise Rejected(f"not proved for the safe answer (short by {rounded_text(min(short), 3, up=True)})")

    def by_member(self, clause: list[StatedLiteral], region: int) -> bool:
        """Return whether a clause holds in a region for each member of a group, each with any literal."""
        forms = [(*self.form(without_zeros(literal), region), literal.strict) for literal in clause]
        groups = {self.facts.boxes.group.get(k) for form, _, _ in forms for k in form} - {None}
        for g in sorted(g for g in groups if g is not None):
            self.spec.work.plan(10 * len(forms) * len(self.spec.groups[g]), "safe answers by members")
            held, left = set[int](), set[int]()
            for form, constant, strict in forms:
                found = self.facts.by_member(form, constant, region, g)
                left.update(found)
                held.update(k for k, value in found.items() if value < 0 or (value == 0 and not strict))
            if left <= held:
                return True
        return False

    def is_off(self, label: int) -> bool:
        """Return whether a label is proved to be off wherever this leaf serves."""
        off = StatedLiteral({label: Fraction(1)}, {}, Fraction(0), True)
        found = self.excess(off, None, [])
        return found is None or found < 0


def read_safe(
    spec: StatedSpecification, tensors: dict[str, Tensor], count: int
) -> list[list[tuple[Form, Fraction]]]:  # fmt: skip
    """Read the stored answers: slope and offset for each leaf and output."""
    m, d = len(spec.outputs), len(spec.inputs)
    slopes = values(tensors, "safe.slope", "F32", (count, m, d))
    offsets = values(tensors, "safe.offset", "F32", (count, m))
    require(all(not v or abs(v) >= TINY for v in (*slopes, *offsets)), "safe: a number is too close to 0")
    result = []
    for leaf in range(count):
        own = []
        for i in range(leaf * m, (leaf + 1) * m):
            slope = {k: v for k, v in enumerate(slopes[i * d : (i + 1) * d]) if v}
            reach = spec.largest(slope, offsets[i]) + rounding(spec, slope, offsets[i])
            require(reach <= WIDE, "safe: an answer beyond 2^100")
            own.append((slope, offsets[i]))
        result.append(own)
    return result


# --- The whole ---------------------------------------------------------------------------------------------------


def gated_regions(spec: StatedSpecification) -> list[int]:
    """Return the regions whose bits the program computes: the regions of all rules."""
    return sorted({region for rule in spec.rules for region in rule.regions})


def require_units(spec: StatedSpecification, tensors: dict[str, Tensor]) -> None:
    """Require units of distance that proposals can use; no proof reads them."""
    units = values(tensors, "check.scale", "F64", (len(spec.outputs),))
    require(all(1 / WIDE <= unit <= WIDE for unit in units), "check.scale: expected numbers from 2^-100 to 2^100")


def check_rules(claim: Claim) -> list[tuple[DerivedObligation, Fraction]]:
    """Check the head: the clips by pairs, the numbers of the check, and the safe answers leaf by leaf."""
    spec, tensors, gated, *_ = claim
    _, tree = fields(claim.program, "head tree", "program")
    limits, leaves, moves = fields(claim.proof, "pairs safe moved", "proof")
    checked = checked_of(spec)
    require(gated == gated_regions(spec), "gate: expected the regions of all rules, in order")
    require(not checked.is_empty or tree is None, "tree: expected null where clips settle every rule")
    known = names_of() | GUARD_NAMES
    if not checked.is_empty:
        known |= {"check.scale", "check.outputs", "check.sizes", "check.inputs", "check.thresholds"}
        known |= {"safe.slope", "safe.offset"}
    odd = sorted(set(tensors) ^ known)
    require(not odd, f"weights: tensor {odd[:1]} is missing or not part of the stated program")
    clips = read_clips(spec, tensors, limits_of(spec))
    settled, pairs = check_clips(spec, clips, limits)
    if checked.is_empty:
        require(leaves == [] and moves == [], "proofs: expected none of safe answers")
        return settled
    require_units(spec, tensors)
    count = sum(len(columns_of(spec, literal)[1]) for literal in checked.literals[: checked.moving])
    require(
        tensors["check.inputs"].shape == (count,), "check.inputs is not what the rules prescribe"
    )  # bounds the work
    for name, prescribed in check_tensors(spec, checked).items():
        require(tensors.get(name) == prescribed, f"{name} is not what the rules prescribe")
    found = read_tree(tree, gated)
    asked = sum(len(spec.rules[c.rule].regions) * len(c.literals) for c in checked.clauses) + len(clips)
    asked += sum(len(spec.rules[r].regions) * len(spec.rules[r].exclusions) for r in checked.excluding) // 10
    spec.work.plan(PER_PROOF * asked * len(found), "safe answers")
    stored, own = read_safe(spec, tensors, len(found)), read_proofs(moves, "leaf clip", "mu")
    proofs = read_proofs(leaves, "leaf rule region clause", "literal mu")
    for number, leaf in enumerate(found):
        moved = {j: own.pop((number, j))[0] for j in range(len(clips)) if (number, j) in own}
        safe = Safe(Facts(pairs.boxes, leaf), clips, stored[number], moved)
        check_leaf(safe, number, checked, proofs)
    require(not proofs, f"proof {list(proofs)[:1]} is for no obligation")
    require(not own, f"proof {list(own)[:1]} is for no clip")
    for clause in checked.clauses:
        for region in spec.rules[clause.rule].regions:
            settled.append(
                (DerivedObligation(0, clause.rule, region, tuple(spec.regions[region]), clause.clause), Fraction(0))
            )
    for rule in checked.excluding:
        for region in spec.rules[rule].regions:
            settled.append((DerivedObligation(0, rule, region, tuple(spec.regions[region]), None), Fraction(0)))
    return settled


def check_leaf(safe: Safe, number: int, checked: Checked, proofs: dict[tuple[int, ...], list[Any]]) -> None:
    """Check every clause and exclusion for the safe answer of one leaf; remove the proofs used."""
    spec, off = safe.spec, set(safe.facts.leaf.off)
    for rule, c, _ in checked.clauses:
        for region in spec.rules[rule].regions:
            if region in off:  # where its bit is off, x is not in the region
                continue
            proof = proofs.pop((number, rule, region, c), None)
            try:
                safe.clause(spec.rules[rule].clauses[c], region, proof)
            except Rejected as reason:
                raise Unproved(
                    DerivedObligation(number, rule, region, tuple(spec.regions[region]), c), str(reason)
                ) from None
    labels: dict[int, bool] = {}
    for rule in checked.excluding:
        for region in spec.rules[rule].regions:
            if region in off or safe.facts.most({}, Fraction(0), region, None, []) is None:
                continue
            for pair in spec.rules[rule].exclusions:
                for label in pair:
                    if label not in labels:
                        labels[label] = safe.is_off(label)
                if not (labels[pair[0]] or labels[pair[1]]):
                    obligation = DerivedObligation(number, rule, region, tuple(spec.regions[region]), None)
                    names = " and ".join(repr(spec.outputs[label]) for label in pair)
                    raise Unproved(obligation, f"the safe answer may have both {names}")
