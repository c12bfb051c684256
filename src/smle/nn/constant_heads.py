"""Heads between constant bounds -1 and 1, in training on a CPU: clip, gauge, heads and gate as one step of autograd.

It computes what `smle.nn.gauge` and `DeployedHead.outputs` compute, with the gradient written down: networks are often
small, and then a step in eager mode costs what its calls cost. The gauge is in NumPy, whose calls are the cheaper ones.
Clauses k of a head have output parts g_k, rounding shares size_k and room_k:

    v = g W,  worst_k = sum |v_k| + g_k.offset + size_k.(sum |W| + |offset|)
    alpha = min(1, min over k of room_k / worst_k)

and the head is center + alpha * direction. The gradient of alpha is that of the clause that binds; how rounding
depends on the parameters does not matter for training, only how large it is. Where a gradient is to be differentiated
once more (a penalty on slopes, say), it comes from the general program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Constants", "RowHeads", "Step", "outputs"]

Array = npt.NDArray[Any]


class Constants(NamedTuple):
    """What the gauge knows beforehand, in float32.

    Shapes: g (heads, k, m); g_size (heads, k, 2 m), the output parts and what rounding costs; room and floor (heads,
    k), floor the least increase that counts; center and resting (heads, m), in the frame's and the user's units;
    y_scale (m,). The first `certified` heads are clipped; one more is the free one.
    """

    g: Array
    g_size: Array
    room: Array
    floor: Array
    center: Array
    resting: Array
    y_scale: Array
    certified: int


class RowHeads(NamedTuple):
    """Which head serves each row: `inside_outside[0]` where `inside` (batch,), else `inside_outside[1]`.

    `inside` is None where there is one head.
    """

    inside: Tensor | None
    inside_outside: tuple[int, ...]


class Step(NamedTuple):
    """What a step needs besides its tensors. `general` computes the same from z, in terms that autograd knows."""

    known: Constants
    places: RowHeads
    general: Callable[[Tensor], Tensor]


class _Gauged(NamedTuple):
    """Heads in the user's units, (heads, m, n) and (heads, m), and what their gradient needs."""

    weight: Array
    bias: Array
    offset: Array
    v: Array
    worst: Array
    steps: Array
    factor: Array

    @classmethod
    def of(cls, W: Array, raw_bias: Array, known: Constants) -> _Gauged:
        offset, v = raw_bias - known.center, known.g @ W
        terms = np.concatenate([offset, np.abs(W).sum(axis=2) + np.abs(offset)], axis=1)
        worst = np.abs(v).sum(axis=2) + (known.g_size @ terms[:, :, None])[:, :, 0]
        steps = known.room / np.maximum(worst, known.floor)
        factor = steps.min(axis=1, keepdims=True) * known.y_scale
        return cls(W * factor[:, :, None], known.resting + offset * factor, offset, v, worst, steps, factor)

    def gradient(self, to_weight: Array, to_bias: Array, W: Array, known: Constants) -> tuple[Array, Array]:
        """Return the gradient for the raw parameters, from that for the heads."""
        to_alpha = ((to_weight * W).sum(axis=2) + to_bias * self.offset) @ known.y_scale
        to_weight, to_bias = to_weight * self.factor[:, :, None], to_bias * self.factor
        for head, k in enumerate(self.steps.argmin(axis=1)):
            alpha = self.steps[head, k]
            if alpha < 1:
                row = known.g[head, k] * (to_alpha[head] * alpha / self.worst[head, k])
                to_weight[head] -= row[:, None] * np.sign(self.v[head, k])
                to_bias[head] -= row
        return to_weight, to_bias


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, raw_weight: Tensor, raw_bias: Tensor, step: Step) -> Tensor:
        known, places, _ = step
        gauged = _Gauged.of(raw_weight.numpy(), raw_bias.numpy(), known)
        clipped = torch.clamp(z, -1.0, 1.0)
        weight, bias = torch.from_numpy(gauged.weight), torch.from_numpy(gauged.bias)

        def head(number: int) -> Tensor:
            served = clipped if number < known.certified else z
            # Outputs are few and rows are many: (m, batch) is the faster way round.
            return torch.addmm(bias[number].unsqueeze(1), weight[number], served.T)

        choices = [head(number) for number in places.inside_outside]
        y = choices[0] if places.inside is None else torch.where(places.inside, choices[0], choices[1])
        ctx.save_for_backward(z, clipped, raw_weight, raw_bias)
        ctx.gauged, ctx.weight, ctx.step = gauged, weight, step
        return y.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, clipped, raw_weight, raw_bias = ctx.saved_tensors  # raises if they have changed since
        if torch.is_grad_enabled():  # the gradient is to be differentiated
            wanted = ctx.needs_input_grad
            of = [tensor for tensor, needed in zip((z, raw_weight, raw_bias), wanted, strict=False) if needed]
            found = iter(torch.autograd.grad(ctx.step.general(z), of, gradients[0], create_graph=True))
            return tuple(next(found) if needed else None for needed in wanted)
        (known, places, _), weight = ctx.step, ctx.weight
        to_y = gradients[0].T
        parts = [to_y] if places.inside is None else [of_inside := to_y * places.inside, to_y - of_inside]
        to_weight, to_bias = np.zeros_like(ctx.gauged.weight), np.zeros_like(ctx.gauged.bias)
        to_z: Tensor | None = None
        for number, part in zip(places.inside_outside, parts, strict=True):
            bound = number < known.certified
            to_weight[number] += torch.mm(part, clipped if bound else z).numpy()
            to_bias[number] += part.sum(dim=1).numpy()
            if ctx.needs_input_grad[0]:
                to_served = torch.mm(part.T, weight[number])
                if bound:  # see `attentive_clip`
                    to_served.masked_fill_((z - clipped) * to_served < 0, 0.0)
                to_z = to_served if to_z is None else to_z.add_(to_served)
        raw = ctx.gauged.gradient(to_weight, to_bias, raw_weight.numpy(), known)
        return to_z, torch.from_numpy(raw[0]), torch.from_numpy(raw[1]), None


def outputs(z: Tensor, raw_weight: Tensor, raw_bias: Tensor, step: Step) -> Tensor:
    """Return the outputs (batch, m) of embeddings (batch, n), for raw parameters (heads, m, n) and (heads, m)."""
    y: Tensor = _Outputs.apply(z, raw_weight, raw_bias, step)  # type: ignore[no-untyped-call]
    return y
