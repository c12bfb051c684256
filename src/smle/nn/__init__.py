"""Safe networks in torch: backbone, bounds, clip, heads, gate."""

from smle.extras import require

require("torch", "What trains networks, or runs them in torch,")

from smle.nn.backbones import CNN, LSTM, MLP, Standardize, Transformer  # noqa: E402
from smle.nn.head_parameters import DataScale  # noqa: E402
from smle.nn.network import SafeNetwork  # noqa: E402

__all__ = ["CNN", "LSTM", "MLP", "DataScale", "SafeNetwork", "Standardize", "Transformer"]
