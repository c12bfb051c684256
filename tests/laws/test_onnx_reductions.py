"""No NaN reaches a minimum, a maximum or an arg-maximum of a certified graph: runtimes differ in what they make of it.

onnxruntime 1.31.1 drops NaN in a float64 ReduceMin. Sums are IEEE arithmetic, in which NaN stays; the heads of rules do
not even sum what was not compared number by number before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto, helper

from smle import Specification
from smle.graphs.head_graph import certified_program, interface_of
from smle.heads.grid.grid_onnx import grid_proposals
from smle.heads.rules.rules_onnx import proposals_of
from smle.heads.table import certify_head
from smle_check.onnx.graph import GraphNode
from smle_check.onnx.nodes import EMBEDDING, FEATURES, FURTHER, PROPOSAL, Program
from support.exported import DIRECT, HAND_MADE, MIXED, hand_made, untrained
from support.runtimes import Case, Runtime, installed_runtime, prepare

TWO = "inputs: {a: [0, 1], b: [-1, 1], k: {categories: [r, g, s]}}\noutputs: [p, q]\nrules:\n"
STEPS = "inputs: {a: [0, 1], w: {range: [0, 4], step: 0.1}, n: {range: [0, 20], integer: true}}\n"
RULES = {
    "limits": TWO + "  - {name: l, when: a < 0.5, then: p >= b}\n  - {name: m, when: k == r, then: p <= 3}\n",
    "many slots": TWO + "".join(f"  - {{name: l{i}, when: a < 0.{i}, then: p >= b - {i}}}\n" for i in range(1, 9)),
    "unseen": TWO + "  - {name: s, then: p + q <= 1}\n  - {name: t, when: a + b >= 0.3, then: p <= 2 or q <= a}\n",
    "both": TWO + "  - {name: s, then: p + q <= 1}\n  - {name: t, when: k == g, then: -4 <= p <= 4}\n",
    "choices": MIXED,
    "direct": DIRECT,
    "steps": STEPS + "outputs: {p: {step: 0.5}, q: {integer: true}}\nrules:\n"
    "  - {name: r, then: -3 <= p <= 3 and -4 <= q <= 4}\n  - {name: e, then: p + q <= -2 or p - q >= 2}\n"
    "  - {name: m, when: w > 1.3, then: p <= 1 + 0.3 * a}\n",
    "sums": STEPS + "outputs: {p: {integer: true}, q: {integer: true}}\nrules:\n"
    "  - {name: r, then: 0 <= p <= 15 and 0 <= q <= 15}\n  - {name: s, then: p + q == n}\n"
    "  - {name: m, when: a + w >= 1 and n <= 12, then: p <= 9 + a}\n",
    "sums alone": STEPS + "outputs: {p: {integer: true}, q: {integer: true}, o: {integer: true}}\nrules:\n"
    "  - {name: r, then: 0 <= p <= 15 and 0 <= q <= 15 and 0 <= o <= 15}\n  - {name: s, then: p + q + o == n}\n",
    "limits in steps": STEPS + "outputs: {p: {step: 0.1}}\nrules: [{name: r, then: 0 <= p <= 3 + 0.7 * a + w}]\n",
}
CHOOSE = {"ReduceMin", "ReduceMax", "ArgMax", "ArgMin", "Min", "Max"}
ARITHMETIC = {"MatMul", "Gemm", "ReduceSum", "Add", "Sub", "Mul", "Div", "Relu"}
TRUTHS = {"LessOrEqual", "GreaterOrEqual", "Less", "Greater", "Equal", "IsNaN", "Not", "And", "Or", "Shape", "NonZero"}
PASSING = {
    "Cast", "Abs", "Transpose", "Reshape", "Concat", "Split", "Gather", "GatherND", "GatherElements", "Squeeze",
    "Floor", "Neg", "Clip", "Identity", "Expand", "ScatterND", "If", *CHOOSE, *ARITHMETIC,
}  # fmt: skip


def flat(nodes: list[GraphNode]) -> Iterator[GraphNode]:
    for node in nodes:
        for branch in node.branches.values():
            yield from flat(branch.nodes)
        yield node


class Taint:
    """Which values may be NaN, if everything that the model and its inputs make is."""

    def __init__(self, program: Program, free: bool) -> None:
        self.nodes = list(flat(program.nodes))
        self.made = {name: node for node in self.nodes for name in node.outputs}
        self.nan = {EMBEDDING, PROPOSAL, FURTHER, FEATURES}
        self.free = free
        self.wrong: list[str] = []
        for node in self.nodes:
            self.visit(node)

    def visit(self, node: GraphNode) -> None:
        assert node.op in TRUTHS | PASSING | {"Where"}, node.op
        tainted = [name for name in node.inputs if self.may_be(name)]
        tainted += [name for branch in node.branches.values() for name in branch.outputs if self.may_be(name)]
        if node.op in CHOOSE and tainted:
            self.wrong.append(f"{node.op} -> {node.outputs[0]} reads {tainted}")
        if node.op in TRUTHS or (node.op == "Where" and self.guarded(node)):
            return
        if tainted:
            self.nan.update(node.outputs)

    def may_be(self, name: str) -> bool:
        """Named inputs of the graph, too, may be NaN; constants are not."""
        return name in self.nan or (name not in self.made and name.startswith("input:"))

    def guarded(self, node: GraphNode) -> bool:
        """Whether a Where leaves no NaN: its condition does not hold there, or is that there is none."""
        condition, yes, no = node.inputs
        if condition not in self.made:  # a constant asks nothing
            return False
        asked = self.made[condition]
        if self.may_be(no):  # where(is there a NaN, safe, y)
            while asked.op in ("Cast", "ReduceMax"):
                asked = self.made[asked.inputs[0]]
            return asked.op == "IsNaN" and asked.inputs[0] == no and not self.may_be(yes)
        size = self.made.get(asked.inputs[0])
        if size is not None and size.op == "Abs":
            asked = asked._replace(inputs=size.inputs)
        return asked.op in ("LessOrEqual", "GreaterOrEqual") and self.same(asked.inputs[0], yes)

    def same(self, first: str, second: str) -> bool:
        """Whether two values are NaN in the same places: one is the other, settled."""
        settled = self.made.get(second)
        return first == second or (settled is not None and settled.op == "Where" and settled.inputs[2] == first)


def program_of(name: str, monitor: bool) -> tuple[Program, bool]:
    if name in RULES:
        spec = Specification.from_yaml(RULES[name])
        certificate = certify_head(spec)
        if spec.grid is not None:
            count = grid_proposals(certificate)[1]
        else:
            count = proposals_of(certificate)[1] if "check.scale" in certificate.tensors else 1
    else:
        model = untrained(name.removeprefix("box "), "affine") if name.startswith("box ") else hand_made(name)
        spec, certificate, count = model.spec, model.record.certificate, 1
    interface = interface_of(spec, monitor=monitor)
    program = certified_program(interface, certificate, certificate.tensors, proposals=count)
    return program, "free.weight" in certificate.tensors


@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize("name", [*RULES, *HAND_MADE])
def test_no_nan_reaches_a_choice(name, monitor):
    program, free = program_of(name, monitor)
    found = Taint(program, free)
    # Behind a free head nothing is claimed: its answers are as the model makes them, and so is what is read off them.
    wrong = [text for text in found.wrong if not (free and "choices/" in text)]
    assert not wrong, wrong


def test_the_analysis_finds_what_it_looks_for():
    program = Program()
    program.add("Abs", [EMBEDDING], "size")
    program.add("ReduceMax", ["size"], "worst")
    assert Taint(program, False).wrong
    program = Program()
    small = program.add("LessOrEqual", [program.add("Abs", [EMBEDDING], "size"), "wide"], "small")
    program.add("ReduceMax", [program.add("Where", [small, EMBEDDING, "zero"], "finite")], "worst")
    assert not Taint(program, False).wrong
    program = Program()
    small = program.add("LessOrEqual", [program.add("Abs", ["other"], "size"), "wide"], "small")
    program.add("ReduceMax", [program.add("Where", [small, EMBEDDING, "zero"], "finite")], "worst")
    assert Taint(program, False).wrong


COMPARED = {
    "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal, "Less": np.less, "Greater": np.greater,
    "Equal": np.equal,
}  # fmt: skip


def comparisons(kind: int) -> bytes:
    """Compare x with z number by number, and keep numbers of x by what comes out, as certified graphs do."""
    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [node(op, ["x", "z"], [op]) for op in COMPARED]
    nodes += [node("IsNaN", ["x"], ["IsNaN"]), node("LessOrEqual", ["x", "x"], ["number"])]
    nodes += [node("Where", ["number", "x", "zero"], ["Where"])]
    inputs = [info(name, kind, ["N", "M"]) for name in ("x", "z")]
    outputs = [info(name, TensorProto.BOOL, ["N", "M"]) for name in (*COMPARED, "IsNaN")]
    graph = helper.make_graph(
        nodes, "g", inputs, [*outputs, info("Where", kind, ["N", "M"])], [helper.make_tensor("zero", kind, [], [0.0])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString())


def compared(runtime: Runtime) -> None:
    """What certified graphs lean on: comparisons of a runtime are those of IEEE 754, in rows of every length."""
    rng = np.random.default_rng(0)
    names = [*COMPARED, "IsNaN", "Where"]
    values = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 5.0, -5.0, 1e-300]
    for kind, dtype in ((TensorProto.DOUBLE, np.float64), (TensorProto.FLOAT, np.float32)):
        sizes = [(rows, columns) for rows in (1, 3) for columns in range(1, 68)]
        feeds = [{name: rng.choice(values, size).astype(dtype) for name in ("x", "z")} for size in sizes]
        for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
            (answers,) = runtime.answers([Case(comparisons(kind), names, feeds, level)])
            for feed, found in zip(feeds, answers, strict=True):
                assert found is not None
                x, z = feed["x"], feed["z"]
                wanted = [*(compare(x, z) for compare in COMPARED.values()), np.isnan(x), np.where(x == x, x, 0)]
                for name, own, other in zip(names, found, wanted, strict=True):
                    np.testing.assert_array_equal(own, other, err_msg=f"{name}, onnxruntime {runtime.version}, {level}")


def test_this_runtime_compares_nan_as_false():
    """onnxruntime 1.31.1 drops NaN in a minimum: that is what the law above is for."""
    compared(installed_runtime())


@pytest.mark.audit
def test_every_version_compares_nan_as_false():
    found, missing = prepare()
    assert not missing
    for runtime in found:
        compared(runtime)
