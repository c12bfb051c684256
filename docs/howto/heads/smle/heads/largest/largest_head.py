"""The largest answer over three neighbouring values of one input: it asks the model three times."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.certificates.issue import compiled, sealed
from smle.heads.contract import HeadKind, Outcome
from smle.regions.cells import regions_of
from smle.rules import Specification

import smle_check
from smle_check.guard import guard_tensors

__all__ = ["LARGEST"]


def certify(spec: Specification, *, default=None, scale=None, files=None, moved: str = "", by="1") -> Certificate:
    """Return the certificate for constant limits; the input `moved` is tried at x - by, x and x + by."""
    block = bytearray()
    stated = compiled(spec, regions_of(spec), block)
    lower, upper = np.full(len(spec.targets), -(2.0**24)), np.full(len(spec.targets), 2.0**24)
    for rule in spec.rules:
        for clause in rule.requirement.clauses:
            (literal,) = clause.literals
            ((output, g),) = literal.outputs
            end = np.float32(float(literal.bound / g))
            inward = np.nextafter(end, np.float32(-np.inf if g > 0 else np.inf))
            reached = g * Fraction(float(end))
            if reached > literal.bound or (literal.strict and reached == literal.bound):
                end = inward
            if g > 0:
                upper[output] = min(upper[output], end)
            else:
                lower[output] = max(lower[output], end)
    program = {"head": "largest", "input": spec.columns.index(moved), "by": str(Fraction(by))}
    ends = {"largest.lower": lower.astype(np.float32), "largest.upper": upper.astype(np.float32)}
    document = {"program": program, "specification": stated, "gate": {"regions": []}, "proof": {}}
    read = smle_check.StatedSpecification(stated, bytes(block))
    return sealed(document, bytes(block), guard_tensors(read, []) | tensors_of(ends), files or {})


class Largest:
    """Asks the model at three inputs, and serves the largest answer, clipped."""

    reads_answers = True

    def __init__(self, certificate: Certificate) -> None:
        program, tensors = certificate.document["program"], arrays_of(certificate.tensors)
        self._column, self._by = program["input"], float(Fraction(program["by"]))
        self._lower, self._upper = tensors["largest.lower"], tensors["largest.upper"]

    @property
    def width(self) -> int:
        """How many answers it reads of a row."""
        return len(self._lower)

    def serve(self, X, ask) -> Outcome:
        """Serve encoded inputs (n, d)."""
        own = ask(X)
        others = []
        for step in (-self._by, self._by):
            moved = X.copy()
            moved[:, self._column] += step
            others.append(ask(moved))
        y = np.fmax(np.fmax(own, others[0]), others[1])
        y = np.where(y >= self._lower, y, self._lower)
        y = np.where(y <= self._upper, y, self._upper).astype(np.float32)
        return Outcome(own, y, (y != own).any(axis=1).astype(np.int8))

    def bits_of(self, X):
        """Return which regions of the gate each row lies in: there are none."""
        return np.zeros((len(X), 0), dtype=bool)


LARGEST = HeadKind(
    certify, Largest, lambda certificate: ([], 1), lambda program: "the largest of three answers", lambda spec: False
)
