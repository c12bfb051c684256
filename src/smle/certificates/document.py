"""The certificate as an object: canonical JSON, a binary block, and the files that it binds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

import smle_check
from smle.errors import CertificateError
from smle.rules import html_table, text_table
from smle_check.digits import margin_text
from smle_check.words import domain_text, head_text

__all__ = ["Certificate", "Proved", "arrays_of", "by_rule", "how_proved", "tensors_of"]

Proved = smle_check.Proved

_SHOWN = 50  # rules that a description lists


@dataclass(frozen=True, eq=False)
class Certificate:
    """A proof that a model obeys its rules, with everything needed to check it again. It is read-only.

    * `text`: the canonical JSON (certificate.json); `block`: certificate.bin, empty if there is none.
    * `tensors`: the weights it is about; `files`: the bound files by role (`model`, `rules`, and `onnx` if the model in
      front of the head is model.onnx).
    * `made`: what was made from it and is in use, such as the program of its head. Not stored.
    """

    text: bytes
    block: bytes
    tensors: Mapping[str, smle_check.Tensor] = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    made: WeakValueDictionary[str, Any] = field(init=False, repr=False, default_factory=WeakValueDictionary)

    def __post_init__(self) -> None:
        for name in ("tensors", "files"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Certificate:
        """Read the certificate of a model folder, without checking it.

        Raises:
            CertificateError: If files are missing or the weights are not readable.
        """
        try:
            text, tensors, block, files = smle_check.read_folder(str(folder))
        except smle_check.Rejected as reason:
            raise CertificateError(str(reason)) from None
        return cls(text, block, tensors, files)

    def __getstate__(self) -> dict[str, Any]:
        """Keep what the checker reads, and nothing derived from it."""
        return {"text": self.text, "block": self.block, "tensors": dict(self.tensors), "files": dict(self.files)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: state[name] for name in ("text", "block", "tensors", "files")})
        self.__dict__["made"] = WeakValueDictionary()
        self.__post_init__()

    @property
    def document(self) -> dict[str, Any]:
        """The JSON, parsed again on every access, so that changes to the result have no effect."""
        try:
            parsed = smle_check.read_json(self.text, "certificate")
        except smle_check.Rejected as reason:
            raise CertificateError(str(reason)) from None
        if not isinstance(parsed, dict):
            raise CertificateError("certificate: expected a JSON object.")
        return parsed

    def check(self) -> tuple[Proved, ...]:
        """Check everything in exact arithmetic and return what is proved, for the numbers stored in it.

        Raises:
            CertificateError: If the checker rejects it; the message says why.
        """
        try:
            return tuple(smle_check.check_certificate(self.text, dict(self.tensors), self.block, dict(self.files)))
        except smle_check.Rejected as reason:
            raise CertificateError(str(reason)) from None

    @cached_property
    def proved(self) -> tuple[Proved, ...]:
        """What is proved for the numbers stored here; checked once."""
        return self.check()

    @cached_property
    def kind(self) -> str:
        """The kind of head. Raises CertificateError if it names none."""
        program = self.document.get("program")
        kind = program.get("head") if isinstance(program, dict) else None
        if not isinstance(kind, str):
            raise CertificateError("certificate: expected a kind of head in 'program'.")
        return kind

    @property
    def domain(self) -> list[str]:
        """The inputs for which it is proved, in words (of an accepted certificate)."""
        return domain_text(smle_check.StatedSpecification(self.document["specification"], self.block))

    @property
    def head(self) -> list[str]:
        """The kind of head that is proved, and what is not proved, in words (of an accepted certificate)."""
        return head_text(self.kind, self.tensors, self.files)

    def __repr__(self) -> str:
        """Show the digest, without checking anything."""
        try:
            digest = str(self.document.get("digest"))[:16]
        except CertificateError:
            digest = "not readable"
        return f"Certificate({digest})"

    def __str__(self) -> str:
        """Check the certificate and list what is proved, a line per rule; `details()` has every statement."""
        return "\n".join([self._title(), "", text_table(self._rows()), "", *self._below()])

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._rows(), self._below())

    def details(self) -> str:
        """Check the certificate and return every proved statement, with the inputs it is about."""
        lines = [self._title(), *(f"  {line}" for line in self.domain)]
        lines += [f"  {p.rule}: {p.where}: {p.sentence}  ({how_proved([p])})" for p in self.proved]
        return "\n".join([*lines, *self._below()])

    def _title(self) -> str:
        count = len(self.proved)
        statements = "1 statement" if count == 1 else f"{count} statements"
        return f"Certificate: {statements} proved in exact arithmetic, for every input of the domain"

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = [(name, str(len(items)), how_proved(items)) for name, items in by_rule(self.proved).items()]
        more = [(f"... {len(rows) - _SHOWN} more rules", "", "")] if len(rows) > _SHOWN else []
        last = "enforced by" if any(item.by for item in self.proved) else "margin"
        return [("rule", "statements", last), *rows[:_SHOWN], *more]

    def _below(self) -> list[str]:
        document = self.document
        claim = [f"Claim: {document['statement']['claim']}", *_units(document, self.tensors)]
        return [*claim, *_accuracy(self.files.get("model", b""))]


def by_rule(proved: Iterable[Proved]) -> dict[str, list[Proved]]:
    """Group statements by the visible name of their rule."""
    rules: dict[str, list[Proved]] = {}
    for item in proved:
        rules.setdefault(item.rule, []).append(item)
    return rules


def how_proved(proved: Sequence[Proved]) -> str:
    """Return the smallest margin of statements about one rule, or what enforces it in a head of rules."""
    if not proved:
        return "never active"
    enforced = sorted({item.by for item in proved if item.by}, reverse=True)
    return ", ".join(enforced) or margin_text(min(item.margin for item in proved))


def _units(document: dict[str, Any], tensors: Mapping[str, smle_check.Tensor]) -> list[str]:
    """Return a line about the units in which the nearest allowed answer is searched. They are not proved."""
    if "check.scale" not in tensors:
        return []
    numbers = [
        (i, item["name"]) for i, item in enumerate(document["specification"]["outputs"]) if item["kind"] == "number"
    ]
    units = arrays_of({"scale": tensors["check.scale"]})["scale"]
    if not numbers:
        return []
    if len({float(units[i]) for i, _ in numbers}) == 1:
        return ["Nearest allowed answer: all numbers count alike."]
    shown = [f"{name} {units[i]:.3g}" for i, name in numbers[:_SHOWN]]
    more = f", and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return [f"Nearest allowed answer: distances count in units of {', '.join(shown)}{more}."]


def _accuracy(description: bytes) -> list[str]:
    """Return lines about accuracy from the bound model.json. It is measured, not proved."""
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
    remarks = [("WARNING", scores.get("concern")), ("Note", scores.get("cost")), ("Note", scores.get("advice"))]
    return [*lines, *(f"{kind}: {text}" for kind, text in remarks if text)]


_TYPES = {"F32": "f4", "F64": "f8", "F16": "f2", "U8": "u1", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
_TYPES |= {"BOOL": "b1"}


def tensors_of(weights: dict[str, npt.NDArray[Any]]) -> dict[str, smle_check.Tensor]:
    """Return weights as the checker reads them from the weight file."""
    names = {code: name for name, code in _TYPES.items()}
    result = {}
    for name, value in weights.items():
        array = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        result[name] = smle_check.Tensor(names[array.dtype.str[1:]], tuple(value.shape), array.tobytes())
    return result


def arrays_of(tensors: Mapping[str, smle_check.Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Return tensors of the checker as read-only views of the same bytes, leaving out types that NumPy lacks."""
    return {
        name: np.frombuffer(tensor.data, dtype=f"<{_TYPES[tensor.dtype]}").reshape(tensor.shape)
        for name, tensor in tensors.items()
        if tensor.dtype in _TYPES
    }
