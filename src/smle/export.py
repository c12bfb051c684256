"""ONNX files with their certificates.

An exported file runs on any ONNX runtime; `smle_check` checks it with the standard library alone. Only `write_network`
and `write_module` need torch, and load it on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smle.graphs.backbone import backbone_model
from smle.graphs.certified_files import check_onnx, write_onnx
from smle.graphs.onnx_model import OnnxModel, load_onnx

if TYPE_CHECKING:
    from smle.networks.onnx_export import write_network
    from smle.networks.onnx_operator import write_module

__all__ = ["OnnxModel", "backbone_model", "check_onnx", "load_onnx", "write_module", "write_network", "write_onnx"]


_TORCH = {"write_network": "smle.networks.onnx_export", "write_module": "smle.networks.onnx_operator"}


def __getattr__(name: str) -> Any:
    if name in _TORCH:
        return getattr(import_module(_TORCH[name]), name)
    raise AttributeError(f"module 'smle.export' has no attribute '{name}'")
