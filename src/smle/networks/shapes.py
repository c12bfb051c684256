"""Shapes in front of a head and behind it: nothing here is part of what is proved, and no served number is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["at_positions", "kind_of", "left_out", "require_mask", "spread"]


def spread(features: Tensor, answers: Tensor) -> Tensor:
    """Return features for every answer, as a view: those of a sequence (B, d) for each of its steps (B, T, m)."""
    own, wanted = features.shape[:-1], answers.shape[:-1]
    if len(own) >= len(wanted) or own != wanted[: len(own)]:
        return features  # as many, or the head says what does not fit
    ones = [1] * (len(wanted) - len(own))
    return features.reshape(*own, *ones, features.shape[-1]).expand(*wanted, features.shape[-1])


def require_mask(mask: object, shape: tuple[int, ...]) -> Tensor:
    """Return a mask if it says True or False of every answer.

    Raises:
        TypeError: If it is no tensor of bool.
        ValueError: If it has another shape.
    """
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
    """Return what is served at the positions of a mask, and a constant at all others, which no head sees."""
    at = mask.nonzero(as_tuple=True)
    served = serve(features[at], answers[at])
    return served.new_full((*mask.shape, served.shape[-1]), fill).index_put(at, served)


def left_out(answers: Tensor, mask: Tensor, fill: float) -> Tensor:
    """Return answers with a constant, which has no gradient, in the place of those outside of a mask."""
    return torch.where(mask[..., None], answers, fill)


def kind_of(value: Any) -> str:
    """Say what was given, with what to do where it is a batch of sequences of different lengths."""
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
