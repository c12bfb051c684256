"""Facts of the model, digests of its files, and the commands that check them again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import smle
import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.errors import CertificateError
from smle.report.judge import NO_RULES, REJECTED, Judgement
from smle.report.recorded import text_of
from smle.storage import ModelRecord, model_files

__all__ = ["card_view", "files_view", "require_same_files"]


def card_view(description: Mapping[str, Any], record: ModelRecord | None) -> dict[str, Any]:
    """Return the facts of model.json; what is not there is said to be not recorded."""
    provenance = description.get("provenance")
    provenance = provenance if isinstance(provenance, Mapping) else {}
    versions = provenance.get("versions")
    versions = versions if isinstance(versions, Mapping) else {}
    certificate = None if record is None else record.certificate
    facts = [
        ("Kind", text_of(description.get("kind"))),
        ("Model", _network_text(description, record)),
        ("Trained on", f"{provenance['rows']:,} rows" if isinstance(provenance.get("rows"), int) else ""),
        ("Data digest", text_of(provenance.get("data_sha256"))),
        ("Seed", text_of(provenance.get("seed"))),
        ("Created", text_of(provenance.get("created"))),
        ("Command", text_of(provenance.get("command"))),
        ("Versions", ", ".join(f"{text_of(k)} {text_of(v)}" for k, v in list(versions.items())[:12])),
        ("Licence of the model", text_of(description.get("license"))),
        ("Licence of smle", "Apache-2.0"),
    ]
    if certificate is not None:
        program = _document(certificate).get("program")
        if isinstance(program, Mapping):
            facts.insert(2, ("Certified program", _program_text(program)))
    subtitle = facts[0][1] or "model"
    return {
        "card": [(term, value or "not recorded") for term, value in facts],
        "mono": ("Data digest", "Command"),
        "subtitle": subtitle,
    }


def _program_text(program: Mapping[str, Any]) -> str:
    head, precision, bounds, clip = (text_of(program.get(part)) for part in ("head", "precision", "bounds", "clip"))
    if head == "rules":
        return "head of rules, behind the model: answers that the rules allow pass, others are moved or replaced"
    return f"{head}: {precision}, {bounds} bounds, clip by {clip}"


def _network_text(description: Mapping[str, Any], record: ModelRecord | None) -> str:
    architecture = description.get("architecture")
    if not isinstance(architecture, Mapping):
        return ""
    if architecture.get("backbone") == "onnx":
        columns = architecture.get("columns")
        count = f", reads {len(columns)} columns" if isinstance(columns, list) else ""
        return f"{text_of(architecture.get('estimator'))}, stored as ONNX{count}"
    hidden = architecture.get("hidden")
    layers = " × ".join(text_of(w) for w in hidden[:20]) if isinstance(hidden, list) else "?"
    size = "" if record is None else f", {sum(w.size for w in record.weights.values()):,} numbers"
    kind = text_of(architecture.get("backbone"))
    width = text_of(architecture.get("embedding"))
    program = {} if record is None or record.certificate is None else _document(record.certificate).get("program", {})
    last = f"{width} outputs" if program.get("head") == "rules" else f"clipped embedding of {width}"
    return f"{kind}, hidden layers {layers}, {last}{size}"


def require_same_files(record: ModelRecord, place: Path) -> None:
    """Raise ValueError unless a folder holds the very model that a report is about."""
    files = {file.name: file.read_bytes() for file in model_files(place)}
    if not files:
        raise ValueError(
            f"Expected folder= to be where the model was saved. Got '{place}', which holds no model. Save the model "
            "there first, or leave folder= out."
        )
    certificate = record.certificate
    other = {
        "model.safetensors": not _same_weights(files.get("model.safetensors"), record),
        "model.onnx": files.get("model.onnx") != record.onnx,
        "model.json": not _same_description(files.get("model.json"), record),
        "rules.yaml": files.get("rules.yaml") != (None if record.rules is None else record.rules.encode()),
        "certificate.json": files.get("certificate.json") != (None if certificate is None else certificate.text),
        "certificate.bin": files.get("certificate.bin", b"") != (b"" if certificate is None else certificate.block),
    }
    changed = [name for name, differs in other.items() if differs]
    if changed:
        raise ValueError(
            f"Expected folder= to be where this model was saved. Got '{place}', which holds another one "
            f"({', '.join(changed)} differ). Save the model there first, or write the report about the folder."
        )


def _same_weights(data: bytes | None, record: ModelRecord) -> bool:
    """Whether the bytes of a file hold exactly the weights that were checked."""
    if data is None:
        return False
    try:
        found = smle_check.weights_digest(smle_check.read_weights(data))
    except smle_check.Rejected:
        return False
    return found == _weights(record)


def _same_description(data: bytes | None, record: ModelRecord) -> bool:
    """Whether the bytes of a file are the description that was checked; without a certificate, whether they say it."""
    if data is None or record.certificate is not None:
        return record.certificate is not None and data == record.certificate.files.get("model")
    try:
        return bool(json.loads(data) == record.description)
    except (ValueError, RecursionError):
        return False


def _weights(record: ModelRecord) -> str:
    certificate = record.certificate
    return smle_check.weights_digest(certificate.tensors if certificate is not None else tensors_of(record.weights))


def _digests(record: ModelRecord, place: Path | None) -> list[tuple[str, str, str]]:
    """Return (file, hint, SHA-256) of what was checked.

    Of model.safetensors a record holds the weights and not the bytes, as of model.json where there is no certificate:
    such a file is listed if the bytes that are digested hold what was checked, else left out.
    """
    digests: list[tuple[str, str, str]] = []
    data = _bytes(place, "model.safetensors")
    if data is not None and _same_weights(data, record):
        digests.append(("model.safetensors", "", _sha(data)))
    certificate = record.certificate
    tensors, onnx = (certificate.tensors if certificate is not None else tensors_of(record.weights)), record.onnx
    bound = smle_check.bindings(tensors, b"", {} if onnx is None else {"onnx": onnx})
    hint = "names, types, shapes and bytes of its tensors: what the certificate binds"
    digests.append(("head", hint, str(bound["head"])))
    if onnx is not None:
        digests.append(("model.onnx", "", _sha(onnx)))
    elif bound["backbone"] is not None:
        digests.append(("backbone", hint, bound["backbone"]))
    description = _bytes(place, "model.json") if place is not None else record.description_bytes(record.description)
    if certificate is not None:
        description = certificate.files.get("model")
    if description is not None and _same_description(description, record):
        digests.append(("model.json", "", _sha(description)))
    if record.rules is not None:
        digests.append(("rules.yaml", "", _sha(record.rules.encode())))
    if certificate is not None:
        digests.append(("certificate.json", "", _sha(certificate.text)))
        if certificate.block:
            digests.append(("certificate.bin", "", _sha(certificate.block)))
    return digests


def _bytes(place: Path | None, name: str) -> bytes | None:
    if place is not None:
        with contextlib.suppress(OSError):
            return (place / name).read_bytes()
    return None


def files_view(record: ModelRecord | None, judgement: Judgement, place: Path | None) -> dict[str, Any]:
    """Return digests of what was checked, and the commands to check the files again."""
    certificate = None if record is None else record.certificate
    if record is not None:
        digests = _digests(record, place)
    else:
        files = [] if place is None else model_files(place)
        digests = [(file.name, "as it is now; nothing was checked", _sha(file.read_bytes())) for file in files]
    digest = ""
    if certificate is not None:
        digest = text_of(_document(certificate).get("digest"))
    digests.append(("smle_check", f"the checker of smle {smle.__version__}, all files", _kernel_digest()))
    folder = shlex.quote(str(place)) if place is not None else "MODEL"
    commands = [
        ("the proof, and that rules.yaml says what was proved", f"smle verify {folder}"),
        ("the checker alone: standard library only, nothing of smle is imported", f"smle-check {folder}"),
        ("the digests of this page", f"sha256sum {folder}/*"),
    ]
    lead = "Change a bit of any of these files and the certificate is void."
    if judgement.verdict == NO_RULES:
        commands, lead = commands[2:], "This model has no certificate, because it has no rules."
    elif judgement.verdict == REJECTED:
        lead = "The proof was not accepted. These are the digests of what was read."
    return {
        "digests": digests,
        "digest": digest,
        "files_lead": lead,
        "commands": commands,
        "check_command": "" if judgement.verdict == NO_RULES else commands[0][1],
    }


def _kernel_digest() -> str:
    """Return the digest of the checker's sources: of the lines `digest  name` that sha256sum prints for them."""
    root = Path(smle_check.__file__).parent
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return _sha("".join(f"{_sha((root / name).read_bytes())}  {name}\n" for name in files).encode())


def _document(certificate: Certificate) -> Mapping[str, Any]:
    """Return the parsed certificate, or nothing if it is not readable."""
    try:
        return certificate.document
    except CertificateError:
        return {}


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
