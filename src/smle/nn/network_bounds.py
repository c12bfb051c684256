"""Bounds of the embedding by a small ReLU network of the inputs: the third kind of bounds, beside constant and affine.

With h(x') = relu(A x' + a) both bounds are affine in h: center c(h) and half-width w(h) > 0, so that l < u by
construction. What is proved is a relaxation: over a box of inputs every ReLU lies between two lines,

    below * p <= relu(p) <= above * p + lift,    p = A x' + a,

and a combination q.h is at most an affine function of x'. The gauge prices each clause over the boxes into which its
region's box is cut; `smle.guarantees.network_boxes` goes through the same boxes, so that a proof is found there.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from smle.guarantees.network_boxes import CUTS
from smle.nn.bounds import Box, Envelope

__all__ = ["NetworkBox", "over_boxes"]


class NetworkBox(Box):
    """l(x) <= z <= u(x) by one hidden layer of ReLU units; they start as the constants -1 and 1.

    The half-width is w0 + sum_j w_j h_j with w0, w_j > 0 and h >= 0. The kinks of the units start at random places of
    the domain [low, high], shapes (d,).
    """

    cuts: ClassVar[int] = CUTS

    def __init__(self, units: int, low: Tensor, high: Tensor, *, hidden: int = 16) -> None:
        super().__init__()
        d = len(low)
        span = (high - low).clamp(min=1e-12)
        weight = torch.randn(hidden, d, dtype=torch.float64) / (d**0.5 * span / 2)
        kinks = low + span * (0.1 + 0.8 * torch.rand(hidden, d, dtype=torch.float64))
        self.hidden_weight = nn.Parameter(weight.to(torch.float32))
        self.hidden_bias = nn.Parameter(-(weight * kinks).sum(dim=1).to(torch.float32))
        self.center = nn.Parameter(torch.zeros(units))
        self.center_map = nn.Parameter(torch.zeros(units, hidden))
        self.raw_width = nn.Parameter(torch.full((units,), 0.5413))  # softplus gives 1
        self.raw_width_map = nn.Parameter(torch.full((units, hidden), -6.0))

    def envelope(self, dtype: torch.dtype = torch.float32) -> Envelope:
        """Return center and half-width, affine in h, and the hidden layer."""
        soft = nn.functional.softplus
        parameters: list[Tensor] = [
            self.center, self.raw_width, self.center_map, self.raw_width_map, self.hidden_weight, self.hidden_bias,
        ]  # fmt: skip
        center, width, center_map, width_map, weight, bias = (p.to(dtype) for p in parameters)
        return Envelope(center, soft(width), center_map, soft(width_map), hidden=(weight, bias))

    def deployed(self, x_shift: Tensor, x_scale: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the constants of the deployed program in the user's inputs; rounding keeps lower <= upper."""
        box = self.envelope(dtype)
        assert box.center_slope is not None
        assert box.half_slope is not None
        assert box.hidden is not None
        weight = box.hidden[0] / x_scale.to(dtype)
        return {
            "hidden_weight": weight,
            "hidden_bias": box.hidden[1] - weight @ x_shift.to(dtype),
            "lower": box.center - box.half,
            "lower_slope": box.center_slope - box.half_slope,
            "upper": box.center + box.half,
            "upper_slope": box.center_slope + box.half_slope,
        }


def _lines(lowest: Tensor, highest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (below, above, lift) of the lines around ReLU on [lowest, highest], as in `smle.guarantees.relaxation`."""
    above = (highest.clamp(min=0) / (highest - lowest).clamp(min=1e-30)).clamp(max=1.0)
    return (2 * above - 0.5).clamp(0.0, 1.0), above, above * (-lowest).clamp(min=0)


def over_boxes(
    q: Tensor, direct: Tensor | None, hidden: tuple[Tensor, Tensor], *, boxes: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor], raw_mu: Tensor | None,
) -> Tensor:  # fmt: skip
    """Bound max q.h(x') + direct.x' over each clause's region (heads, k), box by box.

    Shapes: q (heads, k, units), direct (heads, k, d) or None, hidden (units, d), (units,); boxes, centers and
    half-widths (heads, k, p, d); rows A x' <= a (heads, k, r, d), (heads, k, r), their raw_mu (heads, k, p, r) or None.
    """
    (weight, bias), (centers, halves) = hidden, boxes
    middle, reach = centers @ weight.T + bias, halves @ weight.abs().T
    below, above, lift = _lines(middle - reach, middle + reach)
    up, down = q.clamp(min=0).unsqueeze(2), q.clamp(max=0).unsqueeze(2)
    through = up * above + down * below
    total, slope = through @ bias + (up * lift).sum(dim=3), through @ weight
    if direct is not None:
        slope = slope + direct.unsqueeze(2)
    if raw_mu is not None:
        mu = nn.functional.softplus(raw_mu.to(slope.dtype)) * slope.abs().amax(dim=3, keepdim=True).detach()
        total = total + (mu * rows[1].unsqueeze(2)).sum(dim=3)
        slope = slope - mu @ rows[0]
    return (total + (slope * centers + slope.abs() * halves).sum(dim=3)).amax(dim=2)
