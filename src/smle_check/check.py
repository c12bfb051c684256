"""Checks a certificate as a whole (section 8)."""

import os

from smle_check.claims import Claim, Unproved
from smle_check.guard import check_guard
from smle_check.heads.table import HEADS
from smle_check.reading import (
    BACKBONE,
    Rejected,
    Tensor,
    bindings,
    fields,
    index,
    items,
    read_file,
    read_sealed,
    read_weights,
    require,
)
from smle_check.stated import StatedSpecification
from smle_check.statement import VERSION
from smle_check.words import Proved, described, failed_text
from smle_check.work import Work

FORMAT = "smle-certificate"
FIELDS = "statement binds program specification gate proof"
FILES = {"onnx": "model.onnx", "model": "model.json", "rules": "rules.yaml"}  # whole files, by role
ROLES = {
    "head": "model.safetensors: the head",
    "backbone": "the backbone (model.onnx, or backbone.* in model.safetensors)",
    "block": "certificate.bin",
    "model": "model.json",
    "rules": "rules.yaml",
}


def check_certificate(
    certificate: bytes, tensors: dict[str, Tensor], block: bytes, files: dict[str, bytes], *, exported: bool = False
) -> list[Proved]:
    """Check a certificate against weights, block (empty if there is none) and bound files; return what is proved.

    Takes the arguments of `claimed`, and raises its errors.
    """
    kind, claim = claimed(certificate, tensors, block, files, exported=exported)
    try:
        settled = HEADS[kind].check(claim)
    except Unproved as failure:
        raise Rejected(failed_text(claim.spec, failure.obligation, str(failure))) from None
    return [item for each in settled for item in described(claim.spec, *each, kind)]


def claimed(
    certificate: bytes, tensors: dict[str, Tensor], block: bytes, files: dict[str, bytes], *, exported: bool = False
) -> tuple[str, Claim]:
    """Check everything but the proof: that the certificate is complete, states rules and binds exactly these bytes.

    Returns the kind of head, and what is claimed about it. Raises Rejected if anything is wrong.

    Args:
        certificate: The bytes of certificate.json.
        tensors: The weights: of the head, and `backbone.*`.
        block: The bytes of certificate.bin.
        files: Other files by role: `onnx`, `model`, `rules`.
        exported: The tensors come with an ONNX file, whose own certificate binds the backbone.
    """
    document = read_sealed(certificate, "certificate.json", (FORMAT, VERSION), FIELDS)
    actual = bindings(tensors, block, files)
    for role, bound in zip(ROLES, fields(document["binds"], " ".join(ROLES), "binds"), strict=True):
        if exported and role == "backbone":
            require(bound is None or isinstance(bound, str), "binds: expected a digest or null")
        elif bound != actual[role]:
            absent = "is missing; it was certified" if actual[role] is None else "was not there when this was certified"
            both = None not in (bound, actual[role])
            raise Rejected(f"{ROLES[role]} {'is not what was certified: digest differs' if both else absent}")
    program = document["program"]
    require(isinstance(program, dict) and isinstance(program.get("head"), str), "program: expected a kind of head")
    require(program["head"] in HEADS, f"program: unknown kind of head {program['head'][:20]!r}")
    head = HEADS[program["head"]]
    require(document["statement"] == head.statement, "certificate: the statement is not that of this version")

    size = len(certificate) + len(block) + sum(len(tensor.data) for tensor in tensors.values())
    spec = StatedSpecification(document["specification"], block, Work(size))
    require(bool(spec.rules), "specification: no rules, so nothing is claimed")
    gated = gated_regions(document["gate"], spec)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(BACKBONE)}
    if not head.reads_steps:
        require(not spec.is_stepped, "specification: only a grid head has steps")
        check_guard(spec, own, gated)
    return program["head"], Claim(spec, own, gated, program, document["proof"], block)


def gated_regions(data: object, spec: StatedSpecification) -> list[int]:
    """Return the regions whose bits the gate computes, in order."""
    (regions,) = fields(data, "regions", "gate")
    gated = [index(r, len(spec.regions), "gate") for r in items(regions, "gate")]
    require(len(set(gated)) == len(gated), "gate: region given twice")
    return gated


def read_folder(folder: str) -> tuple[bytes, dict[str, Tensor], bytes, dict[str, bytes]]:
    """Read the files of a model folder for `check_certificate`; files that are not bound may be absent."""

    def read(name: str) -> bytes | None:
        return read_file(os.path.join(folder, name), name)

    certificate, weights = read("certificate.json"), read("model.safetensors")
    if certificate is None or weights is None:
        raise Rejected("expected certificate.json and model.safetensors in the folder")
    others = {role: read(name) for role, name in FILES.items()}
    files = {role: data for role, data in others.items() if data is not None}
    block = read("certificate.bin")
    require(block != b"", "certificate.bin: empty; expected no such file")
    return certificate, read_weights(weights), block or b"", files
