"""Deployment: ONNX files with their certificates, and twins for outside verifiers.

An exported file needs nothing but an ONNX runtime; `smle.certificates.onnx_checker` checks it with the standard
library alone.
"""

from smle.export.backbone import backbone_model
from smle.export.files import check_onnx, write_network, write_onnx
from smle.export.twin import write_plain_twin, write_twin, write_twins

__all__ = [
    "backbone_model",
    "check_onnx",
    "write_network",
    "write_onnx",
    "write_plain_twin",
    "write_twin",
    "write_twins",
]
