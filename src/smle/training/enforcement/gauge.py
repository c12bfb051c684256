"""The gauge: heads are safe for every value of their raw parameters, so there is nothing to do."""

from __future__ import annotations

from smle.nn.network import SafeNetwork
from smle.training.enforcement.base import Enforcement

__all__ = ["GaugeEnforcement"]


class GaugeEnforcement(Enforcement):
    """Safe after every step, without a solver: the network does it itself (`smle.nn.gauge`)."""

    name = "gauge"
    gauge = True

    def margin(self, network: SafeNetwork) -> tuple[str, float]:
        """Return the smallest step that the gauge allows: 1 means that no rule holds the heads back."""
        return "step", network.step()
