"""`smle::serve`: the program of a head as one torch operator, so that tracers and compilers record it.

Programs run in NumPy, which a tracer cannot see: it would keep the answers to its example for all inputs. An operator
is recorded by name, with the key of its head, and runs for every input. It returns the program's result bit by bit;
derivatives are attached without changing it: backward by `smle::pull`, forward by `smle::push`. Heads are piecewise
affine, so derivatives are constant on each piece: each of the two operators is the derivative of the other, and second
derivatives are 0.
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
from smle.networks.served_heads import ServedHead, find_head, refuse_unaided_export

__all__ = ["is_differentiated", "operator", "register", "serve"]

Array = npt.NDArray[Any]
_is_compiling = torch.compiler.is_compiling
_library = torch.library.Library("smle", "DEF")  # type: ignore[no-untyped-call]
_SERVE = "(Tensor features, Tensor answers, Tensor? gradients, str key) -> Tensor"
_PULL = "(Tensor features, Tensor answers, Tensor served, Tensor gradient, str key) -> (Tensor, Tensor)"
_PUSH = "(Tensor features, Tensor answers, Tensor served, Tensor? inputs, Tensor? moved, str key) -> Tensor"


def register(name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any]) -> None:
    """Register an operator of tensors (..., columns) and a key, for tracers and `torch.func.vmap`."""
    _library.define(f"{name}{schema}")  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"smle::{name}", shape, lib=_library)
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

    torch.library.register_vmap(f"smle::{name}", batched, lib=_library)


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


def _is_seen(*tensors: Tensor | None) -> bool:
    """Return whether a second differentiation is possible, outside of compilers."""
    if _is_compiling() or is_tracing():  # type: ignore[no-untyped-call]
        return False
    return torch.is_grad_enabled() or any(t is not None and is_differentiated(t) for t in tensors)


# --- in NumPy


def _rows(features: Tensor, answers: Tensor, key: str) -> tuple[ServedHead, Array, Array]:
    head = find_head(key)
    head.require_shapes(features, answers)
    X = read_features(features, is_large=head.is_large).numpy(force=True).reshape(-1, head.columns)
    return head, X, answers.numpy(force=True).reshape(-1, head.width)


def _run_serve(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    head, X, t = _rows(features, answers, key)
    served = torch.from_numpy(head.serve(X, t).reshape(*answers.shape[:-1], head.outputs))
    return served if answers.is_cpu else served.to(answers.device)


def _served_shape(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    refuse_unaided_export()
    head = find_head(key)
    head.require_shapes(features, answers)
    return answers.new_empty((*answers.shape[:-1], head.outputs), dtype=torch.float32)


def _run_pull(features: Tensor, answers: Tensor, served: Tensor, gradient: Tensor, key: str) -> tuple[Tensor, Tensor]:
    by_features, by_answers = _pulled_shapes(features, answers, served, gradient, key)
    head, X, t = _rows(features, answers, key)
    y, v = (part.numpy(force=True).reshape(-1, head.outputs) for part in (served, gradient))
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
    head, X, t = _rows(features, answers, key)
    y = served.numpy(force=True).reshape(-1, head.outputs)
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


def _remember_point(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *_, ctx.key = inputs
    ctx.save_for_backward(*inputs[:3])
    ctx.save_for_forward(*inputs[:3])


def _after_pull(ctx: Any, inputs: Tensor | None, moved: Tensor | None) -> tuple[Any, ...]:
    return None, None, None, _push(ctx.saved_tensors, inputs, moved, ctx.key), None


def _after_push(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return None, None, None, *_pull(ctx.saved_tensors, gradient, ctx.key), None


def _linear(name: str, schema: str, run: Callable[..., Any], shape: Callable[..., Any], after: Any) -> Any:
    """Register an operator that is linear in all but its first three tensors, the point; return it.

    The operator can be differentiated, too: `after` is its backward derivative.
    """
    register(name, schema, run, shape)
    torch.library.register_autograd(f"smle::{name}", after, setup_context=_remember_point, lib=_library)
    plain = getattr(torch.ops.smle, name)

    class Linear(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda *inputs: plain(*inputs))
        setup_context = staticmethod(_remember_point)
        backward = staticmethod(after)
        jvp = staticmethod(lambda ctx, *moved: at(ctx.saved_tensors, *moved[3:-1], ctx.key))

    def at(point: tuple[Tensor, ...], *given: Any) -> Any:
        use: Any = Linear.apply if _is_seen(*given[:-1]) else plain
        return use(*point, *given)

    return at


_pull = _linear("pull", _PULL, _run_pull, _pulled_shapes, _after_pull)
"""Map the gradient of served answers (..., m) to those of features (..., d) and answers (..., width)."""
_push = _linear("push", _PUSH, _run_push, _pushed_shape, _after_push)
"""Return how served answers move (..., m) when features move by `inputs` and answers by `moved`."""


# --- the operator itself


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, answers, gradients, ctx.key = inputs
    ctx.passes = gradients is not None
    if gradients is None:
        ctx.save_for_backward(features, answers, output)
        ctx.save_for_forward(features, answers, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.passes:
        return None, None, gradient, None
    by_features, by_answers = _pull(ctx.saved_tensors, gradient, ctx.key)
    wanted = ctx.needs_input_grad
    return by_features if wanted[0] else None, by_answers if wanted[1] else None, None, None


class _Eager(torch.autograd.Function):
    """Attaches derivatives to the operator's result without changing it."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        served: Tensor = operator(*inputs)
        _remember(ctx, inputs, served)
        ctx.head = find_head(ctx.key)  # the network may be gone when derivatives are requested
        return served

    backward = staticmethod(_backward)


class _Transformed(torch.autograd.Function):
    """Like `_Eager`, in the slower form that `torch.func` and forward mode need."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        served: Tensor = differentiable(*inputs)
        return served

    setup_context = staticmethod(_remember)
    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx: Any, features: Tensor | None, answers: Tensor | None, gradients: Tensor | None, key: None) -> Any:
        return gradients if ctx.passes else _push(ctx.saved_tensors, features, answers, ctx.key)


for _name in ("serve", "serve.differentiable"):
    register(_name, _SERVE, _run_serve, _served_shape)
torch.library.register_autograd("smle::serve.differentiable", _backward, setup_context=_remember, lib=_library)
operator, differentiable = torch.ops.smle.serve.default, torch.ops.smle.serve.differentiable


def serve(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    """Return the answers that the head of a key serves: (..., m) in float32, the exact bits of its program.

    Derivatives are those of the program, with respect to features and answers. If `gradients` (..., m) is given, the
    gradient goes to it unchanged instead.

    Shapes: features (..., d) in any real format, answers (..., width) in float32.

    Raises:
        ValueError: If there is not one row of features, with the columns of the rules, for each answer.
        TypeError, DataError: If features are not real numbers, or are integers that floats cannot hold; or if the
            columns of a category by which rules look numbers up are not one-hot.
        CertificateError: If no such head is alive.
    """
    if not (is_differentiated(features) or is_differentiated(answers if gradients is None else gradients)):
        served: Tensor = operator(features, answers, gradients, key)
    elif _is_compiling() or is_tracing():  # type: ignore[no-untyped-call]
        served = differentiable(features, answers, gradients, key)
    else:
        try:
            served = _Eager.apply(features, answers, gradients, key)  # type: ignore[no-untyped-call]
        except (RuntimeError, NotImplementedError):  # inside `torch.func`, or forward mode
            served = _Transformed.apply(features, answers, gradients, key)  # type: ignore[no-untyped-call]
    return served
