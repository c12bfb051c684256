"""Sequential backbones without the calls of modules: for a single row these cost more than its arithmetic.

Without it a whole call of a network (two to four layers, one to 64 rows, no gradients) takes 1.34 to 1.63 times as
long: 77 us become 122 for a single row. That is why it reads what torch keeps of hooks, which has no public name.

The same functions of torch are called on the same tensors, so the numbers are the same bit by bit. Layers of other
kinds, hooks, and layers that were exchanged since are left to the modules themselves.
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
    """Return what a backbone makes of x, cast to the format of its first layer; None: the backbone has to run."""
    if quick is None or quick.backbone is not backbone or not x.is_cpu or _is_compiling():
        return None
    kind = quick.kind
    return quick(x if kind is None or x.dtype is kind else x.to(kind))


class Quick:
    """Does what a backbone does, (batch, d) -> (batch, n).

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
        """Return what stands in for a backbone; None: it has layers of other kinds than are known here."""
        parts: list[nn.Module] = []
        steps = _steps(backbone, parts)
        is_layer = not backbone._modules  # a single one gains nothing
        return None if steps is None or is_layer else cls(backbone, parts, steps)

    @property
    def kind(self) -> torch.dtype | None:
        """The format of the first layer's numbers, if there is any."""
        return None if self.first is None else self.first["weight"].dtype

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the embedding (batch, n); None where the backbone itself has to run."""
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
    """Return the layers of a module, in order, and collect its parts; None: there is a layer of another kind."""
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
    for part in module._modules.values():  # those of Rescaled follow each other, too
        own = None if part is None else _steps(part, parts)
        if own is None:
            return None
        steps += own
    return steps
