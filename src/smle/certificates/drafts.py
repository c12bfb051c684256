"""Proofs found once: what a head states under the same rules, before data and files are bound.

Drafts are kept in the process, and in the folder named by the environment variable SMLE_CACHE. Nothing is trusted:
everything sealed passes the exact checker, and a draft from a folder must state the requested rules. Accepted
certificates are kept, too, since a parameter search asks for the same ones again for each fold.
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
from smle.certificates.issue import sealed
from smle.errors import NotCertifiedError
from smle.files import reason_of, replacing

__all__ = ["Draft", "certified"]

_KEPT, _KEPT_OF_EACH = 32, 8  # drafts in memory, and certificates of each
_drafts: OrderedDict[str, _Known] = OrderedDict()
_one_at_a_time = Lock()


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

    `own` has arrays of this model that no proof depends on, such as units of distances; they replace those of the
    draft. Raises NotCertifiedError if the checker does not accept the result.
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
