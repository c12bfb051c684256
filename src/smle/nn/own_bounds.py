"""Bounds of one's own: an auxiliary model that smle does not know. What is deployed is what the kernel checks.

* A module of `Linear` and `ReLU` in turn, x' (batch, d) -> (batch, 2 n): lower bounds first, then upper ones.
* Any module with a method `affine_bounds()` that returns (lower, upper), shapes (n, 1 + d): offsets, then slopes.

x' are the inputs in the units of the network's frame, the user's own if it has none. A lower bound may lie above the
upper one: the clip then gives the upper one, here, in the deployed program and in the proof.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from smle.nn.bounds import Box, BoxParameters

__all__ = ["ModuleBox", "StatedBox", "box_of"]


class ModuleBox(Box):
    """l(x) and u(x) by layers of the caller's own, trained with the network."""

    def __init__(self, module: nn.Module, units: int, inputs: int) -> None:
        super().__init__()
        parts = [part for part in module.modules() if not list(part.children())]
        layers = [part for part in parts[::2] if isinstance(part, nn.Linear)]
        kinks = [part for part in parts[1::2] if isinstance(part, nn.ReLU)]
        if len(layers) + len(kinks) != len(parts) or len(layers) != len(kinks) + 1:
            raise TypeError(f"Expected bounds of Linear and ReLU layers in turn, Linear first and last. Got {module}.")
        self.layers = nn.ModuleList(layers)
        sizes = [inputs, *(layer.out_features for layer in layers)]
        if sizes[-1] != 2 * units or [layer.in_features for layer in layers] != sizes[:-1]:
            raise ValueError(
                f"Expected bounds from {inputs} inputs to {2 * units} numbers, lower and upper bounds of {units} "
                f"units. Got {module}."
            )
        self.widths = tuple(sizes[1:-1])
        self.is_affine = not self.widths

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width, affine in the last hidden layer, and the hidden layers."""
        stated = [_numbers(layer, dtype) for layer in self.layers]
        weight, bias = stated.pop()
        lower, upper = torch.cat([bias[:, None], weight], dim=1).chunk(2)
        return BoxParameters((lower + upper) / 2, (upper - lower) / 2, hidden=tuple(stated))


def _numbers(layer: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, nn.Linear)
    bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
    return layer.weight.to(dtype), bias.to(dtype)


class StatedBox(Box):
    """l(x) and u(x) that a module of the caller's own states: affine, however it computes them."""

    is_affine = True

    def __init__(self, module: nn.Module, units: int, inputs: int) -> None:
        super().__init__()
        self.module, self._shape = module, (units, 1 + inputs)
        self.envelope()

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width, affine in x'."""
        stated: Any = self.module.affine_bounds()  # type: ignore[operator]
        lower, upper = stated
        shapes = [tuple(getattr(side, "shape", ())) for side in (lower, upper)]
        if shapes != [self._shape] * 2:
            raise ValueError(
                f"Expected affine_bounds() to return two tensors of shape {self._shape}: for each unit the offset, "
                f"then a slope per input column. Got {shapes}."
            )
        lower, upper = lower.to(dtype), upper.to(dtype)
        return BoxParameters((lower + upper) / 2, (upper - lower) / 2)


def box_of(module: nn.Module, units: int, inputs: int) -> Box:
    """Return bounds of the caller's own as a box.

    Raises:
        TypeError: If the module is neither of the two kinds.
        ValueError: If its shapes do not fit.
    """
    kind = StatedBox if hasattr(module, "affine_bounds") else ModuleBox
    return kind(module, units, inputs)
