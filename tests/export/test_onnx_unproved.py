"""The unproved half of a file may hold trees, texts and subgraphs; none of it reaches the certified half."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smle_check
from smle.export.backbone import Backbone
from smle_check.onnx.graph import MAX_DEPTH, OPSETS, Graph
from support.exported import Exported, accepted, hand_made, model_of, resealed, run, session

ML = "ai.onnx.ml"
FEATURES, EMBEDDING = "inputs/features", "backbone/embedding"


def subgraph(name: str, nodes, outputs, inputs=(), constants=()) -> onnx.GraphProto:
    values = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names] for names in (inputs, outputs)]
    return helper.make_graph(nodes, name, *values, list(constants))


def number(name: str, *values: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.float32(values), name)


def trees(source: str, output: str, n: int) -> onnx.NodeProto:
    """One tree with n targets: where feature 0 <= 10 target i is 1 + i, else -1 - i."""
    targets = [sign * (1 + i) for sign in (1, -1) for i in range(n)]
    return helper.make_node(
        "TreeEnsembleRegressor", [source], [output], domain=ML, n_targets=n,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[10.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0], target_treeids=[0] * 2 * n, target_nodeids=[1] * n + [2] * n,
        target_ids=[*range(n), *range(n)], target_weights=[float(t) for t in targets],
    )  # fmt: skip


def branches(condition: str, source: str, output: str) -> list[onnx.NodeProto]:
    """Double the source where the condition holds, else halve it; both read names around them."""
    then = subgraph("then", [helper.make_node("Add", [source, source], ["then/y"])], ["then/y"])
    half = number("else/half", 0.5)
    other = subgraph("else", [helper.make_node("Mul", [source, "else/half"], ["else/y"])], ["else/y"], (), [half])
    return [helper.make_node("If", [condition], [output], then_branch=then, else_branch=other)]


def estimator(n: int) -> Backbone:
    """Scaler, trees and a branch, as a converted estimator has them."""
    nodes = [
        helper.make_node("Scaler", [FEATURES], ["backbone/scaled"], domain=ML, offset=[0.0], scale=[1.0]),
        trees("backbone/scaled", "backbone/answer", n),
        helper.make_node("ReduceMax", ["backbone/answer"], ["backbone/most"], keepdims=0),
        helper.make_node("Greater", ["backbone/most", "backbone/zero"], ["backbone/positive"]),
        *branches("backbone/positive", "backbone/answer", EMBEDDING),
    ]
    return Backbone(nodes, [numpy_helper.from_array(np.float32(0), "backbone/zero")], opsets={"": 20, ML: 3})


def built() -> tuple[Exported, onnx.ModelProto]:
    exported = hand_made("braking")
    n = exported.record.weights["bounds.lower"].shape[0]
    model = model_of(exported.spec, exported.record, estimator(n))
    return exported, model


def check(model: onnx.ModelProto) -> smle_check.OnnxResult | None:
    data = model.SerializeToString()
    return accepted(data, resealed(hand_made("braking").companion, data))


def node(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if output in n.output)


def branch(model: onnx.ModelProto, which: str = "then") -> onnx.GraphProto:
    return next(a.g for a in node(model, EMBEDDING).attribute if a.name == f"{which}_branch")


def before_embedding(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    at = [EMBEDDING in n.output for n in model.graph.node].index(True)
    for new in reversed(nodes):
        model.graph.node.insert(at, new)


def test_trees_and_subgraphs_are_accepted_and_run():
    exported, model = built()
    onnx.checker.check_model(model)
    result = check(model)
    assert result is not None
    listed = "Add, Greater, If, Mul, ReduceMax, Scaler, TreeEnsembleRegressor"
    assert any(f"7 nodes ({listed})" in line for line in result.asserted)
    answers = run(session(model.SerializeToString()), exported.spec, np.float32([[8, 25, 0.5], [100, 25, 0.5]]))
    assert answers["brake"][0, 0] >= np.float32(0.8)


@pytest.mark.parametrize("version", OPSETS[""])
def test_certified_operators_mean_the_same_in_every_operator_set(version):
    """Between the allowed sets the certified operators differ in element types alone, and the answers are the same."""
    exported, model = built()
    certified = {n.op_type for n in onnx.load_from_string(exported.onnx).graph.node}
    for op in certified:
        here, written = (onnx.defs.get_schema(op, v, "") for v in (version, 20))
        assert [p.name for p in here.inputs] == [p.name for p in written.inputs]
        assert [p.option for p in here.inputs] == [p.option for p in written.inputs]
        assert {k: a.default_value for k, a in here.attributes.items()} == {
            k: a.default_value for k, a in written.attributes.items()
        }
    rows = np.float32([[8, 25, 0.5], [100, 25, 0.5], [np.nan, 0, 9]])
    first = run(session(model.SerializeToString()), exported.spec, rows)
    model.opset_import[0].version, model.ir_version = version, 10
    assert check(model) is not None
    again = run(session(model.SerializeToString()), exported.spec, rows)
    assert all(np.array_equal(first[name], again[name]) for name in first)


# --- attacks --------------------------------------------------------------------------------------------------------


def shadow_a_node_of_the_head(model):
    """A branch makes a name that the head makes later: which one is meant depends on the reader."""
    branch(model).node.append(helper.make_node("Neg", ["backbone/answer"], ["head/embedding"]))


def shadow_a_constant_of_the_head(model):
    branch(model).initializer.append(number("heads.bias", 1.0))


def shadow_an_input(model):
    branch(model).initializer.append(number("speed", 1.0))


def shadow_by_an_input_of_a_branch(model):
    branch(model).input.append(helper.make_tensor_value_info("heads.weight", TensorProto.FLOAT, None))


def shadow_the_embedding(model):
    branch(model).node.append(helper.make_node("Neg", ["backbone/answer"], [EMBEDDING]))


def same_names_in_two_branches(model):
    target = branch(model, "else")
    target.node[0].output[0] = "then/y"
    target.output[0].name = "then/y"


def constants_of_two_branches(model):
    branch(model).initializer.append(number("else/half", 1.0))


def read_the_head_in_a_branch(model):
    branch(model).node.append(helper.make_node("Neg", ["heads.bias"], ["then/other"]))


def read_the_other_branch(model):
    branch(model, "else").node.append(helper.make_node("Neg", ["then/y"], ["else/other"]))


def read_a_branch_outside(model):
    model.graph.node.append(helper.make_node("Neg", ["then/y"], ["backbone/later"]))


def read_what_comes_later(model):
    branch(model).node.insert(0, helper.make_node("Neg", ["brake"], ["then/other"]))


def output_from_outside(model):
    """A branch hands on a name of the graph around it."""
    branch(model).output[0].name = "backbone/answer"


def output_of_the_head_from_a_branch(model):
    branch(model).output[0].name = "heads.bias"


def external_in_a_branch(model):
    item = branch(model, "else").initializer[0]
    item.ClearField("raw_data")
    item.data_location = TensorProto.EXTERNAL
    item.external_data.add(key="location", value="/etc/passwd")


def external_in_an_attribute(model):
    item = number("", 1.0)
    item.data_location = TensorProto.EXTERNAL
    before_embedding(model, helper.make_node("Constant", [], ["backbone/c"], value=item))


def sparse_in_a_branch(model):
    branch(model).sparse_initializer.add()


def sparse_attribute(model):
    before_embedding(model, helper.make_node("Constant", [], ["backbone/c"]))
    attribute = node(model, "backbone/c").attribute.add()
    attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
    attribute.sparse_tensor.dims.append(1)


def type_for_the_head_in_a_branch(model):
    branch(model).value_info.append(helper.make_tensor_value_info("head/embedding", TensorProto.FLOAT, [1, 1]))


def function_of_the_ml_domain(model):
    body = [helper.make_node("Identity", ["a"], ["b"])]
    model.functions.append(helper.make_function(ML, "Scaler", ["a"], ["b"], body, [helper.make_opsetid("", 20)]))


def reference_to_an_attribute(model):
    attribute = node(model, "backbone/scaled").attribute[0]
    attribute.ref_attr_name = "other"


def another_domain(model):
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    before_embedding(model, helper.make_node("Gelu", [FEATURES], ["backbone/g"], domain="com.microsoft"))


def another_domain_in_a_branch(model):
    branch(model).node.append(helper.make_node("Gelu", ["backbone/answer"], ["then/g"], domain="com.microsoft"))


def ml_without_its_operator_set(model):
    del model.opset_import[1:]


def ml_set_twice(model):
    model.opset_import.append(helper.make_opsetid(ML, 2))


def default_set_twice(model):
    model.opset_import.append(helper.make_opsetid("ai.onnx", 20))


def future_ml_set(model):
    model.opset_import[1].version = 6


def older_default_set(model):
    model.opset_import[0].version = 18


def future_default_set(model):
    model.opset_import[0].version = 23


def ml_operator_in_the_head(model):
    """An operator of the other domain with the name of the certified one."""
    node(model, "head/embedding").domain = ML


def branch_in_the_head(model):
    target = node(model, "head/embedding")
    target.attribute.append(helper.make_attribute("g", subgraph("g", [], [])))


def hidden_graph_in_an_integer(model):
    """An attribute that says it is an integer, and has a graph too."""
    attribute = node(model, "head/embedding").attribute[0]
    attribute.g.CopyFrom(subgraph("g", [helper.make_node("Neg", [EMBEDDING], ["g/y"])], ["g/y"]))


def listed_twice(model):
    before_embedding(model, helper.make_node("Split", [FEATURES], ["backbone/p", "backbone/p"], num_outputs=2))


def optional_output_of_the_head(model):
    """A node of the model that makes, as its second output, a name of the head."""
    model.graph.node.remove(node(model, "head/embedding"))
    before_embedding(model, helper.make_node("Dropout", [FEATURES], ["backbone/d", "head/embedding"]))


def second_origin_of_the_embedding(model):
    before_embedding(model, helper.make_node("Dropout", [FEATURES], ["", EMBEDDING]))


def loop_over_the_head(model):
    """A loop whose body makes a name of the head and carries it out."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["body/c"], ["body/c2"]), helper.make_node("Neg", ["body/v"], ["head/x"])],
        "body",
        [helper.make_tensor_value_info("body/i", TensorProto.INT64, []),
         helper.make_tensor_value_info("body/c", TensorProto.BOOL, []),
         helper.make_tensor_value_info("body/v", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("body/c2", TensorProto.BOOL, []),
         helper.make_tensor_value_info("head/x", TensorProto.FLOAT, None)],
    )  # fmt: skip
    before_embedding(model, helper.make_node("Loop", ["", "", FEATURES], ["backbone/l"], body=body))


def nested(depth: int, name: str = "n") -> onnx.GraphProto:
    inner = [] if depth == 1 else [nested(depth - 1, name)]
    nodes = [helper.make_node("Identity", ["backbone/answer"], [f"{name}/{depth}"])]
    for graph in inner:
        nodes.append(helper.make_node("If", ["backbone/positive"], [f"{name}/{depth}/if"], then_branch=graph))
    return subgraph(f"{name}{depth}", nodes, [f"{name}/{depth}"])


def too_deep(model):
    before_embedding(
        model, helper.make_node("If", ["backbone/positive"], ["backbone/deep"], then_branch=nested(MAX_DEPTH + 1))
    )


ATTACKS = [
    shadow_a_node_of_the_head, shadow_a_constant_of_the_head, shadow_an_input, shadow_by_an_input_of_a_branch,
    shadow_the_embedding, same_names_in_two_branches, constants_of_two_branches, read_the_head_in_a_branch,
    read_the_other_branch, read_a_branch_outside, read_what_comes_later, output_from_outside,
    output_of_the_head_from_a_branch, external_in_a_branch, external_in_an_attribute, sparse_in_a_branch,
    sparse_attribute, type_for_the_head_in_a_branch, function_of_the_ml_domain, reference_to_an_attribute,
    another_domain, another_domain_in_a_branch, ml_without_its_operator_set, ml_set_twice, default_set_twice,
    future_ml_set, older_default_set, future_default_set, ml_operator_in_the_head, branch_in_the_head,
    hidden_graph_in_an_integer, listed_twice, optional_output_of_the_head, second_origin_of_the_embedding,
    loop_over_the_head, too_deep,
]  # fmt: skip


@pytest.mark.parametrize("change", ATTACKS, ids=lambda change: change.__name__)
def test_attacks_from_the_unproved_half_are_rejected(change):
    _, model = built()
    assert check(model) is not None
    change(model)
    assert check(model) is None


def test_subgraphs_may_be_nested_as_deep_as_allowed():
    _, model = built()
    deep = nested(MAX_DEPTH)
    before_embedding(model, helper.make_node("If", ["backbone/positive"], ["backbone/deep"], then_branch=deep))
    assert check(model) is not None


# --- reading --------------------------------------------------------------------------------------------------------


def test_deeply_nested_subgraphs_are_rejected_without_recursion():
    def field(key: int, content: bytes) -> bytes:
        return bytes([key << 3 | 2]) + _length(len(content)) + content

    graph = b""
    for _ in range(5000):  # deeper than Python's stack: graph, node, attribute, graph, ...
        graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
    with pytest.raises(smle_check.Rejected, match="field 6 is not supported"):
        Graph(b"\x08\x09" + field(7, graph) + field(8, b"\x10\x14"))


def _length(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def test_large_trees_are_read_quickly():
    """Half a million nodes of trees: what nobody looks at is stepped over."""
    count = 500_000
    big = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain=ML, nodes_values=[1.5] * count,
        nodes_featureids=list(range(count)), nodes_modes=["BRANCH_LEQ"] * count,
    )  # fmt: skip
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1]) for name in "xy"]
    sets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    graph = helper.make_graph([big], "g", values[:1], values[1:])
    data = helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()
    started = time.process_time()
    assert Graph(data).nodes[0].operators == ["TreeEnsembleRegressor"]
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "attribute",
    [
        b"\x3d\x00\x00\x80",  # a float that is cut off
        b"\x3a\x03\x00\x00\x80",  # packed floats, three bytes
        b"\x42\x01\x80",  # packed integers, the last one unfinished
        b"\x42\x0b" + b"\x80" * 10 + b"\x01",  # a packed integer of eleven bytes
        b"\x40" + b"\x80" * 10 + b"\x01",
        b"\x40",
        b"\x41" + b"\x00" * 8,  # integers written as doubles
        b"\x4a\x05abc",  # a text that is cut off
        b"\x4b\x4c",  # groups
    ],
    ids=["float", "packed float", "unfinished", "long packed", "long", "cut", "wire type", "text", "group"],
)
def test_values_that_nobody_looks_at_must_be_well_formed(attribute):
    def field(key: int, content: bytes) -> bytes:
        return bytes([key << 3 | 2]) + _length(len(content)) + content

    def model(content: bytes) -> bytes:
        one = field(5, field(1, b"a") + content)
        graph = field(1, field(2, b"y") + field(4, b"Constant") + one)
        return b"\x08\x09" + field(7, graph) + field(8, b"\x10\x14")

    Graph(model(b"\x40\x01\x40\x80\x01\x3d\x00\x00\x80\x3f\x42\x02\x80\x01\x4a\x03abc"))
    with pytest.raises(smle_check.Rejected):
        Graph(model(attribute))
