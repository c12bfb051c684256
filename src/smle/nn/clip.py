"""The clip, by one definition, and when Python may look at values to save passes over them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["clip", "eager", "has_nan", "is_traced"]

_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._is_tracing


def clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Clip z into [lower, upper]; NaN becomes lower, and where lower > upper the result is upper.

    This is the one definition of clip. It does not lean on how a runtime's Min and Max treat NaN.
    """
    if eager(z):
        # The same numbers in fewer passes: clamp differs in NaN only, and a sum without NaN has no NaN in it.
        clamped = torch.clamp(z, lower, upper)
        if not has_nan(clamped):
            return clamped
    raised = torch.where(z >= lower, z, lower)
    return torch.where(raised <= upper, raised, upper)


def eager(tensor: Tensor) -> bool:
    """Whether Python may look at values: on a CPU, outside compilers and exporters."""
    return tensor.is_cpu and not _is_compiling() and not _is_tracing()


def has_nan(tensor: Tensor) -> bool:
    """Whether there may be a NaN; False is certain."""
    return math.isnan((tensor.detach() if tensor.requires_grad else tensor).sum().item())


def is_traced() -> bool:
    """Whether torch.jit.trace is looking on, which forgets what Python asks about shapes."""
    return not _is_compiling() and bool(_is_tracing())
