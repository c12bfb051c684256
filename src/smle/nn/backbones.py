"""The perceptron of the estimators. Any other torch module serves as a backbone, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["MLP", "Standardize"]


class Standardize(nn.Module):
    """(x - shift) / scale, per column, with constants taken from data."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: npt.ArrayLike, scale: npt.ArrayLike) -> None:
        super().__init__()
        self.register_buffer("shift", torch.as_tensor(np.asarray(shift, dtype=np.float32)))
        self.register_buffer("scale", torch.as_tensor(np.asarray(scale, dtype=np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardized inputs (batch, d)."""
        return (x - self.shift) / self.scale


class MLP(nn.Sequential):
    """Standardize, ReLU layers of the given widths, and a linear layer of the embedding's width."""

    def __init__(self, hidden: Sequence[int], embedding: int, *, shift: npt.ArrayLike, scale: npt.ArrayLike) -> None:
        standardize = Standardize(shift, scale)
        layers: list[nn.Module] = [standardize]
        width = len(standardize.shift)
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        layers.append(nn.Linear(width, embedding))
        super().__init__(*layers)
