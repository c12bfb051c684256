"""The deployed program behind the backbone: domain, gate, clip, heads. What runs here is what is certified.

The state of `DeployedHead` is, name by name, the tensors that docs/certificate-format.md prescribes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from operator import mul
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from smle.exact import BINARY32, BINARY64, Binary, previous
from smle.guarantees.cells import Arrangement
from smle.guarantees.guard import domain_box, guard_rows
from smle.guarantees.overapproximation import (
    AffineBounds,
    Bounds,
    ConstantBounds,
    Head,
    NetworkBounds,
    Overapproximation,
)
from smle.nn.constant_heads import Places
from smle.nn.precision import FixedFormats, require_float32
from smle.rules import Specification

__all__ = ["DeployedHead", "Domain", "Gate", "clip", "require_full_precision"]

_TYPES: tuple[tuple[Binary, torch.dtype], ...] = ((BINARY32, torch.float32), (BINARY64, torch.float64))
_FEATURE_TYPES = (torch.float32, torch.float64)
_FEW_OUTPUTS = 32  # that are looked at more quickly in Python than by another call of torch
_FEW_COLUMNS = 6  # that are compared one by one more quickly than gathered


def clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Clip z into [lower, upper]; NaN becomes lower, and where lower > upper the result is upper.

    This is the one definition of clip. It does not lean on how a runtime's Min and Max treat NaN.
    """
    if _eager(z):
        # The same numbers in fewer passes: clamp differs in NaN only, and a sum without NaN has no NaN in it.
        clamped = torch.clamp(z, lower, upper)
        if not _has_nan(clamped):
            return clamped
    raised = torch.where(z >= lower, z, lower)
    return torch.where(raised <= upper, raised, upper)


_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._is_tracing
_linear, _clamp, _isnan = nn.functional.linear, torch.clamp, math.isnan


def _eager(tensor: Tensor) -> bool:
    """Whether Python may look at values: on a CPU, outside compilers and exporters."""
    return tensor.is_cpu and not _is_compiling() and not _is_tracing()


def _has_nan(tensor: Tensor) -> bool:
    """Whether there may be a NaN; False is certain."""
    return math.isnan((tensor.detach() if tensor.requires_grad else tensor).sum().item())


# What torch.backends.mkldnn.matmul.fp32_precision (cuda.matmul) reads, at a quarter of the time. Older versions of
# torch have one setting for all devices.
_PRECISION_OF = getattr(torch._C, "_get_fp32_precision_getter", None)


_FULL_PRECISION = frozenset({"none", "ieee", "highest"})


def _read_matmul_precision(device: str) -> str:
    if _PRECISION_OF is None:
        return torch.get_float32_matmul_precision()
    return str(_PRECISION_OF("mkldnn" if device == "cpu" else "cuda", "matmul"))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _compiled_matmul_precision(device: str) -> str:
    """Read the setting when a program is compiled (again)."""
    return _read_matmul_precision(device)


def _matmul_precision(device: str) -> str:
    return _compiled_matmul_precision(device) if torch.compiler.is_compiling() else _read_matmul_precision(device)


def _full_precision_on_cpu() -> bool:
    """Whether the CPU multiplies matrices in full float32 precision, outside compilers; False is no verdict."""
    return _PRECISION_OF is not None and _PRECISION_OF("mkldnn", "matmul") in _FULL_PRECISION


def require_full_precision(device: str) -> None:
    """Require float32 arithmetic without shortcuts (TF32, bfloat16) in matrix products.

    Raises:
        RuntimeError: If torch was told to use them.
    """
    precision = _matmul_precision(device)
    if precision not in _FULL_PRECISION:
        raise RuntimeError(
            f"Expected full float32 precision in matrix products: what was certified is float32 arithmetic. Got "
            f"'{precision}'. Call torch.set_float32_matmul_precision('highest')."
        )


def _column(values: list[Fraction], dtype: torch.dtype) -> Tensor:
    return torch.tensor([float(v) for v in values], dtype=dtype)


class Domain(nn.Module):
    """Clamps inputs to the domain in their own float format, so that guard and bounds never see NaN."""

    lower_float32: Tensor
    upper_float32: Tensor
    lower_float64: Tensor
    upper_float64: Tensor

    def __init__(self, spec: Specification) -> None:
        super().__init__()
        for fmt, dtype in _TYPES:
            lower, upper = domain_box(spec, fmt)
            self.register_buffer(f"lower_{fmt.name}", _column(list(lower), dtype))
            self.register_buffer(f"upper_{fmt.name}", _column(list(upper), dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return x clamped to the domain, same shape and type (batch, d)."""
        return self.clamp(x)

    def clamp(self, x: Tensor) -> Tensor:
        """Return x clamped to the domain, same shape and type (batch, d)."""
        ends = cast(dict[str, Tensor], self._buffers)
        if x.dtype is torch.float64:
            return clip(x, ends["lower_float64"], ends["upper_float64"])
        return clip(x, ends["lower_float32"], ends["upper_float32"])

    def ends(self, kind: str) -> tuple[list[float], list[float]]:
        """Return lower and upper ends for `float32` or `float64`, as numbers."""
        lower, upper = (cast(Tensor, self._buffers[f"{end}_{kind}"]).tolist() for end in ("lower", "upper"))
        return lower, upper

    def contains(self, x: Tensor) -> Tensor:
        """Return which rows lie in the domain: (batch,) bool. NaN does not."""
        double = x.dtype == torch.float64
        lower = self.lower_float64 if double else self.lower_float32
        upper = self.upper_float64 if double else self.upper_float32
        return ((x >= lower) & (x <= upper)).all(dim=1)


class _Numbers(NamedTuple):
    """The constants of domain and gate as Python numbers, for a single row. Sets of regions are bits of an integer.

    * `active`: the regions that some input of the domain may lie in.
    * `comparisons`: (column, at least, number, regions that stay where it fails), those that inputs of the domain
      decide: an input beyond the domain is on the same side of such a number as its clamped value, and NaN, whose place
      is taken by the lower end, is at most each of them.
    """

    lower: list[float]
    upper: list[float]
    active: int
    comparisons: list[tuple[int, bool, float, int]]
    oblique: list[tuple[list[float], float, int]]
    cells: dict[int, int]


def _bits(flags: Iterable[float]) -> int:
    return sum(1 << position for position, flag in enumerate(flags) if flag)


class Gate(nn.Module):
    """Finds the cell of each input. Each half-space is evaluated once; the bits pick one head.

    Comparisons with one input are exact in the input's own format; oblique rows are float32 with slack.
    """

    constants_float32: Tensor
    constants_float64: Tensor
    coefficients: Tensor
    thresholds: Tensor
    signatures: Tensor
    columns: Tensor
    negative: Tensor
    comparison_regions: Tensor
    oblique_regions: Tensor
    targets: Tensor

    def __init__(self, spec: Specification, arrangement: Arrangement) -> None:
        super().__init__()
        self._numbers: dict[str, _Numbers] = {}
        guard = guard_rows(arrangement, spec)
        used = sorted({row for region in arrangement.gated for row in arrangement.regions[region]})
        comparisons = [row for row in used if guard[row].is_comparison]
        oblique = [row for row in used if not guard[row].is_comparison]
        for position, (fmt, dtype) in enumerate(_TYPES):
            constants = []
            for row in comparisons:
                constant = guard[row].constants[position]
                constants.append(previous(constant, fmt) if guard[row].strict else constant)
            self.register_buffer(f"constants_{fmt.name}", _column(constants, dtype))
        coefficients = torch.zeros(len(oblique), len(spec.columns))
        for position, row in enumerate(oblique):
            for (column, _), value in zip(guard[row].coefficients, guard[row].stored, strict=True):
                coefficients[position, column] = float(value)
        self.register_buffer("coefficients", coefficients)
        thresholds = [guard[row].threshold or Fraction(0) for row in oblique]
        self.register_buffer("thresholds", _column(thresholds, torch.float32))
        bits = [[region in cell for region in arrangement.gated] for cell in arrangement.cells]
        signatures = torch.tensor(bits, dtype=torch.uint8).reshape(len(arrangement.cells), len(arrangement.gated))
        self.register_buffer("signatures", signatures)
        # What follows is derived from the rules and not stored.
        derived = [guard[row].coefficients[0] for row in comparisons]
        self.register_buffer("columns", torch.tensor([c for c, _ in derived], dtype=torch.long), persistent=False)
        self.register_buffer("negative", torch.tensor([v < 0 for _, v in derived], dtype=torch.bool), persistent=False)
        for name, rows in (("comparison_regions", comparisons), ("oblique_regions", oblique)):
            member = [[float(row in arrangement.regions[region]) for region in arrangement.gated] for row in rows]
            matrix = torch.tensor(member, dtype=torch.float32).reshape(len(rows), len(arrangement.gated))
            self.register_buffer(name, matrix, persistent=False)
        self.register_buffer("targets", signatures.sum(dim=1).to(torch.float32), persistent=False)
        self.most_constrained = int(self.targets.argmax())
        # With one region the gate has two answers: the cell inside and the cell outside.
        places = {tuple(row): number for number, row in enumerate(bits)}
        self.inside_outside = tuple(places.get((bit,), self.most_constrained) for bit in (True, False))
        self.has_oblique = bool(oblique)
        self.is_trivial = len(arrangement.gated) == 0
        self.is_single = len(arrangement.gated) == 1

    def active(self, x: Tensor) -> Tensor:
        """Return which gated regions are active: (batch, regions) bool. x is clamped to the domain."""
        outside = (~self._compared(x)).to(torch.float32) @ self.comparison_regions
        if self.has_oblique:
            outside = outside + self._above(x).to(torch.float32) @ self.oblique_regions
        return outside == 0

    def _compared(self, x: Tensor) -> Tensor:
        """Return which comparisons hold, (batch, comparisons), in the input's own format."""
        buffers = cast(dict[str, Tensor], self._buffers)
        chosen = x.index_select(1, buffers["columns"])
        # Turning the sign is exact; a product might flush subnormal numbers to zero.
        signed = torch.where(buffers["negative"], -chosen, chosen)
        return signed <= buffers["constants_float64" if x.dtype is torch.float64 else "constants_float32"]

    def _above(self, x: Tensor) -> Tensor:
        """Return which oblique rows are exceeded, (batch, oblique), in float32."""
        return x.to(torch.float32) @ self.coefficients.T > self.thresholds

    def cell_of(self, x: Tensor, domain: Domain) -> int:
        """Return the cell of a single input (1, d), by comparing numbers instead of tensors.

        Comparisons give the same answer. Sums of oblique rows are formed in float64: their error is smaller than
        that of float32 sums, for which their thresholds have slack.
        """
        kind = "float64" if x.dtype is torch.float64 else "float32"
        numbers = self._numbers.get(kind) or self._read(kind, domain)
        values: list[float] = x.tolist()[0]
        active = numbers.active
        for column, at_least, number, left in numbers.comparisons:
            value = values[column]
            if not value >= number if at_least else value > number:
                active &= left
        if numbers.oblique:
            values = [
                low if not value >= low else high if value > high else value
                for value, low, high in zip(values, numbers.lower, numbers.upper, strict=True)
            ]
        for coefficients, threshold, left in numbers.oblique:
            if sum(map(mul, values, coefficients)) > threshold:
                active &= left
        return numbers.cells.get(active, self.most_constrained)

    def _read(self, kind: str, domain: Domain) -> _Numbers:
        """Read the stored constants as numbers; they are kept until the state changes."""
        buffers = {name: cast(Tensor, value).tolist() for name, value in self._buffers.items()}
        everything = (1 << len(buffers["signatures"][0])) - 1

        def left(member: list[float]) -> int:
            """Return the regions that stay active where a row fails, as bits."""
            return everything & ~_bits(member)

        lower, upper = domain.ends(kind)
        active, comparisons = everything, []
        stored = (buffers[name] for name in ("columns", "negative", f"constants_{kind}", "comparison_regions"))
        for column, negative, constant, member in zip(*stored, strict=True):
            low, high = (-upper[column], -lower[column]) if negative else (lower[column], upper[column])
            if low > constant:
                active &= left(member)  # holds nowhere in the domain
            elif high > constant:
                comparisons.append((column, negative, -constant if negative else constant, left(member)))
        self._numbers[kind] = _Numbers(
            lower,
            upper,
            active,
            comparisons,
            [
                (row, threshold, left(member))
                for row, threshold, member in zip(
                    buffers["coefficients"], buffers["thresholds"], buffers["oblique_regions"], strict=True
                )
            ],
            {_bits(signature): number for number, signature in enumerate(buffers["signatures"])},
        )
        return self._numbers[kind]

    def _apply(self, fn: Any, recurse: bool = True) -> Gate:
        self._numbers.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._numbers.clear()
        super()._load_from_state_dict(*arguments, **options)

    def inside_at(self, features: Tensor, domain: Domain) -> Tensor | None:
        """Return what `inside` returns, from inputs that are not clamped yet; None: ask `inside`.

        A few columns are compared one by one.
        """
        if self.has_oblique or len(cast(Tensor, self._buffers["columns"])) > _FEW_COLUMNS:
            return None
        kind = "float64" if features.dtype is torch.float64 else "float32"
        numbers = self._numbers.get(kind) or self._read(kind, domain)
        if not numbers.active or not numbers.comparisons:
            return None
        holds: Tensor | None = None
        exceeds: Tensor | None = None
        for column, at_least, number, _ in numbers.comparisons:
            values = features.select(1, column)
            if at_least:
                holds = values >= number if holds is None else holds.logical_and_(values >= number)
            else:
                exceeds = values > number if exceeds is None else exceeds.logical_or_(values > number)
        if holds is None or exceeds is None:
            return cast(Tensor, exceeds).logical_not_() if holds is None else holds
        return holds > exceeds

    def inside(self, x: Tensor) -> Tensor:
        """Return whether the only region is active: (batch,) bool. x is clamped to the domain."""
        if not self.has_oblique:
            return self._compared(x).all(dim=1)
        below = ~self._above(x).any(dim=1)
        return self._compared(x).all(dim=1) & below if len(self.columns) else below

    def forward(self, x: Tensor) -> Tensor:
        """Return the index of the cell of each input: (batch,). x is clamped to the domain."""
        if self.is_single:
            yes, no = self.inside_outside
            inside = self.inside(x)
            return torch.full_like(inside, no, dtype=torch.long).masked_fill(inside, yes)
        bits = self.active(x).to(torch.float32)
        signatures = self.signatures.to(torch.float32)
        # 2 bits.s - |s| is |bits| exactly where s equals bits; all numbers are small integers, so exact.
        match = bits @ (2 * signatures).T - self.targets == bits.sum(dim=1, keepdim=True)
        found = match.to(torch.float32).argmax(dim=1)
        # The certificate proves that every signature has a head; should one not, the strictest serves.
        return torch.where(match.any(dim=1), found, self.most_constrained)


class _Hidden(nn.Module):
    """A hidden layer of bounds by a network: weight (k, arguments), bias (k,)."""

    weight: Tensor
    bias: Tensor

    def __init__(self, width: int, arguments: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(width, arguments))
        self.register_buffer("bias", torch.zeros(width))


class _Bounds(nn.Module):
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


class _Heads(nn.Module):
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


class _Free(nn.Module):
    """The head of the free cell: weight (m, n), bias (m,). Nothing is required of it."""

    weight: Tensor
    bias: Tensor

    def __init__(self, m: int, n: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(m, n))
        self.register_buffer("bias", torch.zeros(m))


def _buffers(module: nn.Module, child: str) -> dict[str, Tensor]:
    """Return the buffers of a part. Attributes of modules are slow to look up, and one row is quick."""
    return cast(dict[str, Tensor], module._modules[child]._buffers)  # type: ignore[union-attr]


class _Row(NamedTuple):
    """The certified heads one by one, as views of the stored tensors, for a single row."""

    weight: Tensor
    bias: Tensor
    heads: list[tuple[Tensor, Tensor]]
    is_short: bool

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> _Row:
        with torch.inference_mode(False), torch.no_grad():
            heads = list(zip(weight.unbind(), bias.unbind(), strict=True))
        return cls(weight, bias, heads, bias.shape[1] <= _FEW_OUTPUTS)


class DeployedHead(FixedFormats):
    """(features, embedding) -> outputs, with frozen constants only.

    * features (batch, d) in float32 or float64; embedding (batch, n) in float32, any values; outputs (batch, m).
    * With constant bounds and no pass-through the clip is one clamp, and a row with NaN becomes the head's safe
      fallback. Otherwise the clip is the NaN-safe one.
    """

    def __init__(
        self,
        spec: Specification,
        arrangement: Arrangement,
        *,
        embedding: int,
        affine: bool = False,
        hidden: Sequence[int] = (),
        passthrough: bool = False,
        nan_safe_clip: bool | None = None,
    ) -> None:
        super().__init__()
        d, m = len(spec.columns), len(spec.targets)
        count = len(arrangement.cells) - arrangement.free_cell
        self._row: _Row | None = None
        self.affine, self.network = affine, bool(hidden)
        computed = affine or passthrough or self.network
        self.nan_safe_clip = computed if nan_safe_clip is None else nan_safe_clip
        self.domain = Domain(spec)
        self.gate = Gate(spec, arrangement)
        self.bounds = _Bounds(embedding, d, affine=affine, hidden=hidden)
        self.heads = _Heads(count, m, embedding, inputs=d if passthrough else None, fallback=not self.nan_safe_clip)
        self.free = _Free(m, embedding) if arrangement.free_cell else None

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
        """
        single = not self.nan_safe_clip and embedding.shape[0] == 1 and _eager(embedding)
        if (
            single
            and embedding.dtype is torch.float32
            and features.dtype in _FEATURE_TYPES
            and _full_precision_on_cpu()
        ):
            y = self._one_row(features, embedding)
            if y.dtype is torch.float32:  # under autocast it is another: then once more, below
                return y
        device = "cpu" if embedding.is_cpu else embedding.device.type
        require_full_precision(device)
        if torch.is_autocast_enabled(device):
            with torch.autocast(device_type=device, enabled=False):
                return self.forward(features, embedding)
        if features.dtype is not torch.float32 and features.dtype is not torch.float64:
            features = features.to(torch.float32)
        if embedding.dtype is not torch.float32:
            embedding = embedding.to(torch.float32)
        if single:
            return self._one_row(features, embedding)
        stored, free = _buffers(self, "heads"), self._modules.get("free")
        heads = (stored["weight"], stored["passthrough"], stored["bias"])
        pair = None if free is None else cast(tuple[Tensor, Tensor], tuple(free._buffers.values()))
        return self.outputs(features, embedding, limits=self.limits, heads=heads, free=pair)

    def _one_row(self, features: Tensor, z: Tensor) -> Tensor:
        """Return what `outputs` returns for a single row, computing only the head that serves it."""
        modules: dict[str, Any] = self._modules
        gate, stored, row = modules["gate"], modules["heads"]._buffers, self._row
        if row is None or row[0] is not stored["weight"] or row[1] is not stored["bias"]:
            row = self._row = _Row.of(stored["weight"], stored["bias"])
        heads = row[2]
        cell = 0 if gate.is_trivial else gate.cell_of(features, modules["domain"])
        if cell == len(heads):
            free = modules["free"]._buffers
            return _linear(z, free["weight"], free["bias"])
        box = modules["bounds"]._buffers
        y = _linear(_clamp(z, box["lower"], box["upper"]), *heads[cell])
        suspicious = _isnan(sum(y.tolist()[0])) if row[3] else _has_nan(y)
        if suspicious and y.dtype is torch.float32 and bool(y.isnan().any()):
            fallback: Tensor = stored["fallback"][cell : cell + 1].clone()
            return fallback
        return y

    def outputs(
        self,
        features: Tensor,
        z: Tensor,
        *,
        limits: Callable[[Tensor], tuple[Tensor, Tensor]],
        heads: tuple[Tensor, Tensor | None, Tensor],
        free: tuple[Tensor, Tensor] | None,
        clipped_by: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Apply domain, clip, heads and gate with the given parameters; `limits` maps x to l(x), u(x).

        `clipped_by` takes the place of the clip in training: the same values with another gradient.
        """
        W, V, b = heads
        count, m, n = W.shape
        if count == 0 and free is not None:  # no rules: a plain network
            return nn.functional.linear(z, *free)
        gate, domain = cast(Gate, self._modules["gate"]), cast(Domain, self._modules["domain"])
        inside = gate.inside_at(features, domain) if gate.is_single and _eager(features) else None
        # Without a gate, constant heads never look at the inputs.
        x = features
        if self.nan_safe_clip or (inside is None and not gate.is_trivial):
            x = domain.clamp(features)
        if self.nan_safe_clip:
            x32 = x if x.dtype is torch.float32 else x.to(torch.float32)
            clipped = (clipped_by or clip)(z, *limits(x32))
        else:
            clipped = (clipped_by or torch.clamp)(z, *limits(x))
        # Outputs are few and rows are many: (heads * m, batch) is the faster way round.
        y = torch.addmm(b.reshape(count * m, 1), W.reshape(count * m, n), clipped.T)
        if V is not None:
            y = torch.addmm(y, V.reshape(count * m, -1), x32.T)
        choices = [y] if count == 1 else list(torch.split(y, m))
        if free is not None:
            choices.append(torch.addmm(free[1].unsqueeze(1), free[0], z.T))
        picked = y.T if gate.is_trivial else self._pick(gate, x, choices, inside=inside)
        # In training NaN is to be seen: it ends the run.
        if self.nan_safe_clip or clipped_by is not None or (_eager(picked) and not _has_nan(picked)):
            return picked
        fallback = self._fallback(x if gate.is_trivial else domain.clamp(features))
        return torch.where(picked.isnan().any(dim=1, keepdim=True), fallback, picked)

    def places(self, features: Tensor) -> Places | None:
        """Return which head serves each row, where there are at most two; None: more, or not to be looked up here."""
        gate, domain = cast(Gate, self._modules["gate"]), cast(Domain, self._modules["domain"])
        if gate.is_trivial:
            return Places(None, (0,))
        if not gate.is_single or not _eager(features):
            return None
        inside = gate.inside_at(features, domain)
        return Places(gate.inside(domain.clamp(features)) if inside is None else inside, gate.inside_outside)

    @staticmethod
    def _pick(gate: Gate, x: Tensor, choices: list[Tensor], *, inside: Tensor | None) -> Tensor:
        """Pick each row's outputs from those of all cells, (m, batch) each -> (batch, m)."""
        if gate.is_single:
            yes, no = gate.inside_outside
            return torch.where(gate.inside(x) if inside is None else inside, choices[yes], choices[no]).T
        return torch.stack(choices)[gate(x), :, torch.arange(len(x), device=x.device)]

    def _fallback(self, x: Tensor) -> Tensor:
        """Return each row's safe constant, NaN in the free cell: (batch, m) or (1, m)."""
        fallback = self.heads.fallback
        assert fallback is not None
        if self.gate.is_trivial:
            return fallback
        if self.free is not None:
            fallback = torch.cat([fallback, torch.full_like(fallback[:1], torch.nan)])
        return fallback[self.gate(x)]

    @torch.no_grad()
    def store(self, over: Overapproximation, free: tuple[Tensor, Tensor] | None) -> None:
        """Take over frozen bounds and heads (and the free head)."""
        stored = over.bounds.stored() if isinstance(over.bounds, NetworkBounds) else vars(over.bounds)
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
    def overapproximation(self) -> Overapproximation:
        """Return what the stored constants can reach, as plain arrays."""
        require_float32(self.named_buffers())
        box = {name: value.cpu().numpy() for name, value in self.bounds.named_buffers()}
        bounds: Bounds
        if self.network:
            bounds = NetworkBounds.of_stored(box)
        else:
            bounds = AffineBounds(**box) if self.affine else ConstantBounds(**box)
        heads: list[Head | None] = []
        for c in range(self.heads.weight.shape[0]):
            parts = {name: value[c].cpu().numpy() for name, value in self.heads.named_buffers()}
            heads.append(
                Head(parts["weight"], parts["bias"], V=parts.get("passthrough"), fallback=parts.get("fallback"))
            )
        return Overapproximation(bounds, tuple(heads + ([] if self.free is None else [None])))
