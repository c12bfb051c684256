"""Reads features as the gate does, without changing their numbers, and checks shapes around a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smle.errors import RuleError
from smle.rules import Specification
from smle.tables import WHOLE_FLOAT64, require_exact

__all__ = [
    "at_positions", "is_large", "kind_of", "left_out", "plain_numbers", "read_features", "require_mask",
    "require_rules", "spread",
]  # fmt: skip


def is_large(spec: Specification) -> bool:
    """Return whether the domain reaches beyond 2^53, where float64 skips integers."""
    return any(abs(end) > WHOLE_FLOAT64 for end in (*spec.lower, *spec.upper))


def read_features(features: Tensor, *, is_large: bool) -> Tensor:
    """Return features as float32 or float64, with unchanged values: integers as float64.

    Beyond 2^53, float64 skips some integers. If the domain ends before that, such inputs are clamped anyway; otherwise
    this raises DataError or, in a compiled program, TypeError.
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


# --- shapes: no served number is changed here


def spread(features: Tensor, answers: Tensor) -> Tensor:
    """Expand features to every answer as a view: those of a sequence (B, d) to each of its steps (B, T, m)."""
    own, wanted = features.shape[:-1], answers.shape[:-1]
    if len(own) >= len(wanted) or own != wanted[: len(own)]:
        return features  # nothing to do, or the head raises
    ones = [1] * (len(wanted) - len(own))
    return features.reshape(*own, *ones, features.shape[-1]).expand(*wanted, features.shape[-1])


def require_mask(mask: object, shape: tuple[int, ...]) -> Tensor:
    """Return a mask if it has a bool for every answer, or raise TypeError or ValueError."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"Expected the mask as a tensor of bool, True where an answer is wanted. Got {got}. Make one of lengths: "
            "torch.arange(steps) < lengths[:, None]."
        )
    if tuple(mask.shape) != shape:
        raise ValueError(
            f"Expected a mask of shape {shape}, a value for each answer. Got {tuple(mask.shape)}. Where a whole "
            "sequence is left out, say so at each of its steps: mask[:, None].expand(-1, steps)."
        )
    return mask


def at_positions(
    serve: Callable[[Tensor, Tensor], Tensor], features: Tensor, answers: Tensor, mask: Tensor, fill: float
) -> Tensor:
    """Serve the positions of a mask, and fill all others with a constant."""
    at = mask.nonzero(as_tuple=True)
    served = serve(features[at], answers[at])
    return served.new_full((*mask.shape, served.shape[-1]), fill).index_put(at, served)


def left_out(answers: Tensor, mask: Tensor, fill: float) -> Tensor:
    """Replace answers outside a mask by a constant without gradient."""
    return torch.where(mask[..., None], answers, fill)


def kind_of(value: Any) -> str:
    """Describe a value of the wrong kind, with advice if it holds sequences of different lengths."""
    if isinstance(value, Tensor) and value.is_nested:
        return "a nested tensor. Pad it: torch.nested.to_padded_tensor(nested, 0.0), and pass mask="
    if isinstance(value, list | tuple) and value and all(isinstance(part, Tensor) for part in value):
        return (
            f"a {type(value).__name__} of {len(value)} tensors. Pad sequences of different lengths: "
            "torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True), and pass mask="
        )
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return "a PackedSequence. Its rows are its data: pass features in their order, and let the backbone return data"
    return f"{type(value).__name__}"
