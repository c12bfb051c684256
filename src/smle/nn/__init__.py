"""Networks in torch: `SafeNetwork`, any backbone with the head of rules; `BoxNetwork`, the paper's."""

from smle.extras import require

require("torch", "Training networks, or running them in torch,")

from smle.nn.backbones import MLP, Standardize  # noqa: E402
from smle.nn.box_network import BoxNetwork  # noqa: E402
from smle.nn.network import SafeNetwork  # noqa: E402
from smle.nn.units import DataScale  # noqa: E402

__all__ = ["MLP", "BoxNetwork", "DataScale", "SafeNetwork", "Standardize"]
