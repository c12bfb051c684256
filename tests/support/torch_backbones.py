"""Backbones as users bring them: for images, and for sequences of any length."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def convolutions(channels: int, embedding: int) -> nn.Module:
    """Images (batch, channels, height, width) -> embedding (batch, n)."""
    layers = [nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, embedding))


class Recurrent(nn.Module):
    """Sequences (batch, time, inputs) and their lengths (batch,) -> embedding (batch, n)."""

    def __init__(self, inputs: int, embedding: int) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(inputs, 32, batch_first=True), nn.Linear(32, embedding)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        states, _ = self.lstm(sequences)
        last = torch.full((len(states),), states.shape[1]) if lengths is None else lengths
        z: Tensor = self.linear(states[torch.arange(len(states)), last.to(torch.long) - 1])
        return z
