"""`smle::serve`: the program of a head as one torch operator, so that tracers and compilers record it.

Programs run in NumPy, which a tracer cannot see: it would keep the answers to its example for all inputs. An operator
is recorded by name, with the key of its head, and runs for every input. It returns the program's result bit by bit;
derivatives (`derivatives.py`) are attached without changing it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.jit import is_tracing  # type: ignore[attr-defined]

from smle.networks.derivatives import is_differentiated, library, pull, push, register
from smle.networks.features import read_features
from smle.networks.served_heads import find_head, refuse_unaided_export

__all__ = ["operator", "serve"]

_is_compiling = torch.compiler.is_compiling
_SCHEMA = "(Tensor features, Tensor answers, Tensor? gradients, str key) -> Tensor"


def _run(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    head = find_head(key)
    head.require_shapes(features, answers)
    X = read_features(features, is_large=head.is_large).numpy(force=True)
    t = answers.numpy(force=True)
    if answers.ndim == 2:
        served = torch.from_numpy(head.serve(X, t))
    else:
        y = head.serve(X.reshape(-1, head.columns), t.reshape(-1, head.width))
        served = torch.from_numpy(y).reshape(*answers.shape[:-1], head.outputs)
    return served if answers.is_cpu else served.to(answers.device)


def _shape(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    refuse_unaided_export()
    head = find_head(key)
    head.require_shapes(features, answers)
    return answers.new_empty((*answers.shape[:-1], head.outputs), dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, answers, gradients, ctx.key = inputs
    ctx.passes = gradients is not None
    if gradients is None:
        ctx.save_for_backward(features, answers, output)
        ctx.save_for_forward(features, answers, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.passes:
        return None, None, gradient, None
    by_features, by_answers = pull(ctx.saved_tensors, gradient, ctx.key)
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
        return gradients if ctx.passes else push(ctx.saved_tensors, features, answers, ctx.key)


for _name in ("serve", "serve.differentiable"):
    register(_name, _SCHEMA, _run, _shape)
torch.library.register_autograd("smle::serve.differentiable", _backward, setup_context=_remember, lib=library)
operator, differentiable = torch.ops.smle.serve.default, torch.ops.smle.serve.differentiable


def serve(features: Tensor, answers: Tensor, gradients: Tensor | None, key: str) -> Tensor:
    """Return what the head of a key serves: (..., m) in float32, the exact bits of its program.

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
