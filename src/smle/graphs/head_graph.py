"""Builds ONNX graphs: the program that the checker prescribes, around a backbone, or as a function of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import smle_check
from smle.certificates.document import Certificate
from smle.errors import ModelFormatError, RuleError
from smle.extras import require
from smle.heads.table import head_of
from smle.nearest.onnx.pieces import Backbone
from smle.rules import Categorical, Choice, Label, Specification
from smle_check.floats import BINARY32, nearest
from smle_check.onnx.check_file import program_of
from smle_check.onnx.graph import BOOL, DOUBLE, FLOAT, INT64, OPSET, STRING, Constant, GraphNode
from smle_check.onnx.interface import encode, in_domain
from smle_check.onnx.interface import outputs as named_outputs
from smle_check.onnx.nodes import EMBEDDING, FEATURES, STACKED, Input, Interface, Output, Program, output_types
from smle_check.onnx.operation_nodes import Printer
from smle_check.program import Op
from smle_check.reading import BACKBONE

__all__ = ["certified_program", "graph_model", "head_function", "inputs_of", "interface_of", "plain_program"]

IR_VERSION, LATER = 9, 10  # the latter from operator set 21 on


def inputs_of(spec: Specification) -> tuple[Input, ...]:
    """Return the named inputs of a specification, with the stand-ins for missing values."""
    result = []
    for item in spec.inputs:
        flagged = item.name in spec.flag_columns
        if isinstance(item, Categorical):
            default = 0 if item.missing is None else item.categories.index(item.missing)
            result.append(Input(item.name, item.categories, None, default, item.missing is not None, flagged=flagged))
        else:
            stand_in = None if item.missing is None else np.float32(float(nearest(item.missing, BINARY32)))
            fill = None if stand_in is None else stand_in.astype("<f4").tobytes()
            result.append(Input(item.name, fill=fill, whole=item.integer, flagged=flagged))
    return tuple(result)


def outputs_of(spec: Specification) -> tuple[Output, ...]:
    """Return the named outputs of a specification."""
    result = []
    for item in spec.outputs:
        if isinstance(item, Choice):
            result.append(Output("choice", item.name, item.options, "ArgMax" if item.pick == "max" else "ArgMin"))
        else:
            result.append(Output("label" if isinstance(item, Label) else "number", item.name))
    return tuple(result)


def interface_of(spec: Specification, *, monitor: bool = True, head: str = "", stacked: bool = False) -> Interface:
    """Return names, kinds and stand-ins; `monitor` adds reporting outputs such as `in_domain`."""
    inputs = inputs_of(spec)
    if not monitor:  # only `in_domain` needs these
        inputs = tuple(item._replace(blank=False, whole=False) for item in inputs)
    return Interface(inputs, outputs_of(spec), monitor, monitor and head == "grid", stacked)


def certified_program(
    interface: Interface, certificate: Certificate, tensors: dict[str, smle_check.Tensor], *, proposals: int = 1
) -> Program:
    """Return the program of a certified head; `proposals` are checked for each row whose answer breaks a rule.

    Raises ModelFormatError if this kind of head has no ONNX program.
    """
    document = certificate.document
    stated = smle_check.StatedSpecification(document["specification"], certificate.block)
    try:
        regions, program = document["gate"]["regions"], document["program"]
        return program_of(interface, stated, regions, program, tensors, proposals=proposals)
    except smle_check.Rejected as reason:
        raise ModelFormatError(f"This model cannot be exported: {reason}") from None


def plain_program(interface: Interface, tensors: dict[str, smle_check.Tensor]) -> Program:
    """Return the program of a model without rules: one affine layer behind a backbone, or the model's own answer."""
    program = Program()
    known = encode(program, interface.inputs)
    if interface.monitored:
        ends = ("features", "domain.lower_F", "domain.upper_F")
        Printer(program, interface, tensors, [Op("clamp", "x", ends)], across=True, direct=False).print(set())
        in_domain(program, interface.inputs, known)
    if "free.weight" in tensors:
        parameters = [program.stored(name, tensors[name]) for name in ("free.weight", "free.bias")]
        y = program.add("Gemm", [EMBEDDING, *parameters], "head/free", transB=1)
    else:
        answer = program.answer(sum(len(item.columns) for item in interface.outputs))
        y = program.add("Cast", [answer], "head/free", to=FLOAT)
    named_outputs(program, y, interface)
    return program


def graph_model(
    interface: Interface, program: Program, backbone: Backbone, rules: Sequence[str], proposals: Sequence[Backbone] = ()
) -> Any:
    """Return the ONNX model: named inputs -> features -> backbone -> head -> named outputs.

    `proposals` compute the candidates that are checked where an answer breaks a rule. Raises RuleError if a name of the
    rules is already taken in the graph.
    """
    onnx = require("onnx", "ONNX export")
    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(item.name, STRING if item.categories else FLOAT, ["N", 1])
        for item in interface.inputs
    ]
    outputs = [
        helper.make_tensor_value_info(name, kind, ["N", *shape[1:]])
        for name, (kind, shape) in output_types(interface, len(rules)).items()
    ]
    ours = onnx_nodes(program.nodes, {part.nodes[-1].output[0]: part.nodes for part in proposals})
    # A graph must be sorted, so the backbone goes right after its input is computed.
    at = next(i for i, node in enumerate(program.nodes) if FEATURES in node.outputs) + 1
    nodes = [*ours[:at], *backbone.nodes, *ours[at:]]
    constants = [constant_tensor(name, value) for name, value in program.constants.items()]
    initializers = [*backbone.initializers, *(v for part in proposals for v in part.initializers), *constants]
    _refuse_shared_names([*inputs, *backbone.inputs], initializers, nodes)
    graph = helper.make_graph(nodes, "smle", [*inputs, *backbone.inputs], outputs, initializers)
    opsets = [helper.make_opsetid(domain, version) for domain, version in backbone.opsets.items()]
    version = IR_VERSION if backbone.opsets[""] <= OPSET else LATER
    model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="smle")
    titles = {"active_rules": smle_check.canonical(list(rules)).decode()}
    stacked = {STACKED: smle_check.canonical(interface.columns).decode()} if interface.stacked else {}
    helper.set_model_props(model, (titles if rules else {"smle": "no rules, no certificate"}) | stacked)
    onnx.checker.check_model(model, full_check=False)
    return model


def onnx_nodes(nodes: Sequence[GraphNode], proposals: Mapping[str, list[Any]]) -> list[Any]:
    """Convert to ONNX nodes, with each proposal in front of the node that reads it."""
    helper = require("onnx", "ONNX export").helper
    result: list[Any] = []
    for node in nodes:
        for name in node.inputs:
            result += proposals.get(name, ())
        graphs = {
            name: helper.make_graph(
                onnx_nodes(branch.nodes, proposals),
                name,
                [],
                [helper.make_tensor_value_info(output, branch.kind, None) for output in branch.outputs],
            )
            for name, branch in node.branches.items()
        }
        result.append(helper.make_node(node.op, list(node.inputs), list(node.outputs), **node.attributes, **graphs))
    return result


def constant_tensor(name: str, constant: Constant) -> Any:
    """Convert a constant to an ONNX tensor."""
    onnx = require("onnx", "ONNX export")
    if constant.dtype == "STRING":
        return onnx.helper.make_tensor(name, STRING, constant.shape, list(constant.data))
    kind = {"F32": FLOAT, "F64": DOUBLE, "I64": INT64, "BOOL": BOOL}[constant.dtype]
    return onnx.helper.make_tensor(name, kind, constant.shape, constant.data, raw=True)


def _refuse_shared_names(inputs: list[Any], initializers: list[Any], nodes: list[Any]) -> None:
    made = [value.name for value in [*inputs, *initializers]]
    made += [name for node in nodes for name in node.output if name]
    seen: set[str] = set()
    for name in made:
        if name in seen:
            raise RuleError(
                f"The name '{name}' is needed twice in the exported graph. Rename the input, output or label."
            )
        seen.add(name)


def head_function(certificate: Certificate, name: str) -> Any:
    """Return a head as an ONNX function: the checker's nodes between features and outputs, with reshaping around them.

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
