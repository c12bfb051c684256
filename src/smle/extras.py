"""Imports optional packages, or says which extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from smle.errors import MissingDependencyError

__all__ = ["require"]

_EXTRAS = {
    "onnx": "onnx",
    "onnxmltools": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "torch",
    "pyarrow": "parquet",
    "skl2onnx": "onnx",
    "torch": "torch",
}

_OTHERS = ("lightgbm", "mlflow", "pyspark", "ray", "xgboost")  # users install these themselves


def require(module: str, what: str, *, instead: str = "") -> Any:
    """Import a module of an optional package, such as `pyarrow.parquet`, or raise MissingDependencyError.

    `what` is the subject of the message: what needs the package. `instead` names what to use otherwise.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in (*_EXTRAS, *_OTHERS):  # the package exists, but misses something itself
            raise
        wanted = f"'smle[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        other = f", or use {instead}" if instead else ""
        raise MissingDependencyError(
            f"{what} needs the package {package}. Install it with: pip install {wanted}{other}"
        ) from error
