"""The program of a certified head: the one place that knows which programs there are."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.heads.grid.program import GridProgram
from smle.programs.box import Box
from smle.programs.candidates import Candidates
from smle.programs.clip_list import ClipList

__all__ = ["Program", "program_of"]

Array = npt.NDArray[Any]
Program = ClipList | Candidates | GridProgram | Box
"""From encoded inputs (n, d), float32 or float64, and a model's answers to what is served, (n, m) in float32.

Answers are (n, m) in front of a head of rules or a grid, the embedding (n, units) in front of a box."""


def program_of(certificate: Certificate) -> Program:
    """Return the program that a certificate speaks of."""
    head = certificate.document["program"]["head"]
    if head == "box":
        return Box.of(certificate)
    if head == "grid":
        return GridProgram(certificate)
    return Candidates(certificate) if "check.scale" in certificate.tensors else ClipList(certificate)
