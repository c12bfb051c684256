"""A model with a certified head behind it."""

from __future__ import annotations

import warnings
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.certificates.agreement import require_same_rules
from smle.certificates.document import Certificate, arrays_of
from smle.corrected.answers import answers_of, decided
from smle.errors import CertificateError, ConversionError, ModelFormatError, NotCertifiedError
from smle.export.files import write_onnx
from smle.export.scores import scores_of
from smle.export.stored import StoredModel
from smle.guarantees import active
from smle.monitor import Edges, Observation, Usage, column_edges
from smle.programs import MUCH, WAYS, Corrections, program_of, served_by, ways_of
from smle.rules import Specification
from smle.storage import ModelRecord, write_record
from smle.tables import apply_domain_policy, column_names, encode_inputs, in_domain
from smle.tables.frames import frame_of

__all__ = ["WIDE", "Answered", "CorrectedModel", "count_ways"]

Array = npt.NDArray[Any]
WIDE = 2.0**100  # answers beyond are replaced


class Answered(NamedTuple):
    """Rows with what the model answered and what is served. Shapes: encoded (n, d), answers and served (n, m).

    `by` (n,): by what a row was served, 0 its answer, clipped maybe, 1 another allowed answer, 2 the stored safe one.
    """

    encoded: Array
    answers: Array
    served: Array
    by: Array

    @property
    def replaced(self) -> npt.NDArray[np.bool_]:
        """Which answers are NaN, infinite or beyond 1e30."""
        return ~(np.abs(self.answers) <= WIDE)

    @property
    def moved(self) -> Array:
        """By how much each answer was moved; NaN where it was replaced."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(self.replaced, np.nan, self.served - self.answers)

    def information(self, spec: Specification) -> dict[str, Any]:
        """Return the active rules per row, whether it is in the domain, how it was served, and by how much moved."""
        titles = np.asarray([rule.name for rule in spec.rules], dtype=object)
        ways = ways_of(spec, self.answers, self.served, self.by)
        return {
            "active_rules": [tuple(titles[row].tolist()) for row in active_rules(spec, self.encoded)],
            "in_domain": in_domain(spec, self.encoded).all(axis=1),
            "served": np.asarray(WAYS, dtype=object)[ways],
            "moved": self.moved,
            "replaced": self.replaced,
        }

    def usage(self, spec: Specification, edges: Edges | None = None) -> Usage:
        """Count which rules are on, what lies outside the domain, and what the head did."""
        edges = column_edges(spec, self.encoded) if edges is None else edges
        seen = Observation(active_rules(spec, self.encoded), in_domain(spec, self.encoded))
        head = Corrections.of(spec, self.encoded, self.answers, self.served, self.by)
        return Usage.count(spec, self.encoded, seen, edges, head=head)


def active_rules(spec: Specification, encoded: Array) -> npt.NDArray[np.bool_]:
    """Return which rules are on for encoded rows, at the input that is clamped to the domain: (n, rules)."""
    lower, upper = (np.array([float(v) for v in side], dtype=encoded.dtype) for side in (spec.lower, spec.upper))
    clamped = np.clip(encoded, lower, upper)
    found = [active(rule, clamped) for rule in spec.rules]
    return np.stack(found, axis=1) if found else np.zeros((len(encoded), 0), dtype=bool)


def count_ways(totals: dict[str, int], spec: Specification, found: Answered, *, stacklevel: int) -> None:
    """Add to the totals how rows were served; warn if the stored safe answer serves too many of them."""
    ways = np.bincount(ways_of(spec, found.answers, found.served, found.by), minlength=len(WAYS)).tolist()
    for way, count in zip(WAYS, ways, strict=True):
        totals[way] += count
    rows = sum(totals.values())
    if ways[WAYS.index("safe")] and totals["safe"] > MUCH * rows:
        warnings.warn(
            f"The stored safe answer served {totals['safe']} of {rows} rows so far, more than a tenth of a percent. It "
            "obeys the rules, but says little about the row: see served_ and return_info=True.",
            stacklevel=stacklevel,
        )


class CorrectedModel:
    """A model with a certified head behind it. See `correct`.

    Attributes:
        model: What was given, called with tables as they are passed; or its stored form.
        specification_: The rules.
        certificate_: The proof, for whatever the model answers; None without rules.
        description_: What model.json says, where it can be stored.
        served_: How many rows were served so far, by how: `kept`, `moved`, `replaced` (an answer was NaN, infinite or
            beyond 1e30) or `safe` (the stored safe answer).
    """

    def __init__(
        self,
        model: Any,
        spec: Specification,
        certificate: Certificate | None,
        *,
        description: dict[str, Any] | None = None,
        unstored: str = "a function in Python has no form that can be stored",
    ) -> None:
        self.model, self.specification_, self.certificate_ = model, spec, certificate
        self.description_: dict[str, Any] = {} if description is None else description
        self.served_ = dict.fromkeys(WAYS, 0)
        self._unstored = unstored
        self._enforce = None if certificate is None else program_of(certificate)

    # --- using

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str = "raise") -> Any:
        """Return answers that obey the rules: (n,) for one output, else (n, m).

        Numbers are float32, labels 0 or 1, a choice the name of the option. Outputs of several kinds, or several
        choices, are a pandas table.

        Args:
            X: A table with the inputs that the rules name, beside whatever else the model reads.
            return_info: Also return a dict: `served` (n,), how each row was served (see `served_`); `moved` (n, m), by
                how much each answer was moved; `replaced` (n, m); `active_rules` and `in_domain` per row.
            out_of_domain: "raise"; or "clip": rows outside the domain are answered, and the rules hold at the input
                that is clamped to it; or "warn": the same with a warning.

        Raises:
            DataError: If the table does not fit the rules, or the model's answers have another shape.
        """
        found = self.answered(X, out_of_domain)
        result = decided(self.specification_, found.served)
        return (result, found.information(self.specification_)) if return_info else result

    def answered(self, X: Any, out_of_domain: str = "raise", *, stacklevel: int = 4) -> Answered:
        """Return what the model answers to a table, and what is served; answers that are replaced are counted."""
        spec = self.specification_
        encoded = encode_inputs(spec, X)
        apply_domain_policy(spec, encoded, out_of_domain)
        answers = self._answers(X, encoded)
        found = Answered(encoded, answers, *self._served(encoded, answers))
        count_ways(self.served_, spec, found, stacklevel=stacklevel)
        replaced = int(found.replaced.sum())
        if replaced:
            instead = "they are served, for there are no rules" if self._enforce is None else (
                "the default answer, within the rules, takes their place"
            )  # fmt: skip
            warnings.warn(
                f"{replaced} of {answers.size} answers of the model are NaN, infinite or beyond 1e30: {instead}.",
                stacklevel=stacklevel - 1,
            )
        return found

    def raw_outputs(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the numbers behind the predictions (rows, m), exact in float64: logits, scores; nothing is counted."""
        totals = dict(self.served_)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            served = self.answered(X).served
        self.served_.update(totals)
        return np.asarray(served, dtype=np.float64)

    def _served(self, encoded: Array, answers: Array) -> tuple[Array, Array]:
        if self._enforce is None:
            return answers, np.zeros(len(answers), dtype=np.int8)
        return served_by(self._enforce, encoded, answers)

    def _answers(self, X: Any, encoded: Array) -> Array:
        """Return the model's own answers (n, m) in float32."""
        model = self.model
        if isinstance(model, StoredModel):
            if model.columns is not None and column_names(X) is None:
                X = frame_of(X, [item.name for item in self.specification_.inputs])
            return answers_of(self.specification_, model.answers(X, encoded), len(encoded))
        if not hasattr(model, "predict"):
            found = model(X)
        elif self.specification_.output_kind == "mixed":
            found = model.predict(X)
        else:
            scores = scores_of(self.specification_, model)
            found = scores.answers(scores.predicted(model, X))
        return answers_of(self.specification_, found, len(encoded))

    # --- storing

    @classmethod
    def from_record(cls, record: ModelRecord, spec: Specification, *, verify: bool = True) -> CorrectedModel:
        """Rebuild a model from what is stored; the certificate is checked unless `verify=False` is asked for.

        Raises:
            CertificateError: If it does not fit the files.
            NotCertifiedError: If there are rules but no certificate.
            ModelFormatError: If the ONNX model cannot be loaded.
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
            if head != "rules":
                raise CertificateError(f"Expected the certificate of a head of rules beside model.onnx. Got '{head}'.")
        if record.onnx is None:
            raise ModelFormatError("The model folder has no model.onnx.")
        return cls(StoredModel(record.onnx), spec, certificate, description=record.description)

    def record(self) -> ModelRecord:
        """Return the model as plain data.

        Raises:
            ConversionError: If it lives in Python alone.
        """
        if not isinstance(self.model, StoredModel):
            raise ConversionError(
                f"This model cannot be stored: {self._unstored}. Only ONNX is stored, and nothing is pickled. Fit "
                "SafeRegressor(specification, estimator=...), or correct an ONNX file."
            )
        if self.specification_.output_kind == "mixed":
            raise ConversionError(
                "Models with outputs of several kinds cannot be stored yet. State rules for each kind."
            )
        weights = {} if self.certificate_ is None else arrays_of(self.certificate_.tensors)
        rules = self.specification_.to_yaml()
        return ModelRecord(weights, self.description_, rules, self.certificate_, self.model.data)

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write the model and its head as one ONNX file, with `<path>.certificate.json` beside it.

        Raises:
            ConversionError: If it lives in Python alone.
        """
        write_onnx(self.record(), path)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a model folder: the model as ONNX, the head, description, rules, certificate.

        Raises:
            ConversionError: If it lives in Python alone.
        """
        write_record(self.record(), folder)

    def __repr__(self) -> str:
        name = type(self.model).__name__ if hasattr(self.model, "predict") else getattr(self.model, "__name__", "model")
        proved = 0 if self.certificate_ is None else len(self.certificate_.proved)
        return f"CorrectedModel({name}, {proved} statements proved)"
