"""Checks that a certificate matches the rules and the kind of model next to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from smle.certificates.document import Certificate
from smle.certificates.issue import compiled
from smle.errors import CertificateError
from smle.regions.cells import Cells, regions_of
from smle.rules import Categorical, NumericInput, Specification, date_text
from smle_check.names import term
from smle_check.words import assumptions_text

__all__ = ["assumptions_of", "cells_of", "require_kind", "require_same_rules"]


def cells_of(certificate: Certificate, spec: Specification) -> Cells:
    """Return the cells of a (checked) certificate. Raises CertificateError if its head is not a box."""
    if certificate.kind != "box":
        raise CertificateError(
            f"Expected the certificate of a network, with the head 'box'. Got the head '{certificate.kind}'."
        )
    gated = tuple(certificate.document["gate"]["regions"])
    signatures = certificate.tensors["gate.signatures"]
    bits = np.frombuffer(signatures.data, dtype=np.uint8).reshape(signatures.shape)
    active = tuple(tuple(sorted(g for g, bit in zip(gated, row, strict=True) if bit)) for row in bits)
    return replace(regions_of(spec), gated=gated, active=active)


_READ_AS = {
    "SafeRegressor": ("numbers",),
    "SafeQuantileRegressor": ("numbers",),
    "SafeClassifier": ("labels", "choice"),
}


def require_kind(description: Mapping[str, Any], spec: Specification) -> None:
    """Raise CertificateError if the kind of a model, which says how outputs are read, does not fit its rules.

    Unknown kinds pass.
    """
    kind = description.get("kind")
    known = _READ_AS.get(kind) if isinstance(kind, str) else None
    if known is not None and spec.output_kind not in known:
        raise CertificateError(
            f"model.json: a {kind} predicts {' or '.join(known)}, and the outputs in rules.yaml are {spec.output_kind}."
        )


def assumptions_of(spec: Specification, head: str) -> list[str]:
    """Return what the proof of a kind of head assumes, and what these rules declare."""
    numbers = [item for item in spec.inputs if isinstance(item, NumericInput)]
    filled = [
        (item.name, date_text(item.missing) if item.dates else f"{float(item.missing):g}")
        for item in numbers
        if item.missing is not None
    ]
    others = [(item.name, item.missing) for item in spec.inputs if isinstance(item, Categorical) and item.missing]
    whole = [item.name for item in numbers if item.integer]
    lines = assumptions_text(whole, [*filled, *others], head, spec.flags)
    dated = ", ".join(term(item.name) for item in numbers if item.dates)
    return [*lines, f"Dates are numbers of days from 1970-01-01: {dated}."] if dated else lines


def require_same_rules(certificate: Certificate, spec: Specification) -> None:
    """Raise CertificateError, naming the first difference, unless a certificate states exactly these compiled rules."""
    if "model" in certificate.files:
        require_kind(_described(certificate.files["model"]), spec)
    block = bytearray()
    if certificate.document["program"]["head"] == "rules":
        spec = spec.merged
    expected = compiled(spec, regions_of(spec), block)
    stated = certificate.document["specification"]
    if expected == stated and certificate.block[: len(block)] == bytes(block):
        return
    for rule, other in zip(expected["rules"], stated["rules"], strict=False):
        if rule != other:
            raise CertificateError(f"rules.yaml: rule '{rule['name']}' is not the one that was certified.")
    raise CertificateError("rules.yaml does not state the rules that were certified.")


def _described(data: bytes) -> dict[str, Any]:
    try:
        description = json.loads(data)
    except (ValueError, RecursionError):
        description = None
    return description if isinstance(description, dict) else {}
