"""Issues the certificate of a head from what it states, if the exact checker accepts it.

What a head states under the same rules, before data and files are bound, is a draft: its proof is found once. Drafts
are kept in the process, and in the folder named by the environment variable SMLE_CACHE. Nothing is trusted: everything
sealed passes the exact checker, and a draft from a folder must state the requested rules. Accepted certificates are
kept, too, since a parameter search asks for the same ones again for each fold.
"""

from __future__ import annotations

import base64
import json
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import smle_check
from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.errors import CertificateError, NotCertifiedError
from smle.files import reason_of, replacing
from smle.regions.cells import Cells
from smle.rules import Choice, Label, Linear, Literal, Specification
from smle_check.reading import BACKBONE

__all__ = ["Draft", "certified", "compiled", "rebind", "sealed", "stated_terms"]

_KEPT, _KEPT_OF_EACH = 32, 8  # drafts in memory, and certificates of each
_drafts: OrderedDict[str, _Known] = OrderedDict()
_one_at_a_time = Lock()


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
        stated: The four fields that kinds of heads write; the other fields are added here.
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


# --- drafts


class Draft(NamedTuple):
    """What a head states (program, specification, gate, proof), certificate.bin, and the tensors of the head."""

    stated: dict[str, Any]
    block: bytes
    tensors: dict[str, smle_check.Tensor]


def certified(
    kind: str,
    specification: dict[str, Any],
    block: bytes,
    find: Callable[[], Draft],
    *,
    own: dict[str, Any],
    files: dict[str, bytes] | None,
) -> Certificate:
    """Return a certificate for rules, given as the certificate states them: a known draft, or what `find` returns.

    `own` has arrays of this model that no proof depends on, such as units of distances; they replace the draft's.
    Raises NotCertifiedError if the checker does not accept the result.
    """
    key = smle_check.sha256(smle_check.canonical([kind, specification]) + block)
    known, files = _drafts.get(key), files or {}
    if known is not None:
        return known.certificate(own, files)
    stored = _read(key, kind, specification)
    if stored is not None:
        known = _Known(stored)
        try:
            certificate = known.certificate(own, files)
        except NotCertifiedError:
            pass  # an old version or a foreign file: find the proof again
        else:
            _keep(_drafts, key, known, _KEPT)
            return certificate
    known = _Known(find())
    certificate = known.certificate(own, files)
    _keep(_drafts, key, known, _KEPT)
    _write(key, known.draft)  # accepted by the checker
    return certificate


class _Known:
    """A draft, and certificates made from it that the checker accepted."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._accepted: OrderedDict[Any, Certificate] = OrderedDict()

    def certificate(self, own: dict[str, Any], files: dict[str, bytes]) -> Certificate:
        """Return the draft sealed with arrays of a model and files. Raises NotCertifiedError if it is not accepted."""
        stated, block, tensors = self.draft
        mine = tensors_of({name: value for name, value in own.items() if name in tensors})
        asked = tuple(mine.items()), tuple(files.items())
        certificate = self._accepted.get(asked)
        if certificate is None:
            certificate = sealed(stated, block, tensors | mine, files)
        _keep(self._accepted, asked, certificate, _KEPT_OF_EACH)
        return certificate


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Keep a value, dropping the least recently used ones beyond `most`."""
    with _one_at_a_time:
        kept[key] = value
        kept.move_to_end(key)
        while len(kept) > most:
            kept.popitem(last=False)


# --- a folder, if asked for


def _place(key: str) -> Path | None:
    folder = os.environ.get("SMLE_CACHE")
    return Path(folder) / f"{key}.safetensors" if folder else None


def _read(key: str, kind: str, specification: dict[str, Any]) -> Draft | None:
    """Return the draft in the folder, or None if there is no readable one for these rules."""
    place = _place(key)
    if place is None or not place.is_file():
        return None
    try:
        with safe_open(place, framework="numpy") as file:
            words = file.metadata() or {}
            tensors = tensors_of({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  # no mapping
        stated, block = smle_check.read_json(words["stated"].encode(), "draft"), base64.b64decode(words["block"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, smle_check.Rejected):
        return None
    whole = isinstance(stated, dict) and set(stated) == {"program", "specification", "gate", "proof"}
    whole = whole and isinstance(stated["program"], dict)
    if not whole or stated["specification"] != specification or stated["program"].get("head") != kind:
        return None
    return Draft(stated, block, tensors)


def _write(key: str, draft: Draft) -> None:
    place = _place(key)
    if place is None:
        return
    words = {"stated": json.dumps(draft.stated), "block": base64.b64encode(draft.block).decode()}
    data = save(dict(arrays_of(draft.tensors)), metadata=words)
    try:
        with replacing(place) as (fresh,):
            fresh.write_bytes(data)
    except OSError as error:
        warnings.warn(
            f"The proof was not kept in SMLE_CACHE ('{place.parent}'): {reason_of(error)}. Name a folder that can be "
            "written, or unset it.",
            stacklevel=2,
        )
