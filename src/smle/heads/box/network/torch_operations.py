"""The row operations in front of a box (`smle_check.program`) in torch, for training.

The deployed program runs in NumPy (`box_program.py`). Training needs gradients behind the gate, and compilers want one
graph, so the gate, which has no gradient, and the choice of a head exist in torch too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from smle_check.program import Gate, Op, Table

__all__ = ["TABLE", "affine_at", "clip"]

Made = Callable[..., Tensor]


def _clamp(op: Op, x: None, lower: Tensor, upper: Tensor) -> Made:
    def clamp(x: Tensor) -> Tensor:
        raised = torch.where(x >= lower, x, lower)  # NaN becomes lower
        return torch.where(raised <= upper, raised, upper)

    return clamp


def _cast(op: Op, x: None) -> Made:
    return Tensor.float if op.kind == "single" else Tensor.double


def _active(
    op: Op, x: None, wide: None, constants: Tensor | None, coefficients: Tensor | None, thresholds: Tensor | None
) -> Made:
    gate: Gate = op.fixed
    place = next(part.device for part in (constants, coefficients) if part is not None)
    columns = torch.tensor([row.column for row in gate.comparisons], dtype=torch.long, device=place)
    negative = torch.tensor([row.negative for row in gate.comparisons], dtype=torch.bool, device=place)
    strict = torch.tensor([row.strict for row in gate.comparisons], dtype=torch.bool, device=place)
    rows = range(len(gate.comparisons) + gate.oblique)
    inside = [[float(row in own) for own in gate.members] for row in rows]
    members = torch.tensor(inside, dtype=torch.float32, device=place)

    def active(x: Tensor, wide: Tensor | None = None) -> Tensor:
        fails = []
        if constants is not None:
            chosen = x.index_select(1, columns)
            # Flipping the sign is exact; a product might flush subnormal numbers to zero.
            signed = torch.where(negative, -chosen, chosen)
            fails.append(~torch.where(strict, signed < constants, signed <= constants))
        if wide is not None and coefficients is not None and thresholds is not None:
            fails.append(wide @ coefficients.T > thresholds)
        return torch.cat(fails, dim=1).float() @ members == 0

    return active


def _cell(op: Op, bits: None, signatures: Tensor) -> Made:
    known = signatures.float()
    ones, strictest = known.sum(dim=1), known.sum(dim=1).argmax()

    def cell(bits: Tensor) -> Tensor:
        bits = bits.float()
        # 2 bits.s - |s| equals |bits| exactly where s equals bits. The numbers are small integers: nothing is rounded.
        match = 2 * bits @ known.T - ones == bits.sum(dim=1, keepdim=True)
        return torch.where(match.any(dim=1), match.float().argmax(dim=1), strictest)

    return cell


TABLE: Table = {"clamp": _clamp, "single": _cast, "wide": _cast, "active": _active, "cell": _cell}


def clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return max(l, min(u, z)), which is l where l > u, as in the paper and as deployed; `torch.clamp` would give u."""
    return torch.maximum(torch.minimum(z, upper), lower)


def affine_at(
    cell: Tensor | None, v: Tensor, x: Tensor | None, z: Tensor,
    heads: tuple[Tensor, Tensor | None, Tensor], free: tuple[Tensor, Tensor] | None,
) -> Tensor:  # fmt: skip
    """Return the answer of the head of each row's cell (batch, m); the free head comes last.

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
    if cell is None:
        return choices[0].T
    if len(choices) == 2:
        return torch.where(cell == 0, choices[0], choices[1]).T
    return torch.stack(choices)[cell, :, torch.arange(len(cell), device=cell.device)]
