"""Shapes before and after a head. No served number is changed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["at_positions", "kind_of", "left_out", "require_mask", "spread"]


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
    """Describe a value of the wrong kind, with advice for a batch of sequences of different lengths."""
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
