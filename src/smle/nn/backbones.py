"""Backbones that smle builds itself. Any other torch module serves as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["CNN", "LSTM", "MLP", "Standardize", "Transformer"]


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


class CNN(nn.Sequential):
    """Images (batch, channels, height, width) -> embedding (batch, n): 3x3 convolutions, pooling, a linear layer.

    Each convolution is followed by ReLU and 2x2 pooling; the mean over what is left of the image makes any size fit.
    """

    def __init__(self, channels: int, embedding: int, *, filters: Sequence[int] = (16, 32)) -> None:
        layers: list[nn.Module] = []
        for count in filters:
            layers += [nn.Conv2d(channels, count, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
            channels = count
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, embedding))


class LSTM(nn.Module):
    """Sequences (batch, time, inputs) and their lengths (batch,) -> embedding (batch, n).

    What stands behind a sequence's length does not matter. Without lengths all sequences are full.
    """

    def __init__(self, inputs: int, embedding: int, *, hidden: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)
        self.linear = nn.Linear(hidden, embedding)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return a linear function of the state at each sequence's last element."""
        states, _ = self.lstm(sequences)
        last = torch.full((len(states),), states.shape[1], device=states.device) if lengths is None else lengths
        z: Tensor = self.linear(states[torch.arange(len(states), device=states.device), last.to(torch.long) - 1])
        return z


class Transformer(nn.Module):
    """Sequences (batch, time, inputs) and their lengths (batch,) -> embedding (batch, n).

    An encoder with learned positions for up to `longest` elements; the mean over each sequence's own elements is
    the embedding. What stands behind a sequence's length does not matter. Without lengths all sequences are full.
    """

    def __init__(
        self, inputs: int, embedding: int, *, width: int = 32, heads: int = 4, layers: int = 2, longest: int = 256
    ) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.positions = nn.Parameter(0.02 * torch.randn(longest, width))
        layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=2 * width, dropout=0.0, batch_first=True)
        # The nested-tensor path is an inference-only shortcut with other shapes.
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.linear = nn.Linear(width, embedding)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return a linear function of the mean over each sequence's elements."""
        time = sequences.shape[1]
        if time > len(self.positions):
            raise ValueError(f"Expected sequences of at most {len(self.positions)} elements. Got {time}.")
        hidden = self.enter(sequences) + self.positions[:time]
        if lengths is None:
            encoded: Tensor = self.encoder(hidden)
            pooled = encoded.mean(dim=1)
        else:
            beyond = torch.arange(time, device=sequences.device) >= lengths.unsqueeze(1)
            encoded = self.encoder(hidden, src_key_padding_mask=beyond)
            pooled = encoded.masked_fill(beyond.unsqueeze(-1), 0.0).sum(dim=1) / lengths.unsqueeze(1)
        z: Tensor = self.linear(pooled)
        return z
