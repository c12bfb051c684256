"""Safe networks with any torch backbone as ONNX. The one part of exporting that needs torch."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import inspect
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smle.certificates.document import Certificate
from smle.errors import ModelFormatError
from smle.extras import require
from smle.graphs.backbone import onnx_backbone
from smle.graphs.certified_files import FilePath, write_certified
from smle.nearest.onnx.pieces import Backbone
from smle.networks.backbones import Answers, Rescaled
from smle.networks.folders import CertifiedModule, weights_of
from smle.rules import Specification
from smle_check.onnx.graph import OPSET

__all__ = ["torch_backbone", "write_network"]

_EXAMPLES = 6
_SAME, _SAME_IN_HALF = 1e-3, 5e-2  # of the largest answer
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def write_network(
    network: CertifiedModule,
    path: FilePath,
    *,
    example: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    certificate: Certificate | None = None,
    backbone: Any | FilePath | None = None,
    monitor: bool = True,
) -> Certificate | None:
    """Write a network with any torch backbone as ONNX, with its certificate; return the certificate.

    Args:
        network: The network; it is switched to eval mode.
        path: The ONNX file to write.
        example: Arguments of the backbone for two rows or more, where it reads something else than the features.
            They become inputs of the graph beside those of the rules, also one that is called `features`.
        certificate: That of a BoxNetwork, if there is one already; otherwise it is certified first.
        backbone: The backbone as an ONNX model or its path, if torch.onnx is not to export it.
        monitor: Add the outputs `in_domain`, `outside_input` and `active_rules`. False: a smaller and faster graph.

    Raises:
        NotCertifiedError: If a rule cannot be proved.
        CertificateError: If the certificate is not accepted for this network.
        MissingDependencyError: If onnx, or onnxscript where torch.onnx needs it, is not installed.
    """
    certificate = network.certified() if certificate is None else certificate
    network.eval()
    spec = network.spec
    if backbone is not None:
        part = onnx_backbone(backbone)
    elif example is not None:
        arguments = (example,) if isinstance(example, torch.Tensor) else tuple(example)
        part = torch_backbone(network.backbone, arguments, features=False)
    else:
        part = torch_backbone(network.reading_features(), (_rows(spec),), features=True)
    write_certified(spec, certificate, weights_of(network), part, Path(path), monitor=monitor)
    return certificate


def torch_backbone(module: nn.Module, example: tuple[torch.Tensor, ...], *, features: bool) -> Backbone:
    """Return any torch module as a backbone, exported by torch.onnx; the first dimension is the batch.

    Args:
        module: The backbone; it is exported in eval mode.
        example: Its arguments, for at least two rows.
        features: Whether its one argument is the features of the rules.

    Raises:
        MissingDependencyError: If torch.onnx lacks the package onnxscript.
        ModelFormatError: If torch.onnx cannot export it, or its answers to a row depend on other rows.
    """
    require("onnxscript", "Exporting a torch backbone")
    module.eval()
    _require_rows(module, example)
    names = ["features"] if features else _argument_names(module, len(example))
    shapes: tuple[Any, ...] = tuple({0: torch.export.Dim.DYNAMIC} for _ in example)
    if not _positional(module):  # forward(*inputs)
        shapes = (shapes,)
    noisy = logging.getLogger("torch.onnx")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(
                module,
                example,
                dynamo=True,
                opset_version=OPSET,
                input_names=names,
                dynamic_shapes=shapes,
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ModelFormatError(
            "torch.onnx cannot export this backbone. If it reads something else than the features of the rules, pass "
            "its arguments for a few rows as example=(...). Otherwise export it in another way, to one output "
            f"(batch, n), and pass the file as backbone=. ({_COLORS.sub('', str(error)).splitlines()[0]})"
        ) from error
    finally:
        noisy.setLevel(level)
    assert exported is not None
    return onnx_backbone(exported.model_proto, features="features" if features else None)


def _rows(spec: Specification) -> torch.Tensor:
    """Return different inputs of the domain, (rows, d)."""
    low, high = (torch.tensor([float(v) for v in side], dtype=torch.float64) for side in (spec.lower, spec.upper))
    shares = torch.rand(_EXAMPLES, len(low), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (low + shares * (high - low)).to(torch.float32)


@torch.no_grad()
def _require_rows(module: nn.Module, example: tuple[torch.Tensor, ...]) -> None:
    """Refuse a module that answers a row otherwise beside other rows: those of a file are rows, not a sequence.

    Raises:
        ModelFormatError: If it does.
    """
    count = len(example[0])
    try:
        whole = module(*(part.clone() for part in example))
        parts = [module(*(part[i : i + 2].clone() for part in example)) for i in range(0, count, 2)]
    except Exception:  # noqa: BLE001  # whatever a module raises: the exporter runs it too, and says what is wrong
        return
    if not isinstance(whole, torch.Tensor) or whole.shape[:1] != (count,):
        return  # the graph refuses another number of rows
    alone = torch.cat(parts)
    allowed = (_SAME if whole.dtype in (torch.float32, torch.float64) else _SAME_IN_HALF) * whole.abs().max().item()
    if whole.shape != alone.shape or not torch.allclose(whole, alone, rtol=0.0, atol=allowed, equal_nan=True):
        raise ModelFormatError(
            "Expected a backbone that answers each row by itself. Got one whose answers change with the other rows of "
            "a batch, or at random: it takes the rows for one sequence, perhaps. Write a backbone whose first "
            "dimension is the batch, for example one that reads a whole sequence per row, and pass its arguments for a "
            "few rows as example=(...); or use the network in torch, which serves sequences (..., steps, columns)."
        )


def _positional(module: nn.Module) -> list[str]:
    return [
        name for name, parameter in inspect.signature(module.forward).parameters.items() if parameter.kind in (0, 1)
    ]


def _argument_names(module: nn.Module, count: int) -> list[str]:
    names = _positional(module.backbone if isinstance(module, Rescaled | Answers) else module)
    return names[:count] if len(names) >= count else [f"backbone_input_{i}" for i in range(count)]
