"""Sequential backbones without the calls of modules: for a single row these cost more than its arithmetic.

The same functions of torch are called on the same tensors, so the numbers are the same bit by bit. Layers of other
kinds, hooks, and layers that were exchanged since are left to the modules themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from smle.nn.backbones import Standardize

__all__ = ["Quick", "eager", "refuse_tracing"]

_linear, _relu = nn.functional.linear, torch.relu
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [getattr(torch_module, f"_global{name}") for name in _HOOKS]


_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._is_tracing


def eager(tensor: Tensor) -> bool:
    """Return whether Python runs each call: on a CPU, outside compilers and exporters."""
    return tensor.is_cpu and not _is_compiling() and not _is_tracing()


def refuse_tracing() -> None:
    """Raise RuntimeError inside of `torch.jit.trace`.

    Heads run in NumPy. It would record what they answer to the example as constants, and answer every input with them.
    """
    if _is_tracing():
        raise RuntimeError(
            "torch.jit.trace cannot record a certified head: it would keep the answers to the example for all inputs. "
            "Export the network with to_onnx, or save it."
        )


class Quick:
    """Does what a backbone does, (batch, d) -> (batch, n).

    It holds the dictionaries in which modules keep their tensors, so it follows them through loading, moving, copying
    and pickling.
    """

    def __init__(self, backbone: nn.Module, steps: list[tuple[str, dict[str, Any]]]) -> None:
        self.backbone, self.steps = backbone, steps
        self.layers, self.current = tuple(backbone._modules.values()), backbone._modules
        parts = (backbone, *backbone.children())
        self.hooks = [getattr(part, name) for part in parts for name in _HOOKS]

    @classmethod
    def of(cls, backbone: nn.Module) -> Quick | None:
        """Return what stands in for a backbone; None: it has layers of other kinds than are known here."""
        if type(backbone).forward is not nn.Sequential.forward:
            return None
        steps: list[tuple[str, dict[str, Any]]] = []
        for layer in backbone._modules.values():
            if type(layer) is nn.Linear:
                steps.append(("linear", layer._parameters))
            elif type(layer) is nn.ReLU and not layer.inplace:
                steps.append(("relu", {}))
            elif type(layer) is Standardize:
                steps.append(("standardize", layer._buffers))
            else:
                return None
        return cls(backbone, steps)

    @property
    def kind(self) -> torch.dtype:
        """The format of the first layer's numbers."""
        found = next((tensors["weight"].dtype for kind, tensors in self.steps if kind == "linear"), torch.float32)
        assert isinstance(found, torch.dtype)
        return found

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the embedding (batch, n); None where the backbone itself has to run."""
        if any(self.hooks) or any(_GLOBAL_HOOKS) or tuple(self.current.values()) != self.layers:
            return None
        if self.backbone._compiled_call_impl is not None:
            return None
        for kind, tensors in self.steps:
            if kind == "relu":
                x = _relu(x)
            elif kind == "linear":
                x = _linear(x, tensors["weight"], tensors["bias"])
            else:
                x = (x - tensors["shift"]) / tensors["scale"]
        return x
