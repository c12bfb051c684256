"""Runs sequential backbones without module calls, which for a single row cost more than the arithmetic.

Without this, a call of a network (two to four layers, one to 64 rows, no gradients) takes 1.34 to 1.63 times as long:
77 us become 122 for a single row. This is worth reading torch's hooks, which have no public name.

The same torch functions are called on the same tensors, so results agree bit by bit. Other kinds of layers, hooks, and
layers replaced since are left to the modules themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from smle.networks.backbones import Rescale, Rescaled, Standardize

__all__ = ["Quick", "quickly"]

_is_compiling = torch.compiler.is_compiling
_linear, _relu = nn.functional.linear, torch.relu
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [getattr(torch_module, f"_global{name}") for name in _HOOKS]


def quickly(quick: Quick | None, backbone: nn.Module | None, x: Tensor) -> Any:
    """Run a backbone on x, cast to the format of its first layer, or return None if the module itself has to run."""
    if quick is None or quick.backbone is not backbone or not x.is_cpu or _is_compiling():
        return None
    kind = quick.kind
    return quick(x if kind is None or x.dtype is kind else x.to(kind))


class Quick:
    """Runs a backbone, (batch, d) -> (batch, n).

    It holds the dictionaries in which modules keep their tensors, so it follows them through loading, moving, copying
    and pickling.
    """

    def __init__(self, backbone: nn.Module, parts: list[nn.Module], steps: list[tuple[str, dict[str, Any]]]) -> None:
        self.backbone, self.steps = backbone, steps
        self.modules = [(part._modules, tuple(part._modules.values())) for part in parts if part._modules]
        self.hooks = [getattr(part, name) for part in parts for name in _HOOKS]
        self.first = next((tensors for kind, tensors in steps if kind == "linear"), None)

    @classmethod
    def of(cls, backbone: nn.Module) -> Quick | None:
        """Return a quick form of a backbone, or None if it has other kinds of layers."""
        parts: list[nn.Module] = []
        steps = _steps(backbone, parts)
        is_layer = not backbone._modules  # a single layer gains nothing
        return None if steps is None or is_layer else cls(backbone, parts, steps)

    @property
    def kind(self) -> torch.dtype | None:
        """The format of the first layer's weights, if any."""
        return None if self.first is None else self.first["weight"].dtype

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the embedding (batch, n), or None if the module itself has to run."""
        if any(self.hooks) or any(_GLOBAL_HOOKS) or self.backbone._compiled_call_impl is not None:
            return None
        for current, known in self.modules:
            if tuple(current.values()) != known:
                return None
        for kind, tensors in self.steps:
            if kind == "relu":
                x = _relu(x)
            elif kind == "linear":
                x = _linear(x, tensors["weight"], tensors["bias"])
            elif kind == "standardize":
                x = (x - tensors["shift"]) / tensors["scale"]
            else:
                if x.shape[1:] != tensors["scale"].shape:
                    return None
                x = torch.addcmul(tensors["shift"], x, tensors["scale"])
        return x


def _steps(module: nn.Module, parts: list[nn.Module]) -> list[tuple[str, dict[str, Any]]] | None:
    """Return the layers of a module in order, and collect its parts; None if there is another kind of layer."""
    parts.append(module)
    if type(module) is nn.Linear:
        return [("linear", module._parameters)]
    if type(module) is nn.ReLU and not module.inplace:
        return [("relu", {})]
    if type(module) is Standardize:
        return [("standardize", module._buffers)]
    if type(module) is Rescale:
        return [("rescale", module._parameters)]
    if type(module).forward not in (nn.Sequential.forward, Rescaled.forward):
        return None
    steps = []
    for part in module._modules.values():  # the parts of Rescaled are sequential, too
        own = None if part is None else _steps(part, parts)
        if own is None:
            return None
        steps += own
    return steps
