"""Builds the nodes and constants of a graph, and names its inputs and outputs."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from smle_check.onnx.graph import BOOL, FLOAT, INT64, STRING, Branch, Constant, GraphNode
from smle_check.reading import Tensor, require

FEATURES, EMBEDDING = "inputs/features", "backbone/embedding"  # (batch, d) and (batch, n), or the model's answer
PROPOSAL = "proposals/first"  # (m, rows that fail), or (m, all rows) if answers hardly ever pass as they are
FURTHER = "proposals/further"  # (m, proposals x rows): all second ones, then all third ones, ...
STACKED, LABELS = "outputs", "labels"  # (batch, m) and (batch, labels), of files without named outputs


ROOM = 1 << 26  # bytes of constants allowed for a file of any size
DENSE = 1 << 16  # larger matrices may be written sparsely


class Input(NamedTuple):
    """A named input: a number, or one of several categories.

    `fill`: the float32 that replaces NaN, or None. `default`: the category that replaces unknown ones; `blank`: whether
    the empty text counts as that category. `whole`: whether `in_domain` requires a whole number. `flagged`: whether a
    column is 1 where it is missing (NaN, the empty text), else 0; these columns come last.
    """

    name: str
    categories: tuple[str, ...] = ()
    fill: bytes | None = None
    default: int = 0
    blank: bool = False
    whole: bool = False
    flagged: bool = False

    @property
    def width(self) -> int:
        """Number of feature columns it makes."""
        return max(1, len(self.categories))


class Output(NamedTuple):
    """A named output: `number`, `label` or `choice`; for a choice its options and ArgMax or ArgMin."""

    kind: str
    name: str
    options: tuple[str, ...] = ()
    pick: str = "ArgMax"

    @property
    def columns(self) -> list[str]:
        """Names of the graph's float outputs."""
        if self.kind == "choice":
            return [f"score({self.name}={option})" for option in self.options]
        return [f"logit({self.name})" if self.kind == "label" else self.name]


class Interface(NamedTuple):
    """Named inputs and outputs, and whether `in_domain`, `outside_input` and `active_rules` are reported.

    `stacked`: answers are one tensor, with the columns in the order of the outputs.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    monitored: bool = True
    steps: bool = False  # also report whole numbers of steps, of a grid head
    stacked: bool = False

    @property
    def columns(self) -> list[str]:
        """Names of the numbers that the head computes, in order."""
        return [name for item in self.outputs for name in item.columns]


class Value(NamedTuple):
    """The result of an operation. `across`: (columns, batch), which is faster in runtimes."""

    node: str
    across: bool


class Program:
    """Nodes and constants, added one after the other. `room`: how many bytes of constants are allowed."""

    def __init__(self, room: int | None = None) -> None:
        self.nodes: list[GraphNode] = []
        self.constants: dict[str, Constant] = {}
        self.made: set[str] = set()
        self.readable = {FEATURES}  # what the model and proposals may read
        self.room = room

    def add(self, op: str, inputs: list[str], output: str, **attributes: int) -> str:
        """Append a node with one output; return its name."""
        return self.several(op, inputs, [output], **attributes)[0]

    def several(self, op: str, inputs: list[str], outputs: list[str], **attributes: int) -> list[str]:
        """Append a node with several outputs; return their names."""
        if not self.made.isdisjoint(outputs):
            raise ValueError(f"a name is made twice: {outputs}")
        self.nodes.append(GraphNode(op, tuple(inputs), tuple(outputs), attributes))
        self.made.update(outputs)
        return outputs

    def branch(self, condition: str, output: str, branches: dict[str, Branch]) -> str:
        """Append a node that runs one of two branches; return the name of its result."""
        self.nodes.append(GraphNode("If", (condition,), (output,), {}, branches))
        self.made.add(output)
        return output

    def rename(self, old: str, new: str) -> str:
        """Rename the output of a node that no other node reads."""
        place = next(i for i, node in enumerate(self.nodes) if node.outputs == (old,))
        self.nodes[place] = self.nodes[place]._replace(outputs=(new,))
        self.made = (self.made - {old}) | {new}
        return new

    def reserve(self, numbers: int) -> None:
        """Refuse to write many more numbers than the file can hold."""
        if self.room is not None:
            require(4 * numbers <= max(self.room, ROOM), "onnx: the file is too small for the certified head")

    def put(self, name: str, constant: Constant) -> str:
        """Add a constant; return its name."""
        self.constants[name] = constant
        return name

    def floats(self, name: str, values: list[float] | list[int], shape: tuple[int, ...]) -> str:
        """Add a float32 constant of small whole numbers or halves."""
        return self.put(name, Constant("F32", shape, struct.pack(f"<{len(values)}f", *values)))

    def doubles(self, name: str, values: list[float], shape: tuple[int, ...]) -> str:
        """Add a float64 constant."""
        return self.put(name, Constant("F64", shape, struct.pack(f"<{len(values)}d", *values)))

    def integers(self, name: str, values: list[int], shape: tuple[int, ...]) -> str:
        """Add an int64 constant."""
        return self.put(name, Constant("I64", shape, struct.pack(f"<{len(values)}q", *values)))

    def texts(self, name: str, values: tuple[str, ...], shape: tuple[int, ...]) -> str:
        """Add a constant of texts."""
        return self.put(name, Constant("STRING", shape, tuple(v.encode() for v in values)))

    def stored(self, name: str, tensor: Tensor, *shape: int) -> str:
        """Add a certified tensor, reshaped."""
        return self.put(name, Constant(tensor.dtype, shape or tensor.shape, tensor.data))

    def cast(self, source: str) -> str:
        """Turn truth values into float32 zeros and ones, once."""
        output = source + "/float"
        return output if output in self.made else self.add("Cast", [source], output, to=FLOAT)

    def rows(self) -> str:
        """Return the number of rows of the inputs, (1,)."""
        return "inputs/rows" if "inputs/rows" in self.made else self.add(
            "Shape", [FEATURES], "inputs/rows", start=0, end=1
        )  # fmt: skip

    def answer(self, n: int, *, across: bool = False) -> str:
        """Reshape EMBEDDING to (batch, n), or (n, batch), with as many rows as the inputs, or the runtime stops.

        Nothing else ensures that a model makes one row per input, and runtimes differ in what they do if it does not.
        """
        width, turned = self.integers("head.width", [n], (1,)), across and n == 1
        parts = [width, self.rows()] if turned else [self.rows(), width]
        shape = self.add("Concat", parts, "head/shape", axis=0)
        result = self.add("Reshape", [EMBEDDING, shape], "head/embedding", allowzero=1)
        return self.add("Transpose", [result], "head/answer") if across and not turned else result


def output_types(interface: Interface, rules: int) -> dict[str, tuple[int, tuple[int | None, ...]]]:
    """Return names, types and shapes of the graph's outputs, in order."""
    result: dict[str, tuple[int, tuple[int | None, ...]]] = {}
    if interface.stacked:
        labels = sum(item.kind == "label" for item in interface.outputs)
        result[STACKED] = FLOAT, (None, len(interface.columns))
        result.update({LABELS: (BOOL, (None, labels))} if labels else {})
    for item in () if interface.stacked else interface.outputs:
        if item.kind != "number":
            result[item.name] = BOOL if item.kind == "label" else STRING, (None, 1)
        result.update(dict.fromkeys(item.columns, (FLOAT, (None, 1))))
    if interface.steps:
        result["steps"] = INT64, (None, len(interface.outputs))
    if interface.monitored:
        result["in_domain"] = BOOL, (None,)
        result["outside_input"] = INT64, (None,)
        if rules:
            result["active_rules"] = BOOL, (None, rules)
    return result


def floats_of(tensor: Tensor) -> list[float]:
    """Read the numbers of a tensor."""
    code, width = {"F32": ("f", 4), "F64": ("d", 8), "U8": ("B", 1)}[tensor.dtype]
    return list(struct.unpack(f"<{len(tensor.data) // width}{code}", tensor.data))


def negated(data: bytes) -> bytes:
    """Flip the sign of one float32, as bytes: exact."""
    return data[:3] + bytes([data[3] ^ 128])


# --- Sparse sums: where a matrix would be mostly zeros, rows are added up term by term -----------------------------


def is_sparse(forms: Sequence[Mapping[int, float]], width: int) -> bool:
    """Return whether rows are better added up term by term: the matrix is large, with few numbers."""
    size = len(forms) * width
    return size > DENSE and 16 * sum(2 * len(form) + 1 for form in forms) < size


def summed(
    p: Program, forms: Sequence[Mapping[int, float]], values: str, name: str, stored: str,
    put: Callable[[str, list[float], tuple[int, ...]], str]
) -> str:  # fmt: skip
    """Return sum_k form[k] values[k] for each form (forms, n), with constants by `put`.

    Forms with at most 1, 2, 4, ... terms are added up together; a shorter form is padded with 0 times the first value,
    which is finite.
    """
    lengths: dict[int, list[int]] = {}
    for i, form in enumerate(forms):
        lengths.setdefault(1 << (max(len(form), 1) - 1).bit_length(), []).append(i)
    p.reserve(4 * sum(length * len(rows) for length, rows in lengths.items()))
    parts, order = [], list[int]()
    for length, rows in sorted(lengths.items()):
        terms = [[*forms[i].items()] + [(0, 0.0)] * (length - len(forms[i])) for i in rows]
        columns, own = f"{stored}.columns.{length}", f"{name}/terms/{length}"
        places = p.integers(columns, [t[j][0] for j in range(length) for t in terms], (length, len(rows)))
        factors = put(f"{stored}.{length}", [t[j][1] for j in range(length) for t in terms], (length, len(rows), 1))
        picked = p.add("Gather", [values, places], f"{own}/values", axis=0)
        products = p.add("Mul", [factors, picked], own)
        first = p.integers("constants/first", [0], (1,))
        parts.append(p.add("ReduceSum", [products, first], f"{own}/sums", keepdims=0))
        order += rows
    if len(parts) == 1:
        return parts[0]
    joined = p.add("Concat", parts, f"{name}/terms", axis=0)
    place = {row: i for i, row in enumerate(order)}
    turned = p.integers(f"{stored}.order", [place[i] for i in range(len(forms))], (len(forms),))
    return p.add("Gather", [joined, turned], f"{name}/sums", axis=0)
