"""The one place that imports onnx, which is an optional extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from smle.errors import MissingDependencyError

__all__ = ["require_onnx", "require_onnxscript"]


def require_onnx() -> Any:
    """Return the onnx package.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError(
            "Exporting needs the package onnx. Install it with: pip install 'smle[onnx]'"
        ) from error
    return onnx


def require_onnxscript() -> None:
    """Require what torch.onnx needs to export a backbone of any kind.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    require_onnx()
    try:
        import_module("onnxscript")
    except ImportError as error:
        raise MissingDependencyError(
            "Exporting a torch backbone needs the package onnxscript. Install it with: pip install onnxscript"
        ) from error
