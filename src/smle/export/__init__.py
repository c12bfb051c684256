"""Deployment: ONNX files with their certificates.

An exported file needs nothing but an ONNX runtime; `smle.certificates.onnx_checker` checks it with the standard
library alone.
"""

from smle.export.backbone import backbone_model
from smle.export.files import check_onnx, write_network, write_onnx

__all__ = ["backbone_model", "check_onnx", "write_network", "write_onnx"]
