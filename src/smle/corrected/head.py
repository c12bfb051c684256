"""From rules to a certified head behind any model, and its program: the one place that knows which heads there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.certificates.limits import certify_limits
from smle.errors import RuleError
from smle.programs import ClipList
from smle.rules import Number, Specification

__all__ = ["Program", "certify_rules", "program_of"]

Array = npt.NDArray[Any]
Program = Callable[[Array, Array], Array]
"""From encoded inputs (n, d), float32 or float64, and a model's answers (n, m) to what is served, in float32."""


def certify_rules(
    spec: Specification,
    *,
    default: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    files: dict[str, bytes] | None = None,
) -> Certificate:
    """Return a certified head for rules, behind whatever answers.

    Args:
        spec: The rules.
        default: What takes the place of NaN and infinite answers; 0 if None. Shape (m,).
        scale: In which unit each answer is moved as little as possible. Shape (m,).
        files: Files that the certificate binds, by role: `model`, `rules`, `onnx` (the model in front of the head).

    Raises:
        RuleError: If there is no head for rules of these kinds.
        ContradictionError: If rules contradict each other; names an input where they do.
        NotCertifiedError: If no proof was found; names the input.
    """
    if not all(isinstance(output, Number) for output in spec.outputs):
        raise RuleError("Expected outputs that are numbers. Labels and choices of other models are not corrected yet.")
    return certify_limits(spec, default=default, files=files)


def program_of(certificate: Certificate) -> Program:
    """Return the program that a certificate speaks of."""
    return ClipList(certificate)
