"""`smle::pull` and `smle::push`: backward and forward derivatives of what heads serve, as torch operators.

Heads are piecewise affine, so derivatives are constant on each piece: each of the two operators is the derivative of
the other, and second derivatives are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.jit import is_tracing  # type: ignore[attr-defined]

from smle.heads.slopes import changed_bits
from smle.networks.features import read_features
from smle.networks.served_heads import ServedHead, find_head

__all__ = ["is_differentiated", "library", "pull", "push", "register"]

Array = npt.NDArray[Any]
_is_compiling = torch.compiler.is_compiling
library = torch.library.Library("smle", "DEF")  # type: ignore[no-untyped-call]
_PULL = "(Tensor features, Tensor answers, Tensor served, Tensor gradient, str key) -> (Tensor, Tensor)"
_PUSH = "(Tensor features, Tensor answers, Tensor served, Tensor? inputs, Tensor? moved, str key) -> Tensor"


def register(name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any]) -> None:
    """Register an operator of tensors (..., columns) and a key, for tracers and `torch.func.vmap`."""
    library.define(f"{name}{schema}")  # type: ignore[no-untyped-call]
    library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"smle::{name}", shape, lib=library)
    packet, _, overload = name.partition(".")

    def batched(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        *tensors, key = arguments
        moved = []
        for tensor, place in zip(tensors, in_dims, strict=False):
            if tensor is not None:
                tensor = tensor.expand(info.batch_size, *tensor.shape) if place is None else tensor.movedim(place, 0)
            moved.append(tensor)
        found = getattr(getattr(torch.ops.smle, packet), overload or "default")(*moved, key)
        return found, tuple(0 for _ in found) if isinstance(found, tuple) else 0

    torch.library.register_vmap(f"smle::{name}", batched, lib=library)


def is_differentiated(tensor: Tensor) -> bool:
    """Return whether derivatives with respect to a tensor are requested, backward or forward."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    if _is_compiling():
        return False
    try:
        return unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
    except RuntimeError:  # inside `vmap`, which does not say
        return True


At = tuple[Tensor, Tensor, Tensor]
"""Features (..., d), answers (..., width) and served answers (..., m)."""


def pull(at: At, gradient: Tensor, key: str) -> tuple[Tensor, Tensor]:
    """Map the gradient of served answers (..., m) to those of features (..., d) and answers (..., width)."""
    use: Any = _Pull.apply if _is_seen(gradient) else torch.ops.smle.pull
    found: tuple[Tensor, Tensor] = use(*at, gradient, key)
    return found


def push(at: At, inputs: Tensor | None, moved: Tensor | None, key: str) -> Tensor:
    """Return how served answers move (..., m) when features move by `inputs` and answers by `moved`."""
    use: Any = _Push.apply if _is_seen(inputs, moved) else torch.ops.smle.push
    found: Tensor = use(*at, inputs, moved, key)
    return found


def _is_seen(*tensors: Tensor | None) -> bool:
    """Return whether a second differentiation is possible, outside of compilers."""
    if _is_compiling() or is_tracing():  # type: ignore[no-untyped-call]
        return False
    return torch.is_grad_enabled() or any(t is not None and is_differentiated(t) for t in tensors)


# --- in NumPy


def _rows(features: Tensor, answers: Tensor, served: Tensor, key: str) -> tuple[ServedHead, Array, Array, Array]:
    head = find_head(key)
    head.require_shapes(features, answers)
    X = read_features(features, is_large=head.is_large).numpy(force=True).reshape(-1, head.columns)
    t, y = answers.numpy(force=True).reshape(-1, head.width), served.numpy(force=True).reshape(-1, head.outputs)
    return head, X, t, y


def _run_pull(features: Tensor, answers: Tensor, served: Tensor, gradient: Tensor, key: str) -> tuple[Tensor, Tensor]:
    by_features, by_answers = _pulled_shapes(features, answers, served, gradient, key)
    head, X, t, y = _rows(features, answers, served, key)
    v = gradient.numpy(force=True).reshape(y.shape)
    if head.program.reads_answers and not changed_bits(t, y).any():
        return by_features.zero_(), by_answers.copy_(gradient)
    found = head.program.slopes(X, t, y).pull(v.astype("float64"), head.columns)
    for tensor, own in zip((by_features, by_answers), found, strict=True):
        tensor.copy_(torch.from_numpy(own).reshape(tensor.shape))
    return by_features, by_answers


def _pulled_shapes(
    features: Tensor, answers: Tensor, served: Tensor, gradient: Tensor, key: str
) -> tuple[Tensor, Tensor]:
    kind = features.dtype if features.is_floating_point() else torch.float32
    return features.new_empty(features.shape, dtype=kind), answers.new_empty(answers.shape)


def _run_push(
    features: Tensor, answers: Tensor, served: Tensor, inputs: Tensor | None, moved: Tensor | None, key: str
) -> Tensor:
    head, X, t, y = _rows(features, answers, served, key)
    given = [
        None if part is None else part.numpy(force=True).reshape(like.shape).astype("float64")
        for part, like in ((inputs, X), (moved, t))
    ]
    found = head.program.slopes(X, t, y).push(*given)
    return served.new_empty(served.shape).copy_(torch.from_numpy(found).reshape(served.shape))


def _pushed_shape(
    features: Tensor, answers: Tensor, served: Tensor, inputs: Tensor | None, moved: Tensor | None, key: str
) -> Tensor:
    return served.new_empty(served.shape)


# --- derivatives of derivatives


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *_, ctx.key = inputs
    ctx.save_for_backward(*inputs[:3])
    ctx.save_for_forward(*inputs[:3])


def _after_pull(ctx: Any, inputs: Tensor | None, moved: Tensor | None) -> tuple[Any, ...]:
    return None, None, None, push(ctx.saved_tensors, inputs, moved, ctx.key), None


def _after_push(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return None, None, None, *pull(ctx.saved_tensors, gradient, ctx.key), None


class _Pull(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return torch.ops.smle.pull(*inputs)

    setup_context = staticmethod(_remember)
    backward = staticmethod(_after_pull)

    @staticmethod
    def jvp(ctx: Any, features: Any, answers: Any, served: Any, gradient: Tensor, key: None) -> Any:
        return pull(ctx.saved_tensors, gradient, ctx.key)


class _Push(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return torch.ops.smle.push(*inputs)

    setup_context = staticmethod(_remember)
    backward = staticmethod(_after_push)

    @staticmethod
    def jvp(ctx: Any, features: Any, answers: Any, served: Any, inputs: Any, moved: Any, key: None) -> Any:
        return push(ctx.saved_tensors, inputs, moved, ctx.key)


register("pull", _PULL, _run_pull, _pulled_shapes)
register("push", _PUSH, _run_push, _pushed_shape)
torch.library.register_autograd("smle::pull", _after_pull, setup_context=_remember, lib=library)
torch.library.register_autograd("smle::push", _after_push, setup_context=_remember, lib=library)
