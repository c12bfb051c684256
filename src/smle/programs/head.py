"""The program of a certified head: the one place that knows which programs there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.programs.candidates import Candidates
from smle.programs.clip_list import ClipList

__all__ = ["Program", "explained", "program_of"]

Array = npt.NDArray[Any]
Program = ClipList | Candidates
"""From encoded inputs (n, d), float32 or float64, and a model's answers (n, m) to what is served, in float32."""


def program_of(certificate: Certificate) -> Program:
    """Return the program that a certificate of the head of rules speaks of."""
    return Candidates(certificate) if "check.range" in certificate.tensors else ClipList(certificate)


def explained(program: Program, X: Array, answers: Array) -> tuple[Array, Array]:
    """Return what is served (n, m), and by what (n,): 0 the answer, clipped maybe, 1 another one, 2 the safe one."""
    if isinstance(program, Candidates):
        return program.explained(X, answers)
    return program(X, answers), np.zeros(len(answers), dtype=np.int8)
