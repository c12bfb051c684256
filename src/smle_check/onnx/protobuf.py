"""A strict reader for the parts of protobuf that ONNX files need. Anything unknown is refused."""

import re
import struct
from functools import cache
from typing import Any

from smle_check.reading import Rejected, require
from smle_check.work import Work

Schema = dict[int, tuple[str, Any]]
# Values that must be well formed but are not read: trees have millions. Wire type, width, pattern.
UNREAD = {
    "i?": (0, 0, rb"[\x80-\xff]{0,9}[\x00-\x7f]"),
    "f?": (5, 4, rb".{4}"),
    "d?": (1, 8, rb".{8}"),
    "b?": (2, 0, b"(?:%s)" % b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(32))),  # short texts
}
_KINDS = tuple(UNREAD)  # the schema of a message is not hashable
PER_MESSAGE = 80  # steps: they take memory rather than time
TOO_LONG = re.compile(rb"[\x80-\xff]{10}")


@cache
def runs(key: bytes, kind: str) -> re.Pattern[bytes]:
    """Return a pattern for values of a kind, each after its key; long runs are matched in pieces."""
    return re.compile(b"(?:%s%s){1,4096}" % (re.escape(key), UNREAD[kind][2]), re.DOTALL)


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a variable-length integer of at most 64 bits; return it and the position after it."""
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


def message(data: memoryview, schema: Schema, what: str, work: Work) -> dict[str, Any]:
    """Read one message. Unknown fields, wrong wire types and repeated singular fields are refused."""
    work.plan(PER_MESSAGE, f"onnx: {what}")
    result: dict[str, Any] = {name: () if isinstance(kind, list) else None for name, kind in schema.values()}
    at = 0
    while at < len(data):
        start = at
        key, at = varint(data, at)
        require(key >> 3 in schema, f"onnx: {what}: field {key >> 3} is not supported")
        name, kind = schema[key >> 3]
        single = kind[0] if isinstance(kind, list) else kind
        wire = key & 7
        if single in _KINDS and wire == UNREAD[single][0]:
            run = runs(bytes(data[start:at]), single).match(data, start)
            if run is not None:
                result[name], at = [True], run.end()
                continue
        chunk: memoryview = data[:0]
        number = 0
        if wire == 0:
            number, at = varint(data, at)
        else:
            require(wire in (1, 2, 5), f"onnx: {what}: malformed field '{name}'")
            size, at = ({1: 8, 5: 4}[wire], at) if wire != 2 else varint(data, at)
            require(size <= len(data) - at, f"onnx: {what}: truncated")
            chunk, at = data[at : at + size], at + size
        for value in _decoded(wire, number, chunk, single, kind, f"{what}.{name}", work):
            if isinstance(kind, list):
                if not result[name]:
                    result[name] = []
                result[name].append(value)
            else:
                require(result[name] is None, f"onnx: {what}: field '{name}' comes twice")
                result[name] = value
    return result


def _decoded(wire: int, number: int, chunk: memoryview, single: Any, kind: Any, what: str, work: Work) -> list[Any]:
    """Return the values of one field (several if repeated numbers are packed).

    Kinds: "i" integer, "f" float32, "b" bytes, the kinds of UNREAD, and the schema of a message.
    """
    if single in _KINDS:
        plain, width, _ = UNREAD[single]
        if wire == 2 and width:
            fits = len(chunk) % width == 0
        elif wire == 2 and plain == 0:
            fits = not chunk or (chunk[-1] < 128 and TOO_LONG.search(chunk) is None)
        else:
            fits = wire == plain
        require(fits, f"onnx: {what}: malformed")
        return [True]
    if single == "i" and wire == 0:
        return [signed(number)]
    if single == "f" and wire == 5:
        return list(struct.unpack("<f", chunk))
    if wire == 2 and isinstance(kind, list) and single == "f":
        require(len(chunk) % 4 == 0, f"onnx: {what}: malformed")
        return list(struct.unpack(f"<{len(chunk) // 4}f", chunk))
    if wire == 2 and isinstance(kind, list) and single == "i":
        values, at = [], 0
        work.plan(len(chunk) // 8, f"onnx: {what}")
        while at < len(chunk):
            value, at = varint(chunk, at)
            values.append(signed(value))
        return values
    require(wire == 2 and single not in ("i", "f"), f"onnx: {what}: unexpected type")
    return [chunk.tobytes() if single == "b" else message(chunk, single, what, work)]


def name_of(data: bytes | None, what: str) -> str:
    """Decode a name; an absent one is empty."""
    require(len(data or b"") < 10_000, f"onnx: {what}: name too long")
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise Rejected(f"onnx: {what}: name is not UTF-8") from None
