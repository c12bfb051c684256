"""`smle::serve` in ONNX: files of modules that contain certified networks, and compute more around them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from smle.errors import ModelFormatError, NotCertifiedError
from smle.extras import require
from smle.graphs.certified_files import FilePath
from smle.graphs.head_functions import head_function
from smle.networks.served_heads import exported_heads, find_head
from smle_check.onnx.graph import OPSET

__all__ = ["write_module"]

_FORMATS = ("FLOAT", "FLOAT16", "BFLOAT16")  # that float32 holds


def write_module(
    module: nn.Module, path: FilePath, example: tuple[Any, ...], *, dynamic_shapes: Any = None, **options: Any
) -> None:
    """Write a module that contains certified networks as ONNX, by torch.onnx.

    Each head becomes a function of the file, in the domain `smle`, made of the nodes that the checker prescribes: what
    comes out of it obeys. What the module computes behind a head is its own, so the file has no certificate;
    `network.to_onnx` writes a network alone, with one.

    Args:
        module: The module; it is exported in eval mode.
        path: The file to write.
        example: Its arguments.
        dynamic_shapes: Sizes that may be others in the file, as torch.onnx.export takes them.
        options: Further ones of torch.onnx.export, such as `input_names`.

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
        with torch.no_grad(), _explained():
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
        # Bodies come last: what is prescribed is not for the exporter to simplify.
        for name, function in (exported_heads.get() or {}).items():
            exported.model.functions["smle", name, ""] = function
        exported.model.opset_imports["smle"] = 1
        exported.save(path)
    finally:
        exported_heads.reset(token)
        for part, mode in modes:
            part.training = mode


@contextmanager
def _explained() -> Iterator[None]:
    """Keep the exporter quiet, and say in our own words what it cannot do."""
    noisy = logging.getLogger("torch.onnx")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ModelFormatError | NotCertifiedError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ModelFormatError(f"torch.onnx cannot export this module. ({str(error).splitlines()[0]})") from error
    finally:
        noisy.setLevel(level)


def _call(features: Any, answers: Any, gradients: Any, key: str) -> Any:
    """Put down a call of a head, for the exporter that is at work, and keep the body of its function."""
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
    evaluator.default().nodes.append(node)
    return node.outputs[0]
