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


class _Parameters(nn.Module):
    """A plain group of buffers, so that names in the state read `heads.weight`, `bounds.lower`."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)


class DeployedHead(nn.Module):
    """(features, embedding) -> outputs, with frozen constants only.

    * features (batch, d) in float32 or float64; embedding (batch, n) in float32, any values; outputs (batch, m).
    * With constant bounds the clip is one clamp, and a row with NaN becomes the head's safe fallback.
      With affine bounds the clip is the NaN-safe one.
    """

    def __init__(self, spec: Specification, arrangement: Arrangement, *, embedding: int, affine: bool = False,
                 passthrough: bool = False) -> None:  # fmt: skip
        super().__init__()
        d, m = len(spec.columns), len(spec.targets)
        self.domain = Domain(spec)
        self.gate = Gate(spec, arrangement)
        self.has_free_cell = arrangement.free_cell
        count = len(arrangement.cells) - self.has_free_cell
        self.affine = affine
        bounds = {"lower": -torch.ones(embedding), "upper": torch.ones(embedding)}
        if affine:
            bounds |= {"lower_slope": torch.zeros(embedding, d), "upper_slope": torch.zeros(embedding, d)}
        self.bounds = _Parameters(**bounds)
        heads = {"weight": torch.zeros(count, m, embedding), "bias": torch.zeros(count, m)}
        if passthrough:
            heads["passthrough"] = torch.zeros(count, m, d)
        if not affine:
            heads["fallback"] = torch.zeros(count, m)
        self.heads = _Parameters(**heads)
        if self.has_free_cell:
            self.free = _Parameters(weight=torch.zeros(m, embedding), bias=torch.zeros(m))

    @property
    def passthrough(self) -> bool:
        """Whether outputs see the inputs directly (V x)."""
        return hasattr(self.heads, "passthrough")

    @property
    def clip_kind(self) -> str:
        """`clamp` (with a fallback for NaN) or `where` (NaN-safe by itself)."""
        return "where" if self.affine else "clamp"

    def limits(self, x32: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bounds l(x), u(x) of the embedding, broadcastable to (batch, n)."""
        box = self.bounds
        if not self.affine:
            return box.lower, box.upper
        return x32 @ box.lower_slope.T + box.lower, x32 @ box.upper_slope.T + box.upper

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        """Return the outputs (batch, m)."""
        if features.dtype not in (torch.float32, torch.float64):
            features = features.to(torch.float32)
        with torch.autocast(device_type=embedding.device.type, enabled=False):
            x = self.domain(features)
            free = (self.free.weight, self.free.bias) if self.has_free_cell else None
            heads = (self.heads.weight, getattr(self.heads, "passthrough", None), self.heads.bias)
            return self.outputs(x, embedding.to(torch.float32), heads=heads, free=free)

    def outputs(
        self,
        x: Tensor,
        z: Tensor,
        *,
        heads: tuple[Tensor, Tensor | None, Tensor],
        free: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Apply clip, heads and gate for the given head parameters; x is clamped to the domain."""
        W, V, b = heads
        count, m, n = W.shape
        x32 = x.to(torch.float32)
        lower, upper = self.limits(x32)
        clipped = clip(z, lower, upper) if self.affine else torch.clamp(z, lower, upper)
        y = nn.functional.linear(clipped, W.reshape(count * m, n), b.reshape(count * m))
        if V is not None:
            y = y + x32 @ V.reshape(count * m, -1).T
        choices = y.reshape(-1, count, m)
        fallback = None if self.affine else self.heads.fallback
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
        for name in ("lower", "upper", "lower_slope", "upper_slope"):
            if hasattr(over.bounds, name):
                getattr(self.bounds, name).copy_(torch.from_numpy(getattr(over.bounds, name).copy()))
        for position, head in enumerate(h for h in over.heads if h is not None):
            self.heads.weight[position] = torch.from_numpy(head.W.copy())
            self.heads.bias[position] = torch.from_numpy(head.b.copy())
            if head.V is not None:
                self.heads.passthrough[position] = torch.from_numpy(head.V.copy())
            if head.fallback is not None:
                self.heads.fallback[position] = torch.from_numpy(head.fallback.copy())
        if free is not None:
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
        return Overapproximation(bounds, tuple(heads + ([None] if self.has_free_cell else [])))
