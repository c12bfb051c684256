"""A user's own modules as bounds: read as layers, and compared with what the module computes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from smle.heads.box.network.bounds import BoxModule, BoxParameters

__all__ = ["own_box"]

Layers = list[tuple[Tensor, Tensor]]
_POINTS = 64  # sample points of the domain
_ALIKE = 1e-9  # tolerance in float64, relative to the largest bound


def own_box(bounds: nn.Module | Sequence[nn.Module], units: int, low: Tensor, high: Tensor) -> BoxModule:
    """Turn a user's modules into a box over the domain [low, high] of x', shapes (d,).

    * Two modules of `Linear` and `ReLU` in turn, x' (batch, d) -> (batch, n): one for lower bounds, one for upper ones.
    * One such module, x' -> (batch, 2 n): lower bounds first, then upper ones.
    * Any module with a method `affine_bounds()` that returns (lower, upper), shapes (n, 1 + d): offsets, then slopes.

    Raises TypeError for anything else, or a module that does not compute what its layers do.
    """
    if isinstance(bounds, nn.Module) and hasattr(bounds, "affine_bounds"):
        return StatedBox(bounds, units, len(low))
    modules = [bounds] if isinstance(bounds, nn.Module) else list(bounds)
    if len(modules) not in (1, 2) or not all(isinstance(module, nn.Module) for module in modules):
        raise TypeError(
            f"Expected a module of bounds, or two: one for lower, one for upper bounds. Got {len(modules)} of "
            f"{', '.join(sorted({type(module).__name__ for module in modules})) or 'nothing'}."
        )
    chains = [Chain(module, len(low), units * 2 // len(modules)) for module in modules]
    points = torch.rand(_POINTS, len(low), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for module, chain in zip(modules, chains, strict=True):
        _require_same(module, chain, low + points * (high - low))
    return ChainBox(chains)


class Chain(nn.Module):
    """A user's module, read as alternating `Linear` and `ReLU` layers."""

    def __init__(self, module: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        parts = [part for part in module.modules() if not list(part.children())]
        layers = [part for part in parts[::2] if isinstance(part, nn.Linear)]
        kinks = [part for part in parts[1::2] if isinstance(part, nn.ReLU)]
        if len(layers) + len(kinks) != len(parts) or len(layers) != len(kinks) + 1:
            raise TypeError(f"Expected bounds of Linear and ReLU layers in turn, Linear first and last. Got {module}.")
        sizes = [inputs, *(layer.out_features for layer in layers)]
        if sizes[-1] != outputs or [layer.in_features for layer in layers] != sizes[:-1]:
            raise ValueError(
                f"Expected bounds from {inputs} inputs to {outputs} numbers: one module for lower and upper bounds of "
                f"all units, or a module for each, (lower, upper). Got {module}."
            )
        self.parts = nn.ModuleList(layers)
        self.shape = inputs, outputs

    def layers(self, dtype: torch.dtype) -> Layers:
        """Return weight and bias of each layer."""
        found = []
        for layer in self.parts:
            assert isinstance(layer, nn.Linear)
            bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
            found.append((layer.weight.to(dtype), bias.to(dtype)))
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in turn."""
        for i, (weight, bias) in enumerate(self.layers(x.dtype)):
            x = nn.functional.linear(torch.relu(x) if i else x, weight, bias)
        return x


def _require_same(module: nn.Module, chain: Chain, points: Tensor) -> None:
    """Raise TypeError if a module does not compute what its layers do, with its own weights or random ones."""
    random = torch.Generator().manual_seed(0)
    try:
        copy = deepcopy(module).to("cpu", torch.float64)
        read = Chain(copy, *chain.shape)
        with torch.no_grad():
            _compare(module, copy(points.clone()), read(points))
            for value in (*copy.parameters(), *copy.buffers()):
                if value.is_floating_point():
                    drawn = torch.randn(value.shape, generator=random, dtype=torch.float64)
                    value.copy_(drawn / max(1, value.shape[-1] if value.dim() > 1 else 1) ** 0.5)
            _compare(module, copy(points.clone()), read(points))
    except (RuntimeError, ValueError, AttributeError, IndexError) as error:
        raise TypeError(_refused(module, f"fails for {tuple(points.shape)} float64 inputs: {error}")) from None


def _compare(module: nn.Module, computed: Any, read: Tensor) -> None:
    if not isinstance(computed, Tensor) or computed.shape != read.shape:
        got = tuple(computed.shape) if isinstance(computed, Tensor) else type(computed).__name__
        raise TypeError(_refused(module, f"returns {got}, not {tuple(read.shape)}"))
    far = float((computed - read).abs().max())
    if not far <= _ALIKE * (1 + float(read.abs().max())):
        raise TypeError(_refused(module, f"computes something else, up to {far:.3g} apart"))


def _refused(module: nn.Module, why: str) -> str:
    return (
        f"Expected bounds that compute their Linear and ReLU layers in turn, and nothing else. Got a "
        f"{type(module).__name__} whose forward {why}. Pass a plain nn.Sequential; two networks as bounds=(lower, "
        "upper); or affine bounds by a method affine_bounds()."
    )


class ChainBox(BoxModule):
    """Bounds l(x) and u(x) by a user's layers, trained with the network: one chain for both, or one each."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        super().__init__()
        self.chains = nn.ModuleList(chains)
        self.widths = tuple(len(bias) for _, bias in self._joined(torch.float32)[:-1])

    def envelope(self, dtype: torch.dtype = torch.float32) -> BoxParameters:
        """Return center and half-width, affine in the last hidden layer, and the hidden layers."""
        *hidden, (weight, bias) = self._joined(dtype)
        lower, upper = torch.cat([bias[:, None], weight], dim=1).chunk(2)
        return BoxParameters((lower + upper) / 2, (upper - lower) / 2, hidden=tuple(hidden))

    def _joined(self, dtype: torch.dtype) -> Layers:
        """Stack the layers of all chains into one chain."""
        every: list[Layers] = [chain.layers(dtype) for chain in self.chains]  # type: ignore[operator]
        depth = max(len(layers) for layers in every)
        joined: Layers = []
        for place, side in enumerate(zip_longest(*(_deeper(layers, depth) for layers in every))):
            weights, biases = [weight for weight, _ in side], [bias for _, bias in side]
            weight = torch.cat(weights) if place == 0 else torch.block_diag(*weights)  # type: ignore[no-untyped-call]
            joined.append((weight, torch.cat(biases)))
        return joined


def _deeper(layers: Layers, depth: int) -> Layers:
    """Extend layers to `depth` without changing what they compute: after a ReLU, an identity layer changes nothing.

    Before the first ReLU, x' passes as max(x', 0) - max(-x', 0).
    """
    if len(layers) == depth:
        return layers
    *hidden, (weight, bias) = layers
    if not hidden:
        one = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        hidden, weight = [(torch.cat([one, -one]), one.new_zeros(2 * len(one)))], torch.cat([weight, -weight], dim=1)
    width = len(hidden[-1][1])
    same = torch.eye(width, dtype=weight.dtype, device=weight.device), weight.new_zeros(width)
    return [*hidden, *[same] * (depth - 1 - len(hidden)), (weight, bias)]


class StatedBox(BoxModule):
    """Bounds l(x) and u(x) as a user's module states them: affine, however it computes them."""

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
