"""SafeNetwork: any backbone, an over-approximation that is part of the network, and heads that stay safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.guarantees.cells import Arrangement, arrange
from smle.guarantees.overapproximation import Overapproximation
from smle.nn.bridge import frozen_heads, gauge_rows
from smle.nn.gauge import Frame, Gauge
from smle.nn.head import DeployedHead
from smle.rules import Specification

__all__ = ["SafeNetwork"]

Array = npt.NDArray[np.float64]


class SafeNetwork(nn.Module):
    """backbone -> clip to [-1, 1] -> one affine head per cell; safe for every value of the parameters.

    * features (batch, d), in the order of `spec.columns`, feed the gate; the backbone maps them (or the extra
      arguments of `forward`) to an embedding (batch, n); outputs (batch, m) are in the order of `spec.targets`.
    * In training mode the heads come from the gauge, so gradients reach the raw parameters. `eval()` freezes
      them: what then runs is the deployed program, the one that `smle.certify` speaks of.

    Arguments:
        backbone: Any module that returns `embedding` numbers per row.
        spec: The rules.
        embedding: Width n of the backbone's output.
        frame: Units of the raw parameters, from data; the user's units by default.
        prefer: Preferred outputs per cell (cells, m), for example the mean targets there; NaN rows mean none.
        arrangement: The cells, if already known.
    """

    def __init__(
        self,
        backbone: nn.Module,
        spec: Specification,
        *,
        embedding: int,
        frame: Frame | None = None,
        prefer: Array | None = None,
        arrangement: Arrangement | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.arrangement = arrange(spec) if arrangement is None else arrangement
        d, m = len(spec.columns), len(spec.targets)
        frame = Frame.identity(d, m) if frame is None else frame
        self.backbone = backbone
        rows = gauge_rows(spec, self.arrangement, prefer=prefer)
        passthrough = any(
            literal.inputs for rule in spec.rules for c in rule.requirement.clauses for literal in c.literals
        )
        self.gauge = Gauge(rows, frame, embedding=embedding, passthrough=passthrough)
        self.free = nn.Linear(embedding, m) if self.arrangement.free_cell else None
        self.deployed = DeployedHead(spec, self.arrangement, embedding=embedding, passthrough=passthrough)

    def forward(self, features: Tensor, *backbone_inputs: Any) -> Tensor:
        """Return the outputs (batch, m) in the user's units."""
        z = self.backbone(*backbone_inputs) if backbone_inputs else self.backbone(features.to(torch.float32))
        if not self.training:
            outputs: Tensor = self.deployed(features, z)
            return outputs
        with torch.autocast(device_type=z.device.type, enabled=False):
            x = self.deployed.domain(features)
            return self.deployed.outputs(
                x, z.to(torch.float32), heads=self.gauge(), free=self._free_head(torch.float32)
            )

    def _free_head(self, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Return the free head in the user's units."""
        if self.free is None:
            return None
        scale, shift = self.gauge.y_scale.to(dtype), self.gauge.y_shift.to(dtype)
        return self.free.weight.to(dtype) * scale.unsqueeze(-1), self.free.bias.to(dtype) * scale + shift

    def train(self, mode: bool = True) -> SafeNetwork:
        """Switch between training and the deployed program; leaving training freezes the heads."""
        if self.training and not mode:
            self.freeze()
        super().train(mode)
        return self

    @torch.no_grad()
    def freeze(self) -> None:
        """Compute the heads in float64, round them to float32 and store them in the deployed program."""
        over = frozen_heads(self.gauge, free_cell=self.free is not None, fallback=not self.deployed.nan_safe_clip)
        free = self._free_head(torch.float64)
        self.deployed.store(over, free)

    def overapproximation(self) -> Overapproximation:
        """Return what the deployed program can reach, as plain arrays."""
        if self.training:
            self.freeze()
        return self.deployed.overapproximation()

    def worst_alpha(self) -> float:
        """Return the smallest step that the gauge allows (1: the raw heads are safe as they are)."""
        with torch.no_grad():
            alphas = self.gauge.alpha()
        return float(alphas.min()) if len(alphas) else 1.0
