"""A strict reader for the parts of protobuf that ONNX files need. Whatever is unknown is refused."""

import struct
from typing import Any

from smle_check.reading import Rejected, require

Schema = dict[int, tuple[str, Any]]


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
