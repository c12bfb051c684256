"""Issues the certificate of a head from what it states, if the exact checker accepts it."""

from __future__ import annotations

from typing import Any

import smle_check
from smle.certificates.document import Certificate
from smle.errors import CertificateError, NotCertifiedError
from smle.regions.cells import Cells
from smle.rules import Choice, Label, Linear, Literal, Specification
from smle_check.reading import BACKBONE

__all__ = ["compiled", "rebind", "sealed", "stated_terms"]


def rebind(
    certificate: Certificate, files: dict[str, bytes], *, backbone: dict[str, smle_check.Tensor] | None = None
) -> Certificate:
    """Bind the same proof, of the same head, to other files, such as a changed model.json.

    A bound model.onnx stays bound unless `files` has another one, and so do the tensors `backbone.*` unless others are
    given. Files and backbone are not part of what is proved, so the checker is not asked again. Raises
    NotCertifiedError if there are two models.
    """
    proved = _accepted(certificate)
    if "onnx" in certificate.files:
        files = {"onnx": certificate.files["onnx"], **files}
    tensors = dict(certificate.tensors)
    if backbone is not None:
        if not all(name.startswith(BACKBONE) for name in backbone):  # what is proved speaks of the others
            raise ValueError(f"Expected tensors named {BACKBONE}*. Got {sorted(backbone)[0]!r} and others.")
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(BACKBONE)} | backbone
    bound = _bound(certificate.document, certificate.block, tensors, files)
    bound.__dict__["proved"] = proved
    return bound


def sealed(
    stated: dict[str, Any], block: bytes, tensors: dict[str, smle_check.Tensor], files: dict[str, bytes]
) -> Certificate:
    """Bind and seal what a head states (program, specification, gate, proof), if the exact checker accepts it.

    Args:
        stated: The four fields that kinds of heads write; the format has the others.
        block: certificate.bin, empty if there is none.
        tensors: Those of the head, and `backbone.*` if the model is stored with it.
        files: The files to bind, by role: `model` (model.json), `rules` (rules.yaml), `onnx` (model.onnx).

    Raises:
        NotCertifiedError: If the checker does not accept it.
    """
    statement = smle_check.statement_of(stated["program"]["head"])
    document = {"format": "smle-certificate", "version": smle_check.VERSION, "statement": statement, **stated}
    certificate = _bound(document, block, tensors, files)
    _accepted(certificate)
    return certificate


def _accepted(certificate: Certificate) -> tuple[smle_check.Proved, ...]:
    """Return what is proved, or raise NotCertifiedError if the checker does not accept it."""
    try:
        return certificate.proved
    except CertificateError as reason:
        raise NotCertifiedError(f"The exact checker does not accept the proof: {reason}") from reason


def _bound(
    document: dict[str, Any], block: bytes, tensors: dict[str, smle_check.Tensor], files: dict[str, bytes]
) -> Certificate:
    """Return what is stated with all digests, not checked yet."""
    try:
        document["binds"] = smle_check.bindings(tensors, block, files)
    except smle_check.Rejected as reason:
        raise NotCertifiedError(f"Two models in front of one head: {reason}.") from None
    document.pop("digest", None)
    document["digest"] = smle_check.sha256(smle_check.canonical(document))
    return Certificate(smle_check.canonical(document) + b"\n", block, tensors, files)


def compiled(spec: Specification, cells: Cells, block: bytearray) -> dict[str, Any]:
    """Return the specification as the certificate states it; exclusions are appended to the binary block."""
    kinds: list[str] = []
    for output in spec.outputs:
        if isinstance(output, Choice):
            kinds.extend(["score"] * len(output.options))
        else:
            kinds.append("label" if isinstance(output, Label) else "number")
    regions: list[list[int]] = [[] for _ in spec.rules]
    for number, switched in enumerate(cells.rules):
        for i in switched:
            regions[i].append(number)
    rules = []
    for rule, own in zip(spec.rules, regions, strict=True):
        exclusions = None
        if len(rule.requirement.exclusions):
            exclusions = {"offset": len(block), "count": len(rule.requirement.exclusions)}
            block.extend(rule.requirement.exclusions.astype("<u4").tobytes())
        rules.append(
            {
                "name": rule.name,
                "regions": own,
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
            {"terms": stated_terms(row.coefficients), "bound": str(row.bound), "strict": row.strict}
            for row in cells.rows
        ],
        "regions": [sorted(region) for region in cells.regions],
        "rules": rules,
    }


def _literal(literal: Literal) -> dict[str, Any]:
    return {
        "y": stated_terms(literal.outputs),
        "x": stated_terms(literal.inputs),
        "bound": str(literal.bound),
        "strict": literal.strict,
    }


def stated_terms(form: Linear) -> list[list[Any]]:
    """Return a linear form as certificates state it."""
    return [[index, str(value)] for index, value in form]
