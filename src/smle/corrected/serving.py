"""What is served: a model in front as it is stored, and behind it the program of its certified head.

There is one such path, for networks, estimators and functions, behind a head of rules and behind a box. Weights are the
bytes that the checker has seen: nobody can write into them.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.certificates.agreement import cells_of, require_same_rules
from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.certificates.issue import rebind
from smle.corrected.answers import PythonModel, answers_of
from smle.errors import CertificateError, ModelFormatError, NotCertifiedError
from smle.export.stored import StoredModel
from smle.guarantees import Cells, active, regions_of
from smle.monitor import Edges, Observation, Usage, column_edges
from smle.programs import (
    MUCH,
    WAYS,
    WIDE,
    Box,
    Corrections,
    Perceptron,
    Program,
    Settled,
    SettledBy,
    bound_by,
    program_of,
    served_by,
    ways_of,
)  # fmt: skip
from smle.rules import Specification
from smle.storage import ModelRecord
from smle.tables import Reader, apply_domain_policy, in_domain
from smle.tables.frames import frame_of
from smle.tables.further import FurtherColumns

__all__ = ["Answered", "Front", "ServedModel"]

Array = npt.NDArray[Any]
_CHUNK = 1024  # rows per pass through a network and its box, so that embeddings stay in the cache


Front = Perceptron | StoredModel | PythonModel
"""A model in front of a head: a stored network or ONNX model, or something that lives in Python alone.

All have `answers(table, encoded)`; `kind`, `network`, `estimator` or `function`; what is stored of them, `tensors` of
model.safetensors (`backbone.*`) and `onnx`, the bytes of model.onnx; `columns` of the table that they read by name
(a network: beside the inputs of the rules; None: those alone), and `texts`, those that they read as text."""


class Answered(NamedTuple):
    """Rows with what the model answered and what is served. Shapes: encoded (n, d), answers and served (n, m).

    * `by` (n,): by what a row was served, 0 its answer, clipped maybe, 1 the nearest allowed answer, 2 the stored safe
      one, 3 an allowed answer of a search that was cut short.
    * `cell` (n,), `clipped` (n,): of a box, if asked for, which head serves, and the share of units that are clipped.
      What is in front of a box has no answers of its own: they are what is served.
    """

    encoded: Array
    answers: Array
    served: Array
    by: Array
    cell: Array | None = None
    clipped: Array | None = None

    @property
    def replaced(self) -> npt.NDArray[np.bool_]:
        """Which answers are NaN, infinite or beyond 1e30."""
        return ~(np.abs(self.answers) <= WIDE)

    @property
    def moved(self) -> Array:
        """By how much each answer was moved; NaN where it was replaced."""
        with np.errstate(all="ignore"):
            return np.where(self.replaced, np.nan, self.served - self.answers)

    def information(self, spec: Specification) -> dict[str, Any]:
        """Return the active rules per row, whether it is in the domain, and what is clipped, or how it was served.

        `bound`: what a row's own answer breaks, rules by name and entries of tables such as `cap[art017]`.
        """
        titles = np.asarray([rule.name for rule in spec.rules], dtype=object)
        facts = {
            "active_rules": [tuple(titles[row].tolist()) for row in active_rules(spec, self.encoded)],
            "in_domain": in_domain(spec, self.encoded).all(axis=1),
        }
        if self.clipped is not None:
            return {**facts, "clipped_share": self.clipped}
        ways = ways_of(spec, self.answers, self.served, self.by)
        served = np.asarray(WAYS, dtype=object)[ways]
        bound = bound_by(spec, self.encoded, self.answers)
        return {**facts, "served": served, "bound": bound, "moved": self.moved, "replaced": self.replaced}

    def usage(self, spec: Specification, edges: Edges, *, heads: int, missing: dict[str, int]) -> Usage:
        """Count which rules are on, what lies outside the domain, and what the head did; a box has so many `heads`."""
        seen = Observation(active_rules(spec, self.encoded), in_domain(spec, self.encoded), self.cell, self.clipped)
        head = None
        if spec.rules and not heads:
            head = Corrections.of(spec, self.encoded, self.answers, self.served, self.by)
        return Usage.count(spec, self.encoded, seen, edges, heads=heads, head=head, missing=missing)


def active_rules(spec: Specification, encoded: Array) -> npt.NDArray[np.bool_]:
    """Return which rules are on for encoded rows, at the input that is clamped to the domain: (n, rules)."""
    clamped = np.clip(encoded, *spec.ends(encoded.dtype))
    found = [active(rule, clamped) for rule in spec.rules]
    return np.stack(found, axis=1) if found else np.zeros((len(encoded), 0), dtype=bool)


class ServedModel:
    """A model in front and the head behind it, as they are stored. Neither can be exchanged.

    Attributes:
        description_: What model.json says.
        served_: How many rows a head of rules served so far, by how: `kept`, `moved`, `near` (the search for the
            nearest answer was cut short), `replaced` (an answer was NaN, infinite or beyond 1e30) or `safe` (the stored
            safe answer).
    """

    def __init__(
        self,
        front: Front,
        spec: Specification,
        proof: Certificate | None,
        *,
        description: dict[str, Any] | None = None,
        verified: bool = True,
    ) -> None:
        self._front, self._spec, self._proof, self._verified = front, spec, proof, verified
        self.description_: dict[str, Any] = {} if description is None else description
        self.served_ = dict.fromkeys(WAYS, 0)
        self.reader = Reader(spec)
        self._head = None if proof is None else program_of(proof)
        if isinstance(front, Perceptron):
            wanted = len(spec.columns), self.head.units if isinstance(self.head, Box) else len(spec.targets)
            if wanted != (front.inputs, front.widths[-1]):
                raise ModelFormatError(
                    f"model.safetensors: expected a network of {wanted[0]} inputs and {wanted[1]} outputs in front of "
                    f"the head. Got {front.inputs} and {front.widths[-1]}."
                )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the prepared program; a copy prepares its own."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_head", "cells", "_settled_by", "reader")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a copy, or what was read from a file of pickle or skops, once the checker accepts it."""
        if state["_spec"].rules and state["_proof"] is None:
            raise NotCertifiedError("The model has rules but no certificate.")
        if state["_proof"] is not None and state["_verified"]:
            state["_proof"].check()
            require_same_rules(state["_proof"], state["_spec"])
        head = None if state["_proof"] is None else program_of(state["_proof"])
        self.__dict__ = {**state, "_head": head, "reader": Reader(state["_spec"])}

    @property
    def front(self) -> Front:
        """The model in front."""
        return self._front

    @property
    def head(self) -> Program | None:
        """The program of the certified head; None: there are no rules."""
        return self._head

    @property
    def specification_(self) -> Specification:
        """The rules."""
        return self._spec

    @property
    def proof(self) -> Certificate | None:
        """The certificate, checked or not; None without rules."""
        return self._proof

    @property
    def certificate_(self) -> Certificate | None:
        """The proof, for whatever the model in front answers; None without rules, or if it was not checked."""
        return self._proof if self._verified else None

    @property
    def is_box(self) -> bool:
        """Whether the head is a box, and not one of rules."""
        return isinstance(self.head, Box)

    @cached_property
    def cells(self) -> Cells:
        """The regions of the rules and, of a box, its cells."""
        if self.proof is None or not self.is_box:
            return regions_of(self.specification_)
        return cells_of(self.proof, self.specification_)

    @cached_property
    def _settled_by(self) -> SettledBy | None:
        return None if self.proof is None or self.head is None else SettledBy(self._spec, self.proof, self.head)

    # --- using

    def settled(self, encoded: Array) -> Settled | None:
        """Return which labels and options the rules settle at encoded inputs; None: there are no rules."""
        return None if self._settled_by is None else self._settled_by(encoded)

    def answered(self, X: Any, out_of_domain: str = "raise", *, taps: bool = False, stacklevel: int = 4) -> Answered:
        """Return what the model answers to a table, and what is served; answers that are replaced are counted.

        Args:
            X: The table.
            out_of_domain: `raise`, `warn` or `clip`.
            taps: Say of a box also which head serves and what is clipped.
            stacklevel: Of warnings.
        """
        rows = self.reader.read(X)
        apply_domain_policy(self.specification_, rows.encoded, out_of_domain)
        found = self.explained(rows, rows.encoded, taps=taps)
        if not self.is_box:
            self._count(found, stacklevel=stacklevel)
            replaced = int(found.replaced.sum())
            if replaced:
                instead = "they are returned as they are, since there are no rules" if self.head is None else (
                    "a default answer that obeys the rules replaces them"
                )  # fmt: skip
                warnings.warn(
                    f"{replaced} of {found.answers.size} answers of the model are NaN, infinite or beyond 1e30: "
                    f"{instead}.",
                    stacklevel=stacklevel - 1,
                )
        return found

    def explained(self, X: Any, encoded: Array, *, taps: bool = False) -> Answered:
        """Return what is answered and served; nothing is counted, and inputs outside the domain are clamped."""
        rows = self.reader.opened(X)
        X = rows.table
        if self.front.columns is not None:
            X = frame_of(X, self.specification_) if rows.columns is None else rows
        if isinstance(self.head, Box):
            assert isinstance(self.front, Perceptron)
            wide, starts = self.front.features(X, encoded), range(0, max(len(encoded), 1), _CHUNK)
            pairs = ((encoded[i : i + _CHUNK], self.front(wide[i : i + _CHUNK])) for i in starts)
            parts = [_boxed(self.head, *pair, taps=taps) for pair in pairs]
            outputs, *others = (None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True))
            assert outputs is not None
            return Answered(encoded, outputs, outputs, np.zeros(len(outputs), dtype=np.int8), *others)
        answers = answers_of(self.specification_, self.front.answers(X, encoded), len(encoded))
        if self.head is None:
            return Answered(encoded, answers, answers, np.zeros(len(answers), dtype=np.int8))
        return Answered(encoded, answers, *served_by(self.head, encoded, answers))

    def _count(self, found: Answered, *, stacklevel: int) -> None:
        """Add how rows were served to the totals; warn if the stored safe answer serves too many of them."""
        spec, totals = self.specification_, self.served_
        ways = np.bincount(ways_of(spec, found.answers, found.served, found.by), minlength=len(WAYS)).tolist()
        for way, count in zip(WAYS, ways, strict=True):
            totals[way] += count
        rows = sum(totals.values())
        if ways[WAYS.index("safe")] and totals["safe"] > MUCH * rows:
            warnings.warn(
                f"The stored safe answer served {totals['safe']} of {rows} rows so far, more than a tenth of a percent."
                " It obeys the rules, but says little about the row: see served_ and return_info=True.",
                stacklevel=stacklevel,
            )

    def usage(self, X: Any, encoded: Array, edges: Edges | None = None) -> Usage:
        """Count over the rows of a table which rules are on, what lies outside, and what the head does.

        By default in bins of about equal numbers of these rows.
        """
        edges = column_edges(self.specification_, encoded) if edges is None else edges
        heads = self.head.heads if isinstance(self.head, Box) else 0
        missing = self.reader.missing_counts(X)
        return self.explained(X, encoded, taps=True).usage(self.specification_, edges, heads=heads, missing=missing)

    # --- storing

    def describe(self, description: dict[str, Any]) -> None:
        """Take over what model.json is to say, and bind the certificate to it."""
        self.description_ = description
        if self.proof is not None:
            files = ModelRecord({}, description, self.specification_.to_yaml(), None, self.front.onnx).bound_files()
            self._proof = rebind(self.proof, files, backbone=self.front.tensors or None)

    def record(self) -> ModelRecord:
        """Return the model as plain data.

        Raises:
            NotCertifiedError: If the model has rules but was loaded without verification.
        """
        if not self._verified:
            raise NotCertifiedError("This model was loaded without verification. Load it with verify=True to save it.")
        weights = arrays_of(self.front.tensors if self.proof is None else self.proof.tensors)
        return ModelRecord(weights, self.description_, self.specification_.to_yaml(), self.proof, self.front.onnx)

    @classmethod
    def from_record(cls, record: ModelRecord, spec: Specification, *, verify: bool = True) -> ServedModel:
        """Rebuild a model from what is stored; the certificate is checked unless `verify=False` is asked for.

        Raises:
            CertificateError: If it does not fit the files.
            NotCertifiedError: If there are rules but no certificate.
            ModelFormatError: If the model in front cannot be loaded.
        """
        certificate = record.certificate
        if spec.rules and certificate is None:
            raise NotCertifiedError("The model folder has rules but no certificate.json.")
        if certificate is not None:
            if not spec.rules:
                raise CertificateError("The model folder has a certificate.json, and rules.yaml has no rules.")
            if verify:
                certificate.check()
                require_same_rules(certificate, spec)
            head = certificate.document["program"]["head"]
            if head == "box" and record.onnx is not None:
                raise CertificateError(f"Expected the certificate of a head of rules beside model.onnx. Got '{head}'.")
        return cls(front_of(record), spec, certificate, description=record.description, verified=verify)


def front_of(record: ModelRecord) -> Front:
    """Return the model in front that is stored in a record."""
    if record.onnx is not None:
        return StoredModel(record.onnx)
    architecture = record.description.get("architecture")
    if isinstance(architecture, dict) and architecture.get("backbone") == "onnx":
        raise ModelFormatError("The model folder has no model.onnx.")
    return Perceptron(
        tensors_of(record.weights) if record.certificate is None else record.certificate.tensors,
        None if record.further is None else FurtherColumns.from_json(record.further),
    )


def _boxed(head: Box, encoded: Array, embedding: Array, *, taps: bool) -> tuple[Array, Array | None, Array | None]:
    """Return what a box serves and, if asked for, which head serves, and the share of units that are clipped."""
    served = head(encoded, embedding)
    return (served, head.cell_of(encoded), head.clipped_share(encoded, embedding)) if taps else (served, None, None)
