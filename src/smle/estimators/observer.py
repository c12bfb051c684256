"""Rows as a network behind a box sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.assurance import DeployedNetwork
from smle.guarantees import regions_of
from smle.monitor import Observation
from smle.nn.gate import Gate, InputClamp
from smle.rules import Specification
from smle.tables import in_domain

__all__ = ["Observer"]


class Observer:
    """Looks at encoded rows as a deployed network does. Every rule is judged at its own region, gated or not."""

    def __init__(self, spec: Specification, network: DeployedNetwork) -> None:
        self.spec, self.network = spec, network
        bare = regions_of(spec)
        stated = tuple(r for r, rows in enumerate(bare.regions) if rows)
        self._domain, self._guard = InputClamp(spec), Gate(spec, replace(bare, gated=stated))
        member = np.zeros((len(stated), len(spec.rules)), dtype=np.float32)
        for position, region in enumerate(stated):
            member[position, list(bare.rules[region])] = 1.0
        self._member = torch.from_numpy(member)
        always = {rule for r, rows in enumerate(bare.regions) if not rows for rule in bare.rules[r]}
        self._always = np.array([rule in always for rule in range(len(spec.rules))], dtype=bool)

    def look(self, encoded: npt.NDArray[Any]) -> Observation:
        """Return what is active, used, inside and clipped for encoded rows (rows, d)."""
        features = self.network.head.read(torch.tensor(encoded))
        with torch.inference_mode():
            bits = self._guard.active(self._domain(features)).to(torch.float32)
            active = (bits @ self._member > 0).numpy() | self._always
        cell, clipped = self.network.cell_of(features), self.network.clipped(features)
        return Observation(active, in_domain(self.spec, encoded), cell, clipped)
