"""The perceptron of the estimators, and constant bounds behind a backbone. Any torch module can be a backbone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from smle.networks.units import DataScale

__all__ = [
    "MLP", "Answers", "Function", "Quick", "Rescaled", "Standardize", "as_module", "quickly", "require_width",
]  # fmt: skip

_is_compiling = torch.compiler.is_compiling
_linear, _relu = nn.functional.linear, torch.relu
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [getattr(torch_module, f"_global{name}") for name in _HOOKS]


class Standardize(nn.Module):
    """(x - shift) / scale, per column, with constants taken from data."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: npt.ArrayLike, scale: npt.ArrayLike) -> None:
        super().__init__()
        self.register_buffer("shift", torch.as_tensor(np.asarray(shift, dtype=np.float32)))
        self.register_buffer("scale", torch.as_tensor(np.asarray(scale, dtype=np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardized inputs (batch, d)."""
        return (x - self.shift) / self.scale


class MLP(nn.Sequential):
    """Standardize, ReLU layers of the given widths, and a linear layer of the embedding's width."""

    def __init__(self, hidden: Sequence[int], embedding: int, *, shift: npt.ArrayLike, scale: npt.ArrayLike) -> None:
        standardize = Standardize(shift, scale)
        layers: list[nn.Module] = [standardize]
        width = len(standardize.shift)
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        layers.append(nn.Linear(width, embedding))
        super().__init__(*layers)


class Rescale(nn.Module):
    """(z - center) / half, per unit and trained: constant bounds, folded into the backbone as a clip to [-1, 1]."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(units))
        self.shift = nn.Parameter(torch.zeros(units))

    def forward(self, z: Tensor) -> Tensor:
        """Return the rescaled embedding (batch, n)."""
        return torch.addcmul(self.shift, z, self.scale)


class Rescaled(nn.Module):
    """A backbone followed by trained constant bounds."""

    def __init__(self, backbone: nn.Module, units: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.rescale = Rescale(units)

    def forward(self, *inputs: Any) -> Tensor:
        """Return the rescaled embedding (batch, n)."""
        z: Tensor = self.rescale(require_width(self.backbone(*inputs), len(self.rescale.scale)))
        return z


class Function(nn.Module):
    """Wraps a function as a module. If it is a method of a module, that module becomes a part."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        owner = getattr(function, "__self__", None) or getattr(function, "func", None)
        self.owner = owner if isinstance(owner, nn.Module) else None
        self.forward = function  # so that tools see its arguments


def as_module(backbone: object) -> nn.Module:
    """Return a module unchanged, or wrap a function. Raises TypeError for anything else."""
    if isinstance(backbone, nn.Module):
        return backbone
    if callable(backbone) and not isinstance(backbone, type):
        return Function(backbone)
    got = f"the class {backbone.__name__}" if isinstance(backbone, type) else type(backbone).__name__
    raise TypeError(f"Expected a module or a function as the backbone. Got {got}.")


def require_width(z: object, units: int) -> Tensor:
    """Return an embedding of shape (batch, units), or raise ValueError."""
    if isinstance(z, Tensor) and z.ndim == 2 and z.shape[1] == units:
        return z
    got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
    raise ValueError(f"Expected the backbone to return an embedding of shape (batch, {units}). Got {got}.")


class Answers(nn.Module):
    """A backbone and a linear layer: answers in the user's units, computed from numbers of order one.

    `forward` takes what the backbone takes: features passed through `standardize`, or its own arguments.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, backbone: nn.Module, embedding: int, frame: DataScale) -> None:
        super().__init__()
        m = len(frame.y_shift)
        self.standardize = Standardize(frame.x_shift, frame.x_scale)
        self.backbone = backbone
        self.last = nn.Linear(embedding, m)
        nn.init.zeros_(self.last.bias)
        self.register_buffer("shift", torch.zeros(m))
        self.register_buffer("scale", torch.ones(m))
        self.set_units(frame)

    @torch.no_grad()
    def set_units(self, frame: DataScale) -> None:
        """Set the units."""
        pairs = (
            (self.standardize.shift, frame.x_shift),
            (self.standardize.scale, frame.x_scale),
            (self.shift, frame.y_shift),
            (self.scale, frame.y_scale),
        )
        for buffer, value in pairs:
            buffer.copy_(torch.as_tensor(value))

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the answers (..., m)."""
        z, width = self.backbone(*inputs, **named), self.last.in_features
        if not isinstance(z, Tensor) or z.ndim < 1 or z.shape[-1] != width:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"Expected the backbone to return an embedding of shape (..., {width}). Got {got}.")
        y: Tensor = self.last(z.to(self.last.weight.dtype))
        return torch.addcmul(self.shift, y, self.scale)


# --- quickly


class Quick:
    """Runs a sequential backbone, (batch, d) -> (batch, n), without module calls.

    For a single row these cost more than the arithmetic: without this, a call of a network (two to four layers, one to
    64 rows, no gradients) takes 1.34 to 1.63 times as long; 77 us become 122 for a single row. This is worth reading
    torch's hooks, which have no public name.

    The same torch functions are called on the same tensors, so results agree bit by bit. Other kinds of layers, hooks,
    and layers replaced since are left to the modules themselves. This object holds the dictionaries in which modules
    keep their tensors, so it follows them through loading, moving, copying and pickling.
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


def quickly(quick: Quick | None, backbone: nn.Module | None, x: Tensor) -> Any:
    """Run a backbone on x, cast to the format of its first layer, or return None if the module itself has to run."""
    if quick is None or quick.backbone is not backbone or not x.is_cpu or _is_compiling():
        return None
    kind = quick.kind
    return quick(x if kind is None or x.dtype is kind else x.to(kind))


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
