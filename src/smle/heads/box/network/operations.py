"""What training computes of the deployed program in torch: inputs in the domain, the clip, the heads, with gradients.

The gate has no gradient: `smle::cell` asks the program in NumPy, which compilers record as one operator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from smle.heads.box.program import Box
from smle.networks.derivatives import register
from smle.networks.served_heads import find_head

__all__ = ["affine_at", "cell", "clamped", "clip"]


def _cells(features: Tensor, key: str) -> Tensor:
    head = find_head(key)
    assert isinstance(head.program, Box)
    cells = head.program.cell_of(features.numpy(force=True).reshape(-1, head.columns))
    return torch.from_numpy(cells).reshape(features.shape[:-1]).to(features.device)


def _shape(features: Tensor, key: str) -> Tensor:
    return features.new_empty(features.shape[:-1], dtype=torch.int64)


register("cell", "(Tensor features, str key) -> Tensor", _cells, _shape)
cell = torch.ops.smle.cell.default
"""(features (..., d), key of a head) -> the number of the head that serves each row (...)."""


def clamped(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the inputs in the domain, in float32; NaN becomes the lower end."""
    raised = torch.where(x >= lower, x, lower)
    return torch.where(raised <= upper, raised, upper).float()


def clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return max(l, min(u, z)), which is l where l > u, as in the paper and as deployed; `torch.clamp` would give u."""
    return torch.maximum(torch.minimum(z, upper), lower)


def affine_at(
    place: Tensor | None, v: Tensor, x: Tensor | None, z: Tensor,
    heads: tuple[Tensor, Tensor | None, Tensor], free: tuple[Tensor, Tensor] | None,
) -> Tensor:  # fmt: skip
    """Return the answer of the head of each row's place (batch, m); the free head comes last.

    Shapes: v and z (batch, n), clipped and not; x (batch, d); heads (c, m, n), (c, m, d) or None, (c, m).
    """
    weight, slope, bias = heads
    count, m, n = weight.shape
    # With few outputs and many rows, (heads * m, batch) is the faster layout.
    y = torch.addmm(bias.reshape(count * m, 1), weight.reshape(count * m, n), v.T)
    if slope is not None and x is not None:
        y = torch.addmm(y, slope.reshape(count * m, -1), x.T)
    choices: list[Tensor] = list(torch.split(y, m)) if count > 1 else [y][:count]
    if free is not None:
        choices.append(torch.addmm(free[1].unsqueeze(1), free[0], z.T))
    if place is None:
        return choices[0].T
    if len(choices) == 2:
        return torch.where(place == 0, choices[0], choices[1]).T
    return torch.stack(choices)[place, :, torch.arange(len(place), device=place.device)]
