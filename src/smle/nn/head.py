"""The deployed program behind the backbone: domain, gate, clip, heads. What runs here is what is certified.

The state of `DeployedHead` is, name by name, the tensors that docs/certificate-format.md prescribes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from smle.guarantees import Bounds, Cells, FrozenHeads, Head, NetworkBounds
from smle.nn.clip import clip, eager, has_nan, is_traced
from smle.nn.gate import Gate, InputClamp
from smle.nn.operations import joined, traced
from smle.nn.precision import FixedFormats, full_precision_on_cpu, require_float32, require_full_precision
from smle.rules import Specification
from smle.tables import WHOLE_FLOAT64, require_exact
from smle_check.program import box_of, needed

__all__ = ["DeployedHead", "is_large", "read_features"]

_FEATURE_TYPES = (torch.float32, torch.float64)
_FEW_OUTPUTS = 32  # that are looked at more quickly in Python than by another call of torch
_linear, _clamp, _isnan = nn.functional.linear, torch.clamp, math.isnan


class _Hidden(FixedFormats):
    """A hidden layer of bounds by a network: weight (k, arguments), bias (k,)."""

    weight: Tensor
    bias: Tensor

    def __init__(self, width: int, arguments: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(width, arguments))
        self.register_buffer("bias", torch.zeros(width))


class _Bounds(FixedFormats):
    """Bounds of the embedding: lower, upper (n,) and, if affine, lower_slope, upper_slope (n, d).

    With hidden layers, weight (k, d) and bias (k,) of the first, the slopes are (n, k) with the last k.
    """

    lower: Tensor
    upper: Tensor
    lower_slope: Tensor | None
    upper_slope: Tensor | None

    def __init__(self, n: int, d: int, *, affine: bool, hidden: Sequence[int]) -> None:
        super().__init__()
        self.hidden = nn.ModuleList()
        for width in hidden:
            self.hidden.append(_Hidden(width, d))
            d, affine = width, True
        self.register_buffer("lower", -torch.ones(n))
        self.register_buffer("upper", torch.ones(n))
        self.register_buffer("lower_slope", torch.zeros(n, d) if affine else None)
        self.register_buffer("upper_slope", torch.zeros(n, d) if affine else None)


class _Heads(FixedFormats):
    """Certified heads: weight (c, m, n), bias (c, m), passthrough (c, m, d) or None, fallback (c, m) or None."""

    weight: Tensor
    bias: Tensor
    passthrough: Tensor | None
    fallback: Tensor | None

    def __init__(self, count: int, m: int, n: int, *, inputs: int | None, fallback: bool) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(count, m, n))
        self.register_buffer("bias", torch.zeros(count, m))
        self.register_buffer("passthrough", None if inputs is None else torch.zeros(count, m, inputs))
        self.register_buffer("fallback", torch.zeros(count, m) if fallback else None)


class _Free(FixedFormats):
    """The head of the free cell: weight (m, n), bias (m,). Nothing is required of it."""

    weight: Tensor
    bias: Tensor

    def __init__(self, m: int, n: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(m, n))
        self.register_buffer("bias", torch.zeros(m))


def is_large(spec: Specification) -> bool:
    """Whether the domain reaches beyond 2^53, where float64 lacks whole numbers."""
    return any(abs(end) > WHOLE_FLOAT64 for end in (*spec.lower, *spec.upper))


def read_features(features: Tensor, *, is_large: bool) -> Tensor:
    """Return features in a format of the gate, unchanged in value; see `DeployedHead.read`."""
    if features.dtype in _FEATURE_TYPES:
        return features
    if features.is_floating_point():
        return features.to(torch.float32)
    if features.is_complex():
        raise TypeError(f"Expected features that are real numbers. Got {features.dtype}.")
    numbers = features.to(torch.float64)
    if is_large and features.dtype.itemsize == 8:
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            raise TypeError(
                f"Expected features in float64: the domain reaches beyond 2^53, and a compiled program cannot see "
                f"which whole numbers would be rounded. Got {features.dtype}."
            )
        names = [f"Column {i} of the features" for i in range(features.shape[-1])]
        require_exact(features.cpu().numpy(), numbers.cpu().numpy(), names)
    return numbers


def _format(dtype: torch.dtype) -> str:
    return "float64" if dtype is torch.float64 else "float32"


def _buffers(module: nn.Module, child: str) -> dict[str, Tensor]:
    """Return the buffers of a part. Attributes of modules are slow to look up, and one row is quick."""
    return cast(dict[str, Tensor], module._modules[child]._buffers)  # type: ignore[union-attr]


class _Row(NamedTuple):
    """The certified heads one by one, as views of the stored tensors, for a single row.

    They serve as long as the stored tensors are still the memory that they show: `weight` and `bias` are its
    addresses, which nothing else can have while there are views of it.
    """

    weight: int
    bias: int
    heads: list[tuple[Tensor, Tensor]]
    is_short: bool

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> _Row:
        with torch.inference_mode(False), torch.no_grad():
            heads = list(zip(weight.unbind(), bias.unbind(), strict=True))
            return cls(weight.data_ptr(), bias.data_ptr(), heads, bias.shape[1] <= _FEW_OUTPUTS)


class DeployedHead(FixedFormats):
    """(features, embedding) -> outputs, with frozen constants only.

    * features (batch, d) in float32 or float64; embedding (batch, n) in float32, any values; outputs (batch, m).
    * With constant bounds and no pass-through the clip is one clamp, and a row with NaN becomes the head's safe
      fallback. Otherwise the clip is the NaN-safe one.
    """

    def __init__(
        self,
        spec: Specification,
        cells: Cells,
        *,
        embedding: int,
        affine: bool = False,
        hidden: Sequence[int] = (),
        passthrough: bool = False,
        nan_safe_clip: bool | None = None,
    ) -> None:
        super().__init__()
        d, m = len(spec.columns), len(spec.targets)
        count = len(cells) - cells.free_cell
        self.inputs = d
        self.is_large = is_large(spec)
        self._row: _Row | None = None
        self.affine, self.network = affine, bool(hidden)
        computed = affine or passthrough or self.network
        self.nan_safe_clip = computed if nan_safe_clip is None else nan_safe_clip
        self.domain = InputClamp(spec)
        self.gate = Gate(spec, cells)
        self.bounds = _Bounds(embedding, d, affine=affine, hidden=hidden)
        self.heads = _Heads(count, m, embedding, inputs=d if passthrough else None, fallback=not self.nan_safe_clip)
        self.free = _Free(m, embedding) if cells.free_cell else None
        bounds = "network" if self.network else "affine" if affine else "constant"
        names = {name for name, _ in self.named_buffers()}
        self.ops = box_of(self.gate.rows, "where" if self.nan_safe_clip else "clamp", bounds, names)
        self._functions: dict[Any, Callable[..., Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what holds on to stored tensors: in a copy it would show memory of its own."""
        return {**self.__dict__, "_row": None, "_functions": {}}

    def limits(self, x32: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stored bounds l(x), u(x) of the embedding, broadcastable to (batch, n)."""
        box = _buffers(self, "bounds")
        if not self.affine and not self.network:
            return box["lower"], box["upper"]
        for layer in self.bounds.hidden if self.network else ():
            weight, bias = cast(tuple[Tensor, Tensor], tuple(layer._buffers.values()))
            x32 = torch.relu(torch.addmm(bias, x32, weight.T))
        return (
            torch.addmm(box["lower"], x32, box["lower_slope"].T),
            torch.addmm(box["upper"], x32, box["upper_slope"].T),
        )

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        """Return the outputs (batch, m).

        Raises:
            RuntimeError: If torch was told to lower the precision of float32 matrix products.
            ValueError: If there are not as many embeddings as features, or not as many features as inputs.
            TypeError, DataError: If features are no real numbers, or whole numbers that floats cannot hold.
        """
        if features.dtype not in _FEATURE_TYPES:
            features = self.read(features)
        rows = embedding.shape[0]
        if not is_traced() and features.shape != (rows, self.inputs):  # tracing would warn and forget it
            self.require_shape(features, rows)
        single = rows == 1 and eager(embedding)
        if single and embedding.dtype is torch.float32 and full_precision_on_cpu():
            y = self._one_row(features, embedding)
            if y.dtype is torch.float32:  # under autocast it is another: then once more, below
                return y
        device = "cpu" if embedding.is_cpu else embedding.device.type
        require_full_precision(device)
        if torch.is_autocast_enabled(device):
            with torch.autocast(device_type=device, enabled=False):
                return self.forward(features, embedding)
        if embedding.dtype is not torch.float32:
            embedding = embedding.to(torch.float32)
        if single:
            return self._one_row(features, embedding)
        if not len(_buffers(self, "heads")["weight"]):  # no rules: a plain network
            free = _buffers(self, "free")
            return _linear(embedding, free["weight"], free["bias"])
        return self._served(features, embedding)

    def read(self, features: Tensor) -> Tensor:
        """Return features in a format of the gate, unchanged in value: whole numbers in float64.

        Beyond 2^53 that format lacks some. Where the domain ends before, such inputs are clamped all the same.

        Raises:
            TypeError: If features are no real numbers, or int64 in a compiled program over a larger domain.
            DataError: If a whole number would be rounded.
        """
        return read_features(features, is_large=self.is_large)

    def require_shape(self, features: Tensor, rows: int) -> None:
        """Raise ValueError unless there is one row of features per embedding, with the columns of the rules."""
        if features.shape != (rows, self.inputs):
            raise ValueError(
                f"Expected features of shape {(rows, self.inputs)}: one row per embedding, one column per input of the "
                f"rules. Got {tuple(features.shape)}."
            )

    def _one_row(self, features: Tensor, z: Tensor) -> Tensor:
        """Return what `outputs` returns for a single row, computing only the head that serves it."""
        modules: dict[str, Any] = self._modules
        gate, stored, row = modules["gate"], modules["heads"]._buffers, self._row
        if row is None or row[0] != stored["weight"].data_ptr() or row[1] != stored["bias"].data_ptr():
            row = self._row = _Row.of(stored["weight"], stored["bias"])
        heads = row[2]
        cell = 0 if gate.is_trivial else gate.cell_of(features, modules["domain"])
        if cell == len(heads):
            free = modules["free"]._buffers
            return _linear(z, free["weight"], free["bias"])
        if self.nan_safe_clip:
            return self._one_sloped_row(features, z, cell)
        box = modules["bounds"]._buffers
        y = _linear(_clamp(z, box["lower"], box["upper"]), *heads[cell])
        suspicious = _isnan(sum(y.tolist()[0])) if row[3] else has_nan(y)
        if suspicious and y.dtype is torch.float32 and bool(y.isnan().any()):
            fallback: Tensor = stored["fallback"][cell : cell + 1].clone()
            return fallback
        return y

    def _one_sloped_row(self, features: Tensor, z: Tensor, cell: int) -> Tensor:
        """Return the outputs of a single row by the head of its cell, where bounds or heads look at the input."""
        assert self._row is not None
        x = self._modules["domain"].clamp(features)  # type: ignore[union-attr, operator]
        x32 = x if x.dtype is torch.float32 else x.to(torch.float32)
        y = _linear(clip(z, *self.limits(x32)), *self._row.heads[cell])
        passthrough = _buffers(self, "heads")["passthrough"]
        return y if passthrough is None else torch.addmm(y, x32, passthrough[cell].T)

    def outputs(
        self,
        features: Tensor,
        z: Tensor,
        *,
        limits: Callable[[Tensor], tuple[Tensor, Tensor]],
        heads: tuple[Tensor, Tensor | None, Tensor],
        free: tuple[Tensor, Tensor] | None,
        clipped_by: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Run the program in training, with given parameters; `limits` maps x to l(x), u(x).

        `clipped_by` takes the place of the clip: the same values with another gradient. NaN is to be seen: it ends the
        run.
        """
        if len(heads[0]) == 0 and free is not None:  # no rules: a plain network
            return _linear(z, *free)
        x32, cell = self._in_front(features)
        clipped = clipped_by(z, *limits(features if x32 is None else x32))
        names = ("answer", "clipped", "x32", "cell", "heads.weight", "heads.passthrough", "heads.bias")
        given = (*names, "free.weight", "free.bias")
        run = self._run("behind", torch.float32, given, ("y",))
        return cast(Tensor, run(z, clipped, x32, cell, *heads, *(free or (None, None))))

    def _served(self, features: Tensor, z: Tensor) -> Tensor:
        """Return the outputs of a batch."""
        gate = cast(Gate, self._modules["gate"])
        if gate.is_single and eager(features):
            bits = gate.inside_at(features, cast(InputClamp, self._modules["domain"]))
            if bits is not None:
                run = self._run("bits", features.dtype, ("features", "answer", "bits"), (self.ops[-1].out,))
                return run(features, z, bits)  # type: ignore[no-any-return]
        run = self._run("all", features.dtype, ("features", "answer"), (self.ops[-1].out,))
        return run(features, z)  # type: ignore[no-any-return]

    def _in_front(self, features: Tensor) -> tuple[Tensor | None, Any]:
        """Return x32 and cell: what a batch has in front of the bounds, None for what the program leaves out."""
        gate, wanted = cast(Gate, self._modules["gate"]), ("x32", "cell")
        if gate.is_single and eager(features):
            bits = gate.inside_at(features, cast(InputClamp, self._modules["domain"]))
            if bits is not None:
                run = self._run("front, bits", features.dtype, ("features", "bits"), wanted)
                return run(features, bits)  # type: ignore[no-any-return]
        return self._run("front", features.dtype, ("features",), wanted)(features)  # type: ignore[no-any-return]

    def _run(
        self, part: str, dtype: torch.dtype, given: tuple[str, ...], wanted: tuple[str, ...]
    ) -> Callable[..., Any]:
        """Return the function that makes wanted values of given ones; it is kept under the name of the part."""
        if torch.compiler.is_compiling():
            return traced(self, needed(self.ops, wanted, given), _format(dtype), given, wanted)
        known = self._functions.get((part, dtype))
        if known is None:
            known = joined(self, needed(self.ops, wanted, given), _format(dtype), given, wanted)
            self._functions[part, dtype] = known
        return known

    def cells(self, features: Tensor) -> Tensor:
        """Return the number of the cell of each input (batch,)."""
        if self.gate.is_trivial:
            return torch.zeros(len(features), dtype=torch.long, device=features.device)
        return cast(Tensor, self.gate(self.domain(features)))

    def clipped(self, features: Tensor, z: Tensor) -> Tensor:
        """Return the embedding inside of the box at each input (batch, n)."""
        return cast(Tensor, self._run("clipped", features.dtype, ("features", "answer"), ("clipped",))(features, z))

    @torch.no_grad()
    def store(self, over: FrozenHeads, free: tuple[Tensor, Tensor] | None) -> None:
        """Take over frozen bounds and heads (and the free head)."""
        stored = over.bounds.stored()
        for name, buffer in self.bounds.named_buffers():
            buffer.copy_(torch.from_numpy(stored[name].copy()))
        names = {"weight": "W", "bias": "b", "passthrough": "V", "fallback": "fallback"}
        certified = [head for head in over.heads if head is not None]
        for name, buffer in self.heads.named_buffers():
            for position, head in enumerate(certified):
                buffer[position] = torch.from_numpy(getattr(head, names[name]).copy())
        if self.free is not None and free is not None:
            self.free.weight.copy_(free[0])
            self.free.bias.copy_(free[1])

    @torch.no_grad()
    def frozen_heads(self) -> FrozenHeads:
        """Return what the stored constants can reach, as plain arrays."""
        require_float32(self.named_buffers())
        box = {name: value.cpu().numpy() for name, value in self.bounds.named_buffers()}
        bounds = NetworkBounds.of_stored(box) if self.network else Bounds(**box)
        heads: list[Head | None] = []
        for c in range(self.heads.weight.shape[0]):
            parts = {name: value[c].cpu().numpy() for name, value in self.heads.named_buffers()}
            heads.append(
                Head(parts["weight"], parts["bias"], V=parts.get("passthrough"), fallback=parts.get("fallback"))
            )
        return FrozenHeads(bounds, tuple(heads + ([] if self.free is None else [None])))
