"""Models in front of a head as parts of an ONNX graph. The proof does not depend on what they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import ModelFormatError
from smle.extras import require
from smle.nearest.onnx.pieces import Backbone
from smle.nearest.onnx.writer import Writer
from smle.serving.fronts import require_tables
from smle.tables.frames import MISSING
from smle.tables.further import FurtherColumns
from smle_check.onnx.graph import FLOAT, OPSET, OPSETS, STRING
from smle_check.onnx.nodes import EMBEDDING, FEATURES, Input

if TYPE_CHECKING:
    from smle.storage import ModelRecord

__all__ = ["backbone_model", "inlined", "layers_of", "mlp_backbone", "onnx_backbone", "standard", "wide_features"]

Array = npt.NDArray[Any]
_PREFIX = "backbone/"
WIDE = "backbone/wide"  # (batch, D): the inputs of the rules, then the further columns


def layers_of(weights: dict[str, Array], *, scaled: bool = False) -> list[tuple[Array, Array]]:
    """Return the dense layers (weight (out, in), bias (out,)) of an MLP in float64, with its scaling folded in.

    The scaling of the inputs goes into the first layer (unless they come `scaled`), trained constant bounds into the
    last. Raises ModelFormatError for other weights.
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


def mlp_backbone(weights: dict[str, Array], *, scaled: bool = False, source: str = FEATURES) -> Backbone:
    """Build the MLP of a model file from Gemm and Relu nodes; it reads the value `source`."""
    onnx = require("onnx", "ONNX export")
    layers = layers_of(weights, scaled=scaled)
    nodes, initializers = [], []
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

    For tools that change backbones (quantization, pruning). Pass the result to `write_onnx(..., backbone=...)`: the
    certificate stays valid, because the head is unchanged. Inputs are scaled in a separate step, so that 8 bits are
    enough for the inputs of a layer.
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


def wide_features(further: FurtherColumns) -> Backbone:
    """Return nodes that make everything a network reads, with the columns as inputs (N, 1), numbers or text."""
    helper = require("onnx", "ONNX export").helper
    w, parts = Writer("backbone/columns/"), [FEATURES]
    inputs = [helper.make_tensor_value_info(name, FLOAT, ["N", 1]) for name in further.numbers]
    inputs += [helper.make_tensor_value_info(name, STRING, ["N", 1]) for name in further.texts]
    if further.numbers:
        values = w.add("Concat", list(further.numbers), axis=1)
        missing = w.add("IsNaN", [values])
        usual = w.constant(np.array(list(further.numbers.values()), dtype=np.float32))
        parts.append(w.add("Where", [missing, usual, values]))
        if further.flagged:
            names = list(further.numbers)
            places = [names.index(name) for name in further.flagged]
            parts.append(w.rows(w.add("Cast", [missing], to=FLOAT), places, 1))
    for i, (name, known) in enumerate(further.texts.items()):
        stored = helper.make_tensor(f"backbone/columns/text/{i}", STRING, [1, len(known)], [t.encode() for t in known])
        w.initializers.append(stored)
        parts.append(w.add("Cast", [w.add("Equal", [name, stored.name])], to=FLOAT))
    w.last("Concat", parts, WIDE, axis=1)
    return Backbone(w.nodes, w.initializers, inputs)


def onnx_backbone(
    model: Any, *, features: str | None = "features", columns: Sequence[Input] = (), source: str = FEATURES
) -> Backbone:
    """Turn an ONNX model (or its path) into a backbone that makes the embedding (batch, n), or the answer (batch, m).

    Args:
        model: Its first output is used. Functions are inlined, operators of other sets converted.
        features: The input that receives the features (batch, d) of the rules, or None.
        columns: For a model of tables, the inputs of the rules. Its inputs of the same names receive these unchanged; a
            missing text, which is empty, becomes `MISSING`. Others are further columns. A single wide input receives
            the features.
        source: The value passed as the features.

    Raises:
        ModelFormatError: If the model has data in other files, operators of other domains, or an input that reads text
            where the rules have numbers; or if an input of a model of tables is not a table of any number of rows.
    """
    onnx = require("onnx", "ONNX export")
    if isinstance(model, str | PathLike):
        model = onnx.load(str(model))
    elif isinstance(model, bytes):
        model = onnx.load_from_string(model)
    model, opsets = standard(onnx, model)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    if columns:
        require_tables([(value.name, _sizes(value)) for value in inputs])
        features = next((value.name for value in inputs if len(inputs) == 1 and _sizes(value)[1] != 1), None)
    known = {item.name: item for item in columns if item.name != features}
    copied = _Copy(onnx)
    scope = {value.name: value.name for value in inputs}
    for value in inputs:
        kind = value.type.tensor_type.elem_type
        if value.name == features:
            scope[features] = copied.cast(source, kind, FLOAT)
        elif value.name in known:
            scope[value.name] = copied.column(known[value.name], kind)
    answer = copied.graph(graph, scope, _PREFIX)[graph.output[0].name]
    if columns:  # a model's answer, which the head reads as float32
        copied.nodes.append(onnx.helper.make_node("Cast", [answer], [EMBEDDING], to=FLOAT))
    elif answer != EMBEDDING:
        copied.nodes.append(onnx.helper.make_node("Identity", [answer], [EMBEDDING]))
    own = [value for value in inputs if value.name != features and value.name not in known]
    return Backbone(copied.nodes, copied.initializers, own, opsets)


def inlined(onnx: Any, graph: Any, scope: Mapping[str, str]) -> tuple[list[Any], list[Any], str]:
    """Copy the nodes and constants of a graph, its inputs renamed by `scope`; also return the name of its answer."""
    copied = _Copy(onnx)
    answer = copied.graph(graph, scope, _PREFIX)[graph.output[0].name]
    return copied.nodes, copied.initializers, answer


def _sizes(value: Any) -> list[int | str | None]:
    """Return the shape of an input, with None for a size that has neither a number nor a name."""
    sizes = value.type.tensor_type.shape.dim
    return [size.dim_value if size.HasField("dim_value") else size.dim_param or None for size in sizes]


def standard(onnx: Any, model: Any) -> tuple[Any, dict[str, int]]:
    """Inline functions and convert to operator sets that the checker reads; return the model and its sets."""
    if len(model.functions):
        model = require("onnx.inliner", "ONNX export").inline_local_functions(model)
    opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    used = {node.domain for graph in _graphs(onnx, model.graph) for node in graph.node}
    used = {"" if domain == "ai.onnx" else domain for domain in used} | {""}
    if not used <= set(OPSETS) or not len(model.graph.output):
        raise ModelFormatError(
            "Expected an ONNX model with an output, of standard operators and those of ai.onnx.ml. Got "
            f"{len(model.graph.output)} outputs and operators of {', '.join(sorted(used - set(OPSETS))) or 'these'}."
        )
    if opsets.get("", 1) not in OPSETS[""]:
        try:
            model = onnx.version_converter.convert_version(model, OPSET)
        except Exception as error:  # converters raise anything
            raise ModelFormatError(
                f"This ONNX model of operator set {opsets.get('', 1)} cannot be converted to {OPSET}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
        opsets[""] = OPSET
    return model, {domain: opsets[domain] for domain in OPSETS if domain in used}


def _graphs(onnx: Any, graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(onnx, attribute.g)


class _Copy:
    """Copies nodes and constants under names that are unique in the graph."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.subgraphs = 0

    def graph(self, graph: Any, scope: Mapping[str, str], prefix: str) -> dict[str, str]:
        """Copy the nodes and constants of a graph; return the new names of everything known in it."""
        nodes, initializers, names = self._inside(graph, scope, prefix)
        self.nodes += nodes
        self.initializers += initializers
        return names

    def _inside(self, graph: Any, scope: Mapping[str, str], prefix: str) -> tuple[list[Any], list[Any], dict[str, str]]:
        if len(graph.sparse_initializer):
            raise ModelFormatError("Expected an ONNX model without sparse tensors.")
        names = {**scope, "": ""}
        initializers, nodes = [], []
        for tensor in graph.initializer:
            if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
                raise ModelFormatError("Expected an ONNX model whose numbers are in the file itself.")
            stored = self.onnx.TensorProto()
            stored.CopyFrom(tensor)
            stored.name = names[tensor.name] = prefix + tensor.name
            initializers.append(stored)
        for node in graph.node:
            copy = self.onnx.NodeProto()
            copy.CopyFrom(node)
            del copy.input[:], copy.output[:], copy.metadata_props[:]
            copy.input.extend(names[name] for name in node.input)
            copy.domain, copy.doc_string = "" if node.domain == "ai.onnx" else node.domain, ""
            for attribute in copy.attribute:
                if attribute.type == self.onnx.AttributeProto.GRAPH:
                    self._subgraph(attribute, names)
            names |= {name: prefix + name for name in node.output if name}
            copy.output.extend(names[name] for name in node.output)
            nodes.append(copy)
        return nodes, initializers, names

    def _subgraph(self, attribute: Any, scope: Mapping[str, str]) -> None:
        self.subgraphs += 1
        prefix, graph = f"{_PREFIX}graph{self.subgraphs}/", attribute.g
        own = {value.name: prefix + value.name for value in graph.input}
        nodes, initializers, names = self._inside(graph, {**scope, **own}, prefix)
        ends = [[self._value(value, names) for value in values] for values in (graph.input, graph.output)]
        attribute.g.CopyFrom(self.onnx.helper.make_graph(nodes, graph.name, *ends, initializers))

    def _value(self, value: Any, names: Mapping[str, str]) -> Any:
        copy = self.onnx.ValueInfoProto()
        copy.CopyFrom(value)
        copy.name = names[value.name]
        return copy

    def column(self, item: Input, kind: int) -> str:
        """Return an input of the rules in the element type that a model reads."""
        helper, source = self.onnx.helper, item.name
        if item.categories:
            base = f"{_PREFIX}column/{item.name}/"
            blank, missing = (
                helper.make_tensor(base + n, STRING, [], [t]) for n, t in (("blank", ""), ("nan", MISSING))
            )
            self.initializers += [blank, missing]
            self.nodes += [
                helper.make_node("Equal", [source, blank.name], [base + "empty"]),
                helper.make_node("Where", [base + "empty", missing.name, source], [base + "text"]),
            ]
            source = base + "text"
        elif kind == STRING:
            raise ModelFormatError(
                f"The model reads '{item.name}' as text, the rules as a number. State its categories in the rules."
            )
        return self.cast(source, kind, STRING if item.categories else FLOAT)

    def cast(self, source: str, kind: int, known: int) -> str:
        """Cast a value to the wanted type, if it differs."""
        if kind == known:
            return source
        cast = f"{_PREFIX}column/{source}/cast"
        self.nodes.append(self.onnx.helper.make_node("Cast", [source], [cast], to=kind))
        return cast
