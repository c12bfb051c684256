"""Verdicts -> Certificate. What is issued has been accepted by the exact checker; otherwise nothing is issued."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

import smle_check
from smle.certificates.document import Certificate
from smle.errors import CertificateError, NotCertifiedError
from smle.guarantees import (
    COMPLEMENT,
    Cells,
    Cut,
    Domain,
    ExclusionVerdicts,
    FrozenHeads,
    HeadNumbers,
    Holds,
    Leaf,
    NotProved,
    PairValues,
    UnitCut,
    Unknown,
    Verdict,
    Verdicts,
    Violated,
    WidenedBox,
    verify,
)
from smle.rules import Choice, Label, Linear, Literal, Specification, number_text
from smle_check.reading import BACKBONE

__all__ = ["compiled", "issue", "rebind", "require_proved", "sealed"]

_MANY_PAIRS = 1_000
"""Beyond this many exclusions, weights are stored per label."""
_CHUNK_PAIRS = 1 << 11
Mu = tuple[tuple[int, float], ...]


def issue(
    spec: Specification,
    cells: Cells,
    over: FrozenHeads,
    *,
    tensors: dict[str, smle_check.Tensor],
    files: dict[str, bytes],
) -> Certificate:
    """Prove every rule for the frozen heads and return a certificate that the exact checker accepted.

    Raises:
        NotCertifiedError: If a rule cannot be proved; the message names it and says by how much it is missed.
    """
    verdicts = verify(over, spec, cells)
    require_proved(verdicts, spec)
    block = bytearray()
    specification = compiled(spec, cells, block)
    proofs = _Proofs(verdicts, block).entries(over, spec)
    nan_safe = "heads.fallback" not in tensors
    stated = {
        "program": {
            "head": "box",
            "precision": "float32",
            "clip": "where" if nan_safe else "clamp",
            "bounds": over.bounds.kind,
        },
        "specification": specification,
        "gate": {"regions": list(cells.gated)},
        "proof": {"coverage": _coverage(cells), "obligations": proofs},
    }
    return sealed(stated, bytes(block), tensors, files)


def rebind(
    certificate: Certificate, files: dict[str, bytes], *, backbone: dict[str, smle_check.Tensor] | None = None
) -> Certificate:
    """Return the same proof bound to other files (a changed model.json, say), checked again.

    A bound model.onnx stays bound unless `files` has another one, and so do the tensors `backbone.*` unless others
    are given.

    Raises:
        NotCertifiedError: If the checker does not accept it.
    """
    kept = {role: data for role, data in certificate.files.items() if role == "onnx"}
    document = certificate.document
    stated = {key: document[key] for key in ("program", "specification", "gate", "proof")}
    tensors = certificate.tensors
    if backbone is not None:
        head = {name: tensor for name, tensor in tensors.items() if not name.startswith(BACKBONE)}
        tensors = {**head, **backbone}
    return sealed(stated, certificate.block, tensors, {**kept, **files})


def sealed(
    stated: dict[str, Any], block: bytes, tensors: dict[str, smle_check.Tensor], files: dict[str, bytes]
) -> Certificate:
    """Return the certificate of a head: what is `stated` (program, specification, gate, proof), bound and sealed.

    Nothing gets out that the exact checker does not accept.

    Args:
        stated: The four fields that kinds of heads write; the format has the others.
        block: certificate.bin; empty: there is none.
        tensors: Those of the head, and `backbone.*` where the model is stored with it.
        files: The files to bind, by role: `model` (model.json), `rules` (rules.yaml), `onnx` (model.onnx).

    Raises:
        NotCertifiedError: If the checker does not accept it.
    """
    try:
        binds = smle_check.bindings(tensors, block, files)
    except smle_check.Rejected as reason:
        raise NotCertifiedError(f"Two models in front of one head: {reason}.") from None
    document = {
        "format": "smle-certificate",
        "version": smle_check.VERSION,
        "statement": smle_check.statement_of(stated["program"]["head"]),
        "binds": binds,
        **stated,
    }
    document["digest"] = smle_check.sha256(smle_check.canonical(document))
    certificate = Certificate(smle_check.canonical(document) + b"\n", block, tensors, dict(files))
    try:
        _ = certificate.proved
    except CertificateError as reason:
        raise NotCertifiedError(f"The exact checker does not accept the proof: {reason}") from reason
    return certificate


def compiled(spec: Specification, cells: Cells, block: bytearray) -> dict[str, Any]:
    """Return the specification as the certificate states it; exclusions are appended to the binary block."""
    kinds: list[str] = []
    for output in spec.outputs:
        if isinstance(output, Choice):
            kinds.extend(["score"] * len(output.options))
        else:
            kinds.append("label" if isinstance(output, Label) else "number")
    rules = []
    for i, rule in enumerate(spec.rules):
        exclusions = None
        if len(rule.requirement.exclusions):
            exclusions = {"offset": len(block), "count": len(rule.requirement.exclusions)}
            block.extend(rule.requirement.exclusions.astype("<u4").tobytes())
        rules.append(
            {
                "name": rule.name,
                "regions": [r for r, switched in enumerate(cells.rules) if i in switched],
                "clauses": [[_literal(literal) for literal in c.literals] for c in rule.requirement.clauses],
                "exclusions": exclusions,
            }
            | ({"entries": [list(entry) for entry in rule.entries]} if rule.entries else {})
        )
    inputs: list[dict[str, Any]] = [
        {"name": name, "lower": str(low), "upper": str(high)}
        for name, low, high in zip(spec.columns, spec.lower, spec.upper, strict=True)
    ]
    outputs = [{"name": n, "kind": k} for n, k in zip(spec.targets, kinds, strict=True)]
    if (grid := spec.grid) is not None:
        inputs = [{**e, "step": s if s is None else str(s)} for e, s in zip(inputs, grid.input_steps, strict=True)]
        parts = zip(outputs, grid.lower, grid.upper, grid.steps, strict=True)
        outputs = [{**entry, "lower": str(a), "upper": str(b), "step": str(s)} for entry, a, b, s in parts]
    return {
        "inputs": inputs,
        "one_hot": [list(group) for group in spec.one_hot],
        "outputs": outputs,
        "rows": [
            {"terms": _terms(row.coefficients), "bound": str(row.bound), "strict": row.strict} for row in cells.rows
        ],
        "regions": [sorted(region) for region in cells.regions],
        "rules": rules,
    }


def _literal(literal: Literal) -> dict[str, Any]:
    return {
        "y": _terms(literal.outputs),
        "x": _terms(literal.inputs),
        "bound": str(literal.bound),
        "strict": literal.strict,
    }


def _terms(form: Linear) -> list[list[Any]]:
    return [[index, str(value)] for index, value in form]


def _coverage(cells: Cells) -> dict[str, Any]:
    implications = []
    for implication in cells.implications:
        proofs = []
        ordered = sorted(zip(cells.regions[implication.implied], implication.multipliers, strict=True))
        for _, multipliers in ordered:
            weights = dict(multipliers)
            complement = weights.pop(COMPLEMENT, Fraction(0))
            proofs.append({"complement": str(complement), "rows": _terms(tuple(sorted(weights.items())))})
        implications.append(
            {"regions": list(implication.regions), "implied": implication.implied, "multipliers": proofs}
        )
    return {
        "conflicts": [
            {"regions": list(c.regions), "multipliers": _terms(tuple(sorted(c.multipliers)))} for c in cells.conflicts
        ],
        "implications": implications,
    }


class _Proofs:
    """The proofs of a certificate; what is stored as bytes is appended to the binary block."""

    def __init__(self, verdicts: Verdicts, block: bytearray) -> None:
        self.verdicts, self.block = verdicts, block
        self._slopes: dict[bytes, int] = {}
        self._empty: dict[tuple[int, int | None], Mu] = {}  # of regions that no input reaches
        for obligation, verdict in verdicts:
            assert isinstance(verdict, Holds)
            if verdict.multipliers.empty and not verdict.multipliers.cases:
                self._empty.setdefault((obligation.head, obligation.region), verdict.multipliers.rows)

    def entries(self, over: FrozenHeads, spec: Specification) -> list[dict[str, Any]]:
        """Return all proofs: of regions, of clauses, of exclusions."""
        proofs: list[dict[str, Any]] = [
            {"head": head, "region": region, "empty": _multipliers(rows)}
            for (head, region), rows in self._empty.items()
        ]
        for item in self.verdicts.gaps:
            if (item.head, item.region) not in self._empty:
                gaps = [[i, float(share).hex(), *map(_multipliers, ends)] for i, share, *ends in item.units]
                proofs.append({"head": item.head, "region": item.region, "gaps": gaps})
        for obligation, verdict in self.verdicts:
            if (obligation.head, obligation.region) not in self._empty:
                assert isinstance(verdict, Holds)
                place = {name: getattr(obligation, name) for name in ("head", "rule", "region", "clause")}
                nodes = verdict.multipliers.cases or (Leaf(verdict.multipliers, None),)
                proofs.append({**place, "cases": [self._node(node) for node in nodes]})
        for block in self.verdicts.exclusions:
            if (block.head, block.region) not in self._empty:
                place = {name: getattr(block, name) for name in ("head", "rule", "region")}
                proofs.append({**place, "exclusions": self._exclusions(block, over, spec)})
        return proofs

    def _node(self, node: Cut | UnitCut | Leaf) -> dict[str, Any]:
        if isinstance(node, Cut):
            return {"input": node.input, "at": float(node.at).hex()}
        if isinstance(node, UnitCut):
            return {"unit": node.unit}
        rows = _multipliers(node.multipliers.rows)
        if node.multipliers.empty:
            return {"empty": rows}
        leaf: dict[str, Any] = {"lambda": [float(w).hex() for w in node.multipliers.weights], "mu": rows}
        if node.slopes is not None:
            data = node.slopes.astype("<f4").tobytes()
            if data not in self._slopes:
                self._slopes[data] = len(self.block)
                self.block.extend(data)
            leaf["slopes"] = self._slopes[data]
        return leaf

    def _exclusions(self, item: ExclusionVerdicts, over: FrozenHeads, spec: Specification) -> dict[str, Any]:
        cases = [[p, [self._node(node) for node in nodes]] for p, nodes in sorted(item.cases.items())]
        others = np.array([p for p in range(len(item.pairs)) if p not in item.cases], dtype=np.intp)
        if not len(others):
            return {"weights": None, "cases": cases}
        rest, compact = replace(item, pairs=item.pairs[others], weights=item.weights[others]), None
        if len(others) > _MANY_PAIRS and self._alone(item):
            head, domain = over.heads[item.head], Domain.of(spec)
            assert head is not None
            envelope = WidenedBox.of(over.bounds, domain)
            values = PairValues.of(HeadNumbers.of(head, envelope, domain), envelope, domain)
            compact = _weights_of_labels(rest, values, self.block)
        if compact is None:
            compact = {"offset": len(self.block)}
            self.block.extend(rest.weights.astype("<f4").tobytes())
        return {"weights": compact, "cases": cases}

    def _alone(self, item: ExclusionVerdicts) -> bool:
        """Whether no bounds cross, so that the box is the same over every region."""
        return all((gaps.head, gaps.region) != (item.head, item.region) for gaps in self.verdicts.gaps)


def _multipliers(rows: Mu) -> list[list[Any]]:
    return [[row, float(mu).hex()] for row, mu in sorted(rows)]


def _weights_of_labels(item: ExclusionVerdicts, values: PairValues, block: bytearray) -> dict[str, int] | None:
    """Write one weight per label, and pairs of their own for the few pairs that these do not prove; None if many."""
    scales = values.scales()
    # Multiples of 2^-23, so that the checker's integers stay small.
    weights = np.maximum(np.round(scales / scales.max() * 2.0**23), 1.0) / 2.0**23
    first, second = item.pairs[:, 0], item.pairs[:, 1]
    proved = np.empty(len(item.pairs), dtype=bool)
    for start in range(0, len(proved), _CHUNK_PAIRS):
        h, k = first[start : start + _CHUNK_PAIRS], second[start : start + _CHUNK_PAIRS]
        bound, _ = values.bound(h, k, weights[h] / (weights[h] + weights[k]))
        proved[start : start + _CHUNK_PAIRS] = bound < 0
    exceptions = np.flatnonzero(~proved)
    if 2 * len(exceptions) > len(proved):
        return None
    labels, size = len(block), len(weights) + len(weights) % 2
    block.extend(np.resize(weights, size).astype("<f4").tobytes())
    named = np.unique(item.pairs[exceptions], axis=0, return_index=True)
    result = {"labels": labels, "exceptions": len(block), "count": len(named[0])}
    block.extend(named[0].astype("<u4").tobytes())
    block.extend(item.weights[exceptions[named[1]]].astype("<f4").tobytes())
    return result


def require_proved(verdicts: Verdicts, spec: Specification) -> None:
    """Raise NotCertifiedError with the worst failure if an obligation is not proved; a real violation comes first."""
    if verdicts.hold:
        return
    failures = verdicts.failures()
    obligation, verdict = next((f for f in failures if isinstance(f[1], Violated)), failures[0])
    rule = spec.rules[obligation.rule]
    pair = obligation.clause - len(rule.requirement.clauses)
    which = f"Rule '{rule.name}'"
    if pair >= 0:
        h, k = rule.requirement.exclusions[pair]
        which += f" ('{spec.targets[h]}' and '{spec.targets[k]}' never together)"
    raise NotCertifiedError(f"{which} is not proved: {_reason(verdict, spec)}", refuted=isinstance(verdict, Violated))


def _reason(verdict: Verdict, spec: Specification) -> str:
    if isinstance(verdict, NotProved | Violated):
        where = ", ".join(f"{name}={number_text(value)}" for name, value in zip(spec.columns, verdict.x, strict=True))
        missed = -verdict.margin if isinstance(verdict, NotProved) else verdict.excess
        if not missed > 0:
            return f"no room is left for rounding, for example at {where}."
        kind = "the over-approximation misses it" if isinstance(verdict, NotProved) else "the model breaks it"
        return f"{kind} by {missed:.3g}, for example at {where}."
    assert isinstance(verdict, Unknown)
    return verdict.reason
