"""The table of heads: who certifies rules, and which program a certificate speaks of."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.heads.box.program import Box
from smle.heads.grid.author import certify_grid
from smle.heads.grid.program import GridProgram
from smle.heads.rules.author import certify_rules
from smle.heads.rules.candidates import Candidates
from smle.heads.rules.clip_list import ClipList
from smle.rules import Specification

__all__ = ["Program", "certify_head", "program_of"]

Array = npt.NDArray[Any]
Program = ClipList | Candidates | GridProgram | Box
"""From encoded inputs (n, d), float32 or float64, and a model's answers to what is served, (n, m) in float32.

Answers are (n, m) in front of a head of rules or a grid, the embedding (n, units) in front of a box."""


def certify_head(
    spec: Specification,
    *,
    default: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    files: dict[str, bytes] | None = None,
) -> Certificate:
    """Return the certified head that goes behind any model: the grid for outputs in steps, else the head of rules.

    Arguments and errors are those of `certify_rules`.
    """
    chosen = certify_rules if spec.grid is None else certify_grid
    return chosen(spec, default=default, scale=scale, files=files)


def program_of(certificate: Certificate) -> Program:
    """Return the program that a certificate speaks of."""
    head = certificate.document["program"]["head"]
    if head == "box":
        return Box.of(certificate)
    if head == "grid":
        return GridProgram(certificate)
    return Candidates(certificate) if "check.scale" in certificate.tensors else ClipList(certificate)
