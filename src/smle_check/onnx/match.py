"""Reads the interface of an ONNX file, and compares the file with the certified program, node by node."""

import math
import struct
from typing import Any

from smle_check.names import flag_of
from smle_check.onnx.graph import FLOAT, STRING, Found, Graph, GraphNode
from smle_check.onnx.nodes import Input, Output, Program
from smle_check.onnx.protobuf import name_of
from smle_check.reading import require

MOST_PROPOSALS = 1000


def read_inputs(graph: Graph, columns: list[str], one_hot: list[list[int]]) -> tuple[Input, ...]:
    """Return the named inputs that make the certified columns, in order."""
    groups = {group[0]: group for group in one_hot}
    whole: frozenset[int] = frozenset()
    if "domain.whole" in graph.constants:
        _, data = graph.numbers("domain.whole", "I64")
        # A set, so that hostile files are refused quickly.
        whole = frozenset(struct.unpack(f"<{len(data) // 8}q", data))
    result: list[Input] = []
    column, end = 0, len(columns)
    while end and columns[end - 1] not in graph.inputs and is_flag(columns[end - 1], graph):
        end -= 1  # columns that flag missing inputs come last
    flags, asked = columns[end:], set(columns[end:])
    require(all(k < end for group in one_hot for k in group), "onnx: categories among columns that say what is missing")
    while column < end:
        base = f"inputs/{len(result)}/"
        name, fill, default = columns[column], None, 0
        categories: tuple[str, ...] = ()
        if column in groups:
            group = groups[column]
            require(group == list(range(column, column + len(group))), "onnx: categories that are not in order")
            labels = [columns[c] for c in group]
            prefixes = [name[:i] for i, c in enumerate(name) if c == "=" and name[:i] in graph.inputs]
            found = [p for p in prefixes if all(label.startswith(p + "=") for label in labels)]
            require(bool(found), f"onnx: no input for the categories of {name[:80]!r}")
            name, categories = found[0], tuple(label[len(found[0]) + 1 :] for label in labels)
            otherwise = graph.floats(base + "otherwise", (1, len(group)))
            bits = struct.unpack(f"<{len(group)}f", otherwise)
            default = bits.index(max(bits))
        elif base + "fill" in graph.constants:
            fill = graph.floats(base + "fill", (1, 1))
            require(math.isfinite(*struct.unpack("<f", fill)), "onnx: NaN or infinity for missing values")
        expected = STRING if categories else FLOAT
        require(name in graph.inputs, f"onnx: no input {name[:80]!r}")
        kind, shape = graph.inputs[name]
        require(
            kind == expected and len(shape) == 2 and shape[1] == 1, f"onnx: input {name[:80]!r}: wrong type or shape"
        )
        blank = base + "known" in graph.constants
        flagged = flag_of(name) in asked
        require(not flagged or bool(categories) or fill is not None, f"onnx: nothing stands in for {name[:80]!r}")
        result.append(Input(name, categories, fill, default, blank, column in whole and not categories, flagged))
        column += max(1, len(categories))
    require(column == end, "onnx: categories and columns that say what is missing are not in order")
    require([flag_of(item.name) for item in result if item.flagged] == flags, "onnx: missing values of unknown inputs")
    require(len({item.name for item in result}) == len(result), "onnx: an input is used twice")
    return tuple(result)


def is_flag(column: str, graph: Graph) -> bool:
    """Return whether a column flags a missing input of the graph."""
    name = column.removesuffix(flag_of(""))
    return name != column and name in graph.inputs


def read_outputs(graph: Graph, targets: list[tuple[str, str]]) -> tuple[Output, ...]:
    """Return the named outputs that the certified targets (name, kind) make, in order."""
    operators = {name: found.node.op for found in graph.nodes for name in found.node.outputs}
    result: list[Output] = []
    column = 0
    while column < len(targets):
        name, kind = targets[column]
        if kind != "score":
            result.append(Output(kind, name))
            column += 1
            continue
        base = f"choices/{len(result)}/"
        data = graph.constant(base + "options", "STRING").data
        options = tuple(name_of(option, "option") for option in data if isinstance(option, bytes))
        require(len(options) > 1 and name.endswith("=" + options[0]), f"onnx: options of {name[:80]!r} differ")
        choice = name[: -len(options[0]) - 1]
        stated = [target for target, _ in targets[column : column + len(options)]]
        require(stated == [f"{choice}={option}" for option in options], f"onnx: options of {choice[:80]!r} differ")
        pick = operators.get(base + "index", "")
        require(pick in ("ArgMax", "ArgMin"), f"onnx: choice {choice[:80]!r} is picked by neither ArgMax nor ArgMin")
        result.append(Output("choice", choice, options, pick))
        column += len(options)
    return tuple(result)


def read_proposals(graph: Graph) -> int:
    """Return the number of proposals per row in the graph: 1, or a number that the graph states."""
    if "repair.proposals" not in graph.constants:
        return 1
    shape, data = graph.numbers("repair.proposals", "I64")
    count = struct.unpack("<q", data)[0] if shape == (1,) else 0
    require(0 < count <= MOST_PROPOSALS, "onnx: repair.proposals: expected a number of proposals")
    return int(count)


def match(graph: Graph, program: Program, outputs: dict[str, Any]) -> list[Found]:
    """Compare the graph with the program; return the other nodes, which belong to the model or propose answers."""
    for name, constant in program.constants.items():
        require(graph.constants.get(name) == constant, f"onnx: initializer {name!r} is not that of the certified head")
    rest = compared(program.nodes, graph.nodes)
    require(list(graph.outputs) == list(outputs), "onnx: the outputs are not those of the certified head")
    for name, (kind, shape) in outputs.items():
        stated, sizes = graph.outputs[name]
        fits = stated == kind and len(sizes) == len(shape) and sizes[1:] == shape[1:]
        require(fits, f"onnx: output {name[:80]!r}: wrong type or shape")
    ours = names_of(program.nodes)
    require(ours.isdisjoint(graph.declared), "onnx: value_info for names of the certified head")
    forbidden = (ours | set(program.constants)) - program.readable
    for found in rest:
        require(
            forbidden.isdisjoint(found.reads), f"onnx: {found.node.op[:40]} is added behind or into the certified head"
        )
    return rest


def names_of(nodes: list[GraphNode]) -> set[str]:
    """Return the names that nodes make, including in their branches."""
    inner = [node for each in nodes for branch in each.branches.values() for node in branch.nodes]
    return {name for node in nodes for name in node.outputs} | (names_of(inner) if inner else set())


def compared(expected: list[GraphNode], found: list[Found]) -> list[Found]:
    """Compare the nodes of a graph or branch with those of the program; return the others, including in branches."""
    made = {name: each for each in found for name in each.node.outputs}
    rest: list[Found] = []
    for node in expected:
        other = made.get(node.outputs[0])
        same = other is not None and other.plain and other.node == node._replace(branches=other.node.branches)
        require(same, f"onnx: node {node.outputs[0]!r} is not that of the certified head")
        bodies = other.bodies if other is not None else {}
        require(bodies.keys() == node.branches.keys(), f"onnx: {node.outputs[0]!r}: other branches")
        for name, branch in node.branches.items():
            body = bodies[name]
            plain = not body.own and body.typed == [(output, branch.kind, False) for output in branch.outputs]
            require(plain, f"onnx: {node.outputs[0]!r}: a branch has other inputs, constants or outputs")
            rest += compared(branch.nodes, body.nodes)
    ours = {name for node in expected for name in node.outputs}
    others = [each for each in found if ours.isdisjoint(each.node.outputs)]
    require(len(others) + len(expected) == len(found), "onnx: nodes of the head and others are mixed up")
    return [*others, *rest]
