"""A certified head as an ONNX function: (features, answers) -> served answers, with any leading dimensions."""

from __future__ import annotations

from typing import Any

from smle.certificates.document import Certificate
from smle.extras import require
from smle.graphs.graph import certified_program, constant_tensor, onnx_nodes
from smle.heads.table import head_of
from smle_check.onnx.graph import FLOAT, OPSET
from smle_check.onnx.program import EMBEDDING, FEATURES, STACKED, Input, Interface, Output
from smle_check.reading import BACKBONE

__all__ = ["head_function"]


def head_function(certificate: Certificate, name: str) -> Any:
    """Return the function: the checker's nodes between features and outputs, plus reshaping around them.

    Of the columns of a category, the largest counts as 1, since rules look numbers up by exactly one of them.
    """
    helper = require("onnx", "ONNX export").helper
    stated = certificate.document["specification"]
    d, m = len(stated["inputs"]), len(stated["outputs"])
    inputs, outputs = [Input(f"x{k}") for k in range(d)], [Output("number", f"y{i}") for i in range(m)]
    interface = Interface(tuple(inputs), tuple(outputs), monitored=False, stacked=True)
    tensors = {k: v for k, v in certificate.tensors.items() if not k.startswith(BACKBONE)}
    proposals, count = head_of(certificate).nodes(certificate)
    program = certified_program(interface, certificate, tensors, proposals=count)
    start = next(i for i, node in enumerate(program.nodes) if FEATURES in node.outputs) + 1
    parts = {part.nodes[-1].output[0]: part.nodes for part in proposals}
    constants = [constant_tensor(key, value) for key, value in program.constants.items()]
    constants += [v for part in proposals for v in part.initializers]
    nodes = [helper.make_node("Constant", [], [value.name], value=value) for value in constants]
    nodes += _read(helper, stated["one_hot"], d)
    nodes += onnx_nodes(program.nodes[start:], parts)
    nodes += [
        helper.make_node("Shape", ["features"], ["served/leading"], start=0, end=-1),
        helper.make_node("Constant", [], ["served/width"], value_ints=[m]),
        helper.make_node("Concat", ["served/leading", "served/width"], ["served/shape"], axis=0),
        helper.make_node("Reshape", [STACKED, "served/shape"], ["served"], allowzero=1),
    ]
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_function("smle", name, ["features", "answers"], ["served"], nodes, opsets)


def _read(helper: Any, groups: list[list[int]], d: int) -> list[Any]:
    """Return nodes that make the columns x0, x1, ..., FEATURES with one 1 in each group, and EMBEDDING."""
    columns = [f"x{k}" for k in range(d)]
    made = [f"read/{k}" if any(k in group for group in groups) else column for k, column in enumerate(columns)]
    nodes = [
        helper.make_node("Identity", ["answers"], [EMBEDDING]),
        helper.make_node("Cast", ["features"], ["read/float"], to=FLOAT),
        helper.make_node("Constant", [], ["read/shape"], value_ints=[-1, d]),
        helper.make_node("Reshape", ["read/float", "read/shape"], ["read/rows"]),
        helper.make_node("Constant", [], ["read/sizes"], value_ints=[1] * d),
        helper.make_node("Split", ["read/rows", "read/sizes"], made, axis=1),
    ]
    for number, group in enumerate(groups):
        base = f"read/group/{number}/"
        nodes += [
            helper.make_node("Concat", [made[k] for k in group], [base + "columns"], axis=1),
            helper.make_node("ArgMax", [base + "columns"], [base + "index"], axis=1, keepdims=1),
            helper.make_node("Constant", [], [base + "positions"], value_ints=list(range(len(group)))),
            helper.make_node("Equal", [base + "index", base + "positions"], [base + "hot"]),
            helper.make_node("Cast", [base + "hot"], [base + "float"], to=FLOAT),
            helper.make_node("Constant", [], [base + "sizes"], value_ints=[1] * len(group)),
            helper.make_node("Split", [base + "float", base + "sizes"], [columns[k] for k in group], axis=1),
        ]
    return [*nodes, helper.make_node("Concat", columns, [FEATURES], axis=1)]
