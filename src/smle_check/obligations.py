"""Obligations: every head, every rule that binds there, every clause (section 7)."""

from fractions import Fraction
from typing import Any, NamedTuple

from smle_check.claims import Obligation, Unproved
from smle_check.digits import rounded_text
from smle_check.floats import BINARY32, cast_error, nearest
from smle_check.heads.box import Head
from smle_check.heads.network import Relaxed
from smle_check.kernel import bounded, multipliers_of
from smle_check.reading import Rejected, fields, index, items, number, read_block, require
from smle_check.specification import Literal, Specification, exclusion


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
    mu = multipliers_of(proof[1], allowed, "mu")
    bound = head.clause_bound(clause, weights, [head.spec.rows[r] for r in mu], list(mu.values()))
    tight = any(w > 0 and not literal.strict for w, literal in zip(weights, clause, strict=True))
    require(
        bound < 0 or (bound == 0 and tight), f"not proved (short by {rounded_text(bound / sum(weights), 3, up=True)})"
    )
    return -bound / sum(weights)


def pair_weights(proof: Any, pairs: list[tuple[int, int]], m: int, block: bytes) -> tuple[float, ...]:
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
            mu = multipliers_of(proof, active | shared, "empty box")
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

    def exclusions(self, pairs: list[tuple[int, int]], proof: Any, active: set[int], shared: set[int]) -> Fraction:
        """Prove the exclusions of a rule; return the least margin."""
        if isinstance(self.head, Relaxed):
            trees = items(proof, "exclusions proof")
            require(len(trees) == len(pairs), "exclusions proof: one proof per pair")
            margin = min(
                boxes_margin(self.head, exclusion(pair), items(nodes, "boxes"), active, shared)
                for pair, nodes in zip(pairs, trees, strict=True)
            )
        else:
            margin = self.head.exclusion_margin(pairs, pair_weights(proof, pairs, len(self.spec.outputs), self.block))
        y = self.fallback
        require(y is None or not any(y[h] >= 0 and y[k] >= 0 for h, k in pairs), "the fallback output breaks it")
        return margin


def check_head(
    proof: HeadProof, number_of: int, cell: tuple[int, ...], gated: list[int], proofs: dict[tuple[Any, ...], Any]
) -> list[tuple[Obligation, Fraction]]:
    """Check all obligations of one head; remove the proofs that were used; return margins."""
    settled: list[tuple[Obligation, Fraction]] = []
    used: set[tuple[Any, ...]] = set()
    spec = proof.spec
    shared = set(range(spec.stated, len(spec.rows)))
    for rule_index, region in obligations(spec, gated, cell):
        rule = spec.rules[rule_index]
        active = {r for g in cell for r in spec.regions[g]} | set(spec.regions[region] if region is not None else ())
        if (number_of, region) in proofs:
            used.add((number_of, region))
            mu = multipliers_of(proofs[number_of, region], active | shared, "empty region")
            halfspaces = [(spec.rows[r].terms, spec.rows[r].closed) for r in mu]
            bound = bounded({}, halfspaces, list(mu.values()), spec.low, spec.high)
            require(bound < 0, f"head {number_of}, region {region}: not proved empty")
            continue
        parts: list[tuple[int | None, Any]] = list(enumerate(rule.clauses))
        for c, part in [*parts, *([(None, rule.exclusions)] if rule.exclusions else [])]:
            obligation = Obligation(number_of, rule_index, tuple(sorted(active)), c)
            key = (number_of, rule_index, region, -1 if c is None else c)
            try:
                require(key in proofs, "no proof")
                prove = proof.exclusions if c is None else proof.clause
                settled.append((obligation, prove(part, proofs.pop(key), active, shared)))
            except Rejected as reason:
                raise Unproved(obligation, str(reason)) from None
    for key in used:
        del proofs[key]
    return settled
