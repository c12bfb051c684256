"""The gauge: a re-parametrisation of the heads that is safe for every value of the raw parameters.

A head is `center + alpha * direction`. With `slack_k` the room that the center leaves to clause k (under fixed
lambda, rounding deducted) and `worst_k` the largest increase that the direction can cause over the cell,

    alpha = min(1, min over k with worst_k > 0 of slack_k / worst_k)

is safe, differentiable almost everywhere, and needs no solver (docs/theory.md). `worst_k` is taken over the
bounding box of the cell, which contains the cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["Frame", "Gauge", "GaugeRows", "HeadTensors"]

Array = npt.NDArray[np.float64]

_UNIT_ROUNDOFF = 2.0**-24
_SAFETY = 1.05  # on rounding terms: they are computed in floats themselves


@dataclass(frozen=True, eq=False)
class Frame:
    """Units in which the raw parameters live: x = x_shift + x_scale * x', y = y_shift + y_scale * y'."""

    x_shift: Array
    x_scale: Array
    y_shift: Array
    y_scale: Array

    @classmethod
    def identity(cls, inputs: int, outputs: int) -> Frame:
        """Return the frame of the user's units."""
        return cls(np.zeros(inputs), np.ones(inputs), np.zeros(outputs), np.ones(outputs))


@dataclass(frozen=True, eq=False)
class GaugeRows:
    """What one cell asks of its head, in the user's units.

    * `g` (k, m): the output part of each clause under its lambda.
    * `slack` (k,): room of the center, positive, before rounding is deducted.
    * `center` (m,) and `center_slope` (m, d): the safe affine choice y0 + Y x.
    * `lower`, `upper` (d,): bounding box of the cell.
    """

    g: Array
    slack: Array
    center: Array
    center_slope: Array
    lower: Array
    upper: Array


HeadTensors = tuple[Tensor, Tensor | None, Tensor]
"""W (heads, m, n), V (heads, m, d) or None, b (heads, m), in the user's units."""


class Gauge(nn.Module):
    """Safe heads for all cells, with constant bounds -1 <= z <= 1 of the embedding.

    Shapes: raw_weight (heads, m, n), raw_bias (heads, m), raw_slope (heads, m, d) if `passthrough`.
    """

    g: Tensor
    slack: Tensor
    center: Tensor
    center_slope: Tensor
    box_center: Tensor
    box_half: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor

    def __init__(self, cells: list[GaugeRows], frame: Frame, *, embedding: int, passthrough: bool) -> None:
        super().__init__()
        heads, m, d = len(cells), len(frame.y_scale), len(frame.x_scale)
        rows = max((len(cell.g) for cell in cells), default=1)
        g, slack = np.zeros((heads, rows, m)), np.ones((heads, rows))
        for position, cell in enumerate(cells):
            g[position, : len(cell.g)] = cell.g * frame.y_scale
            slack[position, : len(cell.g)] = cell.slack
        # Equal units for all clauses; alpha is a ratio, so this only conditions the numbers.
        norm = np.maximum(np.abs(g).sum(axis=2), 1e-300)
        norm[np.abs(g).sum(axis=2) == 0] = 1.0
        y0 = np.array([c.center + c.center_slope @ frame.x_shift for c in cells]).reshape(heads, m)
        slope = np.array([c.center_slope * frame.x_scale for c in cells]).reshape(heads, m, d)
        lower = np.array([(c.lower - frame.x_shift) / frame.x_scale for c in cells]).reshape(heads, d)
        upper = np.array([(c.upper - frame.x_shift) / frame.x_scale for c in cells]).reshape(heads, d)
        state = {
            "g": g / norm[:, :, None],
            "slack": slack / norm,
            "center": (y0 - frame.y_shift) / frame.y_scale,
            "center_slope": slope / frame.y_scale[:, None],
            "box_center": (lower + upper) / 2,
            "box_half": (upper - lower) / 2,
            "x_shift": frame.x_shift,
            "x_scale": frame.x_scale,
            "y_shift": frame.y_shift,
            "y_scale": frame.y_scale,
        }
        for name, value in state.items():
            self.register_buffer(name, torch.from_numpy(np.array(value, dtype=np.float64)))
        self.raw_weight = nn.Parameter(torch.empty(heads, m, embedding))
        self.raw_bias = nn.Parameter(torch.zeros(heads, m))
        self.raw_slope = nn.Parameter(torch.zeros(heads, m, d)) if passthrough else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start at the center, with small random directions."""
        bound = 1.0 / max(self.raw_weight.shape[-1], 1) ** 0.5
        self.raw_weight.uniform_(-bound, bound)
        self.raw_bias.copy_(self.center)
        if self.raw_slope is not None:
            self.raw_slope.copy_(self.center_slope)

    def alpha(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the largest safe step (heads,) from the center towards the raw head, at most 1."""
        g, slack = self.g.to(dtype), self.slack.to(dtype)
        W, db, dV = self._direction(dtype)
        n, d = W.shape[-1], self.box_half.shape[-1]
        worst = (g @ db.unsqueeze(-1)).squeeze(-1) + (g @ W).abs().sum(dim=-1)
        if dV is not None:
            slope = g @ dV
            middle, half = self.box_center.to(dtype).unsqueeze(1), self.box_half.to(dtype).unsqueeze(1)
            worst = worst + (slope * middle + slope.abs() * half).sum(dim=-1)
        # Rounding of the deployed head and of its stored weights, as a share of everything it adds up.
        share = _SAFETY * (n + d + 4) * _UNIT_ROUNDOFF
        size = W.abs().sum(dim=-1) + db.abs()
        still = self.center.abs() + (self.y_shift / self.y_scale).abs()
        if dV is not None:
            reach = ((self.box_center.abs() + self.box_half) + 2 * (self.x_shift / self.x_scale).abs()).unsqueeze(1)
            size = size + (dV.abs() * reach.to(dtype)).sum(dim=-1)
            still = still + (self.center_slope.abs() * reach).sum(dim=-1)
        worst = worst + share * (g.abs() @ size.unsqueeze(-1)).squeeze(-1)
        room = slack - share * (g.abs() @ still.to(dtype).unsqueeze(-1)).squeeze(-1)
        ratio = torch.where(worst > 0, room.clamp(min=0) / worst.clamp(min=1e-30), torch.inf)
        return ratio.amin(dim=1).clamp(max=1.0)

    def _direction(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        W, db = self.raw_weight.to(dtype), self.raw_bias.to(dtype) - self.center.to(dtype)
        return W, db, None if self.raw_slope is None else self.raw_slope.to(dtype) - self.center_slope.to(dtype)

    def forward(self, dtype: torch.dtype = torch.float32) -> HeadTensors:
        """Return safe heads in the user's units."""
        alpha = self.alpha(dtype).unsqueeze(-1)
        W, db, dV = self._direction(dtype)
        y_shift, y_scale = self.y_shift.to(dtype), self.y_scale.to(dtype)
        weight = alpha.unsqueeze(-1) * W * y_scale.unsqueeze(-1)
        bias = y_shift + y_scale * (self.center.to(dtype) + alpha * db)
        if dV is None:
            return weight, None, bias
        slope = self.center_slope.to(dtype) + alpha.unsqueeze(-1) * dV
        slope = slope * y_scale.unsqueeze(-1) / self.x_scale.to(dtype)
        return weight, slope, bias - slope @ self.x_shift.to(dtype)

    @torch.no_grad()
    def fallback(self) -> Tensor:
        """Return the center at the middle of each cell's box: the safe constant (heads, m), in the user's units."""
        middle = self.center + (self.center_slope @ self.box_center.unsqueeze(-1)).squeeze(-1)
        return self.y_shift + self.y_scale * middle
