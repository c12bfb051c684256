"""The graph of an ONNX file: tensors, nodes, inputs, outputs."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from smle_check.onnx.protobuf import Schema, message, name_of
from smle_check.reading import Rejected, require
from smle_check.work import Work

OPSET = 20  # written by the exporter, in the default domain
# From 19 on, Equal reads texts. Up to 22, later sets change the certified operators only in element types that the head
# does not use. Operators of ai.onnx.ml are never certified.
OPSETS = {"": (19, 20, 21, 22), "ai.onnx.ml": (1, 2, 3, 4, 5)}
IR_VERSIONS = (8, 9, 10)
MAX_DEPTH = 4  # of subgraphs
FLOAT, INT64, STRING, BOOL, DOUBLE = 1, 7, 8, 9, 11  # TensorProto.DataType
TYPES = {FLOAT: ("F32", 4), DOUBLE: ("F64", 8), INT64: ("I64", 8), BOOL: ("BOOL", 1)}
_ENTRY: Schema = {1: ("key", "b"), 2: ("value", "b")}
_TENSOR: Schema = {
    1: ("dims", ["i"]), 2: ("data_type", "i"), 4: ("float_data", ["f?"]), 5: ("int32_data", ["i?"]),
    6: ("string_data", ["b"]), 7: ("int64_data", ["i?"]), 8: ("name", "b"), 9: ("raw_data", "b"),
    10: ("double_data", ["d?"]), 11: ("uint64_data", ["i?"]), 12: ("doc_string", "b"), 14: ("data_location", "i"),
    16: ("metadata_props", [_ENTRY]),
}  # fmt: skip
_SHAPE: Schema = {1: ("dim", [{1: ("dim_value", "i"), 2: ("dim_param", "b")}])}
_VALUE: Schema = {
    1: ("name", "b"), 2: ("type", {1: ("tensor_type", {1: ("elem_type", "i"), 2: ("shape", _SHAPE)})}),
    3: ("doc_string", "b"), 4: ("metadata_props", [_ENTRY]),
}  # fmt: skip


def _graph_schema(depth: int) -> Schema:
    """Return the schema of a graph whose nodes may have this many levels of subgraphs."""
    inner: Schema = {6: ("g", _graph_schema(depth - 1))} if depth else {}
    attribute: Schema = {
        1: ("name", "b"), 2: ("f", "f"), 3: ("i", "i"), 4: ("s", "b"), 5: ("t", _TENSOR), 7: ("floats", ["f?"]),
        8: ("ints", ["i?"]), 9: ("strings", ["b?"]), 10: ("tensors", [_TENSOR]), 13: ("doc_string", "b"),
        20: ("type", "i"), **inner,
    }  # fmt: skip
    node: Schema = {
        1: ("input", ["b"]), 2: ("output", ["b"]), 3: ("name", "b"), 4: ("op_type", "b"),
        5: ("attribute", [attribute]), 6: ("doc_string", "b"), 7: ("domain", "b"), 9: ("metadata_props", [_ENTRY]),
    }  # fmt: skip
    return {
        1: ("node", [node]), 2: ("name", "b"), 5: ("initializer", [_TENSOR]), 10: ("doc_string", "b"),
        11: ("input", [_VALUE]), 12: ("output", [_VALUE]), 13: ("value_info", [_VALUE]),
        16: ("metadata_props", [_ENTRY]),
    }  # fmt: skip


_HELD = ("f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors")  # what an attribute may hold
_MODEL: Schema = {
    1: ("ir_version", "i"), 2: ("producer_name", "b"), 3: ("producer_version", "b"), 4: ("domain", "b"),
    5: ("model_version", "i"), 6: ("doc_string", "b"), 7: ("graph", _graph_schema(MAX_DEPTH)),
    8: ("opset_import", [{1: ("domain", "b"), 2: ("version", "i")}]), 14: ("metadata_props", [_ENTRY]),
}  # fmt: skip


class Branch(NamedTuple):
    """A subgraph without inputs and constants of its own. `kind`: what its outputs are."""

    nodes: list["GraphNode"]
    outputs: list[str]
    kind: int = FLOAT


class GraphNode(NamedTuple):
    """One operator; attributes are integers, and branches."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, int]
    branches: Mapping[str, Branch] = MappingProxyType({})


class Body(NamedTuple):
    """A subgraph of a file. `typed`: its outputs with element type, and whether a size is stated."""

    nodes: list["Found"]
    own: int  # inputs and constants
    typed: list[tuple[str, int | None, bool]]


class Found(NamedTuple):
    """A node of a file, without its branches. `plain`: of the default domain, with integers or graphs as attributes.

    `reads`: its inputs, and what its subgraphs read. `operators`: its own operator, and its subgraphs' operators.
    """

    node: GraphNode
    plain: bool
    reads: frozenset[str]
    operators: list[str]
    bodies: dict[str, Body]


class Constant(NamedTuple):
    """A constant tensor: F32, F64, I64 and BOOL as little-endian bytes, STRING as a tuple of texts in UTF-8."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | tuple[bytes, ...]


class Graph:
    """The contents of the file, after the checks that hold for every graph: known operators, each name made once.

    Subgraphs read names of the graphs around them. No name is made twice anywhere, so nothing can be shadowed.
    """

    def __init__(self, data: bytes) -> None:
        model = message(memoryview(data), _MODEL, "model", Work(0))  # a fixed number of parts, whatever the size
        require(model["ir_version"] in IR_VERSIONS, f"onnx: expected an IR version of {IR_VERSIONS}")
        self.domains: set[str] = set()
        for entry in model["opset_import"]:
            domain, version = domain_of(entry["domain"]), entry["version"]
            require(domain not in self.domains, "onnx: an operator set is given twice")
            require(version in OPSETS[domain], f"onnx: operator set {version} of {domain!r} is not supported")
            self.domains.add(domain)
        require("" in self.domains, "onnx: no standard operator set")
        require(model["graph"] is not None, "onnx: no graph")
        graph = model["graph"]
        self.metadata: dict[str, bytes] = {}
        for entry in model["metadata_props"]:
            key = name_of(entry["key"], "metadata")
            require(key not in self.metadata, "onnx: metadata given twice")
            self.metadata[key] = entry["value"] or b""
        self.made: set[str] = set()  # every name, at any depth
        self.declared: set[str] = set()  # names with a stated type or shape
        # None for types that no certified head has.
        self.constants: dict[str, Constant | None] = self.initializers(graph)
        self.inputs = self.named(graph["input"], "input")
        self.outputs = self.named(graph["output"], "output")
        self.make(self.inputs)
        known = {"", *self.constants, *self.inputs}
        self.nodes = self.body(graph, known)
        require(known.issuperset(self.outputs), "onnx: an output is made by no node")

    def make(self, names: Iterable[str]) -> None:
        """Record names; each may be made only once."""
        for name in names:
            require(name not in self.made, f"onnx: the name {name[:80]!r} is made twice")
            self.made.add(name)

    def initializers(self, graph: dict[str, Any]) -> dict[str, Constant | None]:
        """Return the constants of a graph by name."""
        result: dict[str, Constant | None] = {}
        for entry in graph["initializer"]:
            name = name_of(entry["name"], "initializer")
            require(bool(name), "onnx: an initializer without a name")
            self.make([name])
            result[name] = constant_of(entry, f"initializer {name[:80]!r}")
        return result

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

    def body(self, graph: dict[str, Any], known: set[str]) -> list[Found]:
        """Read the nodes of a graph or subgraph. A name may be used only after it is known; nodes add their outputs."""
        self.declared.update(name_of(entry["name"], "value_info") for entry in graph["value_info"])
        result = []
        for entry in graph["node"]:
            found = self.node(entry, known)
            names = [name for name in found.node.outputs if name]
            self.make(names)
            known.update(names)
            result.append(found)
        return result

    def node(self, entry: dict[str, Any], known: set[str]) -> Found:
        """Read a node with its subgraphs."""
        op, domain = name_of(entry["op_type"], "node"), domain_of(entry["domain"])
        require(domain in self.domains, f"onnx: {op[:40]}: the file does not name its operator set")
        inputs, outputs = (tuple(name_of(n, "node") for n in entry[side]) for side in ("input", "output"))
        require(known.issuperset(inputs), f"onnx: {op[:40]}: input used before it is made")
        attributes: dict[str, int] = {}
        bodies: dict[str, Body] = {}
        plain, reads, operators = domain == "", set(inputs), [op]
        for attribute in entry["attribute"]:
            name = name_of(attribute["name"], "attribute")
            require(name not in attributes and name not in bodies, f"onnx: attribute {name[:80]!r} is given twice")
            held = {kind for kind in _HELD if attribute.get(kind) not in (None, (), [])}
            plain = plain and (attribute["type"], held) in ((2, {"i"}), (5, {"g"}))
            for tensor in [attribute["t"], *attribute["tensors"]]:
                if tensor is not None:
                    constant_of(tensor, "attribute")
            if attribute.get("g") is not None:
                bodies[name] = self.subgraph(attribute["g"], known)
                for found in bodies[name].nodes:
                    reads |= found.reads
                    operators += found.operators
            else:
                attributes[name] = attribute["i"] or 0
        return Found(GraphNode(op, inputs, outputs, attributes), plain, frozenset(reads), operators, bodies)

    def subgraph(self, graph: dict[str, Any], known: set[str]) -> Body:
        """Check a subgraph. Its names are known only inside it."""
        own = {*self.initializers(graph)}
        inputs = [name_of(entry["name"], "input") for entry in graph["input"]]
        require(all(inputs), "onnx: an input without a name")
        self.make(inputs)
        own.update(inputs)
        known.update(own)
        count, nodes = len(own), self.body(graph, known)
        for found in nodes:
            own.update(filter(None, found.node.outputs))
        typed = []
        for entry in graph["output"]:
            tensor = (entry["type"] or {}).get("tensor_type") or {"elem_type": None, "shape": None}
            typed.append((name_of(entry["name"], "output"), tensor["elem_type"], tensor["shape"] is not None))
        require(own.issuperset(name for name, *_ in typed), "onnx: an output of a subgraph is not made in it")
        known -= own
        return Body(nodes, count, typed)

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


def domain_of(data: bytes | None) -> str:
    """Return a supported domain of operators; the default one has two names."""
    domain = "" if data == b"ai.onnx" else name_of(data, "domain")
    require(domain in OPSETS, f"onnx: operators of the domain {domain[:40]!r} are not supported")
    return domain


def constant_of(entry: dict[str, Any], what: str) -> Constant | None:
    """Return a tensor stored in the file itself, or None for types that certified heads do not have."""
    require(not entry["data_location"], f"onnx: {what}: data outside of the file")
    shape = tuple(entry["dims"])
    require(len(shape) <= 8 and all(0 <= s < 1 << 40 for s in shape), f"onnx: {what}: malformed shape")
    size = math.prod(shape)
    typed = any(entry[f"{kind}_data"] for kind in ("float", "int32", "int64", "double", "uint64"))
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
