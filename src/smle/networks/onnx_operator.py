"""`smle::serve` in ONNX: files of larger modules that contain certified networks."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import nn

from smle.errors import ModelFormatError, NotCertifiedError
from smle.extras import require
from smle.graphs.certified_files import FilePath
from smle.graphs.head_graph import head_function
from smle.networks.served_heads import exported_heads, find_head
from smle_check.onnx.graph import OPSET

__all__ = ["quiet_exporter", "told_by", "write_module"]

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_FORMATS = ("FLOAT", "FLOAT16", "BFLOAT16")  # formats that float32 can hold


def write_module(
    module: nn.Module, path: FilePath, example: tuple[Any, ...], *, dynamic_shapes: Any = None, **options: Any
) -> None:
    """Write a module that contains certified networks as ONNX, by torch.onnx.

    Each head becomes a function of the file, in the domain `smle`, made of the nodes that the checker prescribes, so
    its output obeys the rules. What the module computes after a head is not covered, so the file has no certificate;
    `network.to_onnx` writes a network alone, with one.

    Args:
        module: The module; it is exported in eval mode.
        path: The file to write.
        example: Its arguments.
        dynamic_shapes: Sizes that may vary, as for torch.onnx.export.
        options: Further options of torch.onnx.export, such as `input_names`.

    Raises:
        ModelFormatError: If torch.onnx cannot export the module, or features of a head are not in float32.
        NotCertifiedError: If the head of a learned box cannot be proved.
        MissingDependencyError: If onnx or onnxscript are not installed.
    """
    require("onnxscript", "Exporting a module")
    packet, modes = torch.ops.smle.serve, [(part, part.training) for part in module.modules()]
    module.eval()
    token = exported_heads.set({})
    try:
        with torch.no_grad(), _explained(), quiet_exporter():
            exported = torch.onnx.export(
                module,
                example,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dynamic_shapes,
                custom_translation_table={packet.default: _call, packet.differentiable: _call},
                verbose=False,
                **options,
            )
        assert exported is not None
        # Bodies come last, so that the exporter does not simplify what is prescribed.
        for name, function in (exported_heads.get() or {}).items():
            exported.model.functions["smle", name, ""] = function
        exported.model.opset_imports["smle"] = 1
        exported.save(path)
    finally:
        exported_heads.reset(token)
        for part, mode in modes:
            part.training = mode


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence torch.onnx: our own errors say what it cannot do."""
    noisy = logging.getLogger("torch.onnx")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        noisy.setLevel(level)


def told_by(error: BaseException | None) -> str:
    """Return the first line of the exporter's message."""
    return _COLORS.sub("", str(error)).splitlines()[0]


@contextmanager
def _explained() -> Iterator[None]:
    """Unwrap our own errors from the exporter's, and explain others."""
    try:
        yield
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ModelFormatError | NotCertifiedError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ModelFormatError(f"torch.onnx cannot export this module. ({told_by(error)})") from error


def _call(features: Any, answers: Any, gradients: Any, key: str) -> Any:
    """Record a call of a head for the running exporter, and keep the body of its function."""
    onnx_ir: Any = require("onnx_ir", "Exporting a module")
    from onnxscript import evaluator

    kind = None if features.dtype is None else features.dtype.name
    if kind not in _FORMATS:
        raise ModelFormatError(
            f"Expected features in float32, which files read, in front of a certified head. Got {kind}. Export the "
            "module with features in float32."
        )
    head, known = find_head(key), exported_heads.get()
    assert known is not None
    name = f"head_{head.digest[:16]}"
    if name not in known:
        certificate = head.certified()
        if certificate is None:
            raise NotCertifiedError("Expected a head that is proved. Got one of a network without rules.")
        known[name] = onnx_ir.from_proto(head_function(certificate, name))
    node = onnx_ir.Node("smle", name, [features, answers], version=1)
    recorder: Any = evaluator.default()
    recorder.nodes.append(node)
    return node.outputs[0]
