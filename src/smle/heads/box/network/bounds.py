"""Bounds of the embedding, as trainable modules: center c(x) and half-width h(x) > 0, so that l < u by construction.

Raw parameters refer to standardized inputs x' (see `DataScale`); the deployed ones to the user's inputs x. A user's own
bounds (`own_bounds.py`) may cross: the clip then gives the lower one, here, in the deployed program and in the proof.
Bounds by a network are proved over a relaxation (`smle.heads.box.proof.cases`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["AffineBox", "BoxModule", "BoxParameters", "FixedBox", "NetworkBox"]


_NARROW = 0.0025  # initial contribution of each slope to the half-width


class BoxParameters(NamedTuple):
    """Center and half-width per embedding unit, c(x') = center (1, x') and h(x') = half (1, x'), offsets first.

    Shapes: center, half (n, 1 + d), or (n, 1) where the bounds do not depend on x. With hidden layers (A, a), the
    output of the last one replaces x'; the first is relu(A x' + a), with shapes (k, d) and (k,).
    """

    center: Tensor
    half: Tensor
    hidden: tuple[tuple[Tensor, Tensor], ...] = ()

    @property
    def is_sloped(self) -> bool:
        """Whether the bounds depend on x."""
        return self.center.shape[1] > 1


class BoxModule(nn.Module):
    """A kind of bounds. Subclasses are final. `widths` lists the sizes of its hidden layers, if any."""

    widths: tuple[int, ...] = ()

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width of the box."""
        raise NotImplementedError

    def limits(
        self, x32: Tensor, envelope: BoxParameters, *, standardize: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return l(x) and u(x) in training, broadcastable to (batch, n); x32 is in the user's units.

        `standardize` is (offset, matrix) of x -> (1, x'), shapes (1 + d,) and (d, 1 + d).
        """
        standard = torch.addmm(standardize[0], x32, standardize[1])
        for weight, bias in envelope.hidden:
            inner = torch.relu(torch.addmm(bias, standard[:, 1:], weight.T))
            standard = nn.functional.pad(inner, (1, 0), value=1.0)
        middle, reach = standard @ envelope.center.T, standard @ envelope.half.T
        return middle - reach, middle + reach

    def deployed(self, x_shift: Tensor, x_scale: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the constants of the deployed program, in the user's units and named as in the model file."""
        box = self.envelope(dtype)
        shift, scale = x_shift.to(dtype), x_scale.to(dtype)
        result: dict[str, Tensor] = {}
        for name, both in (("lower", box.center - box.half), ("upper", box.center + box.half)):
            offset, slope = both[:, 0], both[:, 1:]
            if box.is_sloped and not box.hidden:
                slope = slope / scale
                offset = offset - slope @ shift
            result |= {name: offset, f"{name}_slope": slope} if box.is_sloped else {name: offset}
        for i, (weight, bias) in enumerate(box.hidden):
            if i == 0:
                weight = weight / scale
                bias = bias - weight @ shift
            result |= {f"hidden.{i}.weight": weight, f"hidden.{i}.bias": bias}
        return result


class FixedBox(BoxModule):
    """Bounds -1 <= z <= 1. After a linear layer they are as general as any constant bounds."""

    lower: Tensor
    upper: Tensor

    def __init__(self, units: int) -> None:
        super().__init__()
        for name, value in (("lower", -1.0), ("upper", 1.0)):
            self.register_buffer(name, torch.full((units,), value), persistent=False)

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center 0 and half-width 1."""
        ones = self.upper.to(dtype)[:, None]
        return BoxParameters(torch.zeros_like(ones), ones)

    def limits(
        self, x32: Tensor, envelope: BoxParameters, *, standardize: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return -1 and 1."""
        return self.lower, self.upper


class AffineBox(BoxModule):
    """Bounds l(x) <= z <= u(x), both affine and trained, starting around 0 with half-widths of about 1.

    h(x') = w0 + wp (x' - low) + wm (high - x') with w0, wp, wm > 0: every affine function that is positive on the
    domain [low, high] has this form. Shapes: low, high (d,).
    """

    sides: Tensor

    def __init__(self, units: int, low: Tensor, high: Tensor) -> None:
        super().__init__()
        d = len(low)
        # maps (w0, wp, wm) to the offset and slopes of h
        offset = torch.cat([torch.ones(1), -low, high]).to(torch.float64).unsqueeze(1)
        slopes = torch.cat([torch.zeros(1, d), torch.eye(d), -torch.eye(d)])
        self.register_buffer("sides", torch.cat([offset, slopes], dim=1), persistent=False)
        self.register_buffer("sides_float32", self.sides.to(torch.float32), persistent=False)
        # Two parameters instead of four: an optimizer pays for each.
        self.center = nn.Parameter(torch.zeros(units, 1 + d))
        widths = torch.full((units, 1 + 2 * d), _NARROW, dtype=torch.float64)
        widths[:, 0] = 1.0
        self.raw_widths = nn.Parameter((widths + torch.log(-torch.expm1(-widths))).to(torch.float32))  # softplus^-1

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width, affine in x'."""
        center: Tensor = self.center
        raw: Tensor = self.raw_widths
        sides = self.get_buffer("sides_float32")
        if dtype is not torch.float32:
            center, raw, sides = center.to(dtype), raw.to(dtype), self.sides.to(dtype)
        return BoxParameters(center, nn.functional.softplus(raw) @ sides)


class NetworkBox(BoxModule):
    """Bounds l(x) <= z <= u(x) by hidden layers of ReLU units, starting around 0 with half-widths of about 1.

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
        # About half of the width comes from h, so that it can change shape without growing first.
        start = torch.full((units, 1 + last), -2.5)
        start[:, 0] = -1.0
        self.raw_width = nn.Parameter(start)

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width, affine in h, and the hidden layers."""
        hidden = tuple((w.to(dtype), b.to(dtype)) for w, b in zip(self.weights, self.biases, strict=True))
        return BoxParameters(self.center.to(dtype), nn.functional.softplus(self.raw_width.to(dtype)), hidden=hidden)
