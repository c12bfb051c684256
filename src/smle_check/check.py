"""The whole (section 8)."""

import math
import os
from fractions import Fraction
from typing import Any

from smle_check.claims import Obligation, Unproved
from smle_check.floats import FORMATS
from smle_check.guard import check_coverage, check_guard
from smle_check.heads.box import Bounds, Head
from smle_check.heads.candidates import check_rules
from smle_check.heads.network import Relaxed, hidden_layers
from smle_check.obligations import HeadProof, check_head, read_proofs
from smle_check.reading import (
    Rejected,
    Tensor,
    canonical,
    fields,
    index,
    items,
    read_file,
    read_json,
    read_weights,
    require,
    sha256,
    values,
    weights_digest,
)
from smle_check.specification import Specification
from smle_check.statement import STATEMENT, VERSION
from smle_check.words import Proved, described, failed_text

MAX_HEADS = 100_000


def check_certificate(
    certificate: bytes, tensors: dict[str, Tensor], block: bytes, bound_files: dict[str, bytes]
) -> list[Proved]:
    """Check a certificate against weights, block (empty: none) and the files it binds; return what is proved.

    Raises:
        Rejected: If anything is wrong.
    """
    document = read_json(certificate, "certificate")
    require(isinstance(document, dict) and document.get("format") == "smle-certificate", "not an smle certificate")
    version = document.get("version")
    require(type(version) is int and version == VERSION, f"certificate version {str(version)[:20]!r} is not supported")
    names = "format version statement binds program specification gate coverage proofs digest"
    *_, statement, binds, program, specification, gate, coverage, proof_data, digest = fields(
        document, names, "certificate"
    )
    require(certificate == canonical(document) + b"\n", "certificate: not in canonical form")
    body = {key: value for key, value in document.items() if key != "digest"}
    require(digest == sha256(canonical(body)), "certificate.json was changed: digest differs")
    files = {**bound_files, "block": block} if block else bound_files  # an empty file is not an absent one
    actual = {name: sha256(data) for name, data in files.items()}
    actual["weights"] = weights_digest(tensors)
    roles = {"weights": "model.safetensors", "model": "model.json", "rules": "rules.yaml", "block": "certificate.bin"}
    for role, expected in zip(roles, fields(binds, " ".join(roles), "binds"), strict=True):
        require(expected == actual.get(role), f"{roles[role]} is not the file that was certified: digest differs")
    require(statement == STATEMENT, "certificate: the statement is not that of this version")
    precision, clip, kind = fields(program, "precision clip bounds", "program")
    require(precision == "float32", "program: only float32 heads are supported")
    boxes = [("clamp", "constant"), *(("where", known) for known in ("constant", "affine", "network"))]
    require((clip, kind) in [*boxes, ("list", "rules")], "program: unknown kind")

    spec = Specification(specification, block)
    require(bool(spec.rules), "specification: no rules, so nothing is claimed")
    (gate_regions,) = fields(gate, "regions", "gate")
    gated = [index(r, len(spec.regions), "gate") for r in items(gate_regions, "gate")]
    require(len(set(gated)) == len(gated), "gate: region given twice")
    check_guard(spec, tensors, gated)
    try:
        if clip == "list":
            require(coverage is None, "coverage: expected null, a clip list has no cells")
            settled = check_rules(spec, tensors, gated, None, {"limits": proof_data, "safe": [], "moved": []})
        else:
            settled = check_boxes(spec, tensors, gated, coverage, proof_data, block, clip, kind)
    except Unproved as failure:
        raise Rejected(failed_text(spec, failure.obligation, str(failure))) from None
    return [described(spec, *item) for item in settled]


def check_boxes(
    spec: Specification, tensors: dict[str, Tensor], gated: list[int], coverage: Any, proof_data: Any, block: bytes,
    clip: str, kind: str,
) -> list[tuple[Obligation, Fraction]]:  # fmt: skip
    """Check heads behind boxes, one for each cell."""
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
    """Check that the weights hold what the stated program reads, and nothing else beside the backbone."""
    prescribed = {f"domain.{side}_{fmt.name}" for side in ("lower", "upper") for fmt in FORMATS}
    prescribed |= {f"gate.constants_{fmt.name}" for fmt in FORMATS}
    prescribed |= {"gate.coefficients", "gate.thresholds", "gate.signatures", "heads.weight", "heads.bias"}
    prescribed |= {"bounds.lower", "bounds.upper"} | ({"heads.fallback"} if clip == "clamp" else set())
    prescribed |= {"bounds.lower_slope", "bounds.upper_slope"} if kind != "constant" else set()
    if kind == "network":
        layers = range(max(hidden_layers(tensors), 1))
        prescribed |= {f"bounds.hidden.{i}.{part}" for i in layers for part in ("weight", "bias")}
    prescribed |= {"free.weight", "free.bias"} if free else set()
    names = {name for name in tensors if not name.startswith("backbone.")}
    names -= {"heads.passthrough"} if clip == "where" else set()  # optional there
    odd = sorted(names ^ prescribed)
    require(not odd, f"weights: tensor {odd[:1]} is missing or not part of the stated program")


def read_folder(folder: str) -> tuple[bytes, dict[str, Tensor], bytes, dict[str, bytes]]:
    """Read the files of a model folder; certificate.bin, model.json and rules.yaml may be absent if not bound."""

    def read(name: str) -> bytes | None:
        return read_file(os.path.join(folder, name), name)

    certificate, weights = read("certificate.json"), read("model.safetensors")
    if certificate is None or weights is None:
        raise Rejected("expected certificate.json and model.safetensors in the folder")
    others = {"model": read("model.json"), "rules": read("rules.yaml")}
    bound = {name: data for name, data in others.items() if data is not None}
    block = read("certificate.bin")
    require(block != b"", "certificate.bin: empty; expected no such file")
    return certificate, read_weights(weights), block or b"", bound
