"""Safe networks in torch: backbone, bounds, clip, heads, gate."""

from smle.nn.backbones import CNN, LSTM, MLP, Standardize, Transformer
from smle.nn.head_parameters import Frame
from smle.nn.network import SafeNetwork

__all__ = ["CNN", "LSTM", "MLP", "Frame", "SafeNetwork", "Standardize", "Transformer"]
