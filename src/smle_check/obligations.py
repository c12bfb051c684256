"""Checks the box head: every head, every rule that binds there, every clause (section 7)."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Claim, DerivedObligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import BINARY32, cast_error, nearest, upward
from smle_check.guard import GUARD_NAMES, check_coverage
from smle_check.heads.box import Box, ExactBounds, ExactHead, Halfspace, Line, Relaxed, hidden_layers, root_box
from smle_check.kernel import bounded, multipliers_of
from smle_check.reading import Rejected, Tensor, fields, index, items, number, read_block, require, values
from smle_check.stated import PER_PAIR, Exclusions, StatedLiteral, StatedSpecification, exclusion
from smle_check.work import Work

MAX_HEADS = 100_000
MAX_CUTS = 256  # on units, on the way to one case


def obligations(spec: StatedSpecification, gated: list[int], cell: tuple[int, ...]) -> list[tuple[int, int | None]]:
    """List (rule, region); region is None where the gate switches the rule on, else the ungated region."""
    result: list[tuple[int, int | None]] = []
    for i, rule in enumerate(spec.rules):
        if any(r in cell for r in rule.regions):
            result.append((i, None))
        else:
            result.extend((i, r) for r in rule.regions if r not in gated)
    return result


def fallback_holds(spec: StatedSpecification, clause: list[StatedLiteral], y: list[Fraction]) -> bool:
    """Return whether a constant output satisfies one literal of the clause for every input of the domain."""
    for literal in clause:
        excess = sum(v * y[j] for j, v in literal.y.items()) - literal.bound
        for k, v in literal.x.items():
            excess += max(v * spec.low[k], v * spec.high[k]) + abs(v) * cast_error(spec.sizes[k])
        if excess < 0 or (excess == 0 and not literal.strict):
            return True
    return False


def read_proofs(data: Any) -> dict[tuple[Any, ...], Any]:
    """Index proofs by (head, rule, region, clause), clause -1 for exclusions; of regions by (kind, head, region)."""
    proofs: dict[tuple[Any, ...], Any] = {}
    for entry in items(data, "proofs"):
        require(isinstance(entry, dict), "proof: expected an object")
        kind = next((name for name in ("empty", "gaps", "exclusions") if name in entry), "cases")
        if kind in ("empty", "gaps"):
            *numbers, proof = fields(entry, f"head region {kind}", "proof")
            key: tuple[Any, ...] = (kind, *numbers)
        elif kind == "exclusions":
            *numbers, proof = fields(entry, "head rule region exclusions", "proof")
            key = (*numbers, -1)
        else:
            *numbers, proof = fields(entry, "head rule region clause cases", "proof")
            key = tuple(numbers)
        require(all(type(part) is int or part is None for part in numbers), "proof: malformed key")
        require(key not in proofs, f"proof {key}: given twice")
        proofs[key] = proof
    return proofs


def clause_margin(
    head: ExactHead, clause: list[StatedLiteral], proof: tuple[Any, Any], place: "Place", tops: dict[int, Line]
) -> Fraction:
    """Prove a clause by multipliers (lambda, mu) at a place and return the margin."""
    weights = [number(w, "lambda") for w in items(proof[0], "lambda")]
    require(len(weights) == len(clause), "one lambda per literal")
    require(min(weights) >= 0 and sum(weights) > 0, "lambda must be >= 0 and not all 0")
    head.spec.work.use(weights, "lambda")
    mu = multipliers_of(proof[1], set(place.rows), "mu", head.spec.work)
    rows = [place.rows[r] for r in mu]
    bound = head.clause_bound(clause, weights, rows, list(mu.values()), tops, place.box)
    tight = any(w > 0 and not literal.strict for w, literal in zip(weights, clause, strict=True))
    require(
        bound < 0 or (bound == 0 and tight), f"not proved (short by {rounded_text(bound / sum(weights), 3, up=True)})"
    )
    return -bound / sum(weights)


def pair_weights(proof: Any, pairs: Sequence[tuple[int, int]], m: int, block: bytes) -> Sequence[float]:
    """Read the two weights of every pair: one by one, or by label, with exceptions."""
    what = "exclusions proof"
    if isinstance(proof, dict) and "offset" in proof:
        (offset,) = fields(proof, "offset", what)
        return read_block(block, offset, len(pairs), "f", what)
    label_weights, exceptions, count = fields(proof, "labels exceptions count", what)
    weights = read_block(block, label_weights, (m + 1) // 2, "f", what)
    named = read_block(block, exceptions, count, "I", what)
    given = read_block(block, exceptions + 8 * count, count, "f", what)
    own = {tuple(named[i : i + 2]): given[i : i + 2] for i in range(0, len(named), 2)}
    require(len(own) == count, f"{what}: an exception given twice")
    return tuple(w for h, k in pairs for w in own.get((h, k), (weights[h], weights[k])))


class Place(NamedTuple):
    """The inputs a proof is about: a box, the rows that hold there, and the side of each cut on a unit.

    `crossed`: for units with a cut on the way, whether l >= u. A cut on unit i is also a row, after all others: the
    number of rows plus i. (Not under bounds by a network, because l - u is not affine.)
    """

    box: Box
    rows: dict[int, Halfspace]
    crossed: dict[int, bool]

    def cut(self, head: ExactHead | Relaxed, unit: int, crossed: bool) -> "Place":
        """Return the inputs at which l <= u (or l >= u if `crossed`) for a unit."""
        require(unit not in self.crossed, "cut: the same unit twice")
        require(len(self.crossed) < MAX_CUTS, "cut: too many units on the way")
        rows = self.rows
        if isinstance(head, ExactHead):
            offset, slope = head.bounds.gaps[unit]
            sign = -1 if crossed else 1
            rows = {**rows, len(head.spec.rows) + unit: ({k: sign * s for k, s in enumerate(slope)}, -sign * offset)}
        return self._replace(rows=rows, crossed={**self.crossed, unit: crossed})

    def tops(self, lines: dict[int, Line]) -> dict[int, Line]:
        """Return the lines above max(l, u) - u; cuts settle the lines of their units."""
        settled = {i: (Fraction(1), Fraction(0)) for i, crossed in self.crossed.items() if crossed}
        return {i: line for i, line in lines.items() if i not in self.crossed} | settled


def region_lines(head: ExactHead | Relaxed, data: Any, place: Place) -> dict[int, Line]:
    """Read lines above relu(l - u) over a region: (unit, slope, multipliers for the least and the largest l - u)."""
    if not isinstance(head, ExactHead) or not head.bounds.affine:
        raise Rejected("gaps: only affine bounds have them")
    lines = dict(head.bounds.tops)
    named: set[int] = set()
    for entry in items(data, "gaps"):
        require(isinstance(entry, list) and len(entry) == 4, "gaps: expected [unit, slope, lower, upper]")
        unit, slope = index(entry[0], head.bounds.width, "gaps"), number(entry[1], "gaps")
        require(0 <= slope <= 1 and nearest(slope, BINARY32) == slope, "gaps: expected a float32 slope in 0 .. 1")
        require(unit not in named, "gaps: the same unit twice")
        named.add(unit)
        offset, gap = head.bounds.gaps[unit]
        ends = []
        for sign, part in ((-1, entry[2]), (1, entry[3])):
            mu = multipliers_of(part, set(place.rows), "gaps", head.spec.work)
            form = {k: sign * s for k, s in enumerate(gap)}
            highest = bounded(form, [place.rows[r] for r in mu], list(mu.values()), *place.box)
            ends.append(offset + sign * highest)
        lines[unit] = slope, upward(max(max(end, Fraction(0)) - slope * end for end in ends))
    return lines


def cases_margin(
    head: ExactHead | Relaxed, clause: list[StatedLiteral], nodes: list[Any], place: Place, lines: dict[int, Line]
) -> Fraction:
    """Prove a clause case by case and return the least margin. Cuts precede their cases, so everything is covered."""
    stack, margins, what = [place], list[Fraction](), "slopes lambda mu" if isinstance(head, Relaxed) else "lambda mu"
    for node in nodes:
        require(bool(stack) and isinstance(node, dict), "cases that belong to no cut")
        here = stack.pop()
        low, high = here.box
        if "at" in node:
            position, at_data = fields(node, "input at", "cut")
            k, at = index(position, len(low), "cut"), number(at_data, "cut")
            require(low[k] < at < high[k] and nearest(at, BINARY32) == at, "cut outside of its box")
            stack.append(here._replace(box=([*low[:k], at, *low[k + 1 :]], high)))
            stack.append(here._replace(box=(low, [*high[:k], at, *high[k + 1 :]])))
        elif "unit" in node:
            (position,) = fields(node, "unit", "cut")
            unit = index(position, head.width, "cut")
            stack += [here.cut(head, unit, True), here.cut(head, unit, False)]
        elif "empty" in node:
            (proof,) = fields(node, "empty", "case")
            require_empty(proof, here, "a case", head.spec.work)
        else:
            *slopes, weights, mu = fields(node, what, "case")
            one = head.over(here.box, *slopes) if isinstance(head, Relaxed) else head
            tops = here.tops(one.bounds.tops if isinstance(head, Relaxed) else lines)
            margins.append(clause_margin(one, clause, (weights, mu), here, tops))
    require(not stack, "a case without a proof")
    return min(margins, default=Fraction(0))


def require_empty(proof: Any, place: Place, what: str, work: Work) -> None:
    """Require multipliers that prove there are no such inputs."""
    mu = multipliers_of(proof, set(place.rows), what, work)
    bound = bounded({}, [place.rows[r] for r in mu], list(mu.values()), *place.box)
    require(bound < 0, f"{what} is not proved empty")


class HeadProof(NamedTuple):
    """One head with what its obligations need: the safe constant of its cell and the block."""

    spec: StatedSpecification
    head: ExactHead | Relaxed
    fallback: list[Fraction] | None
    block: bytes

    def clause(self, clause: list[StatedLiteral], proof: Any, place: Place, lines: dict[int, Line]) -> Fraction:
        """Prove one clause; return the margin."""
        margin = cases_margin(self.head, clause, items(proof, "cases"), place, lines)
        holds = self.fallback is None or fallback_holds(self.spec, clause, self.fallback)
        require(holds, "the fallback output breaks it")
        return margin

    def exclusions(self, pairs: Exclusions, proof: Any, place: Place, lines: dict[int, Line]) -> Fraction:
        """Prove the exclusions of a rule, some case by case, others by weights; return the least margin."""
        weights, cases = fields(proof, "weights cases", "exclusions proof")
        trees: dict[int, list[Any]] = {}
        for entry in items(cases, "exclusions proof"):
            require(isinstance(entry, list) and len(entry) == 2, "exclusions proof: expected [pair, cases]")
            position = index(entry[0], len(pairs), "exclusions proof")
            require(position not in trees, "exclusions proof: a pair given twice")
            trees[position] = items(entry[1], "cases")
        margins = [cases_margin(self.head, exclusion(pairs[p]), nodes, place, lines) for p, nodes in trees.items()]
        others = [pair for p, pair in enumerate(pairs) if p not in trees] if trees else pairs
        require((weights is None) == (not others), "exclusions proof: one proof per pair")
        if others:
            if not isinstance(self.head, ExactHead):
                raise Rejected("exclusions proof: expected cases for every pair")
            self.spec.work.plan(len(others) * (PER_PAIR + self.head.bounds.width // 4), "exclusions")
            given = pair_weights(weights, others, len(self.spec.outputs), self.block)
            margins.append(self.head.exclusion_margin(others, given, lines))
        y = self.fallback
        require(y is None or not any(y[h] >= 0 and y[k] >= 0 for h, k in pairs), "the fallback output breaks it")
        return min(margins)


def check_head(
    proof: HeadProof, head_index: int, cell: tuple[int, ...], gated: list[int], proofs: dict[tuple[Any, ...], Any]
) -> list[tuple[DerivedObligation, Fraction]]:
    """Check all obligations of one head; remove the proofs used; return margins."""
    settled: list[tuple[DerivedObligation, Fraction]] = []
    used: set[tuple[Any, ...]] = set()
    known: dict[tuple[Any, ...], dict[int, Line]] = {}
    spec = proof.spec
    shared = set(range(spec.stated, len(spec.rows)))
    for rule_index, region in obligations(spec, gated, cell):
        rule = spec.rules[rule_index]
        active = {r for g in cell for r in spec.regions[g]} | set(spec.regions[region] if region is not None else ())
        rows = {r: (spec.rows[r].terms, spec.rows[r].closed) for r in active | shared}
        place = Place(root_box(spec, active), rows, {})
        empty, gaps = ("empty", head_index, region), ("gaps", head_index, region)
        if empty in proofs:
            used.add(empty)
            whole = place._replace(box=(spec.low, spec.high))
            require_empty(proofs[empty], whole, f"head {head_index}, region {region}:", spec.work)
            continue
        lines = proof.head.bounds.tops if isinstance(proof.head, ExactHead) else {}
        if gaps in proofs:
            used.add(gaps)
            lines = known[gaps] = known.get(gaps) or region_lines(proof.head, proofs[gaps], place)
        parts: list[tuple[int | None, Any]] = list(enumerate(rule.clauses))
        for c, part in [*parts, *([(None, rule.exclusions)] if rule.exclusions else [])]:
            obligation = DerivedObligation(head_index, rule_index, region, tuple(sorted(active)), c)
            key = (head_index, rule_index, region, -1 if c is None else c)
            try:
                require(key in proofs, "no proof")
                prove = proof.exclusions if c is None else proof.clause
                settled.append((obligation, prove(part, proofs.pop(key), place, lines)))
            except Rejected as reason:
                raise Unproved(obligation, str(reason)) from None
    for key in used:
        del proofs[key]
    return settled


def check_box(claim: Claim) -> list[tuple[DerivedObligation, Fraction]]:
    """Check heads behind boxes, one for each cell."""
    _, precision, clip, kind = fields(claim.program, "head precision clip bounds", "program")
    require(precision == "float32", "program: only float32 heads are supported")
    known = [("clamp", "constant"), *(("where", bounds) for bounds in ("constant", "affine", "network"))]
    require((clip, kind) in known, "program: unknown kind")
    coverage, proof_data = fields(claim.proof, "coverage obligations", "proof")
    spec, tensors, gated, *_, block = claim
    require("gate.signatures" in tensors and len(tensors["gate.signatures"].shape) == 2, "weights: gate.signatures")
    count = tensors["gate.signatures"].shape[0]
    require(0 < count <= (MAX_HEADS if gated else 1), "gate.signatures: expected one row per head")
    bits = values(tensors, "gate.signatures", "U8", (count, len(gated)))
    require(set(bits) <= {0, 1}, "gate.signatures: expected zeros and ones, one row per head")
    rows = [bits[c * len(gated) : (c + 1) * len(gated)] for c in range(count)]
    cells = [tuple(sorted(g for g, bit in zip(gated, row, strict=True) if bit)) for row in rows]
    require(len(set(cells)) == count, "gate.signatures: the same signature twice")
    check_coverage(spec, coverage, gated, cells)

    bounds = ExactBounds(spec, tensors, kind) if kind != "network" else None
    heads = count - 1 if cells[-1] == () and len(gated) == len(spec.regions) else count  # the last may be free
    check_names(tensors, clip, kind, heads < count)
    m, n, d = len(spec.outputs), math.prod(tensors["bounds.lower"].shape), len(spec.inputs)
    W = values(tensors, "heads.weight", "F32", (heads, m, n))
    b = values(tensors, "heads.bias", "F32", (heads, m))
    V = values(tensors, "heads.passthrough", "F32", (heads, m, d)) if "heads.passthrough" in tensors else []
    fallback = values(tensors, "heads.fallback", "F32", (heads, m)) if clip == "clamp" else None
    proofs, proved = read_proofs(proof_data), []
    for c in range(heads):
        own = W[c * m * n : (c + 1) * m * n], V[c * m * d : (c + 1) * m * d], b[c * m : (c + 1) * m]
        head = Relaxed(spec, tensors, block, own) if bounds is None else ExactHead(spec, bounds, *own)
        instead = fallback[c * m : (c + 1) * m] if fallback is not None else None
        proved += check_head(HeadProof(spec, head, instead, block), c, cells[c], gated, proofs)
    require(not proofs, f"proof {list(proofs)[:1]} is for no obligation")
    return proved


def check_names(tensors: dict[str, Tensor], clip: str, kind: str, free: bool) -> None:
    """Check that the weights hold what the stated program reads, and nothing else."""
    prescribed = {*GUARD_NAMES, "gate.signatures", "heads.weight", "heads.bias"}
    prescribed |= {"bounds.lower", "bounds.upper"} | ({"heads.fallback"} if clip == "clamp" else set())
    prescribed |= {"bounds.lower_slope", "bounds.upper_slope"} if kind != "constant" else set()
    if kind == "network":
        layers = range(max(hidden_layers(tensors), 1))
        prescribed |= {f"bounds.hidden.{i}.{part}" for i in layers for part in ("weight", "bias")}
    prescribed |= {"free.weight", "free.bias"} if free else set()
    names = set(tensors) - ({"heads.passthrough"} if clip == "where" else set())  # optional there
    odd = sorted(names ^ prescribed)
    require(not odd, f"weights: tensor {odd[:1]} is missing or not part of the stated program")
