"""Safe networks in torch: backbone, bounds, clip, heads, gate."""

from smle.nn.backbones import MLP, Standardize
from smle.nn.gauge import Frame
from smle.nn.network import SafeNetwork

__all__ = ["MLP", "Frame", "SafeNetwork", "Standardize"]
