"""Facts about the model, digests of its files, commands to check them again, and the annex.

The annex lists what Annex IV of the EU AI Act (Regulation (EU) 2024/1689) asks for: a reading aid, not legal advice. No
report alone fulfills a point. The points and their texts are in assets/annex.json.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import smle
import smle_check
from smle.certificates.document import Certificate, tensors_of
from smle.errors import CertificateError
from smle.heads.table import HEADS
from smle.report.judge import NO_RULES, REJECTED, Judgement
from smle.report.recorded import mapping_of, text_of
from smle.report.tables import PageTable, named
from smle.rules import ABOUT, Specification
from smle.storage import ModelRecord, model_files
from smle_check.names import visible

__all__ = ["annex_view", "card_view", "files_view"]


def card_view(description: Mapping[str, Any], record: ModelRecord | None) -> dict[str, Any]:
    """Return the facts of model.json; missing ones are shown as not recorded."""
    provenance = mapping_of(description.get("provenance"))
    versions = mapping_of(provenance.get("versions"))
    program = _program(record)
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
    if program:
        facts.insert(2, ("Certified program", _program_text(program)))
    return {
        "card": [(term, value or "not recorded") for term, value in facts],
        "mono": ("Data digest", "Command"),
        "subtitle": facts[0][1] or "model",
    }


def _program(record: ModelRecord | None) -> Mapping[str, Any]:
    certificate = None if record is None else record.certificate
    return {} if certificate is None else mapping_of(_document(certificate).get("program"))


def _program_text(program: Mapping[str, Any]) -> str:
    name = text_of(program.get("head"))
    return HEADS[name].words({key: text_of(value) for key, value in program.items()}) if name in HEADS else name


def _network_text(description: Mapping[str, Any], record: ModelRecord | None) -> str:
    architecture = mapping_of(description.get("architecture"))
    if not architecture:
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
    last = f"{width} outputs" if _program(record).get("head") != "box" else f"clipped embedding of {width}"
    return f"{kind}, hidden layers {layers}, {last}{size}"


def _digests(record: ModelRecord) -> list[tuple[str, str, str]]:
    """Return (file, hint, SHA-256) of what was checked, even if other files have taken its place since."""
    certificate, onnx = record.certificate, record.onnx
    files = {"model.onnx": onnx, "rules.yaml": None if record.rules is None else record.rules.encode()}
    if certificate is not None:
        files |= {"model.json": certificate.files.get("model"), "certificate.json": certificate.text}
        files |= {"certificate.bin": certificate.block or None}
    digests = {name: _sha(data) for name, data in files.items() if data is not None} | dict(record.digests)
    tensors = certificate.tensors if certificate is not None else tensors_of(record.weights)
    bound = smle_check.bindings(tensors, b"", {} if onnx is None else {"onnx": onnx})
    hint = "names, types, shapes and bytes of its tensors: what the certificate binds"
    found = [("model.safetensors", "", digests.get("model.safetensors")), ("head", hint, bound["head"])]
    found += [("backbone", hint, bound["backbone"])] if onnx is None else []
    listed = ("model.onnx", "model.json", "rules.yaml", "certificate.json", "certificate.bin")
    found += [(name, "", digests.get(name)) for name in listed]
    return [(name, hint, digest) for name, hint, digest in found if digest is not None]


def files_view(record: ModelRecord | None, judgement: Judgement, place: Path | None) -> dict[str, Any]:
    """Return digests of the checked files, and the commands to check them again."""
    certificate = None if record is None else record.certificate
    if record is not None:
        digests = _digests(record)
    else:
        files = [] if place is None else model_files(place)
        digests = [(file.name, "as it is now; nothing was checked", _sha(file.read_bytes())) for file in files]
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
        "digests": PageTable(
            [("File", ""), ("SHA-256", "mono digest")], [(named(name, hint), value) for name, hint, value in digests]
        ),
        "digest": "" if certificate is None else text_of(_document(certificate).get("digest")),
        "files_lead": lead,
        "commands": commands,
        "check_command": "" if judgement.verdict == NO_RULES else commands[0][1],
    }


def _kernel_digest() -> str:
    """Digest the checker's sources: the lines `digest  name` that sha256sum prints for them."""
    root = Path(smle_check.__file__).parent
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return _sha("".join(f"{_sha((root / name).read_bytes())}  {name}\n" for name in files).encode())


def _document(certificate: Certificate) -> Mapping[str, Any]:
    """Return the parsed certificate, or {} if it is not readable."""
    try:
        return certificate.document
    except CertificateError:
        return {}


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def annex_view(
    contents: Collection[tuple[str, str]], *, proved: bool, spec: Specification | None = None
) -> dict[str, Any]:
    """Return one row per point of the annex: what it asks for, what the page covers, and what to add.

    `contents` has anchors and titles of the page's sections. Unless `proved`, nothing is claimed.
    """
    said = None if spec is None or not proved else _who_says_so(spec)
    titles = dict(contents)
    points = json.loads((resources.files("smle.report") / "assets" / "annex.json").read_text(encoding="utf-8"))
    rows = []
    for point in points:
        sections = [(anchor, titles[anchor]) for anchor in point["sections"] if anchor in titles and proved]
        answer = {"state": "partly"} if sections else {"state": "open", "here": "", "missing": "everything"}
        rows.append({**point, **answer, "sections": sections})
        if said is not None and sections and point["number"] == "2 (b)":
            rows[-1]["here"] += "; what each rule is for, where it comes from, who answers for it (below)"
    return {"annex": rows, "annex_rules": said}


def _who_says_so(spec: Specification) -> PageTable | None:
    """Return a table of the metadata in the rules file, or None if there is none."""
    stated = [("all rules", spec.about), *((visible(rule.name), rule.about) for rule in spec.rules)]
    rows = [(name, *(visible(dict(about).get(what, "")) for what in ABOUT)) for name, about in stated if dict(about)]
    if not rows:
        return None
    columns = [("Rule", ""), *((what.capitalize(), "long" if what == "description" else "") for what in ABOUT)]
    return PageTable(columns, rows, label="Who says so", rows_are="rules")
