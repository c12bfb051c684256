"""Facts of the model, digests of its files, and the commands that check them again."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import smle
from smle.certificates import checker
from smle.certificates.document import Certificate, tensors_of
from smle.errors import CertificateError
from smle.report.judge import NO_RULES, Judgement
from smle.report.recorded import text_of
from smle.storage import ModelRecord

__all__ = ["card_view", "files_view"]


def card_view(description: Mapping[str, Any], record: ModelRecord | None) -> dict[str, Any]:
    """Return the facts of model.json; what is not there is said to be not recorded."""
    provenance = description.get("provenance")
    provenance = provenance if isinstance(provenance, Mapping) else {}
    versions = provenance.get("versions")
    versions = versions if isinstance(versions, Mapping) else {}
    certificate = None if record is None else record.certificate
    facts = [
        ("Kind", text_of(description.get("kind"))),
        ("Network", _network_text(description, record)),
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
            precision, bounds, clip = (text_of(program.get(part)) for part in ("precision", "bounds", "clip"))
            facts.insert(2, ("Certified program", f"{precision}, {bounds} bounds, clip by {clip}"))
    subtitle = facts[0][1] or "model"
    return {
        "card": [(term, value or "not recorded") for term, value in facts],
        "mono": ("Data digest", "Command"),
        "subtitle": subtitle,
    }


def _network_text(description: Mapping[str, Any], record: ModelRecord | None) -> str:
    architecture = description.get("architecture")
    if not isinstance(architecture, Mapping):
        return ""
    hidden = architecture.get("hidden")
    layers = " × ".join(text_of(w) for w in hidden[:20]) if isinstance(hidden, list) else "?"
    size = "" if record is None else f", {sum(w.size for w in record.weights.values()):,} numbers"
    kind = text_of(architecture.get("backbone"))
    return f"{kind}, hidden layers {layers}, clipped embedding of {text_of(architecture.get('embedding'))}{size}"


def files_view(record: ModelRecord | None, judgement: Judgement, place: Path | None) -> dict[str, Any]:
    """Return digests of the very bytes that were checked, and the commands to check them again."""
    digests: list[tuple[str, str, str]] = []
    certificate = None if record is None else record.certificate
    if record is not None:
        weights = checker.weights_digest(certificate.tensors if certificate is not None else tensors_of(record.weights))
        if place is not None and (place / "model.safetensors").is_file():
            digests.append(("model.safetensors", "", _sha((place / "model.safetensors").read_bytes())))
        digests.append(("weights", "names, types, shapes and bytes: what the certificate binds", weights))
        digests.append(("model.json", "", _sha(ModelRecord.description_bytes(record.description))))
        if certificate is not None:
            digests[-1] = ("model.json", "", _sha(certificate.files.get("model", b"")))
        if record.rules is not None:
            digests.append(("rules.yaml", "", _sha(record.rules.encode())))
    elif place is not None:
        digests += [(f.name, "", _sha(f.read_bytes())) for f in sorted(place.iterdir()) if f.is_file()]
    digest = ""
    if certificate is not None:
        digests.append(("certificate.json", "", _sha(certificate.text)))
        if certificate.block:
            digests.append(("certificate.bin", "", _sha(certificate.block)))
        digest = text_of(_document(certificate).get("digest"))
    digests.append(("checker.py", f"of smle {smle.__version__}", _sha(Path(checker.__file__).read_bytes())))
    folder = shlex.quote(str(place)) if place is not None else "MODEL"
    commands = [
        ("the proof, and that rules.yaml says what was proved", f"smle verify {folder}"),
        (
            "the checker alone: one file, standard library only, nothing of smle is imported",
            f"python3 -I -S checker.py {folder}",
        ),
        ("the digests of this page", f"sha256sum {folder}/*"),
    ]
    lead = "Change a bit of any of these files and the certificate is void."
    if judgement.verdict == NO_RULES:
        commands, lead = commands[2:], "This model has no certificate, because it has no rules."
    return {
        "digests": digests,
        "digest": digest,
        "files_lead": lead,
        "commands": commands,
        "check_command": "" if judgement.verdict == NO_RULES else commands[0][1],
    }


def _document(certificate: Certificate) -> Mapping[str, Any]:
    """Return the parsed certificate, or nothing if it is not readable."""
    try:
        return certificate.document
    except CertificateError:
        return {}


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
