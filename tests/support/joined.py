"""Heads in ONNX files, behind a model that answers whatever it is handed; and files that are changed node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from smle.certificates.document import Certificate, arrays_of
from smle.heads.table import certify_head
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle.storage import ModelRecord
from smle_check.onnx.nodes import EMBEDDING

from .exported import Exported, accepted, exported, feed, resealed

ANSWERS = "answers of the model"
KINDS = ("operator", "input order", "input", "attribute", "domain", "removed")
CONSTANT_KINDS = ("value", "shape", "removed", "twice", "stored elsewhere")
UNPROVED = ("proposals/", "backbone/")


def handed(m: int) -> Backbone:
    """A model that answers what it is handed."""
    value = helper.make_tensor_value_info(ANSWERS, TensorProto.FLOAT, ["N", m])
    return Backbone([helper.make_node("Identity", [ANSWERS], [EMBEDDING])], [], [value])


def joined(
    spec: Specification, certificate: Certificate | None = None, *, model: Backbone | None = None, **options: Any
) -> Exported:
    """Return the head that suits any model as ONNX, with its certificate; options as in `model_of`."""
    if certificate is None:
        certificate = certify_head(spec, files={"rules": spec.to_yaml().encode()})
    record = ModelRecord(arrays_of(certificate.tensors), {}, spec.to_yaml(), certificate)
    return exported(record, model or handed(len(spec.targets)), **options)


def asked(
    running: onnxruntime.InferenceSession, spec: Specification, X: np.ndarray, answers: np.ndarray
) -> dict[str, Any]:
    """Return the outputs for encoded rows and handed answers."""
    names = [output.name for output in running.get_outputs()]
    return dict(zip(names, running.run(None, {**feed(spec, X), ANSWERS: answers.astype(np.float32)}), strict=True))


def graphs_of(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """Return the graph and all branches of the head, in their order."""
    found = [model.graph]
    for graph in found:
        own = (node for node in graph.node if not node.output[0].startswith(UNPROVED))
        found += [attribute.g for node in own for attribute in node.attribute if attribute.HasField("g")]
    return found


def damaged(graph: onnx.GraphProto, place: int, kind: str) -> None:
    target = graph.node[place]
    if kind == "operator":
        swaps = {"Max": "Min", "ArgMax": "ArgMin", "GreaterOrEqual": "Greater", "LessOrEqual": "Less"}
        swaps |= {"Min": "Max", "ArgMin": "ArgMax"}
        target.op_type = swaps.get(target.op_type, "Identity")
    elif kind == "input order":
        target.input[:] = list(target.input)[::-1] if len(set(target.input)) > 1 else ["inputs/features"]
    elif kind == "input":
        target.input[0] = "inputs/features" if target.input[0] == EMBEDDING else EMBEDDING
    elif kind == "attribute":
        target.attribute.append(helper.make_attribute("select_last_index", 1))
    elif kind == "domain":
        target.domain = "com.microsoft"
    else:
        del graph.node[place]


def every_node_counts(made: Exported, at_once: int) -> int:
    """Damage each node of the head in so many ways, make the digests new, expect refusals; return how many."""
    tried = 0
    for number, graph in enumerate(graphs_of(onnx.load_from_string(made.onnx))):
        for place, node in enumerate(graph.node):
            if node.output[0].startswith(UNPROVED):
                continue
            for kind in (KINDS[(place + i) % len(KINDS)] for i in range(at_once)):
                if kind == "operator" and node.output[0].startswith("choices/") and node.output[0].endswith("/index"):
                    continue  # which way a choice is picked is the exporter's word
                changed = onnx.load_from_string(made.onnx)
                damaged(graphs_of(changed)[number], place, kind)
                data = changed.SerializeToString(deterministic=True)
                if data == made.onnx:
                    continue
                assert accepted(data, resealed(made.companion, data)) is None, (node.output[0], kind)
                tried += 1
    return tried


def other_constant(graph: onnx.GraphProto, name: str, kind: str) -> None:
    (found,) = (tensor for tensor in graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(found)
    if kind == "shape":
        found.dims.append(1)
    elif kind == "removed":
        graph.initializer.remove(found)
    elif kind == "twice":
        graph.initializer.append(found)
    elif kind == "stored elsewhere" and array.dtype == np.float32:
        found.ClearField("raw_data")
        found.float_data.extend(array.ravel().tolist())
    elif kind == "stored elsewhere":
        found.data_location = TensorProto.EXTERNAL
    elif kind == "narrower":
        narrow = array.astype(np.float32) if array.dtype == np.float64 else array
        found.CopyFrom(numpy_helper.from_array(narrow, name))
    elif array.dtype == object:
        found.string_data[0] = b"other"
    elif array.size:
        moved = array.copy().ravel()
        step = {"f": lambda v: np.nextafter(v, v.dtype.type(9e30)), "b": np.logical_not}
        moved[-1] = step.get(array.dtype.kind, lambda v: v + 2)(moved[-1])
        found.CopyFrom(numpy_helper.from_array(moved.reshape(array.shape), name))


def every_constant_counts(
    made: Exported, kinds: tuple[str, ...] = CONSTANT_KINDS, *, free: tuple[str, ...] = ()
) -> set[str]:
    """Change each constant of the head in several ways, make the digests new, expect refusals; return their names.

    Values of names that start with those in `free` may move: they are the exporter's word, or proved anew.
    """
    constants = [tensor.name for tensor in onnx.load_from_string(made.onnx).graph.initializer]
    names = [name for name in constants if not name.startswith(UNPROVED)]
    for name in names:
        for kind in kinds:
            if kind == "value" and (name.startswith(free) or name.endswith("/otherwise")):
                continue
            changed = onnx.load_from_string(made.onnx)
            other_constant(changed.graph, name, kind)
            data = changed.SerializeToString(deterministic=True)
            unchanged = kind in ("narrower", "value") and data == made.onnx  # it is narrow, or empty
            assert unchanged or accepted(data, resealed(made.companion, data)) is None, (name, kind)
    return set(names)
