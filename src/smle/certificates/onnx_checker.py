#!/usr/bin/env python3
"""Checker of exported models: is the head in an ONNX file the one that its certificate speaks of?

    python -m smle.certificates.onnx_checker model.onnx
    or alone, beside checker.py:  python3 -I -S onnx_checker.py model.onnx

Standard library only. `model.onnx.certificate.json` lies beside the file. What is done here:

1. both files are read strictly (a small protobuf reader; whatever is unknown is refused) and their digests compared;
2. the certified tensors are rebuilt from the initializers of the file, and `checker.check` proves the rules for them;
3. the program of the head, from the named inputs to the named outputs, is written down again from the certificate
   alone (section 3 below) and compared with the graph node by node: operators, attributes, names, constants.

What is left over may only compute the embedding. It is listed as asserted by the exporter: the proof holds whatever
it computes. Anything else raises `Rejected`.
"""

import base64
import binascii
import hashlib
import math
import os
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from smle.certificates import checker
else:  # run as a file: `python3 -I` does not look beside it by itself
    from importlib.util import module_from_spec, spec_from_file_location

    _found = spec_from_file_location("checker", os.path.join(os.path.dirname(os.path.abspath(__file__)), "checker.py"))
    checker = module_from_spec(_found)
    sys.modules["checker"] = checker
    _found.loader.exec_module(checker)

Rejected, require = checker.Rejected, checker.require

FORMAT, VERSION = "smle-onnx-certificate", 1
OPSET = 20  # of the default domain, the only one allowed
IR_VERSIONS = (8, 9, 10)
FLOAT, INT64, STRING, BOOL = 1, 7, 8, 9  # TensorProto.DataType
TYPES = {FLOAT: ("F32", 4), INT64: ("I64", 8), BOOL: ("BOOL", 1)}
NAN = b"\x00\x00\xc0\x7f"
FEATURES, EMBEDDING = "inputs/features", "backbone/embedding"  # (batch, d) and (batch, n)

# --- 1. A strict reader for the parts of protobuf and ONNX that are needed -----------------------------------

Schema = dict[int, tuple[str, Any]]
"""Field number -> (name, kind): i integer, f float, b bytes, or a schema; in a list: repeated."""

_ENTRY: Schema = {1: ("key", "b"), 2: ("value", "b")}
_TENSOR: Schema = {
    1: ("dims", ["i"]), 2: ("data_type", "i"), 4: ("float_data", ["f"]), 5: ("int32_data", ["i"]),
    6: ("string_data", ["b"]), 7: ("int64_data", ["i"]), 8: ("name", "b"), 9: ("raw_data", "b"),
    12: ("doc_string", "b"), 14: ("data_location", "i"), 16: ("metadata_props", [_ENTRY]),
}  # fmt: skip
_ATTRIBUTE: Schema = {
    1: ("name", "b"), 2: ("f", "f"), 3: ("i", "i"), 4: ("s", "b"), 5: ("t", _TENSOR), 7: ("floats", ["f"]),
    8: ("ints", ["i"]), 9: ("strings", ["b"]), 13: ("doc_string", "b"), 20: ("type", "i"),
}  # fmt: skip
_NODE: Schema = {
    1: ("input", ["b"]), 2: ("output", ["b"]), 3: ("name", "b"), 4: ("op_type", "b"), 5: ("attribute", [_ATTRIBUTE]),
    6: ("doc_string", "b"), 7: ("domain", "b"), 9: ("metadata_props", [_ENTRY]),
}  # fmt: skip
_SHAPE: Schema = {1: ("dim", [{1: ("dim_value", "i"), 2: ("dim_param", "b")}])}
_VALUE: Schema = {
    1: ("name", "b"), 2: ("type", {1: ("tensor_type", {1: ("elem_type", "i"), 2: ("shape", _SHAPE)})}),
    3: ("doc_string", "b"), 4: ("metadata_props", [_ENTRY]),
}  # fmt: skip
_GRAPH: Schema = {
    1: ("node", [_NODE]), 2: ("name", "b"), 5: ("initializer", [_TENSOR]), 10: ("doc_string", "b"),
    11: ("input", [_VALUE]), 12: ("output", [_VALUE]), 13: ("value_info", [_VALUE]), 16: ("metadata_props", [_ENTRY]),
}  # fmt: skip
_MODEL: Schema = {
    1: ("ir_version", "i"), 2: ("producer_name", "b"), 3: ("producer_version", "b"), 4: ("domain", "b"),
    5: ("model_version", "i"), 6: ("doc_string", "b"), 7: ("graph", _GRAPH),
    8: ("opset_import", [{1: ("domain", "b"), 2: ("version", "i")}]), 14: ("metadata_props", [_ENTRY]),
}  # fmt: skip


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a variable-length integer of at most 64 bits; return it and the place behind it."""
    value = shift = 0
    while True:
        require(at < len(data) and shift < 70, "onnx: malformed integer")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            require(value < 1 << 64, "onnx: malformed integer")
            return value, at


def signed(value: int) -> int:
    """Read 64 bits as two's complement."""
    return value - (1 << 64) if value >> 63 else value


def message(data: memoryview, schema: Schema, what: str) -> dict[str, Any]:
    """Read one message. Unknown fields, wrong wire types and singular fields that come twice are refused."""
    result: dict[str, Any] = {name: [] if isinstance(kind, list) else None for name, kind in schema.values()}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        require(key >> 3 in schema, f"onnx: {what}: field {key >> 3} is not supported")
        name, kind = schema[key >> 3]
        single = kind[0] if isinstance(kind, list) else kind
        wire = key & 7
        chunk: memoryview = data[:0]
        number = 0
        if wire == 0:
            number, at = varint(data, at)
        else:
            require(wire in (2, 5), f"onnx: {what}: malformed field '{name}'")
            size, at = (4, at) if wire == 5 else varint(data, at)
            require(size <= len(data) - at, f"onnx: {what}: truncated")
            chunk, at = data[at : at + size], at + size
        for value in _decoded(wire, number, chunk, single, kind, f"{what}.{name}"):
            if isinstance(kind, list):
                result[name].append(value)
            else:
                require(result[name] is None, f"onnx: {what}: field '{name}' comes twice")
                result[name] = value
    return result


def _decoded(wire: int, number: int, chunk: memoryview, single: Any, kind: Any, what: str) -> list[Any]:
    """Return the values that one field carries (several where repeated numbers are packed)."""
    if single == "i" and wire == 0:
        return [signed(number)]
    if single == "f" and wire == 5:
        return list(struct.unpack("<f", chunk))
    if wire == 2 and isinstance(kind, list) and single == "f":
        require(len(chunk) % 4 == 0, f"onnx: {what}: malformed")
        return list(struct.unpack(f"<{len(chunk) // 4}f", chunk))
    if wire == 2 and isinstance(kind, list) and single == "i":
        values, at = [], 0
        while at < len(chunk):
            value, at = varint(chunk, at)
            values.append(signed(value))
        return values
    require(wire == 2 and single not in ("i", "f"), f"onnx: {what}: unexpected type")
    return [chunk.tobytes() if single == "b" else message(chunk, single, what)]


def name_of(data: bytes | None, what: str) -> str:
    """Decode a name; an absent one is empty."""
    require(len(data or b"") < 10_000, f"onnx: {what}: name too long")
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise Rejected(f"onnx: {what}: name is not UTF-8") from None


# --- 2. The graph: tensors, nodes, inputs, outputs ------------------------------------------------------------


class Node(NamedTuple):
    """One operator of the default domain; attributes are integers."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, int]


class Constant(NamedTuple):
    """A constant tensor: F32, I64 and BOOL as little-endian bytes, STRING as a tuple of texts in UTF-8."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | tuple[bytes, ...]


class Graph:
    """What the file says, after the checks that hold for every graph: standard, flat, each name made once."""

    def __init__(self, data: bytes) -> None:
        model = message(memoryview(data), _MODEL, "model")
        require(model["ir_version"] in IR_VERSIONS, f"onnx: expected an IR version of {IR_VERSIONS}")
        opsets = [(name_of(entry["domain"], "opset"), entry["version"]) for entry in model["opset_import"]]
        require(
            opsets in ([("", OPSET)], [("ai.onnx", OPSET)]), f"onnx: expected the standard operator set {OPSET} only"
        )
        require(model["graph"] is not None, "onnx: no graph")
        graph = model["graph"]
        self.metadata: dict[str, bytes] = {}
        for entry in model["metadata_props"]:
            key = name_of(entry["key"], "metadata")
            require(key not in self.metadata, "onnx: metadata given twice")
            self.metadata[key] = entry["value"] or b""
        self.constants: dict[str, Constant | None] = {}  # None: a type that no certified head has
        for entry in graph["initializer"]:
            name = name_of(entry["name"], "initializer")
            require(bool(name) and name not in self.constants, f"onnx: initializer {name[:80]!r} is given twice")
            self.constants[name] = constant_of(entry, f"initializer {name[:80]!r}")
        self.inputs = self.named(graph["input"], "input")
        self.outputs = self.named(graph["output"], "output")
        self.declared = {name_of(entry["name"], "value_info") for entry in graph["value_info"]}
        self.nodes = [self.node(entry) for entry in graph["node"]]
        self.check_order()

    @staticmethod
    def named(entries: list[dict[str, Any]], what: str) -> dict[str, tuple[int, tuple[int | None, ...]]]:
        """Return element type and shape (None: free) of the inputs or outputs."""
        result: dict[str, tuple[int, tuple[int | None, ...]]] = {}
        for entry in entries:
            name = name_of(entry["name"], what)
            tensor = (entry["type"] or {}).get("tensor_type")
            require(bool(name) and name not in result, f"onnx: {what} {name[:80]!r} is given twice")
            if tensor is None or tensor["shape"] is None:
                raise Rejected(f"onnx: {what} {name[:80]!r}: no tensor type")
            sizes = tensor["shape"]["dim"]
            require(all(None in size.values() for size in sizes), f"onnx: {what} {name[:80]!r}: a size is given twice")
            result[name] = tensor["elem_type"], tuple(size["dim_value"] for size in sizes)
        return result

    @staticmethod
    def node(entry: dict[str, Any]) -> tuple[Node, bool]:
        """Return a node, and whether its attributes are all integers."""
        require(name_of(entry["domain"], "node") in ("", "ai.onnx"), "onnx: operator outside of the standard set")
        attributes: dict[str, int] = {}
        plain = True
        for attribute in entry["attribute"]:
            name = name_of(attribute["name"], "attribute")
            require(name not in attributes, f"onnx: attribute {name[:80]!r} is given twice")
            if attribute["t"] is not None:
                constant_of(attribute["t"], "attribute")
            plain = plain and attribute["type"] == 2 and attribute["i"] is not None
            attributes[name] = attribute["i"] or 0
            if attribute["type"] == 2:  # an integer has no other value
                others = ("f", "s", "t", "floats", "ints", "strings")
                require(not any(attribute[o] for o in others), f"onnx: attribute {name[:80]!r}: malformed")
        inputs, outputs = (tuple(name_of(n, "node") for n in entry[side]) for side in ("input", "output"))
        return Node(name_of(entry["op_type"], "node"), inputs, outputs, attributes), plain

    def check_order(self) -> None:
        """Check that every name has one origin and is known before it is used."""
        twice = sorted(set(self.constants) & set(self.inputs))
        require(not twice, f"onnx: {twice[:1]} is both an input and an initializer")
        known = {"", *self.constants, *self.inputs}
        for node, _ in self.nodes:
            require(known.issuperset(node.inputs), f"onnx: {node.op[:40]}: input used before it is made")
            for name in filter(None, node.outputs):
                require(name not in known, f"onnx: the name {name[:80]!r} is made twice")
                known.add(name)
        require(known.issuperset(self.outputs), "onnx: an output is made by no node")

    def constant(self, name: str, dtype: str) -> Constant:
        """Return an initializer of the given type."""
        found = self.constants.get(name)
        if found is None or found.dtype != dtype:
            raise Rejected(f"onnx: expected an initializer {name!r} of type {dtype}")
        return found

    def floats(self, name: str, shape: tuple[int, ...]) -> bytes:
        """Return the bytes of a float32 initializer of the given shape."""
        found = self.constant(name, "F32")
        require(found.shape == shape, f"onnx: initializer {name!r}: expected the shape {list(shape)}")
        assert isinstance(found.data, bytes)
        return found.data


def constant_of(entry: dict[str, Any], what: str) -> Constant | None:
    """Return a tensor that lies in the file itself, or None for types that certified heads do not have."""
    require(not entry["data_location"], f"onnx: {what}: data outside of the file")
    shape = tuple(entry["dims"])
    require(len(shape) <= 8 and all(0 <= s < 1 << 40 for s in shape), f"onnx: {what}: malformed shape")
    size, typed = math.prod(shape), entry["float_data"] or entry["int32_data"] or entry["int64_data"]
    if entry["data_type"] == STRING:
        require(entry["raw_data"] is None and not typed, f"onnx: {what}: malformed")
        require(len(entry["string_data"]) == size, f"onnx: {what}: size does not match shape")
        return Constant("STRING", shape, tuple(entry["string_data"]))
    require(not entry["string_data"], f"onnx: {what}: malformed")
    if entry["data_type"] not in TYPES or typed:  # typed fields are allowed in backbones only
        require(not (typed and entry["raw_data"] is not None), f"onnx: {what}: data given twice")
        return None
    dtype, width = TYPES[entry["data_type"]]
    data = entry["raw_data"] or b""
    require(len(data) == size * width, f"onnx: {what}: size does not match shape")
    return Constant(dtype, shape, data)


# --- 3. The program: what the graph must be --------------------------------------------------------------------


class Input(NamedTuple):
    """A named input: a number, or one of several categories.

    `fill`: the float32 that stands in for NaN, or None. `default`: the category that stands in for unknown ones;
    `blank`: whether the empty text counts as that category. `whole`: whether `in_domain` asks for a whole number.
    """

    name: str
    categories: tuple[str, ...] = ()
    fill: bytes | None = None
    default: int = 0
    blank: bool = False
    whole: bool = False


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


class Gate(NamedTuple):
    """The half-spaces that some regions use, comparisons (column, sign, strict) first, and which regions they make."""

    comparisons: list[tuple[int, int, bool]]
    oblique: int
    members: list[list[int]]  # half-spaces x regions
    constants: bytes  # of the comparisons
    coefficients: checker.Tensor
    thresholds: bytes


class Monitor(NamedTuple):
    """What `active_rules` reports. `gate`: a gate of its own, where the head's does not have all regions."""

    gate: Gate | None
    rules: list[list[int]]  # regions x rules
    always: list[int]  # rules with a region that is the whole domain


class Program:
    """Nodes and constants, put down one after the other."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}

    def add(self, op: str, inputs: list[str], output: str, **attributes: int) -> str:
        """Append a node with one output; return its name."""
        self.nodes.append(Node(op, tuple(inputs), (output,), attributes))
        return output

    def split(self, source: str, sizes: str, outputs: list[str]) -> None:
        """Split columns into named outputs (batch, 1)."""
        self.integers(sizes, [1] * len(outputs), (len(outputs),))
        self.nodes.append(Node("Split", (source, sizes), tuple(outputs), {"axis": 1}))

    def put(self, name: str, constant: Constant) -> str:
        """Note a constant; return its name."""
        self.constants[name] = constant
        return name

    def floats(self, name: str, values: list[float] | list[int], shape: tuple[int, ...]) -> str:
        """Note a float32 constant of small whole numbers or halves."""
        return self.put(name, Constant("F32", shape, struct.pack(f"<{len(values)}f", *values)))

    def integers(self, name: str, values: list[int], shape: tuple[int, ...]) -> str:
        """Note an int64 constant."""
        return self.put(name, Constant("I64", shape, struct.pack(f"<{len(values)}q", *values)))

    def texts(self, name: str, values: tuple[str, ...], shape: tuple[int, ...]) -> str:
        """Note a constant of texts."""
        return self.put(name, Constant("STRING", shape, tuple(v.encode() for v in values)))

    def encode(self, inputs: tuple[Input, ...]) -> list[str]:
        """Named inputs -> FEATURES (batch, d). Return the texts compared with the known ones (batch, categories)."""
        parts, known = [], []
        for i, item in enumerate(inputs):
            base = f"inputs/{i}/"
            if not item.categories:
                parts.append(item.name)
                if item.fill is not None:
                    fill = self.put(base + "fill", Constant("F32", (1, 1), item.fill))
                    missing = self.add("IsNaN", [item.name], base + "missing")
                    parts[-1] = self.add("Where", [missing, fill, item.name], base + "filled")
                continue
            k = len(item.categories)
            names = self.texts(base + "categories", item.categories, (1, k))
            equal = self.add("Equal", [item.name, names], base + "equal")
            # Exactly one column is 1, whatever the text: an unknown one counts as the default.
            otherwise = self.floats(base + "otherwise", [int(j == item.default) for j in range(k)], (1, k))
            score = self.add("Where", [equal, self.floats("constants/two", [2], ()), otherwise], base + "score")
            best = self.add("ArgMax", [score], base + "index", axis=1, keepdims=1)
            positions = self.integers(base + "positions", list(range(k)), (1, k))
            parts.append(self.cast(self.add("Equal", [best, positions], base + "hot")))
            known.append(equal)
        self.add("Concat", parts, FEATURES, axis=1)
        return known

    def cast(self, source: str) -> str:
        """Turn truth values into float32 zeros and ones, once."""
        output = source + "/float"
        if all(output not in node.outputs for node in self.nodes):
            self.add("Cast", [source], output, to=FLOAT)
        return output

    def clip(self, source: str, lower: str, upper: str, output: str) -> str:
        """The NaN-safe clip: NaN becomes lower, and where lower > upper the result is upper."""
        above = self.add("GreaterOrEqual", [source, lower], output + "/above")
        raised = self.add("Where", [above, source, lower], output + "/raised")
        below = self.add("LessOrEqual", [raised, upper], output + "/below")
        return self.add("Where", [below, raised, upper], output)

    def domain(self, tensors: dict[str, checker.Tensor]) -> str:
        """FEATURES -> features clamped to the domain, one row per column (d, batch): runtimes are faster that way."""
        d = tensors["domain.lower_float32"].shape[0]
        ends = [self.stored(f"domain.{side}_float32", tensors, d, 1) for side in ("lower", "upper")]
        return self.clip(self.add("Transpose", [FEATURES], "head/columns"), ends[0], ends[1], "head/x")

    def in_domain(self, inputs: tuple[Input, ...], known: list[str]) -> None:
        """`in_domain` (batch,): clamping changed nothing, whole numbers are whole, and texts are known (or blank)."""
        inside = self.cast(self.add("Equal", ["head/x", "head/columns"], "domain/inside"))
        first = self.integers("constants/first", [0], (1,))
        flags = [self.add("ReduceMin", [inside, first], "domain/least", keepdims=0)]
        whole = whole_columns(inputs)
        if whole:
            picks = self.integers("domain.whole", whole, (len(whole),))
            values = self.add("Gather", ["head/columns", picks], "domain/values", axis=0)
            equal = self.add("Equal", [values, self.add("Floor", [values], "domain/floor")], "domain/equal")
            flags.append(self.add("ReduceMin", [self.cast(equal), first], "domain/unbroken", keepdims=0))
        for (i, item), equal in zip(
            [(i, item) for i, item in enumerate(inputs) if item.categories], known, strict=True
        ):
            base, k = f"inputs/{i}/", len(item.categories)
            if item.blank:
                accepted = self.texts(base + "known", (*item.categories, ""), (1, k + 1))
                equal = self.add("Equal", [item.name, accepted], base + "accepted")
            axes = self.integers("constants/second", [1], (1,))
            flags.append(self.add("ReduceMax", [self.cast(equal), axes], base + "any", keepdims=0))
        everything = self.add("Min", flags, "domain/everything") if len(flags) > 1 else flags[0]
        self.add("Cast", [everything], "in_domain", to=BOOL)

    def active(self, x: str, gate: Gate, name: str = "gate") -> str:
        """Clamped features -> which regions are active (regions, batch). Each half-space is evaluated once.

        A row s x <= c fails where s x > c. A strict one, s x < c, holds where -s x > -c: it counts as -1, and a region
        is active where no row fails and all strict ones hold.
        """
        values, d = [], gate.coefficients.shape[1]
        if gate.comparisons:
            turned = [(sign < 0) is not strict for _, sign, strict in gate.comparisons]
            rows, source = [row[0] + d * turn for row, turn in zip(gate.comparisons, turned, strict=True)], x
            if any(turned):  # a change of sign is exact, also for subnormal numbers
                source = self.add("Concat", [x, self.add("Neg", [x], f"{name}/negative")], f"{name}/both", axis=0)
            picks = self.integers(f"{name}.columns", rows, (len(rows),))
            values.append(self.add("Gather", [source, picks], f"{name}/compared", axis=0))
        if gate.oblique:
            coefficients = self.put(f"{name}.coefficients", Constant(*gate.coefficients))
            values.append(self.add("MatMul", [coefficients, x], f"{name}/oblique"))
        stacked = values[0] if len(values) == 1 else self.add("Concat", values, f"{name}/values", axis=0)
        count, regions = len(gate.members), len(gate.members[0])
        strict = [row[2] for row in gate.comparisons] + [False] * gate.oblique
        parts = [gate.constants[4 * i : 4 * i + 4] for i in range(len(gate.comparisons))]
        limits = b"".join(negated(part) if is_strict else part for part, is_strict in zip(parts, strict, strict=False))
        limit = self.put(f"{name}.limits", Constant("F32", (count, 1), limits + gate.thresholds))
        beyond = self.cast(self.add("Greater", [stacked, limit], f"{name}/beyond"))
        signed = [[-bit if minus else bit for bit in row] for row, minus in zip(gate.members, strict, strict=True)]
        entries = [row[g] for g in range(regions) for row in signed]
        members = self.floats(f"{name}.members", entries, (regions, count))
        least = [sum(min(row[g], 0) for row in signed) for g in range(regions)]
        found = self.add("MatMul", [members, beyond], f"{name}/count")
        return self.add("Equal", [found, self.floats(f"{name}.least", least, (regions, 1))], f"{name}/active")

    def inside(self, inputs: tuple[Input, ...], gate: Gate) -> str:
        """Named inputs -> whether the one gated region, made of comparisons, is active (batch, 1).

        For limits strictly inside of the range (see `is_direct`) this is what comparing clamped inputs gives, NaN
        included: clamped to the lower end, it is not above any limit and reaches none.
        """
        names: list[str] = []
        for i, item in enumerate(inputs):
            names += [item.name if item.fill is None else f"inputs/{i}/filled"] * max(1, len(item.categories))
        beyond: list[str] = []
        within: list[str] = []
        for i, (column, sign, strict) in enumerate(gate.comparisons):
            limit = gate.constants[4 * i : 4 * i + 4]
            constant = self.put(f"gate.limits.{i}", Constant("F32", (1, 1), limit if sign > 0 else negated(limit)))
            op = "GreaterOrEqual" if strict is (sign > 0) else "Greater"
            (beyond if sign > 0 else within).append(self.add(op, [names[column], constant], f"gate/row/{i}"))
        above, reached = self.joined(beyond, "Or", "gate/Or"), self.joined(within, "And", "gate/And")
        if above is None:
            assert reached is not None
            return reached
        below = self.add("Not", [above], "gate/below")
        return below if reached is None else self.add("And", [reached, below], "gate/inside")

    def joined(self, parts: list[str], op: str, output: str) -> str | None:
        """Join truth values by And or Or; None where there are none."""
        result = parts[0] if parts else None
        for i, part in enumerate(parts[1:]):
            result = self.add(op, [result or "", part], f"{output}/{i}")
        return result

    def active_rules(self, active: str | None, monitor: Monitor) -> None:
        """`active_rules` (batch, rules)."""
        rules = len(monitor.always)
        if active is None:  # no rule has a condition
            count = self.integers("rules.count", [rules], (1,))
            shape = self.add("Concat", [self.rows(), count], "rules/shape", axis=0)
            self.add("Expand", [self.put("constants/true", Constant("BOOL", (), b"\x01")), shape], "active_rules")
            return
        entries = [bit for row in monitor.rules for bit in row]
        members = self.floats("rules.members", entries, (len(monitor.rules), rules))
        always = self.floats("rules.always", monitor.always, (rules,))
        total = self.add("Gemm", [self.cast(active), members, always], "rules/total", transA=1)
        self.add("Cast", [total], "active_rules", to=BOOL)

    def rows(self) -> str:
        """How many rows the inputs have, (1,)."""
        if all("inputs/rows" not in node.outputs for node in self.nodes):
            self.add("Shape", [FEATURES], "inputs/rows", start=0, end=1)
        return "inputs/rows"

    def embedding(self, n: int) -> str:
        """EMBEDDING -> the embedding (batch, n): as many rows as the inputs have, or the runtime stops.

        Nothing else says that a backbone makes one row per input, and runtimes differ in what they do if it does not.
        """
        width = self.integers("head.width", [n], (1,))
        shape = self.add("Concat", [self.rows(), width], "head/shape", axis=0)
        return self.add("Reshape", [EMBEDDING, shape], "head/embedding", allowzero=1)

    def cell(self, bits: str, signatures: checker.Tensor) -> str:
        """Bits of the gate (regions, batch) in float32 -> number of the cell (batch, 1)."""
        count, regions = signatures.shape
        rows = [signatures.data[c * regions : (c + 1) * regions] for c in range(count)]
        # bits.(2 s - 1) - |s| is 0 where s equals bits and at most -1 elsewhere; small whole numbers, so exact. The
        # certificate proves that every signature has a head; should one not, the last column sends it to the strictest.
        sums = [sum(row) for row in rows]
        entries = [entry for g in range(regions) for entry in (*(2 * row[g] - 1 for row in rows), 0)]
        match = self.floats("gate.match", entries, (regions, count + 1))
        targets = self.floats("gate.targets", [*(-total for total in sums), -0.5], (count + 1,))
        score = self.add("Gemm", [bits, match, targets], "gate/score", transA=1)
        best = self.add("ArgMax", [score], "gate/best", axis=1, keepdims=1)
        cells = self.integers("gate.cells", [*range(count), sums.index(max(sums))], (count + 1,))
        return self.add("Gather", [cells, best], "gate/cell", axis=0)

    def stored(self, name: str, tensors: dict[str, checker.Tensor], *shape: int) -> str:
        """Note a certified tensor, reshaped."""
        return self.put(name, Constant("F32", shape or tensors[name].shape, tensors[name].data))

    def heads(
        self, x: str | None, active: str | None, inside: str | None, clip: str, tensors: dict[str, checker.Tensor]
    ) -> str:
        """Clamped features (where needed), EMBEDDING (batch, n) and active regions -> outputs (batch, m).

        `inside`: whether the one gated region is active (batch, 1), where it is known directly.
        """
        count, m, n = tensors["heads.weight"].shape
        z = self.embedding(n)
        clipped = self.clipped(z, x, clip, tensors)
        W, b = self.stored("heads.weight", tensors, count * m, n), self.stored("heads.bias", tensors, count * m)
        y = self.add("Gemm", [clipped, W, b], "head/affine", transB=1)
        if "heads.passthrough" in tensors and x is not None:
            V = self.stored("heads.passthrough", tensors, count * m, tensors["heads.passthrough"].shape[2])
            y = self.add("Add", [y, self.add("Gemm", [x, V], "head/passed", transA=1, transB=1)], "head/sum")
        free = None
        if "free.weight" in tensors:
            parameters = [self.stored("free.weight", tensors), self.stored("free.bias", tensors)]
            free = self.add("Gemm", [z, *parameters], "head/free", transB=1)
        fallback = tensors["heads.fallback"].data if "heads.fallback" in tensors else None
        if inside is not None:
            return self.one_of_two(y, free, inside, fallback, m)
        if active is None:
            return self.guarded(y, None if fallback is None else self.fallback(fallback, 1, m), m)
        if tensors["gate.signatures"].data == b"\x01\x00":
            return self.one_of_two(y, free, self.add("Transpose", [active], "gate/inside"), fallback, m)
        if free is not None:
            y = self.add("Concat", [y, free], "head/all", axis=1)
            fallback = None if fallback is None else fallback + NAN * m
        cell, total = self.cell(self.cast(active), tensors["gate.signatures"]), count + (free is not None)
        choices = self.add("Reshape", [y, self.integers("head.shape", [0, total, m], (3,))], "head/choices")
        y = self.add("GatherND", [choices, cell], "head/picked", batch_dims=1)
        if fallback is None:
            return y
        safe = self.add("GatherND", [self.fallback(fallback, total, m), cell], "head/safe", batch_dims=0)
        return self.guarded(y, safe, m)

    def one_of_two(self, y: str, free: str | None, inside: str, fallback: bytes | None, m: int) -> str:
        """One gated region: the first head where it is active (batch, 1), the second or the free one elsewhere."""
        if free is not None:
            safe = None if fallback is None else self.fallback(fallback, 1, m)
            return self.add("Where", [inside, self.guarded(y, safe, m), free], "head/picked")
        parts = ("head/first", "head/second")
        self.nodes.append(Node("Split", (y, self.integers("head.sizes", [m, m], (2,))), parts, {"axis": 1}))
        y = self.add("Where", [inside, *parts], "head/picked")
        if fallback is None:
            return y
        ends = [self.fallback(fallback[: 4 * m], 1, m), self.fallback(fallback[4 * m :], 1, m, ".second")]
        return self.guarded(y, self.add("Where", [inside, *ends], "head/safe"), m)

    def fallback(self, data: bytes, count: int, m: int, suffix: str = "") -> str:
        """Note safe outputs."""
        return self.put("heads.fallback" + suffix, Constant("F32", (count, m), data))

    def guarded(self, y: str, safe: str | None, m: int) -> str:
        """Put safe outputs where any of the m outputs is NaN; the NaN-safe clip (safe is None) needs no guard."""
        if safe is None:
            return y
        total = y
        if m > 1:
            # A sum with NaN in it is NaN. Should huge finite numbers cancel to NaN, the row becomes safe all the same.
            axes = self.integers("constants/second", [1], (1,))
            total = self.add("ReduceSum", [y, axes], "head/total", keepdims=1)
        return self.add("Where", [self.add("IsNaN", [total], "head/nan"), safe, y], "head/guarded")

    def clipped(self, z: str, x: str | None, clip: str, tensors: dict[str, checker.Tensor]) -> str:
        """The embedding, clipped into the bounds. Clip is used for one pair of bounds under a guard against NaN."""
        lower, upper = tensors["bounds.lower"].data, tensors["bounds.upper"].data
        if clip == "clamp" and lower == lower[:4] * (len(lower) // 4) and upper == upper[:4] * (len(upper) // 4):
            low = self.put("bounds.lower", Constant("F32", (), lower[:4]))
            high = self.put("bounds.upper", Constant("F32", (), upper[:4]))
            return self.add("Clip", [z, low, high], "head/clipped")
        ends = [self.stored(f"bounds.{side}", tensors) for side in ("lower", "upper")]
        if "bounds.lower_slope" in tensors and x is not None:
            slopes = [self.stored(f"bounds.{side}_slope", tensors) for side in ("lower", "upper")]
            low = self.add("Gemm", [x, slopes[0], ends[0]], "head/lower", transA=1, transB=1)
            high = self.add("Gemm", [x, slopes[1], ends[1]], "head/upper", transA=1, transB=1)
            ends = [low, high]
        return self.clip(z, ends[0], ends[1], "head/clipped")

    def outputs(self, y: str, outputs: tuple[Output, ...]) -> None:
        """Split the outputs into named ones; labels and choices are read off the logits and scores."""
        columns = [name for item in outputs for name in item.columns]
        if len(columns) == 1:  # what was computed last takes the name
            last = self.nodes.pop()
            y = self.add(last.op, list(last.inputs), columns[0], **last.attributes)
        else:
            self.split(y, "outputs.sizes", columns)
        starts = [sum(len(other.columns) for other in outputs[:i]) for i in range(len(outputs))]
        labels = [(item.name, start) for item, start in zip(outputs, starts, strict=True) if item.kind == "label"]
        if labels:
            logits = y
            if len(labels) < len(columns):
                places = self.integers("labels.columns", [start for _, start in labels], (len(labels),))
                logits = self.add("Gather", [y, places], "labels/logits", axis=1)
            alone = labels[0][0] if len(labels) == 1 else "labels/on"
            self.add("GreaterOrEqual", [logits, self.floats("constants/zero", [0], ())], alone)
            if len(labels) > 1:
                self.split("labels/on", "labels.sizes", [name for name, _ in labels])
        for i, (item, start) in enumerate(zip(outputs, starts, strict=True)):
            if item.kind == "choice":
                k, base = len(item.options), f"choices/{i}/"
                places = self.integers(base + "columns", list(range(start, start + k)), (k,))
                scores = self.add("Gather", [y, places], base + "scores", axis=1)
                best = self.add(item.pick, [scores], base + "index", axis=1, keepdims=1)
                options = self.texts(base + "options", item.options, (k,))
                self.add("Gather", [options, best], item.name, axis=0)


class Interface(NamedTuple):
    """Named inputs and outputs, and whether `in_domain` and `active_rules` are among the latter."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    monitored: bool = True


def program_of(
    face: Interface, spec: checker.Specification, gated: list[int], clip: str, tensors: dict[str, checker.Tensor]
) -> Program:
    """Return the whole program but for the backbone, which maps FEATURES (or other inputs) to EMBEDDING."""
    program, gate = Program(), gate_of(spec, gated)
    known = program.encode(face.inputs)
    direct = is_direct(face, gate, tensors)
    searched = bool(gate.members) and not direct
    reads = "bounds.lower_slope" in tensors or "heads.passthrough" in tensors
    x = program.domain(tensors) if face.monitored or searched or reads else None
    inside = program.inside(face.inputs, gate) if direct else None
    active = program.active(x, gate) if x is not None and searched else None
    if face.monitored and x is not None:
        program.in_domain(face.inputs, known)
        monitor = monitor_of(spec, gated)
        reported = active if monitor.gate is None else program.active(x, monitor.gate, "monitor")
        program.active_rules(reported, monitor)
    program.outputs(program.heads(x, active, inside, clip, tensors), face.outputs)
    return program


def is_direct(face: Interface, gate: Gate, tensors: dict[str, checker.Tensor]) -> bool:
    """Whether named inputs are compared as they are: one region, of comparisons of numbers with limits in their range.

    A limit t of `x <= t` or `x > t` has lower <= t < upper, one of `x >= t` or `x < t` has lower < t <= upper. Then x
    may be compared in place of clamped x. With other limits, or where regions are reported, inputs are clamped first.
    """
    if face.monitored or gate.oblique or tensors["gate.signatures"].data != b"\x01\x00":
        return False
    numbers = [not item.categories for item in face.inputs for _ in range(max(1, len(item.categories)))]
    lower, upper = (floats_of(tensors[f"domain.{side}_float32"].data) for side in ("lower", "upper"))
    limits = floats_of(gate.constants)
    for (column, sign, strict), limit in zip(gate.comparisons, limits, strict=True):
        low, high = (lower[column], upper[column]) if sign > 0 else (-upper[column], -lower[column])
        if not (numbers[column] and (low < limit <= high if strict else low <= limit < high)):
            return False
    return bool(limits)


def floats_of(data: bytes) -> tuple[float, ...]:
    """Read float32 numbers."""
    return struct.unpack(f"<{len(data) // 4}f", data)


def negated(data: bytes) -> bytes:
    """Turn the sign of one float32, as bytes: exact."""
    return data[:3] + bytes([data[3] ^ 128])


def whole_columns(inputs: tuple[Input, ...]) -> list[int]:
    """Return the columns of inputs that `in_domain` asks to be whole numbers."""
    columns = [item.whole for item in inputs for _ in range(max(1, len(item.categories)))]
    return [column for column, whole in enumerate(columns) if whole]


def output_types(face: Interface, rules: int) -> dict[str, tuple[int, tuple[int | None, ...]]]:
    """Return names, types and shapes of the graph's outputs, in their order."""
    result: dict[str, tuple[int, tuple[int | None, ...]]] = {}
    for item in face.outputs:
        if item.kind != "number":
            result[item.name] = BOOL if item.kind == "label" else STRING, (None, 1)
        result.update(dict.fromkeys(item.columns, (FLOAT, (None, 1))))
    if face.monitored:
        result["in_domain"] = BOOL, (None,)
        if rules:
            result["active_rules"] = BOOL, (None, rules)
    return result


def gate_of(spec: checker.Specification, regions: list[int]) -> Gate:
    """Return the gate of some regions that the certificate's specification prescribes."""
    used = sorted({r for g in regions for r in spec.regions[g]})
    order = sorted(used, key=lambda r: len(spec.rows[r].terms) > 1)  # comparisons first
    rows = [spec.rows[r] for r in order if len(spec.rows[r].terms) == 1]
    comparisons = [(column, int(sign), row.strict) for row in rows for column, sign in row.terms.items()]
    members = [[int(r in spec.regions[g]) for g in regions] for r in order]
    tensors = checker.guard_tensors(spec, regions)
    constants, thresholds = tensors["gate.constants_float32"].data, tensors["gate.thresholds"].data
    return Gate(comparisons, len(order) - len(rows), members, constants, tensors["gate.coefficients"], thresholds)


def stated_regions(spec: checker.Specification) -> list[int]:
    """Return the regions that have a condition."""
    return [g for g, rows in enumerate(spec.regions) if rows]


def monitor_of(spec: checker.Specification, gated: list[int]) -> Monitor:
    """Return which regions make which rules. The head's gate serves if it has all regions with a condition."""
    stated = stated_regions(spec)
    own = set(stated) == set(gated)
    rules = [[int(g in rule.regions) for rule in spec.rules] for g in (gated if own else stated)]
    always = [int(any(not spec.regions[g] for g in rule.regions)) for rule in spec.rules]
    return Monitor(None if own else gate_of(spec, stated), rules, always)


# --- 4. From the file back to the certified tensors and the interface -------------------------------------------


def read_inputs(graph: Graph, columns: list[str], one_hot: list[list[int]]) -> tuple[Input, ...]:
    """Return the named inputs that make the certified columns, in their order."""
    groups = {group[0]: group for group in one_hot}
    whole: frozenset[int] = frozenset()
    if "domain.whole" in graph.constants:
        data = graph.constant("domain.whole", "I64").data
        assert isinstance(data, bytes)
        whole = frozenset(struct.unpack(f"<{len(data) // 8}q", data))  # a set: hostile files must be refused quickly
    result: list[Input] = []
    column = 0
    while column < len(columns):
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
        result.append(Input(name, categories, fill, default, blank, column in whole and not categories))
        column += max(1, len(categories))
    require(len({item.name for item in result}) == len(result), "onnx: an input is used twice")
    return tuple(result)


def read_outputs(graph: Graph, targets: list[tuple[str, str]]) -> tuple[Output, ...]:
    """Return the named outputs that the certified targets (name, kind) make, in their order."""
    operators = {name: node.op for node, _ in graph.nodes for name in node.outputs}
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


def read_tensors(
    graph: Graph, spec: checker.Specification, gated: list[int], clip: str, kind: str
) -> dict[str, checker.Tensor]:
    """Rebuild the certified tensors from the initializers; those of domain and gate are what the rules prescribe."""
    d, m = len(spec.inputs), len(spec.outputs)
    rows = bounded_work(graph, spec, gated, "gate")
    tensors = checker.guard_tensors(spec, gated)
    signatures = read_signatures(graph, rows, len(gated))
    tensors["gate.signatures"] = signatures
    heads, regions = signatures.shape
    free = not any(signatures.data[(heads - 1) * regions :]) and regions == len(spec.regions)
    tensors.update(read_heads(graph, heads - free, free, m, d, affine=kind == "affine"))
    if clip == "clamp":
        tensors["heads.fallback"] = read_fallback(graph, heads - free, free, m, signatures)
    return tensors


def bounded_work(graph: Graph, spec: checker.Specification, regions: list[int], name: str) -> int:
    """Return how many half-spaces some regions use. The file must be as large as the gate that they prescribe."""
    used = {r for g in regions for r in spec.regions[g]}
    oblique = sum(len(spec.rows[r].terms) > 1 for r in used)
    if oblique:
        graph.floats(f"{name}.coefficients", (oblique, len(spec.inputs)))
    if used and f"{name}.limits.0" not in graph.constants:
        graph.floats(f"{name}.members", (len(regions), len(used)))
    return len(used)


def read_signatures(graph: Graph, rows: int, regions: int) -> checker.Tensor:
    """Return the gate's signatures: one row of bits per head."""
    if not regions:
        return checker.Tensor("U8", (1, 0), b"")
    require(rows > 0, "onnx: gated regions without half-spaces")
    if "gate.match" not in graph.constants:  # one region, active or not, needs no search
        require(regions == 1, "onnx: no initializer 'gate.match'")
        return checker.Tensor("U8", (2, 1), b"\x01\x00")
    match = graph.constant("gate.match", "F32")
    require(len(match.shape) == 2 and match.shape[0] == regions and match.shape[1] > 1, "onnx: gate.match: wrong shape")
    assert isinstance(match.data, bytes)
    width = match.shape[1]
    numbers = struct.unpack(f"<{regions * width}f", match.data)
    bits = [numbers[g * width + c] for c in range(width - 1) for g in range(regions)]
    require(set(bits) <= {-1.0, 1.0}, "onnx: gate.match: expected ones")
    return checker.Tensor("U8", (width - 1, regions), bytes(int(bit > 0) for bit in bits))


def read_heads(graph: Graph, count: int, free: bool, m: int, d: int, *, affine: bool) -> dict[str, checker.Tensor]:
    """Return bounds and heads in the shapes that the certificate speaks of."""
    shape = graph.constant("heads.weight", "F32").shape
    require(count > 0 and len(shape) == 2 and shape[0] == count * m, "onnx: heads.weight: wrong shape")
    n = shape[1]

    def stored(name: str, actual: tuple[int, ...], *certified: int) -> None:
        result[name] = checker.Tensor("F32", certified or actual, graph.floats(name, actual))

    result: dict[str, checker.Tensor] = {}
    stored("heads.weight", (count * m, n), count, m, n)
    stored("heads.bias", (count * m,), count, m)
    if "heads.passthrough" in graph.constants:
        stored("heads.passthrough", (count * m, d), count, m, d)
    if free:
        stored("free.weight", (m, n))
        stored("free.bias", (m,))
    for side in ("lower", "upper"):
        if graph.constant(f"bounds.{side}", "F32").shape == ():
            result[f"bounds.{side}"] = checker.Tensor("F32", (n,), graph.floats(f"bounds.{side}", ()) * n)
        else:
            stored(f"bounds.{side}", (n,))
        if affine:
            stored(f"bounds.{side}_slope", (n, d))
    return result


def read_fallback(graph: Graph, count: int, free: bool, m: int, signatures: checker.Tensor) -> checker.Tensor:
    """Return the safe outputs of the certified heads."""
    if signatures.data == b"\x01\x00":
        rows = graph.floats("heads.fallback", (1, m))
        rows += b"" if free else graph.floats("heads.fallback.second", (1, m))
    else:
        rows = graph.floats("heads.fallback", (count + free, m))
    return checker.Tensor("F32", (count, m), rows[: 4 * count * m])


def match(graph: Graph, program: Program, outputs: dict[str, Any]) -> list[Node]:
    """Compare the graph with the program; return the nodes that are left: those of the backbone."""
    for name, constant in program.constants.items():
        require(graph.constants.get(name) == constant, f"onnx: initializer {name!r} is not that of the certified head")
    made = {name: (node, plain) for node, plain in graph.nodes for name in node.outputs}
    for expected in program.nodes:
        node, plain = made.get(expected.outputs[0], (None, False))
        require(node == expected and plain, f"onnx: node {expected.outputs[0]!r} is not that of the certified head")
    require(list(graph.outputs) == list(outputs), "onnx: the outputs are not those of the certified head")
    for name, (kind, shape) in outputs.items():
        found, sizes = graph.outputs[name]
        fits = found == kind and len(sizes) == len(shape) and sizes[1:] == shape[1:]
        require(fits, f"onnx: output {name[:80]!r}: wrong type or shape")
    ours = {name for node in program.nodes for name in node.outputs}
    require(ours.isdisjoint(graph.declared), "onnx: value_info for names of the certified head")
    rest = [node for node, _ in graph.nodes if ours.isdisjoint(node.outputs)]
    require(len(rest) + len(program.nodes) == len(graph.nodes), "onnx: nodes of the head and others are mixed up")
    forbidden = (ours | set(program.constants)) - {FEATURES}
    for node in rest:
        require(forbidden.isdisjoint(node.inputs), f"onnx: {node.op[:40]} is added behind or into the certified head")
    return rest


# --- 5. The whole -----------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """What is proved, how much was matched, what is only the exporter's word, and how inputs and outputs are read.

    `domain` and `assumptions` say for which inputs it is proved, and on which conditions.
    """

    proved: list[checker.Proved]
    nodes: int
    constants: int
    asserted: list[str]
    interface: Interface
    domain: list[str]
    assumptions: list[str]


def check(onnx: bytes, companion: bytes) -> Result:
    """Check an ONNX file with its certificate file; return what is proved or raise Rejected."""
    outer = checker.read_json(companion, "onnx certificate")
    require(isinstance(outer, dict) and outer.get("format") == FORMAT, "not an smle certificate of an ONNX file")
    version = outer.get("version")
    require(type(version) is int and version == VERSION, f"version {str(version)[:20]!r} is not supported")
    names = "format version onnx model_certificate certificate block model rules digest"
    *_, onnx_digest, source_digest, document, block_text, model, rules, digest = checker.fields(
        outer, names, "onnx certificate"
    )
    require(companion == checker.canonical(outer) + b"\n", "onnx certificate: not in canonical form")
    body = {key: value for key, value in outer.items() if key != "digest"}
    require(digest == sha256(checker.canonical(body)), "the certificate file was changed: digest differs")
    require(onnx_digest == sha256(onnx), "the ONNX file is not the one that was certified: digest differs")
    require(isinstance(document, dict), "certificate: expected an object")
    require(source_digest == sha256(checker.canonical(document) + b"\n"), "the model's certificate was changed")
    require("digest" in document and "binds" in document, "certificate: missing field")
    block = decoded(block_text)
    files = {}
    for role, content in (("model", model), ("rules", rules)):
        require(content is None or isinstance(content, str), f"onnx certificate: {role}: expected a text")
        if content is not None:
            require(is_text(content), f"onnx certificate: {role}: not a text")
            files[role] = content.encode()

    specification, gate_data, program_data = (document.get(key) for key in ("specification", "gate", "program"))
    spec = checker.Specification(specification, block)
    (gate_regions,) = checker.fields(gate_data, "regions", "gate")
    gated = [checker.index(r, len(spec.regions), "gate") for r in checker.items(gate_regions, "gate")]
    require(len(set(gated)) == len(gated), "gate: region given twice")
    _, clip, kind = checker.fields(program_data, "precision clip bounds", "program")
    graph = Graph(onnx)
    tensors = read_tensors(graph, spec, gated, clip, kind)
    columns = [entry["name"] for entry in specification["inputs"]]
    targets = [(entry["name"], entry["kind"]) for entry in specification["outputs"]]
    require(all(is_text(name) for name in [*columns, *(name for name, _ in targets)]), "a name is not a text")
    inputs = read_inputs(graph, columns, [sorted(group) for group in specification["one_hot"]])
    outputs = read_outputs(graph, targets)
    face = Interface(inputs, outputs, "in_domain" in graph.outputs)
    if face.monitored:
        stated = stated_regions(spec)
        if stated:
            graph.floats("rules.members", (len(stated), len(spec.rules)))  # bounds the work by the size of the file
        if set(stated) != set(gated):
            bounded_work(graph, spec, stated, "monitor")
    program = program_of(face, spec, gated, clip, tensors)
    rest = match(graph, program, output_types(face, len(spec.rules)))
    titles = [rule["name"] for rule in specification["rules"]]
    require(graph.metadata.get("active_rules") == checker.canonical(titles), "onnx: metadata 'active_rules' differs")
    proved = checker.check(for_head(document, tensors), tensors, block, files)
    words = asserted(graph, inputs, outputs, rest), face, checker.domain_text(spec, "float32"), assumptions(face)
    return Result(proved, len(program.nodes), len(program.constants), *words)


def for_head(document: dict[str, Any], tensors: dict[str, checker.Tensor]) -> bytes:
    """Return the certificate bound to the tensors of the head alone; its own digest must be right before."""
    body = {key: value for key, value in document.items() if key != "digest"}
    require(
        document["digest"] == sha256(checker.canonical(body)), "the model's certificate was changed: digest differs"
    )
    require(isinstance(body["binds"], dict), "binds: expected an object")
    body["binds"] = {**body["binds"], "weights": checker.weights_digest(tensors)}
    return checker.canonical({**body, "digest": sha256(checker.canonical(body))}) + b"\n"


def asserted(graph: Graph, inputs: tuple[Input, ...], outputs: tuple[Output, ...], rest: list[Node]) -> list[str]:
    """List what the proof does not need and this checker does not vouch for."""
    operators = sorted({checker.visible(node.op) for node in rest})
    result = [f"the backbone: {len(rest)} nodes ({', '.join(operators)[:200]}) compute the embedding, which is clipped"]
    further = sorted(set(graph.inputs) - {item.name for item in inputs})
    if further:
        result.append(f"inputs of the backbone alone: {', '.join(map(checker.term, further))[:200]}")
    for item in inputs:
        if item.categories:
            name, default = map(checker.visible, (item.name, item.categories[item.default]))
            result.append(f"input '{name}': '{default}' stands in for unknown texts")
    for output in outputs:
        if output.kind == "choice":
            which = "largest" if output.pick == "ArgMax" else "smallest"
            result.append(f"output '{checker.visible(output.name)}' is the option with the {which} score")
    return result


def assumptions(face: Interface) -> list[str]:
    """Say what is assumed. Without `in_domain` the graph does not know of whole numbers and of blank texts."""
    filled = [(item.name, f"{floats_of(item.fill)[0]:g}") for item in face.inputs if item.fill is not None]
    blank = [(item.name, item.categories[item.default]) for item in face.inputs if item.blank]
    whole = [item.name for item in face.inputs if item.whole] if face.monitored else None
    return checker.assumptions_text(whole, [*filled, *blank])


def decoded(text: Any) -> bytes:
    """Return the binary block; None: there is none."""
    if text is None:
        return b""
    require(text != "", "onnx certificate: block: empty; expected null")
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise Rejected("onnx certificate: block: expected base64") from None


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8 (JSON allows halves of characters)."""
    return not any(0xD800 <= ord(c) < 0xE000 for c in value)


def sha256(data: bytes) -> str:
    """Return a digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_files(path: str) -> tuple[bytes, bytes]:
    """Read an ONNX file and the certificate file beside it."""
    parts = []
    for place in (path, path + ".certificate.json"):
        name = os.path.basename(place)
        data = checker.read_file(place, name)
        if data is None:
            raise Rejected(f"{name}: no such file")
        parts.append(data)
    return parts[0], parts[1]


def main(arguments: list[str]) -> int:
    """Check an ONNX file: exit code 0 proved, 1 rejected, 2 wrong call."""
    if len(arguments) != 1 or not os.path.lexists(arguments[0]):
        print("usage: onnx_checker.py MODEL.onnx", file=sys.stderr)
        return 2
    try:
        result = check(*read_files(arguments[0]))
    except Rejected as reason:
        checker.print_lines([f"REJECTED: {reason}"])
        return 1
    checker.print_lines(result.domain)
    checker.print_lines(checker.proved_text(item) for item in result.proved)
    print(f"matched: {result.nodes} nodes and {result.constants} constants with the certified head")
    checker.print_lines(f"asserted by the exporter: {line}" for line in result.asserted)
    checker.print_lines(f"assumed: {line}" for line in result.assumptions)
    print(f"PROVED: {len(result.proved)} statements, in exact arithmetic, for every input of the domain.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
