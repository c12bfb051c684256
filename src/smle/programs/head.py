"""The program of a certified head: the one place that knows which programs there are."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.programs.candidates import Candidates
from smle.programs.clip_list import ClipList

__all__ = ["Program", "program_of"]

Array = npt.NDArray[Any]
Program = ClipList | Candidates
"""From encoded inputs (n, d), float32 or float64, and a model's answers (n, m) to what is served, in float32."""


def program_of(certificate: Certificate) -> Program:
    """Return the program that a certificate of the head of rules speaks of."""
    return Candidates(certificate) if "check.range" in certificate.tensors else ClipList(certificate)
