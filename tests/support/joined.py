"""Heads of rules in ONNX files, behind a model that answers whatever it is handed, or behind a stored one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from smle.certificates.document import Certificate, arrays_of
from smle.graphs.certified_files import _sealed
from smle.graphs.head_graph import certified_program, graph_model, interface_of
from smle.heads.rules.rules_author import certify_rules
from smle.heads.rules.rules_onnx import proposals_of
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Specification
from smle.storage import ModelRecord
from smle_check.onnx.nodes import EMBEDDING

from .exported import Exported, accepted, feed, resealed

ANSWERS = "answers of the model"
BRANCHES = ("then", "else", "then then", "then else")
KINDS = ("operator", "input order", "input", "attribute", "domain", "removed")
CONSTANT_KINDS = ("value", "shape", "removed", "twice", "stored elsewhere")
UNPROVED = ("proposals/", "backbone/")


def handed(m: int) -> Backbone:
    """A model that answers what it is handed."""
    value = helper.make_tensor_value_info(ANSWERS, TensorProto.FLOAT, ["N", m])
    return Backbone([helper.make_node("Identity", [ANSWERS], [EMBEDDING])], [], [value])


def joined(
    spec: Specification,
    certificate: Certificate | None = None,
    *,
    monitor: bool = True,
    model: Backbone | None = None,
    proposals: tuple[list[Backbone], int] | None = None,
) -> Exported:
    """Return the head of rules as ONNX, with its certificate; `proposals` in place of the nearest allowed answers."""
    if certificate is None:
        certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode()})
    interface = interface_of(spec, monitor=monitor)
    if proposals is None and "check.scale" in certificate.tensors:
        proposals = proposals_of(certificate)
    nodes, count = proposals or ([], 1)
    program = certified_program(interface, certificate, certificate.tensors, proposals=count)
    titles = [rule["name"] for rule in certificate.document["specification"]["rules"]]
    graph = graph_model(interface, program, model or handed(len(spec.targets)), titles, nodes)
    data = graph.SerializeToString(deterministic=True)
    record = ModelRecord(arrays_of(certificate.tensors), {}, spec.to_yaml(), certificate)
    return Exported(spec, record, data, _sealed(certificate, data))


def asked(
    running: onnxruntime.InferenceSession, spec: Specification, X: np.ndarray, answers: np.ndarray
) -> dict[str, Any]:
    """Return the outputs for encoded rows and handed answers."""
    names = [output.name for output in running.get_outputs()]
    return dict(zip(names, running.run(None, {**feed(spec, X), ANSWERS: answers.astype(np.float32)}), strict=True))


def branch(model: onnx.ModelProto, which: str = "then") -> onnx.GraphProto:
    """Return a branch, or the branch of a branch."""
    graph = model.graph
    for part in which.split():
        (node,) = (n for n in graph.node if n.op_type == "If")
        graph = next(a.g for a in node.attribute if a.name == f"{part}_branch")
    return graph


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


def every_node_counts(made: Exported, at_once: int, *, branches: bool) -> int:
    """Damage each node of the head in so many ways, make the digests new, expect refusals; return how many."""
    tried = 0
    for which in ("", *(BRANCHES if branches else ())):
        for place, node in enumerate(branch(onnx.load_from_string(made.onnx), which).node):
            if node.output[0].startswith(UNPROVED):
                continue
            for kind in (KINDS[(place + i) % len(KINDS)] for i in range(at_once)):
                if kind == "operator" and node.output[0].startswith("choices/") and node.output[0].endswith("/index"):
                    continue  # which way a choice is picked is the exporter's word
                changed = onnx.load_from_string(made.onnx)
                damaged(branch(changed, which), place, kind)
                data = changed.SerializeToString(deterministic=True)
                if data == made.onnx:
                    continue
                assert accepted(data, resealed(made.companion, data)) is None, (which, node.output[0], kind)
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
    else:
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
            unchanged = kind == "narrower" and data == made.onnx
            assert unchanged or accepted(data, resealed(made.companion, data)) is None, (name, kind)
    return set(names)
