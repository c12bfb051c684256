"""The graph of an ONNX file: tensors, nodes, inputs, outputs."""

import math
from typing import Any, NamedTuple

from smle_check.onnx.protobuf import Schema, message, name_of
from smle_check.reading import Rejected, require

OPSET = 20  # of the default domain, the only one allowed
IR_VERSIONS = (8, 9, 10)
FLOAT, INT64, STRING, BOOL, DOUBLE = 1, 7, 8, 9, 11  # TensorProto.DataType
TYPES = {FLOAT: ("F32", 4), DOUBLE: ("F64", 8), INT64: ("I64", 8), BOOL: ("BOOL", 1)}
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


class Node(NamedTuple):
    """One operator of the default domain; attributes are integers."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, int]


class Constant(NamedTuple):
    """A constant tensor: F32, F64, I64 and BOOL as little-endian bytes, STRING as a tuple of texts in UTF-8."""

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

    def numbers(self, name: str, dtype: str) -> tuple[tuple[int, ...], bytes]:
        """Return shape and bytes of an initializer of numbers."""
        found = self.constant(name, dtype)
        if not isinstance(found.data, bytes):
            raise Rejected(f"onnx: expected an initializer {name!r} of numbers")
        return found.shape, found.data

    def floats(self, name: str, shape: tuple[int, ...]) -> bytes:
        """Return the bytes of a float32 initializer of the given shape."""
        found, data = self.numbers(name, "F32")
        require(found == shape, f"onnx: initializer {name!r}: expected the shape {list(shape)}")
        return data


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
