"""Serves a stored model through the program of its certified head.

Networks, estimators and functions all take this path, with a head of rules or a box. Weights are the very bytes that
the checker has seen, and read-only.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.certificates.agreement import cells_of, require_same_rules
from smle.certificates.document import Certificate, arrays_of
from smle.certificates.issue import rebind
from smle.errors import CertificateError, ModelFormatError, NotCertifiedError
from smle.heads.box.box_program import Box
from smle.heads.contract import HeadProgram
from smle.heads.table import program_of
from smle.monitor import Edges, Usage, column_edges
from smle.monitor.corrections import MUCH, WAYS, WIDE, Corrections, bound_by, ways_of
from smle.regions.cells import Cells, regions_of
from smle.rules import Specification
from smle.rules.membership import active_rules
from smle.serving.fronts import Front, answers_of, front_of
from smle.serving.perceptron import Perceptron
from smle.serving.settled import Settled, SettledBy
from smle.storage import ModelRecord
from smle.tables import ASIDE, POLICIES, Reader, ReadTable, SetAside, apply_domain_policy, in_domain, require_bad_rows
from smle.tables.frames import frame_of

__all__ = ["Answered", "Front", "Served"]

Array = npt.NDArray[Any]


class Answered(NamedTuple):
    """Rows with the model's own answers and the answers served. Shapes: encoded (n, d), served (n, m).

    * `spec`: the rules.
    * `given` (n, width): the answers of the model in front; for a box, its embeddings.
    * `by` (n,): how each row was served, see `smle.heads.contract.Outcome`.
    * `box`: the program, if it is a box; else None.
    * `aside`: rows of the table that were set aside, not counted in n; None if that was not requested.
    """

    spec: Specification
    encoded: Array
    given: Array
    served: Array
    by: Array
    box: Box | None
    aside: SetAside | None = None

    @property
    def answers(self) -> Array:
        """The model's own answers (n, m); for a box, the answers served."""
        return self.given if self.box is None else self.served

    @property
    def replaced(self) -> npt.NDArray[np.bool_]:
        """A mask of the answers that are NaN, infinite or beyond 1e30."""
        return ~(np.abs(self.answers) <= WIDE)

    @property
    def moved(self) -> Array:
        """How far each answer was moved; NaN if it was replaced."""
        with np.errstate(all="ignore"):
            return np.where(self.replaced, np.nan, self.served - self.answers)

    def information(self) -> dict[str, Any]:
        """Return for each row the active rules, whether it is in the domain, and how it was served.

        For a box the latter is the clipped share. `bound`: what the model's own answer breaks, as names of rules and of
        table entries such as `cap[art017]`.
        """
        spec, on = self.spec, self._active()
        titles = np.asarray([rule.name for rule in spec.rules], dtype=object)
        facts: dict[str, Any] = {
            "active_rules": [tuple(titles[row].tolist()) for row in on],
            "in_domain": in_domain(spec, self.encoded).all(axis=1),
        }
        if self.box is not None:
            facts["clipped_share"] = self.box.clipped_share(self.encoded, self.given)
        else:
            ways = ways_of(spec, self.answers, self.served, self.by)
            served = np.asarray(WAYS, dtype=object)[ways]
            bound = bound_by(spec, self.encoded, self.answers, on)
            facts |= {"served": served, "bound": bound, "moved": self.moved, "replaced": self.replaced}
        return facts if self.aside is None else self.aside.information(facts)

    def _active(self) -> npt.NDArray[np.bool_]:
        """Return a mask (n, rules) of the rules that apply at the inputs, clamped to the domain."""
        return active_rules(self.spec, np.clip(self.encoded, *self.spec.ends(self.encoded.dtype)))

    def aligned(self, result: Any) -> Any:
        """Put results for the served rows in place among all rows of the table."""
        return result if self.aside is None else self.aside.aligned(result)

    def returned(self, result: Any, return_info: bool) -> Any:
        """Return what `predict` returns: answers and, if wanted, information. Otherwise warns about rows set aside."""
        if self.aside is not None:
            if len(self.aside) and not return_info:
                warnings.warn(self.aside.text(), stacklevel=3)
            result = self.aside.aligned(result)
        return (result, self.information()) if return_info else result

    def usage(self, edges: Edges, *, missing: dict[str, int]) -> Usage:
        """Count which rules apply, what lies outside the domain, and what the head did to the answers."""
        spec, box, active = self.spec, self.box, self._active()
        how: dict[str, Any] = {}
        if box is not None:
            clipped = box.clipped_share(self.encoded, self.given)
            how = {"cell": box.cell_of(self.encoded), "clipped": clipped, "heads": box.heads}
        elif spec.rules:
            how = {"head": Corrections.of(spec, self.encoded, self.answers, self.served, self.by, active)}
        aside, inside = 0 if self.aside is None else len(self.aside), in_domain(spec, self.encoded)
        return Usage.count(
            spec, self.encoded, edges, active=active, inside=inside, **how, missing=missing, set_aside=aside
        )


class Served:
    """A model in front and the head behind it, as stored. Neither can be replaced.

    Args:
        front: The model in front.
        spec: The rules.
        proof: Their certificate, or None without rules.
        description: The contents of model.json.
        verified: Whether the checker accepted the proof.
        head: The program of the proof, if it was already made.

    Attributes:
        description_: The contents of model.json.
        reader: Reads tables.
        reads_answers: Whether the model in front computes answers, rather than embeddings for a box.
        served_: The number of rows served so far by a head of rules: `kept`, `moved`, `near` (the search for the
            nearest answer was cut short), `replaced` (an answer was NaN, infinite or beyond 1e30) and `safe` (the
            stored safe answer). `set aside` counts rows that could not be read.
    """

    def __init__(
        self,
        front: Front,
        spec: Specification,
        proof: Certificate | None,
        *,
        description: dict[str, Any] | None = None,
        verified: bool = True,
        head: HeadProgram | None = None,
    ) -> None:
        self._front, self._spec, self._proof, self._verified = front, spec, proof, verified
        self.description_: dict[str, Any] = {} if description is None else description
        self.served_ = dict.fromkeys((*WAYS, ASIDE), 0)
        self._prepare(head)
        if isinstance(front, Perceptron):
            wanted = len(spec.columns), self._width
            if wanted != (front.inputs, front.widths[-1]):
                raise ModelFormatError(
                    f"model.safetensors: expected a network of {wanted[0]} inputs and {wanted[1]} outputs in front of "
                    f"the head. Got {front.inputs} and {front.widths[-1]}."
                )

    def _prepare(self, head: HeadProgram | None) -> None:
        """Create everything that is derived rather than stored."""
        self.reader = Reader(self._spec)
        self._head = program_of(self._proof) if head is None and self._proof is not None else head
        self._width = len(self._spec.targets) if self._head is None else self._head.width
        self.reads_answers = self._head is None or self._head.reads_answers

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the compiled program; a copy compiles its own."""
        stored = ("_front", "_spec", "_proof", "_verified", "description_", "served_")
        return {name: value for name, value in self.__dict__.items() if name in stored}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, or a pickle or skops file, once the checker accepts its certificate.

        A model that was loaded unchecked stays unchecked: it has no `certificate_`.
        """
        if state["_spec"].rules and state["_proof"] is None:
            raise NotCertifiedError("The model has rules but no certificate.")
        if state["_proof"] is not None and state["_verified"]:
            state["_proof"].check()
            require_same_rules(state["_proof"], state["_spec"])
        self.__dict__ = dict(state)
        self._prepare(None)

    @property
    def front(self) -> Front:
        """The model in front."""
        return self._front

    @property
    def head(self) -> HeadProgram | None:
        """The program of the certified head, or None without rules."""
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
        """The certificate, valid for any answers of the model in front; None without rules, or if left unchecked."""
        return self._proof if self._verified else None

    @cached_property
    def cells(self) -> Cells:
        """The regions of the rules and, for a box, its cells."""
        if self.proof is None or self.reads_answers:
            return regions_of(self.specification_)
        return cells_of(self.proof, self.specification_)

    @cached_property
    def _settled_by(self) -> SettledBy | None:
        return None if self.proof is None or self.head is None else SettledBy(self._spec, self.proof, self.head)

    # --- using

    def settled(self, encoded: Array) -> Settled | None:
        """Return which labels and options the rules determine at encoded inputs, or None without rules."""
        return None if self._settled_by is None else self._settled_by(encoded)

    def without_bad_rows(self, X: Any) -> tuple[Any, SetAside]:
        """Return the readable rows, as a table of the same kind, and what is wrong with the others.

        Rows outside the domain are readable. Checks the inputs of the rules, and the columns that a stored model reads
        as numbers. Raises DataError if columns are missing, or an array has another shape.
        """
        rows = self.reader.examine(X)
        own = self._front.faults(rows) if self._front.columns is not None and rows.columns is not None else []
        aside = SetAside.of(rows, [*rows.faults, *own])
        return (aside.others(rows) if len(aside) else rows), aside

    def answer(
        self, X: Any, out_of_domain: str = "raise", *, bad_rows: str = "raise", count: bool = True, stacklevel: int = 3
    ) -> Answered:
        """Return the model's own answers to a table, and the answers served.

        Args:
            X: The table, or rows already read.
            out_of_domain: `raise`, `warn` or `clip`.
            bad_rows: `raise`, or `set aside`: unreadable rows are left out, and `aside` has the reason for each.
            count: Count the rows in `served_`; warn if answers were replaced, or too many are the stored safe one.
            stacklevel: The stack level of warnings.
        """
        aside = None
        if bad_rows != "raise":
            require_bad_rows(bad_rows)
            X, aside = self.without_bad_rows(X)
        rows = self.reader.read(X)
        if out_of_domain not in POLICIES or not self.reader.is_inside(rows):
            numbers = None if aside is None else aside.kept
            apply_domain_policy(self._spec, rows.encoded, out_of_domain, numbers=numbers, stacklevel=stacklevel + 1)
        found = self._served(rows)
        if aside is not None:
            found = found._replace(aside=aside)
            self.served_[ASIDE] += len(aside) if count else 0
        if count and found.box is None:
            self._count(found, stacklevel=stacklevel + 1)
        return found

    def _served(self, rows: ReadTable) -> Answered:
        """Ask the model, and serve its answers through the head."""
        encoded, spec, by_name = rows.encoded, self._spec, self._front.columns is not None

        def ask(x: Array) -> Array:
            if not len(x):  # many models fail on zero rows
                return np.zeros((0, self._width), dtype=np.float32)
            at = rows if x is encoded else self.reader.moved(rows, x)
            table = at.table if not by_name else at if at.columns is not None else frame_of(at.table, spec)
            found = self._front.answers(table, x)
            return answers_of(spec, found, len(x)) if self.reads_answers else found

        if self._head is None:
            answers = ask(encoded)
            return Answered(spec, encoded, answers, answers, np.zeros(len(answers), dtype=np.int8), None)
        given, served, by = self._head.serve(encoded, ask)
        return Answered(spec, encoded, given, served, by, self._head if isinstance(self._head, Box) else None)

    def _count(self, found: Answered, *, stacklevel: int) -> None:
        """Add to the totals how rows were served; warn about replaced answers, and about too many safe ones."""
        totals = self.served_
        if not found.by.any() and (found.answers == found.served).all() and self._head is not None:
            totals["kept"] += len(found.by)
            return
        spec = self._spec
        ways = np.bincount(ways_of(spec, found.answers, found.served, found.by), minlength=len(WAYS)).tolist()
        for way, number in zip(WAYS, ways, strict=True):
            totals[way] += number
        rows = sum(totals[way] for way in WAYS)
        if ways[WAYS.index("safe")] and totals["safe"] > MUCH * rows:
            warnings.warn(
                f"The stored safe answer served {totals['safe']} of {rows} rows so far, more than a tenth of a percent."
                " It obeys the rules, but says little about the row: see served_ and return_info=True.",
                stacklevel=stacklevel,
            )
        replaced = int(found.replaced.sum())
        if replaced:
            instead = "they are returned as they are, since there are no rules" if self.head is None else (
                "a default answer that obeys the rules replaces them"
            )  # fmt: skip
            warnings.warn(
                f"{replaced} of {found.answers.size} answers of the model are NaN, infinite or beyond 1e30: {instead}.",
                stacklevel=stacklevel,
            )

    def usage(self, X: Any, edges: Edges | None = None, *, bad_rows: str = "raise") -> Usage:
        """Count, over the rows of a table, which rules apply, what lies outside the domain, and what the head does.

        Default bins hold about equally many of these rows. `bad_rows` as in `answer`.
        """
        aside = None
        if bad_rows != "raise":
            require_bad_rows(bad_rows)
            X, aside = self.without_bad_rows(X)
        rows = self.reader.read(X)
        edges = column_edges(self._spec, rows.encoded) if edges is None else edges
        found = self.answer(rows, "clip", count=False)._replace(aside=aside)
        return found.usage(edges, missing=self.reader.missing_counts(rows))

    # --- storing

    def describe(self, description: dict[str, Any]) -> None:
        """Set the contents of model.json, and bind the certificate to them."""
        self.description_ = description
        if self._proof is not None:
            files = ModelRecord({}, description, self._spec.to_yaml(), None, self._front.onnx).bound_files()
            self._proof = rebind(self._proof, files, backbone=self._front.tensors or None)

    def record(self) -> ModelRecord:
        """Return the model as plain data. Raises NotCertifiedError if it was loaded without verification."""
        if not self._verified:
            raise NotCertifiedError("This model was loaded without verification. Load it with verify=True to save it.")
        weights = arrays_of(self.front.tensors if self.proof is None else self.proof.tensors)
        return ModelRecord(weights, self.description_, self.specification_.to_yaml(), self.proof, self.front.onnx)

    @classmethod
    def from_record(cls, record: ModelRecord, spec: Specification, *, verify: bool = True) -> Served:
        """Rebuild a model from its record, and check its certificate unless `verify=False`.

        Raises:
            CertificateError: If the certificate does not fit the files.
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
            if certificate.kind == "box" and record.onnx is not None:
                raise CertificateError("Expected the certificate of a head of rules beside model.onnx. Got 'box'.")
        return cls(front_of(record), spec, certificate, description=record.description, verified=verify)
