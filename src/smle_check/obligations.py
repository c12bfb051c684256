"""The box head: every head, every rule that binds there, every clause (section 7)."""

import math
from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Claim, Obligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import BINARY32, FORMATS, cast_error, nearest
from smle_check.guard import check_coverage
from smle_check.heads.box import Bounds, Head
from smle_check.heads.network import Relaxed, hidden_layers
from smle_check.kernel import bounded, multipliers_of
from smle_check.reading import Rejected, Tensor, fields, index, items, number, read_block, require, values
from smle_check.specification import PER_PAIR, Exclusions, Literal, Specification, exclusion

MAX_HEADS = 100_000


def obligations(spec: Specification, gated: list[int], cell: tuple[int, ...]) -> list[tuple[int, int | None]]:
    """List (rule, region): region is None where the gate switches the rule on, else the ungated region."""
    result: list[tuple[int, int | None]] = []
    for i, rule in enumerate(spec.rules):
        if any(r in cell for r in rule.regions):
            result.append((i, None))
        else:
            result.extend((i, r) for r in rule.regions if r not in gated)
    return result


def fallback_holds(spec: Specification, clause: list[Literal], y: list[Fraction]) -> bool:
    """Whether a constant output satisfies one literal of the clause for every input of the domain."""
    for literal in clause:
        excess = sum(v * y[j] for j, v in literal.y.items()) - literal.bound
        for k, v in literal.x.items():
            excess += max(v * spec.low[k], v * spec.high[k]) + abs(v) * cast_error(spec.sizes[k])
        if excess < 0 or (excess == 0 and not literal.strict):
            return True
    return False


def read_proofs(data: Any) -> dict[tuple[Any, ...], Any]:
    """Index the proofs: clauses by (head, rule, region, clause), exclusions with clause -1, empty by (head, region)."""
    proofs: dict[tuple[Any, ...], Any] = {}
    for entry in items(data, "proofs"):
        require(isinstance(entry, dict), "proof: expected an object")
        if "empty" in entry:
            head, region, proof = fields(entry, "head region empty", "proof")
            key: tuple[Any, ...] = (head, region)
        elif "exclusions" in entry:
            head, rule, region, proof = fields(entry, "head rule region exclusions", "proof")
            key = (head, rule, region, -1)
        elif "boxes" in entry:
            head, rule, region, clause, boxes = fields(entry, "head rule region clause boxes", "proof")
            key, proof = (head, rule, region, clause), items(boxes, "boxes")
        else:
            head, rule, region, clause, weights, mu = fields(entry, "head rule region clause lambda mu", "proof")
            key, proof = (head, rule, region, clause), (weights, mu)
        require(all(type(part) is int or part is None for part in key), "proof: malformed key")
        require(key not in proofs, f"proof {key}: given twice")
        proofs[key] = proof
    return proofs


def clause_margin(head: Head, clause: list[Literal], proof: tuple[Any, Any], allowed: set[int]) -> Fraction:
    """Prove a clause by multipliers (lambda, mu) and return the margin."""
    weights = [number(w, "lambda") for w in items(proof[0], "lambda")]
    require(len(weights) == len(clause), "one lambda per literal")
    require(min(weights) >= 0 and sum(weights) > 0, "lambda must be >= 0 and not all 0")
    head.spec.work.use(weights, "lambda")
    mu = multipliers_of(proof[1], allowed, "mu", head.spec.work)
    bound = head.clause_bound(clause, weights, [head.spec.rows[r] for r in mu], list(mu.values()))
    tight = any(w > 0 and not literal.strict for w, literal in zip(weights, clause, strict=True))
    require(
        bound < 0 or (bound == 0 and tight), f"not proved (short by {rounded_text(bound / sum(weights), 3, up=True)})"
    )
    return -bound / sum(weights)


def pair_weights(proof: Any, pairs: Exclusions, m: int, block: bytes) -> tuple[float, ...]:
    """Read the two weights of every pair: one by one, or as those of its labels, with exceptions."""
    what = "exclusions proof"
    if isinstance(proof, dict) and "offset" in proof:
        (offset,) = fields(proof, "offset", what)
        return read_block(block, offset, len(pairs), "f", what)
    label_weights, exceptions, count = fields(proof, "labels exceptions count", what)
    weights = read_block(block, label_weights, (m + 1) // 2, "f", what)
    named = read_block(block, exceptions, count, "I", what)
    given = read_block(block, exceptions + 8 * count, count, "f", what)
    own = {named[i : i + 2]: given[i : i + 2] for i in range(0, len(named), 2)}
    require(len(own) == count, f"{what}: an exception given twice")
    return tuple(w for h, k in pairs for w in own.get((h, k), (weights[h], weights[k])))


def boxes_margin(
    head: Relaxed, clause: list[Literal], nodes: list[Any], active: set[int], shared: set[int]
) -> Fraction:
    """Prove a clause box by box and return the least margin. Cuts come before their boxes, so that all is covered."""
    stack, margins = [head.root(active)], []
    for node in nodes:
        require(bool(stack) and isinstance(node, dict), "boxes that belong to no cut")
        low, high = stack.pop()
        if "at" in node:
            position, at_data = fields(node, "input at", "cut")
            k, at = index(position, len(low), "cut"), number(at_data, "cut")
            require(low[k] < at < high[k] and nearest(at, BINARY32) == at, "cut outside of its box")
            stack.append(([*low[:k], at, *low[k + 1 :]], high))
            stack.append((low, [*high[:k], at, *high[k + 1 :]]))
        elif "empty" in node:
            (proof,) = fields(node, "empty", "box")
            mu = multipliers_of(proof, active | shared, "empty box", head.spec.work)
            rows = [(head.spec.rows[r].terms, head.spec.rows[r].closed) for r in mu]
            require(bounded({}, rows, list(mu.values()), low, high) < 0, "a box is not proved empty")
        else:
            slopes, weights, mu_data = fields(node, "slopes lambda mu", "box")
            one = head.over((low, high), slopes)
            margins.append(clause_margin(one, clause, (weights, mu_data), active | shared))
    require(not stack, "a box without a proof")
    return min(margins, default=Fraction(0))


class HeadProof(NamedTuple):
    """One head with what its obligations need: the safe constant of its cell, the active regions, and the block."""

    spec: Specification
    head: Head | Relaxed
    fallback: list[Fraction] | None
    block: bytes

    def clause(self, clause: list[Literal], proof: Any, active: set[int], shared: set[int]) -> Fraction:
        """Prove one clause; return the margin."""
        require(isinstance(proof, list) == isinstance(self.head, Relaxed), "proof for another kind of bounds")
        if isinstance(self.head, Relaxed):
            margin = boxes_margin(self.head, clause, proof, active, shared)
        else:
            margin = clause_margin(self.head, clause, proof, active | shared)
        holds = self.fallback is None or fallback_holds(self.spec, clause, self.fallback)
        require(holds, "the fallback output breaks it")
        return margin

    def exclusions(self, pairs: Exclusions, proof: Any, active: set[int], shared: set[int]) -> Fraction:
        """Prove the exclusions of a rule; return the least margin."""
        if isinstance(self.head, Relaxed):
            trees = items(proof, "exclusions proof")
            require(len(trees) == len(pairs), "exclusions proof: one proof per pair")
            margin = min(
                boxes_margin(self.head, exclusion(pair), items(nodes, "boxes"), active, shared)
                for pair, nodes in zip(pairs, trees, strict=True)
            )
        else:
            self.spec.work.plan(len(pairs) * (PER_PAIR + self.head.bounds.width // 4), "exclusions")
            margin = self.head.exclusion_margin(pairs, pair_weights(proof, pairs, len(self.spec.outputs), self.block))
        y = self.fallback
        require(y is None or not any(y[h] >= 0 and y[k] >= 0 for h, k in pairs), "the fallback output breaks it")
        return margin


def check_head(
    proof: HeadProof, head_index: int, cell: tuple[int, ...], gated: list[int], proofs: dict[tuple[Any, ...], Any]
) -> list[tuple[Obligation, Fraction]]:
    """Check all obligations of one head; remove the proofs that were used; return margins."""
    settled: list[tuple[Obligation, Fraction]] = []
    used: set[tuple[Any, ...]] = set()
    spec = proof.spec
    shared = set(range(spec.stated, len(spec.rows)))
    for rule_index, region in obligations(spec, gated, cell):
        rule = spec.rules[rule_index]
        active = {r for g in cell for r in spec.regions[g]} | set(spec.regions[region] if region is not None else ())
        if (head_index, region) in proofs:
            used.add((head_index, region))
            mu = multipliers_of(proofs[head_index, region], active | shared, "empty region", spec.work)
            halfspaces = [(spec.rows[r].terms, spec.rows[r].closed) for r in mu]
            bound = bounded({}, halfspaces, list(mu.values()), spec.low, spec.high)
            require(bound < 0, f"head {head_index}, region {region}: not proved empty")
            continue
        parts: list[tuple[int | None, Any]] = list(enumerate(rule.clauses))
        for c, part in [*parts, *([(None, rule.exclusions)] if rule.exclusions else [])]:
            obligation = Obligation(head_index, rule_index, region, tuple(sorted(active)), c)
            key = (head_index, rule_index, region, -1 if c is None else c)
            try:
                require(key in proofs, "no proof")
                prove = proof.exclusions if c is None else proof.clause
                settled.append((obligation, prove(part, proofs.pop(key), active, shared)))
            except Rejected as reason:
                raise Unproved(obligation, str(reason)) from None
    for key in used:
        del proofs[key]
    return settled


def check_box(claim: Claim) -> list[tuple[Obligation, Fraction]]:
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

    bounds = Bounds(spec, tensors, kind) if kind != "network" else None
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
        head = Relaxed(spec, tensors, block, own) if bounds is None else Head(spec, bounds, *own)
        instead = fallback[c * m : (c + 1) * m] if fallback is not None else None
        proved += check_head(HeadProof(spec, head, instead, block), c, cells[c], gated, proofs)
    require(not proofs, f"proof {list(proofs)[:1]} is for no obligation")
    return proved


def check_names(tensors: dict[str, Tensor], clip: str, kind: str, free: bool) -> None:
    """Check that the weights hold what the stated program reads, and nothing else."""
    prescribed = {f"domain.{side}_{fmt.name}" for side in ("lower", "upper") for fmt in FORMATS}
    prescribed |= {f"gate.constants_{fmt.name}" for fmt in FORMATS}
    prescribed |= {"gate.coefficients", "gate.thresholds", "gate.signatures", "heads.weight", "heads.bias"}
    prescribed |= {"bounds.lower", "bounds.upper"} | ({"heads.fallback"} if clip == "clamp" else set())
    prescribed |= {"bounds.lower_slope", "bounds.upper_slope"} if kind != "constant" else set()
    if kind == "network":
        layers = range(max(hidden_layers(tensors), 1))
        prescribed |= {f"bounds.hidden.{i}.{part}" for i in layers for part in ("weight", "bias")}
    prescribed |= {"free.weight", "free.bias"} if free else set()
    names = set(tensors) - ({"heads.passthrough"} if clip == "where" else set())  # optional there
    odd = sorted(names ^ prescribed)
    require(not odd, f"weights: tensor {odd[:1]} is missing or not part of the stated program")
