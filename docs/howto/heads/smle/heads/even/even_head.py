"""Even whole numbers between constant limits: author, program, nodes, words."""

from __future__ import annotations

import numpy as np

from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.certificates.issue import compiled, sealed
from smle.heads.contract import AsksOnce, HeadKind
from smle.regions.cells import regions_of
from smle.rules import Specification

import smle_check
from smle_check.guard import guard_tensors

__all__ = ["EVEN"]


def certify(spec: Specification, *, default=None, scale=None, files=None) -> Certificate:
    """Return the certificate of even answers under constant limits."""
    block = bytearray()
    stated = compiled(spec, regions_of(spec), block)
    lower = [2 * np.ceil(float(low) / 2) for low in spec.grid.lower]
    upper = [2 * np.floor(float(high) / 2) for high in spec.grid.upper]
    for rule in spec.rules:
        for clause in rule.requirement.clauses:
            (literal,) = clause.literals
            ((output, g),) = literal.outputs
            end = float(literal.bound / g)
            if g > 0:
                end = 2 * np.floor(end / 2)
                upper[output] = min(upper[output], end - 2 * (literal.strict and end == float(literal.bound / g)))
            else:
                end = 2 * np.ceil(end / 2)
                lower[output] = max(lower[output], end + 2 * (literal.strict and end == float(literal.bound / g)))
    ends = {"even.lower": np.array(lower, dtype=np.float32), "even.upper": np.array(upper, dtype=np.float32)}
    document = {"program": {"head": "even"}, "specification": stated, "gate": {"regions": []}, "proof": {}}
    read = smle_check.StatedSpecification(stated, bytes(block))
    return sealed(document, bytes(block), guard_tensors(read, []) | tensors_of(ends), files or {})


class Even(AsksOnce):
    """(inputs, answers) -> the nearest even whole numbers between the ends."""

    def __init__(self, certificate: Certificate) -> None:
        tensors = arrays_of(certificate.tensors)
        self._ends = [tensors[f"even.{end}"].astype(np.float64) for end in ("lower", "upper")]

    @property
    def width(self) -> int:
        """How many answers it reads of a row."""
        return len(self._ends[0])

    def __call__(self, X, answers):
        """Return even whole numbers (n, m) in float32."""
        lower, upper = self._ends
        with np.errstate(all="ignore"):
            y = 2 * np.floor(answers.astype(np.float32).astype(np.float64) / 2 + 0.5)
        y = np.where(y >= lower, y, lower)
        return np.where(y <= upper, y, upper).astype(np.float32)

    def bits_of(self, X):
        """Return which regions of the gate each row lies in: there are none."""
        return np.zeros((len(X), 0), dtype=bool)


def suits(spec: Specification) -> bool:
    """Whether all outputs have the step 2, and all rules are constant limits that are on everywhere."""
    if spec.grid is None or any(step != 2 for step in spec.grid.steps) or any(spec.grid.input_steps):
        return False
    clauses = [clause for rule in spec.rules for clause in rule.requirement.clauses]
    plain = all(len(c.literals) == 1 and len(c.literals[0].outputs) == 1 and not c.literals[0].inputs for c in clauses)
    everywhere = all(not rows for rows in regions_of(spec).regions)
    return plain and everywhere and not any(len(rule.requirement.exclusions) for rule in spec.rules)


EVEN = HeadKind(certify, Even, lambda certificate: ([], 1), lambda program: "even whole numbers, behind the model", suits)
