"""Bounds of the embedding by a small ReLU network of the inputs: the third kind of bounds, beside constant and affine.

Both bounds are affine in the last hidden layer h(x'): center c(h) and half-width w(h) > 0, so that l < u by
construction. What is proved is a relaxation: over a box of inputs every ReLU lies between two lines,

    below * p <= relu(p) <= above * p + lift,

and a combination q.h is at most an affine function of x' (`smle.guarantees.proof.network_boxes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from smle.nn.bounds import Box, BoxParameters

__all__ = ["NetworkBox"]


class NetworkBox(Box):
    """l(x) <= z <= u(x) by hidden layers of ReLU units; they start around 0, about 1 wide on either side.

    The half-width is w0 + sum_j w_j h_j with w0, w_j > 0 and h >= 0. With one layer it would be convex in x; with two
    it takes any shape. The kinks of the first layer start at random places of the domain [low, high], shapes (d,).
    """

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
