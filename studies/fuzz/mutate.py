"""Mutations of files: bytes, numbers in text, values of JSON documents (which changed bytes hardly leave readable)."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from collections.abc import Sequence
from typing import Any

_TOKENS = (
    b"\x00", b"\xff" * 8, b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"{", b"}", b"[", b"]", b"(", b")", b'"', b"\\",
    b":", b",", b"-", b"1e999", b"1e-400", b"9" * 30, b"0x1", b"1/0", b"nan", b"inf", b"-0", b"null", b"true",
    b"\\ud800", b"<=", b">=", b"==", b"!=", b" and ", b" or ", b"not ", b" implies ", b"&a ", b"*a", b"<<: ",
    b"!!python/none", b"(assert (or (and (<= Y_0 0))))", b"at_most_one(", b"__metadata__", b"F32", b"data_offsets",
    b"\xe3\x85\xa4",
)  # fmt: skip
_NUMBERS = (b"0", b"-1", b"1", b"1e308", b"5e-324", b"340282346638528859811704183484516925440", b"16777217", b"1e-45")
_VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 2**31, 10**14, "", "0", "1/0", "-0", "1/3", "1e9", "a" * 300,
                            "\ud800", [], {}, [[]], {"": None})  # fmt: skip


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes] = (b"",)) -> bytes:
    """Return a changed copy; `others` are inputs to borrow pieces from."""
    if data[:1] == b"{" and rng.random() < 0.6:
        found = _json(data, rng)
        if found is not None:
            return found
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        data = _bytes(data, rng, others)
    return data


def _bytes(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 2, 4, 8, 32))
    kind = rng.randrange(8)
    if kind == 0 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + rng.randbytes(size) + data[at + size :]
    if kind == 2:
        return data[:at] + data[at + size :]
    if kind == 3:
        return data[:at] + data[max(0, at - size) : at] * rng.choice((1, 2, 50)) + data[at:]
    if kind == 4:
        return data[:at] + rng.choice(_TOKENS) + data[at + rng.choice((0, 0, 1, 4)) :]
    if kind == 5:
        numbers = list(re.finditer(rb"\d+(\.\d+)?", data))
        if numbers:
            chosen = rng.choice(numbers)
            return data[: chosen.start()] + rng.choice(_NUMBERS) + data[chosen.end() :]
    if kind == 6:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        return data[:at] + other[start : start + rng.choice((8, 64, 512))] + data[at:]
    end = rng.randrange(len(data) + 1)
    low, high = min(at, end), max(at, end)
    return data[:low] + data[high:] if rng.random() < 0.3 else data[: low + 1] + data[low:]


def _json(data: bytes, rng: random.Random) -> bytes | None:
    """Change one place of a JSON document; None if it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        value = pending.pop()
        keys: Any = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            pending.append(value[key])
    if not places:
        return None
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places)
        if (key not in holder) if isinstance(holder, dict) else key >= len(holder):
            continue
        kind = rng.randrange(5)
        value = holder[key]
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(value, int) and not isinstance(value, bool):
            holder[key] = value + rng.choice((-1, 1, 2, 2**20))
        elif kind == 2:
            other, there = rng.choice(places)
            if (there in other) if isinstance(other, dict) else there < len(other):
                holder[key] = json.loads(json.dumps(other[there]))
        elif kind == 3 and isinstance(holder, list):
            holder.insert(key, value)
        else:
            holder[key] = rng.choice(_VALUES)
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def mutated_weights(data: bytes, rng: random.Random, others: Sequence[bytes] = (b"",)) -> bytes:
    """Change a safetensors file: its header as JSON, with the length that goes with it, or numbers of its body."""
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8 or rng.random() < 0.2:
        return mutated(data, rng, others)
    header, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.5 and body:
        for _ in range(rng.choice((1, 1, 4))):
            at = rng.randrange(len(body)) & ~3
            word = struct.pack(
                "<f", rng.choice((0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, math.inf, math.nan, rng.gauss(0, 1)))
            )
            word = rng.choice((word, rng.randbytes(4), bytes([body[at] ^ 1]) + body[at + 1 : at + 4]))
            body = body[:at] + word[: len(body) - at] + body[at + 4 :]
    else:
        header = mutated(header, rng, others).rstrip(b"\n")
    return len(header).to_bytes(8, "little") + header + body


def mutated_onnx(data: bytes, rng: random.Random, others: Sequence[bytes] = (b"",)) -> bytes:
    """Change one thing of an ONNX graph: operators, names, attributes, order, shapes, numbers."""
    import onnx

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # noqa: BLE001 - already no model
        return mutated(data, rng, others)
    if rng.random() < 0.2 or not model.graph.node or not model.graph.initializer:
        return mutated(data, rng, others)
    try:
        _change_graph(model, rng)
        made: bytes = model.SerializeToString(deterministic=True)
    except ValueError:  # names that are no UTF-8
        return mutated(data, rng, others)
    return made


def _change_graph(model: Any, rng: random.Random) -> None:
    import onnx

    graphs = [a.g for n in model.graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH and a.g.node]
    nodes, constants = rng.choice([model.graph, *graphs]).node, model.graph.initializer
    node, other, tensor = rng.choice(nodes), rng.choice(nodes), rng.choice(constants)
    kind = rng.randrange(9)
    if kind == 0:
        node.op_type = rng.choice((other.op_type, "Identity", "Less", "Greater", "Min", "Max", "Gather", "Add"))
    elif kind == 1 and node.input:
        name = rng.choice([*other.input, *other.output, tensor.name, ""])
        node.input[rng.randrange(len(node.input))] = name
    elif kind == 2 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice([*other.output, "backbone/embedding", "new"])
    elif kind == 3:
        if node.attribute and rng.random() < 0.7:
            rng.choice(node.attribute).i += rng.choice((-1, 1, 2))
        else:
            node.attribute.append(
                onnx.helper.make_attribute(rng.choice(("axis", "to", "keepdims", "x")), rng.randrange(3))
            )
    elif kind == 4:
        nodes.insert(rng.randrange(len(nodes)), other)
    elif kind == 5:
        nodes.remove(node)
    elif kind == 6 and tensor.raw_data:
        at = rng.randrange(len(tensor.raw_data))
        flipped = bytes([tensor.raw_data[at] ^ (1 << rng.randrange(8))])
        tensor.raw_data = tensor.raw_data[:at] + flipped + tensor.raw_data[at + 1 :]
    elif kind == 7:
        tensor.dims.append(rng.choice((0, 1, 2)))
        if rng.random() < 0.5:
            del tensor.dims[0]
    else:
        value = rng.choice([*model.graph.input, *model.graph.output])
        value.name = rng.choice((value.name, tensor.name, "other"))
        value.type.tensor_type.elem_type = rng.choice((1, 1, 7, 8, 9, 11))
