"""SafeNetwork: any backbone, an over-approximation that is part of the network, and heads that stay safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.guarantees.arrangement import Arrangement
from smle.guarantees.cells import arrange
from smle.guarantees.geometry import Domain
from smle.guarantees.overapproximation import Overapproximation
from smle.nn.bounds import AffineBox, Box, FixedBox
from smle.nn.bridge import cell_needs, frozen, ungated
from smle.nn.gauge import DirectHeads, Frame, Gauge, HeadParameters
from smle.nn.head import DeployedHead
from smle.rules import Specification

__all__ = ["Rescale", "SafeNetwork"]

Array = npt.NDArray[np.float64]


class Rescale(nn.Module):
    """(z - center) / half, per unit and trained: constant bounds, folded into the backbone as clip to [-1, 1]."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(units))
        self.shift = nn.Parameter(torch.zeros(units))

    def forward(self, z: Tensor) -> Tensor:
        """Return the rescaled embedding (batch, n)."""
        return torch.addcmul(self.shift, z, self.scale)


class SafeNetwork(nn.Module):
    """backbone -> clip to l(x) <= z <= u(x) -> one affine head per cell.

    * features (batch, d), in the order of `spec.columns`, feed gate and bounds; the backbone maps them (or the extra
      arguments of `forward`) to an embedding (batch, n); outputs (batch, m) are in the order of `spec.targets`.
    * In training mode heads come from the gauge, so gradients reach the raw parameters and every step is safe.
      `eval()` freezes them: what then runs is the deployed program, the one that `smle.certify` speaks of.

    Args:
        backbone: Any module that returns `embedding` numbers per row.
        spec: The rules.
        embedding: Width n of the backbone's output.
        bounds: `constant` (trained), `fixed` (-1 and 1) or `affine` (trained, functions of x).
        gate: A head per cell, chosen by membership of x. False: one head for all inputs, as in the paper.
        passthrough: Let the heads see x directly (V x). None: only if rules mention inputs in `then`.
        gauge: Keep the heads safe at every step. False: plain heads, for an enforcement that projects them.
        frame: Units of the raw parameters, from data; the user's units by default.
        prefer: Preferred outputs per cell (cells, m), for example the mean targets there; NaN rows mean none.
        arrangement: The cells, if already known.

    Raises:
        ContradictionError: If the rules of some cell leave no room.
    """

    def __init__(
        self,
        backbone: nn.Module,
        spec: Specification,
        *,
        embedding: int,
        bounds: str = "constant",
        gate: bool = True,
        passthrough: bool | None = None,
        gauge: bool = True,
        frame: Frame | None = None,
        prefer: Array | None = None,
        arrangement: Arrangement | None = None,
    ) -> None:
        super().__init__()
        if bounds not in ("constant", "fixed", "affine"):
            raise ValueError(f"Expected bounds to be 'constant', 'fixed' or 'affine'. Got {bounds!r}.")
        found = arrange(spec) if arrangement is None else arrangement
        self.spec = spec
        self.arrangement = found if gate else ungated(found)
        if not gate and prefer is not None:
            prefer = prefer[:1]
        d, m = len(spec.columns), len(spec.targets)
        frame = Frame.identity(d, m) if frame is None else frame
        if passthrough is None:
            clauses = [clause for rule in spec.rules for clause in rule.requirement.clauses]
            passthrough = any(literal.inputs for clause in clauses for literal in clause.literals)
        self.backbone = nn.Sequential(backbone, Rescale(embedding)) if bounds == "constant" else backbone
        self.box = self._make_box(bounds, embedding, frame)
        needs = cell_needs(spec, self.arrangement, prefer=prefer)
        domain = Domain.of(spec)
        if gauge:
            self.heads: HeadParameters = Gauge(
                needs, frame, units=embedding, passthrough=passthrough, box=self.box, domain=(domain.low, domain.high)
            )
        else:
            self.heads = DirectHeads(needs, frame, units=embedding, passthrough=passthrough)
        self.free = nn.Linear(embedding, m) if self.arrangement.free_cell else None
        self.deployed = DeployedHead(
            spec, self.arrangement, embedding=embedding, affine=bounds == "affine", passthrough=passthrough
        )

    def _make_box(self, bounds: str, embedding: int, frame: Frame) -> Box:
        if bounds != "affine":
            return FixedBox(embedding)
        domain = Domain.of(self.spec)
        low, high = ((end - frame.x_shift) / frame.x_scale for end in (domain.low, domain.high))
        return AffineBox(embedding, torch.from_numpy(low), torch.from_numpy(high))

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the outputs (batch, m) in the user's units."""
        z = self.embed(features, *backbone_inputs)
        if not self.training:
            outputs: Tensor = self.deployed(features, z)
            return outputs
        with torch.autocast(device_type=z.device.type, enabled=False):
            x = self.deployed.domain(features)
            bounds = self.box.deployed(self.heads.x_shift, self.heads.x_scale)
            heads = self.heads(self.box.envelope())
            return self.deployed.outputs(x, z.to(torch.float32), bounds=bounds, heads=heads, free=self._free_head())

    def embed(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the embedding (batch, n) before it is clipped."""
        z = self.backbone(*backbone_inputs) if backbone_inputs else self.backbone(features.to(torch.float32))
        assert isinstance(z, Tensor)
        return z

    def _free_head(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor] | None:
        """Return the free head in the user's units."""
        if self.free is None:
            return None
        scale, shift = self.heads.y_scale.to(dtype), self.heads.y_shift.to(dtype)
        return self.free.weight.to(dtype) * scale.unsqueeze(-1), self.free.bias.to(dtype) * scale + shift

    def train(self, mode: bool = True) -> SafeNetwork:
        """Switch between training and the deployed program; leaving training freezes bounds and heads."""
        if self.training and not mode:
            self.freeze()
        super().train(mode)
        return self

    @torch.no_grad()
    def freeze(self) -> None:
        """Compute bounds and heads in float64, round them to float32 and store them in the deployed program."""
        over = frozen(self.heads, self.box, free_cell=self.free is not None, fallback=not self.deployed.nan_safe_clip)
        self.deployed.store(over, self._free_head(torch.float64))

    def overapproximation(self) -> Overapproximation:
        """Return what the deployed program can reach, as plain arrays."""
        if self.training:
            self.freeze()
        return self.deployed.overapproximation()

    @torch.no_grad()
    def step(self) -> float:
        """Return the smallest step that the gauge allows (1: the raw heads are safe as they are)."""
        alpha = self.heads.step(self.box.envelope())
        return 1.0 if alpha is None or not len(alpha) else float(alpha.min())
