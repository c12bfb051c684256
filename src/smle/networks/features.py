"""Features as the gate reads them: the numbers of a tensor, unchanged."""

from __future__ import annotations

import torch
from torch import Tensor

from smle.errors import RuleError
from smle.rules import Specification
from smle.tables import WHOLE_FLOAT64, require_exact

__all__ = ["is_large", "plain_numbers", "read_features", "require_rules"]


def is_large(spec: Specification) -> bool:
    """Return whether the domain reaches beyond 2^53, where float64 skips integers."""
    return any(abs(end) > WHOLE_FLOAT64 for end in (*spec.lower, *spec.upper))


def read_features(features: Tensor, *, is_large: bool) -> Tensor:
    """Return features as float32 or float64, with unchanged values: integers as float64.

    Beyond 2^53, float64 skips some integers. If the domain ends before that, such inputs are clamped anyway; otherwise
    DataError is raised or, in a compiled program, TypeError.
    """
    numbers = plain_numbers(features)
    if is_large and numbers is not features and features.dtype.itemsize == 8:
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            raise TypeError(
                f"Expected features in float64: the domain reaches beyond 2^53, and a compiled program cannot see "
                f"which whole numbers would be rounded. Got {features.dtype}."
            )
        width = features.shape[-1]
        given, read = (part.cpu().numpy().reshape(-1, width) for part in (features, numbers))
        require_exact(given, read, [f"Column {i} of the features" for i in range(width)])
    return numbers


def plain_numbers(features: Tensor) -> Tensor:
    """Return real features as floats: integers as float64, which skips some beyond 2^53."""
    if features.dtype in (torch.float32, torch.float64):
        return features
    if features.is_complex():
        raise TypeError(f"Expected features that are real numbers. Got {features.dtype}.")
    return features.to(torch.float32 if features.is_floating_point() else torch.float64)


def require_rules(spec: object) -> None:
    """Raise TypeError unless `spec` is a Specification, and RuleError if it has no rules."""
    if not isinstance(spec, Specification):
        raise TypeError(
            f"Expected the rules as a Specification. Got {type(spec).__name__}. Read a file or a text with "
            "smle.Specification.from_yaml(...)."
        )
    if not spec.rules:
        raise RuleError("Expected at least one rule. Got none. Without rules, use the module as it is.")
