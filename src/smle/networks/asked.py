"""Lets a search for violations query a torch module, gradients included."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.rules import Specification

__all__ = ["AskedModule"]

Doubles = npt.NDArray[np.float64]
Points = npt.NDArray[np.floating[Any]]


class AskedModule:
    """A module from features (n, d) to answers (n, m), or (n,) for one output."""

    dtype: type[np.floating[Any]] = np.float32

    def __init__(self, module: nn.Module, spec: Specification) -> None:
        self._module, self._width = module, len(spec.targets)

    def _answers(self, features: Tensor) -> Tensor:
        found = self._module(features)
        if not isinstance(found, Tensor) or not found.is_floating_point():
            got = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(f"Expected the module to return a tensor of floats (n, {self._width}). Got {got}.")
        flat = self._width == 1 and found.ndim == features.ndim - 1
        answers = found[..., None] if flat else found
        if tuple(answers.shape) != (len(features), self._width):
            raise ValueError(
                f"Expected answers of shape {(len(features), self._width)} to features of shape "
                f"{tuple(features.shape)}. Got {tuple(answers.shape)}."
            )
        return answers

    def _features(self, X: Points) -> Tensor:
        place = next((p.device for p in self._module.parameters()), torch.device("cpu"))
        return torch.tensor(np.ascontiguousarray(X, dtype=np.float32), device=place)

    def ask(self, X: Points) -> tuple[Points, Doubles]:
        """Return the inputs in float32, and the outputs (n, m)."""
        with torch.no_grad():
            found = self._answers(self._features(X))
        return X.astype(np.float32), found.to(torch.float64).cpu().numpy()

    def pull(self, X: Points, weights: Doubles) -> Doubles | None:
        """Return the gradients (n, d) of weights . outputs, or None if there are none."""
        features = self._features(X).requires_grad_()
        with torch.enable_grad():
            found = self._answers(features)
            if not found.requires_grad:
                return None
            total = (found * torch.tensor(weights, dtype=found.dtype, device=found.device)).sum()
            (slopes,) = torch.autograd.grad(total, features, allow_unused=True)
        return None if slopes is None else np.asarray(slopes.to(torch.float64).cpu().numpy())
