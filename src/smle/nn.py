"""Networks in torch: `SafeNetwork`, any backbone with a head of rules, and `BoxNetwork`, the network of the paper."""

from smle.heads.box.network.box_network import BoxNetwork
from smle.networks.backbones import MLP, Standardize
from smle.networks.safe_network import SafeNetwork
from smle.networks.units import DataScale

__all__ = ["MLP", "BoxNetwork", "DataScale", "SafeNetwork", "Standardize"]
