"""Bounds of the embedding, as trainable modules: center c(x) and half-width h(x) > 0, so that l < u by construction.

Raw parameters live in standardized inputs x' (see `Frame`); what is deployed is in the user's inputs x.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["AffineBox", "Box", "Envelope", "FixedBox", "attentive_clip"]


class _AttentiveClip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        clipped = torch.clamp(z, lower, upper)
        ctx.save_for_backward(z - clipped)
        ctx.shapes = lower.shape, upper.shape
        return clipped

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        (beyond,) = ctx.saved_tensors  # negative below the box, positive above it
        lower, upper = ctx.shapes
        return (
            gradient.masked_fill(beyond * gradient < 0, 0.0),
            (gradient * (beyond < 0)).sum_to_size(lower) if ctx.needs_input_grad[1] else None,
            (gradient * (beyond > 0)).sum_to_size(upper) if ctx.needs_input_grad[2] else None,
        )


def attentive_clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Clip z for training: a unit beyond a bound still feels a gradient that would bring it back.

    The true gradient is zero there, so that a unit which is clipped for all rows would never move again.
    """
    clipped: Tensor = _AttentiveClip.apply(z, lower, upper)  # type: ignore[no-untyped-call]
    return clipped


class Envelope(NamedTuple):
    """c(x') = center + center_slope x' and h(x') = half + half_slope x', per embedding unit.

    Shapes: center, half (n,); slopes (n, d), or None where the bounds do not depend on x. `unit`: it is -1 and 1.
    With hidden layers (A, a), shapes (k, d) and (k,) of the first, relu(A x' + a) and so on takes the place of x'.
    """

    center: Tensor
    half: Tensor
    center_slope: Tensor | None
    half_slope: Tensor | None
    unit: bool = False
    hidden: tuple[tuple[Tensor, Tensor], ...] = ()


class Box(nn.Module):
    """A kind of bounds. Subclasses are final.

    `cuts`: how often the gauge cuts a region's box in two, in turn, where the bounds are relaxed over boxes.
    """

    cuts: ClassVar[int] = 0

    def envelope(self, dtype: torch.dtype = torch.float32) -> Envelope:
        """Return center and half-width of the box."""
        raise NotImplementedError

    def limits(self, x32: Tensor, envelope: Envelope, *, x_shift: Tensor, x_scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return l(x) and u(x) in training, broadcastable to (batch, n); x32 is in the user's inputs."""
        center, half = envelope.center, envelope.half
        if envelope.center_slope is None or envelope.half_slope is None:
            return center - half, center + half
        standard = (x32 - x_shift) / x_scale
        for weight, bias in envelope.hidden:
            standard = torch.relu(torch.addmm(bias, standard, weight.T))
        middle = torch.addmm(center, standard, envelope.center_slope.T)
        reach = torch.addmm(half, standard, envelope.half_slope.T)
        return middle - reach, middle + reach

    def deployed(self, x_shift: Tensor, x_scale: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the constants of the deployed program in the user's inputs, by their names in the model file."""
        box = self.envelope(dtype)
        if box.center_slope is None or box.half_slope is None:
            return {"lower": box.center - box.half, "upper": box.center + box.half}
        result = {}
        for name, sign in (("lower", -1.0), ("upper", 1.0)):
            slope = (box.center_slope + sign * box.half_slope) / x_scale.to(dtype)
            result[name] = box.center + sign * box.half - slope @ x_shift.to(dtype)
            result[f"{name}_slope"] = slope
        return result


class FixedBox(Box):
    """-1 <= z <= 1. With a linear layer before it this is as general as any constant bounds."""

    ones: Tensor
    zeros: Tensor
    minus_ones: Tensor

    def __init__(self, units: int) -> None:
        super().__init__()
        for name, value in (("ones", 1.0), ("zeros", 0.0), ("minus_ones", -1.0)):
            self.register_buffer(name, torch.full((units,), value), persistent=False)

    def envelope(self, dtype: torch.dtype = torch.float32) -> Envelope:
        """Return center 0 and half-width 1."""
        ones, zeros = (self.ones, self.zeros) if dtype is torch.float32 else (self.ones.to(dtype), self.zeros.to(dtype))
        return Envelope(zeros, ones, None, None, unit=True)

    def limits(self, x32: Tensor, envelope: Envelope, *, x_shift: Tensor, x_scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return -1 and 1."""
        return self.minus_ones, envelope.half


class AffineBox(Box):
    """l(x) <= z <= u(x), both affine and trained; they start as the constants -1 and 1.

    h(x') = w0 + wp (x' - low) + wm (high - x') with w0, wp, wm > 0: every affine function that is positive on the
    domain [low, high] has this form. Shapes: low, high (d,).
    """

    ends: Tensor

    def __init__(self, units: int, low: Tensor, high: Tensor) -> None:
        super().__init__()
        d = len(low)
        ends = torch.stack([-low, high]).unsqueeze(1).to(torch.float64)
        self.register_buffer("ends", ends, persistent=False)
        self.register_buffer("ends_float32", ends.to(torch.float32), persistent=False)
        self.center = nn.Parameter(torch.zeros(units))
        self.center_slope = nn.Parameter(torch.zeros(units, d))
        self.raw_width = nn.Parameter(torch.full((units,), 0.5413))  # softplus gives 1
        self.raw_sides = nn.Parameter(torch.full((2, units, d), -6.0))  # wp and wm

    def envelope(self, dtype: torch.dtype = torch.float32) -> Envelope:
        """Return center and half-width, affine in x'."""
        soft = nn.functional.softplus
        parameters: list[Tensor] = [self.center, self.center_slope, self.raw_width, self.raw_sides]
        if dtype is torch.float32:
            ends = self.get_buffer("ends_float32")
        else:
            parameters = [parameter.to(dtype) for parameter in parameters]
            ends = self.ends.to(dtype)
        center, slope, width, raw = parameters
        sides = soft(raw)
        rise, fall = sides.unbind()
        return Envelope(center, soft(width) + (sides * ends).sum(dim=(0, 2)), slope, rise - fall)
