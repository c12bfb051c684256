"""The deployed program behind the backbone: domain, gate, clip, heads. What runs here is what is certified.

The state of `DeployedHead` is, name by name, the tensors that docs/certificate-format.md prescribes.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor, nn

from smle.exact import BINARY32, BINARY64, Binary, previous
from smle.guarantees.cells import Arrangement
from smle.guarantees.guard import domain_box, guard_rows
from smle.guarantees.overapproximation import AffineBounds, ConstantBounds, Head, Overapproximation
from smle.rules import Specification

__all__ = ["DeployedHead", "Domain", "Gate", "clip"]

_TYPES: tuple[tuple[Binary, torch.dtype], ...] = ((BINARY32, torch.float32), (BINARY64, torch.float64))


def clip(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Clip z into [lower, upper]; NaN becomes lower, and where lower > upper the result is upper.

    This is the one definition of clip. It does not lean on how a runtime's Min and Max treat NaN.
    """
    raised = torch.where(z >= lower, z, lower)
    return torch.where(raised <= upper, raised, upper)


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
        if x.dtype == torch.float64:
            return clip(x, self.lower_float64, self.upper_float64)
        return clip(x, self.lower_float32, self.upper_float32)

    def contains(self, x: Tensor) -> Tensor:
        """Return which rows lie in the domain: (batch,) bool. NaN does not."""
        double = x.dtype == torch.float64
        lower = self.lower_float64 if double else self.lower_float32
        upper = self.upper_float64 if double else self.upper_float32
        return ((x >= lower) & (x <= upper)).all(dim=1)


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
    signs: Tensor
    comparison_regions: Tensor
    oblique_regions: Tensor
    targets: Tensor

    def __init__(self, spec: Specification, arrangement: Arrangement) -> None:
        super().__init__()
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
        self.register_buffer("signs", torch.tensor([float(v) for _, v in derived]), persistent=False)
        for name, rows in (("comparison_regions", comparisons), ("oblique_regions", oblique)):
            member = [[float(row in arrangement.regions[region]) for region in arrangement.gated] for row in rows]
            matrix = torch.tensor(member, dtype=torch.float32).reshape(len(rows), len(arrangement.gated))
            self.register_buffer(name, matrix, persistent=False)
        self.register_buffer("targets", signatures.sum(dim=1).to(torch.float32), persistent=False)
        self.most_constrained = int(self.targets.argmax())

    @property
    def is_trivial(self) -> bool:
        """Whether there is nothing to decide."""
        return self.signatures.shape[1] == 0

    def active(self, x: Tensor) -> Tensor:
        """Return which gated regions are active: (batch, regions) bool. x is clamped to the domain."""
        constants = self.constants_float64 if x.dtype == torch.float64 else self.constants_float32
        compared = x[:, self.columns] * self.signs.to(x.dtype)
        outside = (~(compared <= constants)).to(torch.float32) @ self.comparison_regions
        if len(self.thresholds):
            values = x.to(torch.float32) @ self.coefficients.T
            outside = outside + (values > self.thresholds).to(torch.float32) @ self.oblique_regions
        return outside == 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the index of the cell of each input: (batch,). x is clamped to the domain."""
        bits = self.active(x).to(torch.float32)
        signatures = self.signatures.to(torch.float32)
        # 2 bits.s - |s| is |bits| exactly where s equals bits; all numbers are small integers, so exact.
        match = bits @ (2 * signatures).T - self.targets == bits.sum(dim=1, keepdim=True)
        found = match.to(torch.float32).argmax(dim=1)
        # The certificate proves that every signature has a head; should one not, the strictest serves.
        return torch.where(match.any(dim=1), found, self.most_constrained)


class _Bounds(nn.Module):
    """Bounds of the embedding: lower, upper (n,) and, if affine, lower_slope, upper_slope (n, d)."""

    lower: Tensor
    upper: Tensor
    lower_slope: Tensor | None
    upper_slope: Tensor | None

    def __init__(self, n: int, d: int, *, affine: bool) -> None:
        super().__init__()
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


class DeployedHead(nn.Module):
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
        passthrough: bool = False,
        nan_safe_clip: bool | None = None,
    ) -> None:
        super().__init__()
        d, m = len(spec.columns), len(spec.targets)
        count = len(arrangement.cells) - arrangement.free_cell
        self.affine = affine
        self.nan_safe_clip = affine or passthrough if nan_safe_clip is None else nan_safe_clip
        self.domain = Domain(spec)
        self.gate = Gate(spec, arrangement)
        self.bounds = _Bounds(embedding, d, affine=affine)
        self.heads = _Heads(count, m, embedding, inputs=d if passthrough else None, fallback=not self.nan_safe_clip)
        self.free = _Free(m, embedding) if arrangement.free_cell else None

    def limits(self, x32: Tensor, bounds: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the bounds l(x), u(x) of the embedding, broadcastable to (batch, n)."""
        box = dict(self.bounds.named_buffers()) if bounds is None else bounds
        if not self.affine:
            return box["lower"], box["upper"]
        return x32 @ box["lower_slope"].T + box["lower"], x32 @ box["upper_slope"].T + box["upper"]

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        """Return the outputs (batch, m)."""
        if features.dtype not in (torch.float32, torch.float64):
            features = features.to(torch.float32)
        with torch.autocast(device_type=embedding.device.type, enabled=False):
            x = self.domain(features)
            heads = (self.heads.weight, self.heads.passthrough, self.heads.bias)
            free = None if self.free is None else (self.free.weight, self.free.bias)
            return self.outputs(x, embedding.to(torch.float32), bounds=None, heads=heads, free=free)

    def outputs(
        self,
        x: Tensor,
        z: Tensor,
        *,
        bounds: dict[str, Tensor] | None,
        heads: tuple[Tensor, Tensor | None, Tensor],
        free: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Apply clip, heads and gate with the given parameters (bounds None: the stored ones); x is in the domain."""
        W, V, b = heads
        count, m, n = W.shape
        if count == 0 and free is not None:  # no rules: a plain network
            return nn.functional.linear(z, *free)
        x32 = x.to(torch.float32)
        lower, upper = self.limits(x32, bounds)
        clipped = clip(z, lower, upper) if self.nan_safe_clip else torch.clamp(z, lower, upper)
        y = nn.functional.linear(clipped, W.reshape(count * m, n), b.reshape(count * m))
        if V is not None:
            y = y + x32 @ V.reshape(count * m, -1).T
        choices = y.reshape(len(x), count, m)
        fallback = self.heads.fallback
        if free is not None:
            choices = torch.cat([choices, nn.functional.linear(z, *free).unsqueeze(1)], dim=1)
            if fallback is not None:
                fallback = torch.cat([fallback, torch.full_like(fallback[:1], torch.nan)])
        if self.gate.is_trivial:
            picked, safe = choices[:, 0], fallback
        else:
            cell = self.gate(x)
            picked = choices[torch.arange(len(x), device=x.device), cell]
            safe = None if fallback is None else fallback[cell]
        if safe is None:
            return picked
        return torch.where(picked.isnan().any(dim=1, keepdim=True), safe, picked)

    @torch.no_grad()
    def store(self, over: Overapproximation, free: tuple[Tensor, Tensor] | None) -> None:
        """Take over frozen bounds and heads (and the free head)."""
        for name, buffer in self.bounds.named_buffers():
            buffer.copy_(torch.from_numpy(getattr(over.bounds, name).copy()))
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
        box = {name: value.cpu().numpy() for name, value in self.bounds.named_buffers()}
        bounds = AffineBounds(**box) if self.affine else ConstantBounds(**box)
        heads: list[Head | None] = []
        for c in range(self.heads.weight.shape[0]):
            parts = {name: value[c].cpu().numpy() for name, value in self.heads.named_buffers()}
            heads.append(
                Head(parts["weight"], parts["bias"], V=parts.get("passthrough"), fallback=parts.get("fallback"))
            )
        return Overapproximation(bounds, tuple(heads + ([] if self.free is None else [None])))
