"""The certificate as an object: canonical JSON, a binary block, and the files that it binds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates import checker
from smle.certificates.fast_exclusions import exclusion_margin
from smle.errors import CertificateError

__all__ = ["Certificate", "Proved", "tensors_of"]

Proved = checker.Proved


@dataclass(frozen=True, eq=False)
class Certificate:
    """A proof that a model obeys its rules, with everything needed to check it again.

    * `text`: the canonical JSON (certificate.json); `block`: certificate.bin, empty if there is none.
    * `tensors`: the weights that it speaks of; `files`: the bound files by their role (`model`, `rules`).
    """

    text: bytes
    block: bytes
    tensors: dict[str, checker.Tensor] = field(repr=False)
    files: dict[str, bytes] = field(repr=False)

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Certificate:
        """Read the certificate of a model folder, without checking it.

        Raises:
            CertificateError: If files are missing or the weights are not readable.
        """
        try:
            return cls(*_reordered(checker.read_folder(str(folder))))
        except checker.Rejected as reason:
            raise CertificateError(str(reason)) from None

    @cached_property
    def document(self) -> dict[str, Any]:
        """The parsed JSON."""
        try:
            parsed = checker.read_json(self.text, "certificate")
        except checker.Rejected as reason:
            raise CertificateError(str(reason)) from None
        if not isinstance(parsed, dict):
            raise CertificateError("certificate: expected a JSON object.")
        return parsed

    def check(self, *, fast: bool = False) -> tuple[Proved, ...]:
        """Check everything in exact arithmetic and return what is proved.

        With `fast`, exclusions are checked in float64 with a rigorous error bound; pairs that this does not settle, and
        everything else, are still checked exactly.

        Raises:
            CertificateError: If the checker rejects it; the message says why.
        """
        pairs = exclusion_margin if fast else checker.Head.exclusion_margin
        try:
            return tuple(checker.check(self.text, self.tensors, self.block, self.files, pairs))
        except checker.Rejected as reason:
            raise CertificateError(str(reason)) from None

    @cached_property
    def proved(self) -> tuple[Proved, ...]:
        """What is proved (checked once)."""
        return self.check()

    def __str__(self) -> str:
        lines = [f"Certificate: {len(self.proved)} statements proved in exact arithmetic."]
        for item in self.proved:
            lines.append(f"  {item.rule}: {item.where}: {item.sentence}  (margin {checker.approximate(item.margin)})")
        lines.append(f"Claim: {self.document['statement']['claim']}")
        return "\n".join([*lines, *_accuracy(self.files.get("model", b""))])


def _accuracy(description: bytes) -> list[str]:
    """Return what the bound model.json says about accuracy, in lines; it is measured, not proved."""
    try:
        scores = json.loads(description)["scores"]
        score, rows = {name: float(value) for name, value in scores["score"].items()}, int(scores["rows"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ["Accuracy: not measured."]
    titles = {
        "safe": "this model",
        "plain": "plain",
        "postprocess": "plain, post-processed",
        "oracle": "best that obeys",
    }
    listed = ", ".join(f"{title} {score[name]:.4f}" for name, title in titles.items() if name in score)
    lines = [f"Accuracy (measured on {rows} rows, not proved): {scores.get('metric')} {listed}"]
    remarks = {"WARNING": scores.get("concern"), "Note": scores.get("cost")}
    return [*lines, *(f"{kind}: {text}" for kind, text in remarks.items() if text)]


def tensors_of(weights: dict[str, npt.NDArray[Any]]) -> dict[str, checker.Tensor]:
    """Return weights as the checker would read them from the weight file."""
    names = {
        "f4": "F32",
        "f8": "F64",
        "u1": "U8",
        "i1": "I8",
        "i2": "I16",
        "i4": "I32",
        "i8": "I64",
        "b1": "BOOL",
        "f2": "F16",
    }
    result = {}
    for name, value in weights.items():
        array = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        result[name] = checker.Tensor(names[array.dtype.str[1:]], tuple(value.shape), array.tobytes())
    return result


def _reordered(
    parts: tuple[bytes, dict[str, checker.Tensor], bytes, dict[str, bytes]],
) -> tuple[bytes, bytes, dict[str, checker.Tensor], dict[str, bytes]]:
    text, tensors, block, files = parts
    return text, block, tensors, files
