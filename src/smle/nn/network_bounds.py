"""Bounds of the embedding by a small ReLU network of the inputs: the third kind of bounds, beside constant and affine.

Both bounds are affine in the last hidden layer h(x'): center c(h) and half-width w(h) > 0, so that l < u by
construction. What is proved is a relaxation: over a box of inputs every ReLU lies between two lines,

    below * p <= relu(p) <= above * p + lift,

and a combination q.h is at most an affine function of x'. The gauge prices each clause over the boxes into which its
region's box is cut; `smle.guarantees.proof.network_boxes` goes through the same boxes, so that a proof is found there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from smle.guarantees import CUTS
from smle.nn.bounds import Box, BoxParameters

__all__ = ["NetworkBox", "over_boxes"]


class NetworkBox(Box):
    """l(x) <= z <= u(x) by hidden layers of ReLU units; they start around 0, about 1 wide on either side.

    The half-width is w0 + sum_j w_j h_j with w0, w_j > 0 and h >= 0. With one layer it would be convex in x; with two
    it takes any shape. The kinks of the first layer start at random places of the domain [low, high], shapes (d,).
    """

    cuts: ClassVar[int] = CUTS

    def __init__(self, units: int, low: Tensor, high: Tensor, *, widths: Sequence[int] = (16, 16)) -> None:
        super().__init__()
        self.widths = tuple(widths)
        d, last = len(low), self.widths[-1]
        span = (high - low).clamp(min=1e-12)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for depth, (inputs, width) in enumerate(pairwise((d, *self.widths))):
            weight = torch.randn(width, inputs, dtype=torch.float64) / inputs**0.5
            if depth == 0:  # kinks at random places of the domain
                weight = weight / (span / 2)
                bias = -(weight * (low + span * (0.1 + 0.8 * torch.rand(width, d, dtype=torch.float64)))).sum(dim=1)
            else:
                bias = 0.5 * torch.rand(width, dtype=torch.float64)
            self.weights.append(nn.Parameter(weight.to(torch.float32)))
            self.biases.append(nn.Parameter(bias.to(torch.float32)))
        self.center = nn.Parameter(torch.zeros(units, 1 + last))
        # About half of the width comes from h, so that it can take another shape without growing first.
        start = torch.full((units, 1 + last), -2.5)
        start[:, 0] = -1.0
        self.raw_width = nn.Parameter(start)

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width, affine in h, and the hidden layers."""
        hidden = tuple((w.to(dtype), b.to(dtype)) for w, b in zip(self.weights, self.biases, strict=True))
        return BoxParameters(self.center.to(dtype), nn.functional.softplus(self.raw_width.to(dtype)), hidden=hidden)

    def deployed(self, x_shift: Tensor, x_scale: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the constants of the deployed program in the user's inputs; rounding keeps lower <= upper."""
        box = self.envelope(dtype)
        result: dict[str, Tensor] = {}
        for name, both in (("lower", box.center - box.half), ("upper", box.center + box.half)):
            result |= {name: both[:, 0], f"{name}_slope": both[:, 1:]}
        for i, (weight, bias) in enumerate(box.hidden):
            if i == 0:
                weight = weight / x_scale.to(dtype)
                bias = bias - weight @ x_shift.to(dtype)
            result |= {f"hidden.{i}.weight": weight, f"hidden.{i}.bias": bias}
        return result


def _lines(lowest: Tensor, highest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (below, above, lift) of the lines around ReLU on [lowest, highest], as in the proof."""
    above = (highest.clamp(min=0) / (highest - lowest).clamp(min=1e-30)).clamp(max=1.0)
    return (2 * above - 0.5).clamp(0.0, 1.0), above, above * (-lowest).clamp(min=0)


Layers = tuple[tuple[Tensor, Tensor], ...]
Lines = list[tuple[Tensor, Tensor, Tensor]]


def _back(q: Tensor, layers: Layers, lines: Lines) -> tuple[Tensor, Tensor]:
    """Return (offset, slope) with q.h <= offset + slope.x'. Shapes: q (..., r, k) -> (..., r), (..., r, d)."""
    total: Tensor | None = None
    for (weight, bias), (below, above, lift) in zip(reversed(layers), reversed(lines), strict=True):
        up, down = q.clamp(min=0), q.clamp(max=0)
        through = up * above + down * below
        constant = through @ bias + (up * lift).sum(dim=-1)
        total, q = constant if total is None else total + constant, through @ weight
    assert total is not None
    return total, q


def _relaxed(layers: Layers, boxes: tuple[Tensor, Tensor]) -> Lines:
    """Return the lines around all ReLUs over boxes (..., d), shapes (..., 1, k)."""
    centers, halves = (end.unsqueeze(-2) for end in boxes)
    lines: Lines = []
    for depth, (weight, bias) in enumerate(layers):
        tops = []
        for side in (weight, -weight):
            offset, slope = (None, side) if depth == 0 else _back(side, layers[:depth], lines)
            top = (slope * centers + slope.abs() * halves).sum(dim=-1)
            tops.append(top if offset is None else top + offset)
        lines.append(tuple(line.unsqueeze(-2) for line in _lines(bias - tops[1], bias + tops[0])))  # type: ignore[arg-type]
    return lines


def over_boxes(
    q: Tensor, direct: Tensor | None, hidden: Layers, *, boxes: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor], raw_mu: Tensor | None,
) -> Tensor:  # fmt: skip
    """Bound max q.h(x') + direct.x' over each clause's region (heads, k), box by box.

    Shapes: q (heads, k, units), direct (heads, k, d) or None; boxes, centers and
    half-widths (heads, k, p, d); rows A x' <= a (heads, k, r, d), (heads, k, r), their raw_mu (heads, k, p, r) or None.
    """
    centers, halves = boxes
    total, slope = _back(q[:, :, None, None, :], hidden, _relaxed(hidden, boxes))
    total, slope = total.squeeze(-1), slope.squeeze(-2)
    if direct is not None:
        slope = slope + direct.unsqueeze(2)
    if raw_mu is not None:
        mu = nn.functional.softplus(raw_mu.to(slope.dtype)) * slope.abs().amax(dim=3, keepdim=True).detach()
        total = total + (mu * rows[1].unsqueeze(2)).sum(dim=3)
        slope = slope - mu @ rows[0]
    return (total + (slope * centers + slope.abs() * halves).sum(dim=3)).amax(dim=2)
