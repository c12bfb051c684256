"""Backbones as pieces of an ONNX graph. Their arithmetic is no part of the proof: what they compute is clipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import ModelFormatError
from smle.extras import require
from smle_check.onnx.graph import OPSET
from smle_check.onnx.program import EMBEDDING, FEATURES

if TYPE_CHECKING:
    from smle.storage import ModelRecord

__all__ = ["Backbone", "backbone_model", "layers_of", "mlp_backbone", "onnx_backbone"]

Array = npt.NDArray[Any]
_PREFIX = "backbone/"


@dataclass(frozen=True, eq=False)
class Backbone:
    """Nodes that make the embedding (batch, n) from the features (batch, d) or from inputs of their own.

    `opsets`: the version of each domain whose operators they are.
    """

    nodes: list[Any]
    initializers: list[Any]
    inputs: list[Any] = field(default_factory=list)
    opsets: dict[str, int] = field(default_factory=lambda: {"": OPSET})


def layers_of(weights: dict[str, Array], *, scaled: bool = False) -> list[tuple[Array, Array]]:
    """Return the dense layers (weight (out, in), bias (out,)) of an MLP in float64, its scaling folded into them.

    The scaling of the inputs goes into the first layer (unless they come `scaled`), trained constant bounds go into
    the last.

    Raises:
        ModelFormatError: If the weights are not those of an MLP.
    """
    prefix = "backbone.backbone." if "backbone.rescale.scale" in weights else "backbone."
    own = {k[len(prefix) :]: v.astype(np.float64) for k, v in weights.items() if k.startswith(prefix)}
    own = {k: v for k, v in own.items() if not k.startswith("rescale.")}
    numbers = sorted({int(k.split(".")[0]) for k in own if k.split(".")[0].isdigit()} - {0})
    expected = {"0.shift", "0.scale"} | {f"{i}.{part}" for i in numbers for part in ("weight", "bias")}
    if not numbers or numbers != list(range(1, 2 * len(numbers), 2)) or set(own) != expected:
        raise ModelFormatError(
            "Expected the weights of an MLP backbone. Export networks with other backbones with write_network."
        )
    layers = [(own[f"{i}.weight"], own[f"{i}.bias"]) for i in numbers]
    if not scaled:
        W, b = layers[0]
        layers[0] = W / own["0.scale"], b - W @ (own["0.shift"] / own["0.scale"])
    if "backbone.rescale.scale" in weights:
        scale, shift = (weights[f"backbone.rescale.{part}"].astype(np.float64) for part in ("scale", "shift"))
        W, b = layers[-1]
        layers[-1] = W * scale[:, None], b * scale + shift
    return layers


def mlp_backbone(weights: dict[str, Array], *, scaled: bool = False) -> Backbone:
    """Return the MLP of a model file, built by hand: Gemm and Relu.

    Raises:
        ModelFormatError: If the weights are not those of an MLP.
    """
    onnx = require("onnx", "ONNX export")
    layers = layers_of(weights, scaled=scaled)
    nodes, initializers, source = [], [], FEATURES
    for i, (W, b) in enumerate(layers):
        names = [f"{_PREFIX}{i}/{part}" for part in ("weight", "bias")]
        initializers += [
            onnx.numpy_helper.from_array(np.ascontiguousarray(value, dtype=np.float32), name)
            for name, value in zip(names, (W, b), strict=True)
        ]
        last = i == len(layers) - 1
        output = EMBEDDING if last else f"{_PREFIX}{i}/affine"
        nodes.append(onnx.helper.make_node("Gemm", [source, *names], [output], transB=1))
        if not last:
            source = f"{_PREFIX}{i}/relu"
            nodes.append(onnx.helper.make_node("Relu", [output], [source]))
    return Backbone(nodes, initializers)


def backbone_model(record: ModelRecord) -> Any:
    """Return the backbone of a model alone, as an ONNX model `features` -> `embedding`.

    For tools that change backbones (quantization, pruning): what comes out may be given to `write_onnx(...,
    backbone=...)`, and the certificate stays, because the head is not touched. The inputs are scaled in a step of its
    own, so that 8 bits for a layer's inputs serve all of them.
    """
    onnx = require("onnx", "ONNX export")
    layers = layers_of(record.weights)
    part = mlp_backbone(record.weights, scaled=True)
    prefix = "backbone.backbone.0." if "backbone.rescale.scale" in record.weights else "backbone.0."
    part.initializers.extend(
        onnx.numpy_helper.from_array(record.weights[prefix + name].astype(np.float32), name)
        for name in ("shift", "scale")
    )
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Sub", ["features", "shift"], ["shifted"]),
            onnx.helper.make_node("Div", ["shifted", "scale"], [FEATURES]),
            *part.nodes,
            onnx.helper.make_node("Identity", [EMBEDDING], ["embedding"]),
        ],
        "backbone",
        [onnx.helper.make_tensor_value_info("features", kind, ["N", layers[0][0].shape[1]])],
        [onnx.helper.make_tensor_value_info("embedding", kind, ["N", layers[-1][0].shape[0]])],
        part.initializers,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9, producer_name="smle")


def onnx_backbone(model: Any, *, features: str | None = "features") -> Backbone:
    """Return a backbone given as an ONNX model (or its path) with one output, the embedding (batch, n).

    The input named by `features` is fed with the features (batch, d) of the rules; others become inputs of their own.

    Raises:
        ModelFormatError: If it has several outputs, functions, data in other files or operators of other domains.
    """
    onnx = require("onnx", "ONNX export")
    if isinstance(model, str | PathLike):
        model = onnx.load(str(model))
    if any(entry.domain in ("", "ai.onnx") and entry.version != OPSET for entry in model.opset_import):
        model = onnx.version_converter.convert_version(model, OPSET)
    graph = model.graph
    strange = sorted({node.domain for node in graph.node} - {"", "ai.onnx"})
    if strange or len(graph.output) != 1 or len(model.functions):
        raise ModelFormatError(
            "Expected a backbone with one output, of standard ONNX operators without functions. "
            f"Got {len(graph.output)} outputs, {len(model.functions)} functions, domains {strange}."
        )
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    names = {value.name: value.name for value in inputs} | {"": ""}
    if features is not None:
        names[features] = FEATURES
    final = graph.output[0].name
    nodes = []
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:], copy.metadata_props[:]
        copy.input.extend(names.get(name, f"{_PREFIX}{name}") for name in node.input)
        copy.output.extend(f"{_PREFIX}{name}" if name else "" for name in node.output)
        copy.domain, copy.doc_string = "", ""
        nodes.append(copy)
    source = names.get(final, f"{_PREFIX}{final}")
    if source != EMBEDDING:
        nodes.append(onnx.helper.make_node("Identity", [source], [EMBEDDING]))
    initializers = []
    for tensor in graph.initializer:
        stored = onnx.TensorProto()
        stored.CopyFrom(tensor)
        stored.name = f"{_PREFIX}{tensor.name}"
        initializers.append(stored)
    return Backbone(nodes, initializers, [value for value in inputs if value.name != features])
