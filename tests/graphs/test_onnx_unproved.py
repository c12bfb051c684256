"""The unproved half of a file may hold trees, texts and subgraphs; none of it reaches the certified half."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smle_check
from smle.nearest.onnx.pieces import Backbone
from smle_check.onnx.graph import MAX_DEPTH, OPSETS, Graph
from support.exported import Exported, accepted, field, hand_made, model_of, resealed, run, session

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


def neg(source: str, output: str) -> onnx.NodeProto:
    return helper.make_node("Neg", [source], [output])


def declared(name: str, shape=None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def same_names_in_two_branches(model):
    target = branch(model, "else")
    target.node[0].output[0] = target.output[0].name = "then/y"


def external(item: onnx.TensorProto) -> onnx.TensorProto:
    item.ClearField("raw_data")
    item.data_location = TensorProto.EXTERNAL
    item.external_data.add(key="location", value="/etc/passwd")
    return item


def constant(value: onnx.TensorProto | None = None) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["backbone/c"], **({} if value is None else {"value": value}))


def sparse_attribute(model):
    before_embedding(model, constant())
    attribute = node(model, "backbone/c").attribute.add()
    attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
    attribute.sparse_tensor.dims.append(1)


def function_of_the_ml_domain(model):
    body = [helper.make_node("Identity", ["a"], ["b"])]
    model.functions.append(helper.make_function(ML, "Scaler", ["a"], ["b"], body, [helper.make_opsetid("", 20)]))


def gelu(source: str, output: str) -> onnx.NodeProto:
    return helper.make_node("Gelu", [source], [output], domain="com.microsoft")


def another_domain(model):
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    before_embedding(model, gelu(FEATURES, "backbone/g"))


def optional_output_of_the_head(model):
    """A node of the model that makes, as its second output, a name of the head."""
    model.graph.node.remove(node(model, "head/embedding"))
    before_embedding(model, helper.make_node("Dropout", [FEATURES], ["backbone/d", "head/embedding"]))


def loop_over_the_head(model):
    """A loop whose body makes a name of the head and carries it out."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["body/c"], ["body/c2"]), neg("body/v", "head/x")],
        "body",
        [helper.make_tensor_value_info("body/i", TensorProto.INT64, []),
         helper.make_tensor_value_info("body/c", TensorProto.BOOL, []), declared("body/v")],
        [helper.make_tensor_value_info("body/c2", TensorProto.BOOL, []), declared("head/x")],
    )  # fmt: skip
    before_embedding(model, helper.make_node("Loop", ["", "", FEATURES], ["backbone/l"], body=body))


def nested(depth: int, name: str = "n") -> onnx.GraphProto:
    inner = [] if depth == 1 else [nested(depth - 1, name)]
    nodes = [helper.make_node("Identity", ["backbone/answer"], [f"{name}/{depth}"])]
    for graph in inner:
        nodes.append(helper.make_node("If", ["backbone/positive"], [f"{name}/{depth}/if"], then_branch=graph))
    return subgraph(f"{name}{depth}", nodes, [f"{name}/{depth}"])


def too_deep(model):
    deep = nested(MAX_DEPTH + 1)
    before_embedding(model, helper.make_node("If", ["backbone/positive"], ["backbone/deep"], then_branch=deep))


def hidden_graph(model):
    inner = subgraph("g", [neg(EMBEDDING, "g/y")], ["g/y"])
    node(model, "head/embedding").attribute[0].g.CopyFrom(inner)


SPLIT = helper.make_node("Split", [FEATURES], ["backbone/p", "backbone/p"], num_outputs=2)
DROPOUT = helper.make_node("Dropout", [FEATURES], ["", EMBEDDING])
ATTACKS = {
    # Which of two equal names is meant depends on the reader.
    "a branch makes a name of the head": lambda m: branch(m).node.append(neg("backbone/answer", "head/embedding")),
    "a branch has a constant of the head": lambda m: branch(m).initializer.append(number("heads.bias", 1.0)),
    "a branch has a constant named as an input": lambda m: branch(m).initializer.append(number("speed", 1.0)),
    "a branch has an input named as a constant": lambda m: branch(m).input.append(declared("heads.weight")),
    "a branch makes the embedding": lambda m: branch(m).node.append(neg("backbone/answer", EMBEDDING)),
    "the same names in two branches": same_names_in_two_branches,
    "the same constants in two branches": lambda m: branch(m).initializer.append(number("else/half", 1.0)),
    "a branch reads the head": lambda m: branch(m).node.append(neg("heads.bias", "then/other")),
    "a branch reads the other one": lambda m: branch(m, "else").node.append(neg("then/y", "else/other")),
    "a branch is read outside": lambda m: m.graph.node.append(neg("then/y", "backbone/later")),
    "a branch reads what comes later": lambda m: branch(m).node.insert(0, neg("brake", "then/other")),
    "a branch hands on a name from outside": lambda m: setattr(branch(m).output[0], "name", "backbone/answer"),
    "a branch hands on a name of the head": lambda m: setattr(branch(m).output[0], "name", "heads.bias"),
    "external data in a branch": lambda m: external(branch(m, "else").initializer[0]),
    "external data in an attribute": lambda m: before_embedding(m, constant(external(number("", 1.0)))),
    "a sparse tensor in a branch": lambda m: branch(m).sparse_initializer.add(),
    "a sparse tensor in an attribute": sparse_attribute,
    "a branch types the head": lambda m: branch(m).value_info.append(declared("head/embedding", [1, 1])),
    "a function of the ml domain": function_of_the_ml_domain,
    "an attribute by reference": lambda m: setattr(node(m, "backbone/scaled").attribute[0], "ref_attr_name", "other"),
    "another domain": another_domain,
    "another domain in a branch": lambda m: branch(m).node.append(gelu("backbone/answer", "then/g")),
    "the ml domain without its operator set": lambda m: m.opset_import.pop(),
    "the ml set twice": lambda m: m.opset_import.append(helper.make_opsetid(ML, 2)),
    "the default set by both names": lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 20)),
    "a later ml set": lambda m: setattr(m.opset_import[1], "version", 6),
    "a later default set": lambda m: setattr(m.opset_import[0], "version", 23),
    "an ml operator in the head": lambda m: setattr(node(m, "head/embedding"), "domain", ML),
    "a graph in a node of the head": lambda m: node(m, "head/embedding").attribute.append(
        helper.make_attribute("g", subgraph("g", [], []))
    ),
    "a graph beside an integer": hidden_graph,
    "one name for two outputs": lambda m: before_embedding(m, SPLIT),
    "a name of the head as a second output": optional_output_of_the_head,
    "a second origin of the embedding": lambda m: before_embedding(m, DROPOUT),
    "a loop that makes a name of the head": loop_over_the_head,
    "too deep": too_deep,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_from_the_unproved_half_are_rejected(name):
    _, model = built()
    assert check(model) is not None
    ATTACKS[name](model)
    assert check(model) is None


def test_subgraphs_may_be_nested_as_deep_as_allowed():
    _, model = built()
    deep = nested(MAX_DEPTH)
    before_embedding(model, helper.make_node("If", ["backbone/positive"], ["backbone/deep"], then_branch=deep))
    assert check(model) is not None


# --- reading --------------------------------------------------------------------------------------------------------


def test_deeply_nested_subgraphs_are_rejected_without_recursion():
    graph = b""
    for _ in range(5000):  # deeper than Python's stack: graph, node, attribute, graph, ...
        graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
    with pytest.raises(smle_check.Rejected, match="field 6 is not supported"):
        Graph(b"\x08\x09" + field(7, graph) + field(8, b"\x10\x14"))


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
    def model(content: bytes) -> bytes:
        one = field(5, field(1, b"a") + content)
        graph = field(1, field(2, b"y") + field(4, b"Constant") + one)
        return b"\x08\x09" + field(7, graph) + field(8, b"\x10\x14")

    Graph(model(b"\x40\x01\x40\x80\x01\x3d\x00\x00\x80\x3f\x42\x02\x80\x01\x4a\x03abc"))
    with pytest.raises(smle_check.Rejected):
        Graph(model(attribute))
