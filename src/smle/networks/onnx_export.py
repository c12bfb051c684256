"""Exports safe networks with any torch backbone as ONNX.

torch.onnx records the call of a module with an example. The result is then tried at other sizes than the example's.
"""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from smle.certificates.document import Certificate
from smle.errors import ModelFormatError
from smle.extras import require
from smle.graphs.backbone import onnx_backbone
from smle.graphs.certified_files import FilePath, write_certified
from smle.nearest.onnx.pieces import Backbone
from smle.networks.backbones import Answers, Rescaled
from smle.networks.folders import CertifiedModule, weights_of
from smle.networks.onnx_operator import quiet_exporter, told_by
from smle.rules import Specification
from smle.serving.fronts import runtime_errors, session_of
from smle_check.onnx.graph import OPSET

__all__ = ["torch_backbone", "write_network"]

_EXAMPLES = 6
_SAME, _SAME_IN_HALF = 1e-3, 5e-2  # tolerance relative to the largest answer


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
        ModelFormatError: If torch.onnx cannot export the backbone, or the export answers differently at other sizes.
        MissingDependencyError: If onnx or onnxruntime is not installed, or onnxscript where torch.onnx needs it.
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
    _try_sizes(call, exported, may_be_fixed=features or dynamic_shapes is not None)
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


def _rows(spec: Specification) -> Tensor:
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
    if not isinstance(whole, Tensor) or whole.shape[:1] != (count,):
        return  # the graph refuses another number of rows
    if whole.shape != alone.shape or not _same(whole, alone):
        raise ModelFormatError(
            "Expected a backbone that answers each row by itself. Got one whose answers change with the other rows of "
            "a batch, or at random: perhaps it takes the rows for one sequence. If they are meant to be one, or the "
            'nodes of one graph, name the axes that are free: dynamic_shapes=({0: "positions"},). Otherwise write a '
            "backbone whose first dimension is the batch, for example one that reads a whole sequence per row, and "
            "pass its arguments for a few rows as example=(...)."
        )


# --- calls with an example


class TensorCall(nn.Module):
    """Wraps a module so that it is called with tensors only: those of an example, wherever they are in its arguments.

    Attributes:
        tensors: The tensors of the example.
        names: A name for each: the argument's, with keys and positions inside it.
    """

    def __init__(self, module: nn.Module, arguments: Any, names: dict[str, str]) -> None:
        super().__init__()
        self.module = module
        found, self._form = trees.tree_flatten_with_path(arguments)
        self._places = [i for i, (_, value) in enumerate(found) if isinstance(value, Tensor)]
        self._constants = [None if isinstance(value, Tensor) else value for _, value in found]
        self._paths = [found[i][0] for i in self._places]
        self.tensors: tuple[Tensor, ...] = tuple(found[i][1].detach().contiguous() for i in self._places)
        self.names = [_name(path, names) for path in self._paths]

    @classmethod
    def of(cls, module: nn.Module, example: Any, *, features: bool) -> TensorCall:
        """Wrap the call of a module with a tensor, a tuple of arguments or a dict of arguments by name.

        Raises ModelFormatError if there is no tensor among them.
        """
        arguments = _arguments(example)
        names = {"0": "features"} if features else _argument_names(module, len(arguments[0]))
        call = cls(module, arguments, names)
        if not call.tensors:
            raise ModelFormatError(
                "Expected example= to hold tensors: one, a tuple of arguments of the backbone, or a dict of arguments "
                f"by name. Got {type(example).__name__} without any."
            )
        return call

    def forward(self, *tensors: Tensor) -> Any:
        """Call the module."""
        leaves = list(self._constants)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        arguments, named = trees.tree_unflatten(leaves, self._form)
        return self.module(*arguments, **named)

    def axes_of(self, shapes: Any) -> list[dict[int, Any]]:
        """Return the free axes of each tensor, or raise ModelFormatError if `shapes` lacks the example's structure."""
        given = trees.tree_flatten_with_path(_arguments(shapes, is_shapes=True), is_leaf=_is_axes)[0]
        known = {trees.keystr(path): axes for path, axes in given}
        ours = [trees.keystr(path) for path in self._paths]
        if not set(ours) <= set(known) or not all(_is_axes(known[path]) for path in ours):
            raise ModelFormatError(
                f"Expected dynamic_shapes in the form of the example, for {', '.join(self.names)}: a dict "
                f'{{axis: "name"}} for each, or None. Got {shapes!r}.'
            )
        return [dict(known[path] or {}) for path in ours]


def _arguments(example: Any, *, is_shapes: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Tensor) or (is_shapes and _is_axes(example)):
        return (example,), {}
    if isinstance(example, dict):
        return (), example
    return (tuple(example) if isinstance(example, list | tuple) else (example,)), {}


def _is_axes(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(axis, int) for axis in value))


def _argument_names(module: nn.Module, count: int) -> dict[str, str]:
    own = module.backbone if isinstance(module, Rescaled | Answers) else module
    assert isinstance(own, nn.Module)
    parameters = inspect.signature(own.forward).parameters
    names = [name for name, parameter in parameters.items() if parameter.kind in (0, 1)]
    if len(names) < count:
        names = [f"backbone_input_{i}" for i in range(count)]
    return {str(i): name for i, name in enumerate(names)}


def _name(path: Any, names: dict[str, str]) -> str:
    """Return `argument.key.place` for a leaf of ((arguments), {by name})."""
    first, *rest = (str(getattr(key, "idx", getattr(key, "key", key))) for key in path[1:])
    is_place = getattr(path[0], "idx", 0) == 0
    return ".".join([names[first] if is_place else first, *rest])


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two answers agree up to rounding."""
    if a.shape != b.shape:
        return False
    usual = a[a.isfinite()]
    largest = usual.abs().max().item() if usual.numel() else 0.0
    allowed = (_SAME if a.dtype in (torch.float32, torch.float64) else _SAME_IN_HALF) * largest
    return torch.allclose(a, b.to(a.dtype), rtol=0.0, atol=allowed, equal_nan=True)


@torch.no_grad()
def _try_sizes(call: TensorCall, model: Any, *, may_be_fixed: bool) -> None:
    """Run an exported model with its free axes at other sizes; raise ModelFormatError if it differs from the module.

    It must not fix an axis that the module does not, unless `may_be_fixed`: then the user said which axes are free.
    Sizes at which the module itself fails are skipped.
    """
    session = session_of(model.SerializeToString())
    sizes = {item.name: item.shape for item in session.get_inputs()}
    shapes = [sizes.get(name, list(part.shape)) for name, part in zip(call.names, call.tensors, strict=True)]
    for name in sorted({size for shape in shapes for size in shape if isinstance(size, str)}):
        axes = [(i, k) for i, shape in enumerate(shapes) for k, size in enumerate(shape) if size == name]
        tried = [
            (other, answer) for other in _resized(call.tensors, axes) if (answer := _answer(call, other)) is not None
        ]
        for other, wanted in tried:
            feed = {n: part.numpy(force=True) for n, part in zip(call.names, other, strict=True) if n in sizes}
            try:
                with runtime_errors():
                    agrees = _same(wanted, torch.from_numpy(session.run(None, feed)[0]))
            except ModelFormatError:
                agrees = False
            if not agrees:
                raise ModelFormatError(
                    "The backbone as torch.onnx exports it answers otherwise than in torch, or fails, at sizes other "
                    f"than the example's: {_sizes(call, other)}. Write it without decisions by sizes, or name the axes "
                    "that are to be free, and the others stay fixed: "
                    f'dynamic_shapes=({{0: "rows"}}, ...), one for each of {", ".join(call.names)}.'
                )
        if not tried:
            _fix(model, call, axes)
    if may_be_fixed:
        return
    for i, shape in enumerate(shapes):
        for k, size in enumerate(shape):
            fixed = isinstance(size, int) and [(i, k)]
            if fixed and any(_answer(call, other) is not None for other in _resized(call.tensors, fixed)):
                raise ModelFormatError(
                    f"torch.onnx fixes axis {k} of '{call.names[i]}' at {size}, where the backbone also takes other "
                    "sizes. Give an example of two or more along each axis, or name those that are to be free, and "
                    f'the others stay fixed: dynamic_shapes=({{0: "rows"}}, ...), one for each of '
                    f"{', '.join(call.names)}."
                )


def _fix(model: Any, call: TensorCall, axes: list[tuple[int, int]]) -> None:
    """Fix axes in the file at the size of the example, because the module takes no other."""
    inputs = {value.name: value for value in model.graph.input}
    for i, k in axes:
        if call.names[i] in inputs:
            inputs[call.names[i]].type.tensor_type.shape.dim[k].dim_value = call.tensors[i].shape[k]


def _resized(tensors: tuple[Tensor, ...], axes: list[tuple[int, int]]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors with axes of one size longer and shorter, repeating entries so that indices stay valid."""
    i, k = axes[0]
    size = tensors[i].shape[k]
    for wanted in {2 * size + 1, size - 1, 2, 1} - {size, 0, -1}:
        if size:
            result = list(tensors)
            for place, axis in axes:
                kept = torch.arange(wanted, device=result[place].device) % size
                result[place] = result[place].index_select(axis, kept)
            yield tuple(result)


def _answer(call: TensorCall, tensors: tuple[Tensor, ...]) -> Tensor | None:
    """Return the module's answer, or None if it fails on these tensors."""
    try:
        found = call(*(part.clone() for part in tensors))
    except Exception:  # noqa: BLE001  # whatever a module raises
        return None
    return found if isinstance(found, Tensor) else None


def _sizes(call: TensorCall, tensors: tuple[Tensor, ...]) -> str:
    return ", ".join(f"'{name}' {tuple(part.shape)}" for name, part in zip(call.names, tensors, strict=True))
