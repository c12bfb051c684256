"""No NaN reaches a minimum, a maximum or an arg-maximum of a certified graph: runtimes differ in what they make of it.

onnxruntime 1.31.1 drops NaN in a float64 ReduceMin. Sums are IEEE arithmetic, in which NaN stays; the heads of rules do
not even sum what was not compared number by number before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from smle import Specification
from smle.graphs.graph import certified_program, interface_of
from smle.heads.rules.author import certify_rules
from smle.heads.rules.onnx import proposals_of
from smle_check.onnx.graph import Node
from smle_check.onnx.program import EMBEDDING, FEATURES, FURTHER, PROPOSAL, Program
from support.exported import DIRECT, HAND_MADE, MIXED, hand_made, untrained

TWO = "inputs: {a: [0, 1], b: [-1, 1], k: {categories: [r, g, s]}}\noutputs: [p, q]\nrules:\n"
RULES = {
    "limits": TWO + "  - {name: l, when: a < 0.5, then: p >= b}\n  - {name: m, when: k == r, then: p <= 3}\n",
    "many slots": TWO + "".join(f"  - {{name: l{i}, when: a < 0.{i}, then: p >= b - {i}}}\n" for i in range(1, 9)),
    "unseen": TWO + "  - {name: s, then: p + q <= 1}\n  - {name: t, when: a + b >= 0.3, then: p <= 2 or q <= a}\n",
    "both": TWO + "  - {name: s, then: p + q <= 1}\n  - {name: t, when: k == g, then: -4 <= p <= 4}\n",
    "choices": MIXED,
    "direct": DIRECT,
}
CHOOSE = {"ReduceMin", "ReduceMax", "ArgMax", "ArgMin", "Min", "Max"}
ARITHMETIC = {"MatMul", "Gemm", "ReduceSum", "Add", "Mul", "Relu"}
TRUTHS = {"LessOrEqual", "GreaterOrEqual", "Less", "Greater", "Equal", "IsNaN", "Not", "And", "Or", "Shape", "NonZero"}
PASSING = {
    "Cast", "Abs", "Transpose", "Reshape", "Concat", "Split", "Gather", "GatherND", "GatherElements", "Squeeze",
    "Floor", "Clip", "Expand", "ScatterND", "If", *CHOOSE, *ARITHMETIC,
}  # fmt: skip


def flat(nodes: list[Node]) -> Iterator[Node]:
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

    def visit(self, node: Node) -> None:
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

    def guarded(self, node: Node) -> bool:
        """Whether a Where leaves no NaN: its condition does not hold there, or is that there is none."""
        condition, yes, no = node.inputs
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
        certificate = certify_rules(spec)
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


def test_this_runtime_may_drop_nan_in_a_minimum_and_compares_it_as_false():
    """What the law above is for. Comparisons are what certified graphs lean on: they must be those of IEEE 754."""
    values = np.array([[5.0, np.nan, 5.0, -np.inf]])
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("LessOrEqual", ["x", "x"], ["equal"]),
            node("GreaterOrEqual", ["x", "x"], ["over"]),
            node("IsNaN", ["x"], ["nan"]),
            node("Where", ["equal", "x", "zero"], ["kept"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 4])],
        [
            *(helper.make_tensor_value_info(name, TensorProto.BOOL, [1, 4]) for name in ("equal", "over", "nan")),
            helper.make_tensor_value_info("kept", TensorProto.DOUBLE, [1, 4]),
        ],
        [helper.make_tensor("zero", TensorProto.DOUBLE, [], [0.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    equal, over, nan, kept = session.run(None, {"x": values})
    assert equal.tolist() == over.tolist() == [[True, False, True, True]]
    assert nan.tolist() == [[False, True, False, False]]
    assert kept.tolist() == [[5.0, 0.0, 5.0, -np.inf]]
