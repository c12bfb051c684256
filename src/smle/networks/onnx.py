"""Exports safe networks with any torch backbone as ONNX."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
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
from smle.networks.calls import TensorCall, same, try_sizes
from smle.networks.folders import CertifiedModule, weights_of
from smle.networks.onnx_operator import quiet_exporter, told_by
from smle.rules import Specification
from smle_check.onnx.graph import OPSET

__all__ = ["torch_backbone", "write_network"]

_EXAMPLES = 6


def write_network(
    network: CertifiedModule,
    path: FilePath,
    *,
    example: Any = None,
    dynamic_shapes: Any = None,
    certificate: Certificate | None = None,
    backbone: Any | FilePath | None = None,
    monitor: bool = True,
    stacked: bool = False,
) -> Certificate | None:
    """Write a network with any torch backbone as ONNX, with its certificate; return the certificate.

    Args:
        network: The network; it is switched to eval mode.
        path: The ONNX file to write.
        example: Arguments of the backbone for two rows or more, if it reads anything but the features: a tensor, a
            tuple of arguments, or a dict of arguments by name. They become inputs of the graph next to those of the
            rules, even one called `features`. Answers to sequences (B, T, m) are B * T rows.
        dynamic_shapes: The free axes of these arguments, in the form of `example`: a dict {axis: name} for each tensor,
            None if all are fixed. By default all that the backbone does not fix are free, and each row is answered by
            itself. With named axes, rows may be the steps of one sequence, or the nodes of one graph.
        certificate: The certificate of a BoxNetwork, if it already has one.
        backbone: The backbone as an ONNX model or its path, instead of an export by torch.onnx.
        monitor: Add the outputs `in_domain`, `outside_input` and `active_rules`. False: a smaller and faster graph.
        stacked: Write all answers to one tensor `outputs`, see `write_onnx`.

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
        part = torch_backbone(network.backbone, example, features=False, dynamic_shapes=dynamic_shapes)
    else:
        part = torch_backbone(network.reading_features(), _rows(spec), features=True, dynamic_shapes=dynamic_shapes)
    write_certified(spec, certificate, weights_of(network), part, Path(path), monitor=monitor, stacked=stacked)
    return certificate


def torch_backbone(module: nn.Module, example: Any, *, features: bool, dynamic_shapes: Any = None) -> Backbone:
    """Export any torch module in eval mode as a backbone, and try it at other sizes than the example's.

    `example` has its arguments for at least two rows; `features` says that its only argument is the features of the
    rules. Raises ModelFormatError if torch.onnx cannot export it, the export answers differently at another size, or
    answers to a row depend on other rows without `dynamic_shapes`.
    """
    require("onnxscript", "Exporting a torch backbone")
    module.eval()
    call = TensorCall.of(module, example, features=features)
    if dynamic_shapes is None:
        _require_rows(call)
        wanted = [_own_axes(call)] if features else [_all_axes(call), _own_axes(call)]
    else:
        wanted = [call.axes_of(dynamic_shapes)]
    for axes in wanted:
        try:
            exported = _exported(call, axes)
            break
        except torch.onnx.OnnxExporterError as error:
            reason = error
    else:
        raise ModelFormatError(
            "torch.onnx cannot export this backbone. If it reads something else than the features of the rules, pass "
            "its arguments for a few rows as example=(...). Otherwise export it in another way, to one output "
            f"(batch, n), and pass the file as backbone=. ({told_by(reason)})"
        ) from reason
    try_sizes(call, exported, may_be_fixed=features or dynamic_shapes is not None)
    return onnx_backbone(exported, features="features" if features else None)


def _exported(call: TensorCall, axes: list[dict[int, Any]]) -> Any:
    """Export a call as an ONNX model; named axes are free."""
    with quiet_exporter():
        exported = torch.onnx.export(
            call,
            call.tensors,
            dynamo=True,
            opset_version=OPSET,
            input_names=call.names,
            dynamic_shapes=(tuple(axes),),
            external_data=False,
            verbose=False,
        )
    assert exported is not None
    return exported.model_proto


def _own_axes(call: TensorCall) -> list[dict[int, Any]]:
    """Return the first axis of every argument as free."""
    return [{0: torch.export.Dim.DYNAMIC} if part.ndim else {} for part in call.tensors]


def _all_axes(call: TensorCall) -> list[dict[int, Any]]:
    """Return all axes as free if the module allows it."""
    return [dict.fromkeys(range(part.ndim), torch.export.Dim.AUTO) for part in call.tensors]


def _rows(spec: Specification) -> torch.Tensor:
    """Return distinct inputs of the domain, (rows, d)."""
    low, high = (torch.tensor([float(v) for v in side], dtype=torch.float64) for side in (spec.lower, spec.upper))
    shares = torch.rand(_EXAMPLES, len(low), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (low + shares * (high - low)).to(torch.float32)


@torch.no_grad()
def _require_rows(call: TensorCall) -> None:
    """Raise ModelFormatError if answers to a row depend on other rows: the rows of a file are not a sequence."""
    count = len(call.tensors[0]) if call.tensors and call.tensors[0].ndim else 0
    try:
        whole = call(*(part.clone() for part in call.tensors))
        parts = [call(*(part[i : i + 2].clone() for part in call.tensors)) for i in range(0, count, 2)]
        alone = torch.cat(parts)
    except Exception:  # noqa: BLE001  # whatever a module raises: arguments may have no rows in common, as edges of a graph
        return
    if not isinstance(whole, torch.Tensor) or whole.shape[:1] != (count,):
        return  # the graph refuses another number of rows
    if whole.shape != alone.shape or not same(whole, alone):
        raise ModelFormatError(
            "Expected a backbone that answers each row by itself. Got one whose answers change with the other rows of "
            "a batch, or at random: it takes the rows for one sequence, perhaps. If they are meant to be one, or the "
            'nodes of one graph, name the axes that are free: dynamic_shapes=({0: "positions"},). Otherwise write a '
            "backbone whose first dimension is the batch, for example one that reads a whole sequence per row, and "
            "pass its arguments for a few rows as example=(...)."
        )
