"""The grid head: every answer is a whole number of steps, and rules are checked in whole numbers (section 14).

A literal `g.y + s.x <= h` over multiples of steps is an inequality between whole numbers, compared exactly; an equality
is two of them. Only the contribution of real inputs is rounded:

    n = C.k + CX.kx <= H                                    all whole: float64 sums below 2^53 are exact
    n <= floor(h') + floor(T),  T = sum64(M.x) + F          with real inputs; M and F err to the safe side

    k = the first candidate, made whole, with lower <= k <= upper and a literal that holds in every clause of every
        active rule; else slope.kx + offset, whole, of the leaf
    y = float32(k * numerator / denominator)

A leaf of the tree knows bits of the gate, and cuts of inputs. Its answer is proved without rounding, so no room is
needed.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Claim, DerivedObligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import BINARY32, BINARY64, TINY, coefficient, error64, nearest, threshold_above, threshold_below
from smle_check.guard import guard_tensors, packed, packed_rows
from smle_check.heads.candidates import MAX_DEPTH, MAX_LEAVES, Checked, collected, gated_regions, require_units
from smle_check.heads.clips import read_proofs
from smle_check.heads.known import ROOT, Form, Leaf
from smle_check.heads.steps import (
    EXACT,
    LARGEST_SUM,
    InputRange,
    Lattice,
    ReadBoxes,
    ReadFacts,
    Whole,
    reading_tensors,
    rows_of,
    whole_form,
)
from smle_check.reading import Rejected, Tensor, fields, index, number, require, values
from smle_check.stated import StatedLiteral, StatedSpecification

SMALLEST_COEFFICIENT = Fraction(1, 2**900)  # of a real input: products with it do not underflow
MOST_TERMS = 2**20
PER_PROOF = 4  # steps for each coefficient that a proof for a safe answer reads


class DeployedComparison(NamedTuple):
    """Deployed numbers of a literal: C, CX, M, H and F above. Without real inputs `inputs` is empty and F is 0."""

    outputs: dict[int, int]
    steps: dict[int, int]
    inputs: Form
    threshold: int
    fraction: Fraction


# --- The check ---------------------------------------------------------------------------------------------------


def listed_of(spec: Lattice) -> Checked:
    """Return what is checked: all clauses except those settled by the ranges of outputs."""
    return collected(spec, lambda clause: in_range(spec, clause), lambda literal: reads_numbers(spec, literal))


def reads_numbers(spec: Lattice, literal: StatedLiteral) -> bool:
    """Return whether a literal reads an input without a step."""
    return any(spec.input_steps[j] is None for j in literal.x)


def in_range(spec: Lattice, clause: list[StatedLiteral]) -> bool:
    """Return whether the range of its output settles a clause: one literal, with one output and no input."""
    if len(clause) != 1 or clause[0].x or len(clause[0].y) != 1:
        return False
    literal = clause[0]
    ((i, g),) = literal.y.items()
    low, high = spec.output_ranges[i]
    most = g * spec.output_steps[i].step * (high if g > 0 else low)
    return most < literal.bound if literal.strict else most <= literal.bound


def comparison_of(spec: Lattice, literal: StatedLiteral, digits: int = BINARY64.precision) -> DeployedComparison:
    """Return what section 14 prescribes for a literal without zeros. `digits`: binary digits of its real inputs."""
    own = {i: g * spec.output_steps[i].step for i, g in literal.y.items()}
    stepped = spec.in_steps({j: v for j, v in literal.x.items() if spec.input_steps[j] is not None})
    real = {j: v for j, v in literal.x.items() if spec.input_steps[j] is None}
    whole = longer(spec, whole_form(own, stepped, "check"), real, literal)
    size = sum(abs(v) * max(map(abs, spec.output_ranges[i])) for i, v in whole.outputs.items())
    size += sum(abs(v) * max(map(abs, spec.input_ranges[j])) for j, v in whole.inputs.items())
    require(size < LARGEST_SUM, "check: a sum of whole numbers beyond 2^52")
    bound = literal.bound * whole.factor
    if not real:
        limit = math.ceil(bound) - 1 if literal.strict else math.floor(bound)
        return DeployedComparison(whole.outputs, whole.inputs, {}, max(-size - 1, min(size, limit)), Fraction(0))
    moved = {j: -v * whole.factor for j, v in real.items()}
    stored, fraction = real_part(spec, moved, bound, literal.strict, digits)
    reach = [spec.sizes[j] for j in stored]
    total = abs(fraction) + sum((abs(v) * spec.sizes[j] for j, v in stored.items()), Fraction(0))
    total += error64(list(stored.values()), reach, fraction, "check")
    limit = math.floor(bound)
    require(total + abs(limit) + size < EXACT, "check: a sum of whole numbers and inputs beyond 2^53")
    return DeployedComparison(whole.outputs, whole.inputs, stored, limit, fraction)


def longer(spec: Lattice, whole: Whole, real: Form, literal: StatedLiteral) -> Whole:
    """Multiply a literal so that the coefficient of its one real input, and its bound, are whole: then nothing is lost.

    A literal stays as it is if it is strict, if products with float32 numbers would lose digits, or if sums come near
    to 2^52.
    """
    if len(real) != 1 or literal.strict:
        return whole
    ((j, stated),) = real.items()
    moved, bound = stated * whole.factor, literal.bound * whole.factor
    times = math.lcm(moved.denominator, bound.denominator)
    reach = abs(moved) * spec.sizes[j] + abs(bound)
    reach += sum(abs(v) * max(1, *map(abs, spec.output_ranges[i])) for i, v in whole.outputs.items())
    reach += sum(abs(v) * max(1, *map(abs, spec.input_ranges[i])) for i, v in whole.inputs.items())
    if 2 * times * reach >= LARGEST_SUM or not is_short(moved * times, BINARY32.precision):
        return whole
    made = [{k: v * times for k, v in form.items()} for form in (whole.outputs, whole.inputs)]
    return Whole(whole.factor * times, *made)


def real_part(spec: Lattice, moved: Form, bound: Fraction, strict: bool, digits: int) -> tuple[Form, Fraction]:
    """Return M and F such that floor(sum64(M.x) + F) is at most `bound - floor(bound) + moved.x` (below if strict)."""
    count, left = len(moved), bound - math.floor(bound)
    require(count < MOST_TERMS, "check: sum too long")
    if not left and not strict:
        if count == 1 and all(is_short(v, digits) for v in moved.values()):
            return moved, Fraction(0)  # nothing is rounded
        signs = {sign_of(spec, j, v) for j, v in moved.items()} - {0}
        if len(signs) <= 1 and None not in signs:  # all terms have the same sign: errors are in proportion
            least = signs != {1}
            share = 1 + Fraction(count + 3, 2**52) * (1 if least else -1)
            return {j: pushed(v * share, outward=least) for j, v in moved.items()}, Fraction(0)
    stored = {j: coefficient(v) for j, v in moved.items()}
    stored = {j: v if abs(v) >= SMALLEST_COEFFICIENT else Fraction(0) for j, v in stored.items()}
    reach = [spec.sizes[j] for j in stored]
    left -= sum((abs(v - stored[j]) * spec.sizes[j] for j, v in moved.items()), Fraction(0))
    most = max(Fraction(1), 2 * abs(left - error64(list(stored.values()), reach, Fraction(1), "check")))
    found = left - error64(list(stored.values()), reach, most, "check")
    require(abs(found) <= most, "check: inputs are too large for the steps")
    return stored, threshold_below(found, strict=strict)


def is_short(value: Fraction, digits: int) -> bool:
    """Return whether products with numbers of so many binary digits are exact: no digit is lost, none is too small."""
    size = abs(value)
    odd = size.numerator // (size.numerator & -size.numerator)
    fits = odd == 1 or odd.bit_length() + digits <= BINARY64.precision
    return fits and not size.denominator & (size.denominator - 1) and size >= SMALLEST_COEFFICIENT


def sign_of(spec: Lattice, j: int, v: Fraction) -> int | None:
    """Return the sign of a product with an input over its whole range, or None if it has both."""
    low = min(side[0][j] for side in spec.passed.values())
    high = max(side[1][j] for side in spec.passed.values())
    if low < 0 < high:
        return None
    return (1 if v > 0 else -1) * (1 if high > 0 else -1 if low < 0 else 0)


def pushed(value: Fraction, *, outward: bool) -> Fraction:
    """Round to a float64 number that is not smaller in size (`outward`) or not larger; inward, tiny ones become 0."""
    if outward:
        size = max(threshold_above(abs(value)), SMALLEST_COEFFICIENT)
    else:
        size = threshold_below(abs(value), strict=False)
        size = size if size >= SMALLEST_COEFFICIENT else Fraction(0)
    return size if value > 0 else -size


def check_tensors(spec: Lattice, listed: Checked) -> dict[str, Tensor]:
    """Return the numbers of the check that section 14 prescribes."""
    made = [comparison_of(spec, literal) for literal in listed.literals]
    m, d = len(spec.outputs), len(spec.inputs)
    result = {}
    for name, own in (("float32", BINARY32), ("float64", BINARY64)):
        moving = [comparison_of(spec, literal, own.precision) for literal in listed.literals[: listed.moving]]
        result[f"check.inputs_{name}"] = packed_rows([c.inputs for c in moving], d)
        result[f"check.fractions_{name}"] = packed([c.fraction for c in moving], BINARY64, len(moving))
    return result | {
        "check.outputs": packed_rows([c.outputs for c in made], m),
        "check.steps": packed_rows([c.steps for c in made], d),
        "check.thresholds": packed([Fraction(c.threshold) for c in made], BINARY64, len(made)),
    }


# --- Safe answers ------------------------------------------------------------------------------------------------


class GridLeaf(NamedTuple):
    """A leaf: the bits on its path, and the cuts of inputs."""

    bits: Leaf
    cuts: dict[int, InputRange]


def read_tree(spec: Lattice, data: Any, gated: list[int], leaf: GridLeaf, depth: int = 0) -> list[GridLeaf]:
    """Read a tree: null is a leaf, [region, on, off] tests a bit, [{"input", "at"}, up to it, beyond] cuts."""
    if data is None:
        return [leaf]
    require(isinstance(data, list) and len(data) == 3, "tree: expected null or [region or cut, tree, tree]")
    require(depth < MAX_DEPTH, "tree: too deep")
    if isinstance(data[0], dict):
        below, beyond = cut_leaves(spec, leaf, *fields(data[0], "input at", "tree"))
    else:
        region, (on, off) = data[0], leaf.bits
        require(type(region) is int and region in gated, "tree: expected a region of the gate")
        require(region not in on + off, "tree: a region is asked twice on a path")
        below = leaf._replace(bits=Leaf((*on, region), off))
        beyond = leaf._replace(bits=Leaf(on, (*off, region)))
    found = read_tree(spec, data[1], gated, below, depth + 1)
    found += read_tree(spec, data[2], gated, beyond, depth + 1)
    require(len(found) <= MAX_LEAVES, "tree: too many leaves")
    return found


def cut_leaves(spec: Lattice, leaf: GridLeaf, column: Any, place: Any) -> tuple[GridLeaf, GridLeaf]:
    """Split a leaf into an input up to a place (a whole number of steps, or a float32), and beyond."""
    j = index(column, len(spec.inputs), "tree")
    step, at = spec.input_steps[j], cut_place(spec, j, place)
    old = leaf.cuts.get(j, InputRange(None, None, False))
    first = at if step is None else at * step
    below = old._replace(upper=first if old.upper is None else min(old.upper, first))
    if step is None:
        later = old.lower is not None and old.lower >= first
        beyond = old if later else old._replace(lower=first, strict=True)
    else:
        beyond = old._replace(lower=first + step if old.lower is None else max(old.lower, first + step))
    return leaf._replace(cuts={**leaf.cuts, j: below}), leaf._replace(cuts={**leaf.cuts, j: beyond})


def cut_place(spec: Lattice, j: int, place: Any) -> Fraction:
    """Read where an input is cut: a whole number of steps, or a float32 number that is 0 or normal."""
    at = number(place, "tree")
    if spec.input_steps[j] is not None:
        require(at.denominator == 1 and abs(at) < EXACT, "tree: expected a cut at a whole number of steps")
        return at
    require(abs(at) <= BINARY32.largest and nearest(at, BINARY32) == at, "tree: expected a cut at a float32 number")
    require(not at or abs(at) >= TINY, "tree: a cut too close to 0")
    return at


class SafeAnswer:
    """The safe answer of one leaf, as affine functions of inputs as they are read; nothing is rounded."""

    def __init__(self, spec: Lattice, facts: ReadFacts, slopes: list[dict[int, Fraction]], offsets: list[Fraction]):
        self.spec, self.facts = spec, facts
        self.answers: list[tuple[Form, Fraction]] = []
        for i, (slope, offset) in enumerate(zip(slopes, offsets, strict=True)):
            form: Form = {}
            for j, v in slope.items():
                step = spec.input_steps[j]
                if step is None:
                    raise Rejected("safe: a slope over an input without a step")
                form[j] = v / step
            reach = sum((abs(v) * max(map(abs, spec.input_ranges[j])) for j, v in slope.items()), abs(offset))
            require(all(v.denominator == 1 for v in (offset, *slope.values())), "safe: expected whole numbers")
            require(reach < EXACT, f"safe: output {spec.outputs[i]!r}: a sum beyond 2^53")
            self.answers.append((form, offset))

    def require_range(self) -> None:
        """Prove that every answer lies in the range of its output."""
        for i, (form, offset) in enumerate(self.answers):
            low, high = self.spec.output_ranges[i]
            for sign, end in ((1, high), (-1, -low)):
                most = self.facts.most({j: sign * v for j, v in form.items()}, sign * offset - end, None, None, [])
                require(most is None or most <= 0, f"safe: output {self.spec.outputs[i]!r} may leave its range")

    def form(self, literal: StatedLiteral) -> tuple[Form, Fraction]:
        """Return g.y + s.x - h for the answer, as an affine function of the inputs."""
        form, constant = dict(literal.x), -literal.bound
        for i, g in literal.y.items():
            slope, offset = self.answers[i]
            size = g * self.spec.output_steps[i].step
            constant += size * offset
            for j, v in slope.items():
                form[j] = form.get(j, Fraction(0)) + size * v
        return form, constant

    def clause(self, clause: list[StatedLiteral], forms: list[tuple[Form, Fraction]], region: int, proof: Any) -> None:
        """Prove that the answer satisfies a clause: one literal with multipliers, or any literal without."""
        chosen = range(len(clause)) if proof is None else [index(proof[0], len(clause), "literal")]
        short = []
        for k in chosen:
            found = self.facts.most(*forms[k], region, None, [] if proof is None else proof[1])
            if found is None or found < 0 or (found == 0 and not clause[k].strict):
                return
            short.append(found)
        raise Rejected(f"not proved for the safe answer (short by {rounded_text(min(short), 3, up=True)})")


# --- The whole ---------------------------------------------------------------------------------------------------


def check_grid(claim: Claim) -> list[tuple[DerivedObligation, Fraction]]:
    """Check the head: every constant as prescribed, and the safe answers leaf by leaf."""
    stated, tensors, gated, *_ = claim
    _, tree = fields(claim.program, "head tree", "program")
    (proof_data,) = fields(claim.proof, "safe", "proof")
    kinds = all(not rule.exclusions for rule in stated.rules)
    require(kinds, "specification: a grid head has no labels that exclude each other")
    require(gated == gated_regions(stated), "gate: expected the regions of all rules, in order")
    spec = Lattice.read(stated)
    listed = listed_of(spec)
    m, d = len(spec.outputs), len(spec.inputs)
    sizes = {"check.outputs": (len(listed.literals), m), "check.steps": (len(listed.literals), d)}
    sizes["gate.rows"] = len(rows_of(spec, gated)), d
    for name, shape in sizes.items():  # bounds the work
        require(name in tensors and tensors[name].shape == shape, f"{name} is not what the rules prescribe")
    prescribed = domain_tensors(stated) | reading_tensors(spec, gated) | check_tensors(spec, listed)
    odd = sorted(set(tensors) ^ {*prescribed, "check.scale", "safe.slope", "safe.offset"})
    require(not odd, f"weights: tensor {odd[:1]} is missing or not part of the stated program")
    for name, tensor in prescribed.items():
        require(tensors[name] == tensor, f"{name} is not what the rules prescribe")
    require_units(spec, tensors)
    leaves = read_tree(spec, tree, gated, GridLeaf(ROOT, {}))
    slopes = values(tensors, "safe.slope", "F64", (len(leaves), m, d))
    offsets = values(tensors, "safe.offset", "F64", (len(leaves), m))
    nonzero = [{j: v for j, v in enumerate(slopes[k : k + d]) if v} for k in range(0, len(slopes), d)]
    stored = [nonzero[leaf * m : (leaf + 1) * m] for leaf in range(len(leaves))]
    spec.work.plan(sum(map(steps_of_leaves(spec, listed), leaves, stored)), "safe answers")
    proofs, whole = read_proofs(proof_data, "leaf rule region clause", "literal mu"), ReadBoxes(spec)
    for leaf, ((bits, cuts), own) in enumerate(zip(leaves, stored, strict=True)):
        facts = ReadFacts(ReadBoxes(spec, cuts, whole), bits)
        if facts.most({}, Fraction(0), None, None, []) is None:  # no input is there
            continue
        check_leaf(SafeAnswer(spec, facts, own, offsets[leaf * m : (leaf + 1) * m]), leaf, listed, proofs)
    require(not proofs, f"proof {list(proofs)[:1]} is for no obligation")
    return [
        (DerivedObligation(0, i, region, tuple(stated.regions[region]), c), Fraction(0))
        for i, rule in enumerate(stated.rules)
        for c in range(len(rule.clauses))
        for region in rule.regions
    ]


def steps_of_leaves(spec: Lattice, listed: Checked) -> Callable[[GridLeaf, list[dict[int, Fraction]]], int]:
    """Return a function that counts the steps of the proof of one leaf, given its slopes."""
    size = [1 + sum(1 + len(spec.rows[r].terms) for r in rows) for rows in spec.regions]
    asked = [(spec.rules[rule].regions, own) for rule, _, own in listed.clauses]

    def steps(leaf: GridLeaf, slopes: list[dict[int, Fraction]]) -> int:
        path = 1 + len(leaf.cuts) + sum(size[g] for g in (*leaf.bits.on, *leaf.bits.off))
        total = sum(path + len(slope) for slope in slopes)
        form = [len(lit.x) + sum(1 + len(slopes[i]) for i in lit.y) for lit in listed.literals]
        for regions, own in asked:
            total += (1 + len(regions)) * sum(path + form[k] for k in own) + sum(size[g] for g in regions)
        return PER_PROOF * total

    return steps


def check_leaf(safe: SafeAnswer, leaf: int, listed: Checked, proofs: dict[tuple[int, ...], list[Any]]) -> None:
    """Check range and clauses for the safe answer of one leaf; remove the proofs used."""
    safe.require_range()
    spec = safe.spec
    for rule, c, own in listed.clauses:
        clause = [listed.literals[k] for k in own]
        forms = [safe.form(literal) for literal in clause]
        for region in spec.rules[rule].regions:
            if region in safe.facts.leaf.off:  # where its bit is off, x is not in the region
                continue
            proof = proofs.pop((leaf, rule, region, c), None)
            try:
                safe.clause(clause, forms, region, proof)
            except Rejected as reason:
                raise Unproved(
                    DerivedObligation(leaf, rule, region, tuple(spec.regions[region]), c), str(reason)
                ) from None


def domain_tensors(stated: StatedSpecification) -> dict[str, Tensor]:
    """Return the ends of the domain, as for every head (section 5)."""
    return {name: tensor for name, tensor in guard_tensors(stated, []).items() if name.startswith("domain.")}
