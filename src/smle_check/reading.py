"""Strict reading: JSON, exact numbers, weights, files (section 1). Anything unexpected raises `Rejected`."""

import hashlib
import json
import math
import os
import re
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, NoReturn


class Rejected(ValueError):
    """The certificate is not accepted; the message says why."""


def require(condition: bool, reason: str) -> None:
    """Reject with the reason unless the condition holds."""
    if not condition:
        raise Rejected(reason)


MAX_FILE = 1 << 31  # bytes
BACKBONE = "backbone."  # tensors with this prefix belong to the model, the others to the head
NUMBER = re.compile(r"-?(\d+(/[1-9]\d*)?|0x[01](\.[0-9a-f]{1,13})?p[+-]\d{1,4})", re.ASCII)


def read_json(data: bytes, what: str) -> Any:
    """Parse JSON; refuse duplicate keys, floats, NaN, long integers and deep nesting."""

    def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
        require(len({key for key, _ in items}) == len(items), f"{what}: duplicate key")
        return dict(items)

    def refuse(text: str) -> NoReturn:
        raise Rejected(f"{what}: JSON number {text[:40]} refused; exact numbers are integers or strings")

    def integer(text: str) -> int:
        return int(text) if len(text) < 16 else refuse(text)

    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique, parse_float=refuse, parse_constant=refuse, parse_int=integer)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Rejected(f"{what}: not readable as JSON ({type(error).__name__}: {str(error)[:80]})") from None


def canonical(value: Any) -> bytes:
    """Serialize a JSON value in its only canonical form: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def sha256(data: bytes) -> str:
    """Return a digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def fields(value: Any, names: str, what: str) -> list[Any]:
    """Return the fields of an object that has exactly these (space-separated) names."""
    require(isinstance(value, dict), f"{what}: expected an object")
    unknown, missing = set(value) - set(names.split()), set(names.split()) - set(value)
    require(not unknown, f"{what}: unknown field {sorted(unknown)[:1]}")
    require(not missing, f"{what}: missing field {sorted(missing)[:1]}")
    return [value[name] for name in names.split()]


def items(value: Any, what: str) -> list[Any]:
    """Return a list."""
    require(isinstance(value, list), f"{what}: expected a list")
    return list(value)


def index(value: Any, size: int, what: str) -> int:
    """Return an integer in 0 .. size - 1."""
    require(type(value) is int and 0 <= value < size, f"{what}: expected an index below {size}")
    return int(value)


def number(value: Any, what: str) -> Fraction:
    """Return an exact number: "-3", "1/10" or a hexadecimal float "0x1.8p-3"."""
    require(isinstance(value, str) and len(value) <= 600, f"{what}: expected a number as a short string")
    match = NUMBER.fullmatch(value)
    require(match is not None, f"{what}: {value[:40]!r} is not an exact number")
    if "x" not in value:
        return Fraction(value)
    mantissa, exponent = value.replace(".", "").split("p")
    digits = len(value.partition(".")[2].partition("p")[0])
    require(abs(int(exponent)) < 1100, f"{what}: {value[:40]!r} is out of range")
    scale: Fraction = Fraction(2) ** (int(exponent) - 4 * digits)
    return int(mantissa, 16) * scale


def text(value: Any, what: str) -> str:
    """Return a name unchanged; `visible` makes it safe to print."""
    require(isinstance(value, str) and len(value) <= 10_000, f"{what}: expected a short text")
    return str(value)


def read_sealed(data: bytes, what: str, kind: tuple[str, int], names: str) -> dict[str, Any]:
    """Read a document of a format and version: exactly these fields, in canonical form, with its own digest."""
    document = read_json(data, what)
    require(isinstance(document, dict) and document.get("format") == kind[0], f"{what}: not of the format {kind[0]!r}")
    version = document.get("version")
    require(version == kind[1], f"{what}: version {str(version)[:20]!r} is not supported")
    fields(document, f"format version {names} digest", what)
    require(data == canonical(document) + b"\n", f"{what}: not in canonical form")
    body = {key: value for key, value in document.items() if key != "digest"}
    require(document["digest"] == sha256(canonical(body)), f"{what} was changed: digest differs")
    return dict(document)


def sparse(value: Any, size: int, what: str) -> dict[int, Fraction]:
    """Return a sparse vector [[index, number], ...] with increasing indices."""
    result: dict[int, Fraction] = {}
    last = -1
    for pair in items(value, what):
        require(isinstance(pair, list) and len(pair) == 2, f"{what}: expected [index, number] pairs")
        key = index(pair[0], size, what)
        require(key > last, f"{what}: indices must increase")
        result[key], last = number(pair[1], what), key
    return result


def read_block(block: bytes, offset: Any, count: Any, code: Literal["f", "I"], what: str) -> Sequence[Any]:
    """Return 2 x count little-endian 4-byte numbers of certificate.bin as a view: repeated requests cost nothing."""
    start, pairs = index(offset, len(block) + 1, what), index(count, 1 << 31, what)
    require(start % 4 == 0 and start + 8 * pairs <= len(block), f"{what}: outside of certificate.bin")
    if sys.byteorder == "little":
        return memoryview(block)[start : start + 8 * pairs].cast(code)
    return struct.unpack_from(f"<{2 * pairs}{code}", block, start)


class Tensor(NamedTuple):
    """A tensor of the weight file, not decoded."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_weights(data: bytes) -> dict[str, Tensor]:
    """Read a safetensors file without metadata whose tensors fill it exactly."""
    require(len(data) >= 8, "weights: file too short")
    (length,) = struct.unpack("<Q", data[:8])
    require(length <= min(len(data) - 8, 1 << 26), "weights: header length out of range")
    header, body = read_json(data[8 : 8 + length], "weights header"), data[8 + length :]
    require(isinstance(header, dict), "weights header: expected an object")
    sizes = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    tensors: dict[str, Tensor] = {}
    spans = []
    for name, entry in header.items():
        require(name.isprintable() and len(name) < 1000, "weights: malformed tensor name")
        dtype, shape, offsets = fields(entry, "dtype shape data_offsets", f"tensor {name[:80]!r}")
        require(len(items(shape, "shape")) <= 8, f"tensor {name[:80]!r}: too many dimensions")
        require(isinstance(dtype, str) and dtype in sizes, f"tensor {name[:80]!r}: type not supported")
        require(len(items(offsets, "offsets")) == 2, "weights: offsets")
        dims = tuple(index(s, 1 << 40, "shape") for s in shape)
        start, stop = (index(o, len(body) + 1, "offset") for o in offsets)
        require(stop - start == math.prod(dims) * sizes[dtype], f"tensor {name[:80]!r}: size does not match shape")
        tensors[name] = Tensor(dtype, dims, body[start:stop])
        spans.append((start, stop))
    spans.sort()
    ends = [0] + [stop for _, stop in spans]
    require([start for start, _ in spans] == ends[:-1] and ends[-1] == len(body), "weights: gaps or overlaps")
    return tensors


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over the sorted (name, dtype, shape, bytes), each part prefixed with its length."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        for part in (name.encode(), tensor.dtype.encode(), repr(list(tensor.shape)).encode(), tensor.data):
            digest.update(struct.pack("<Q", len(part)) + part)
    return digest.hexdigest()


def bindings(tensors: Mapping[str, Tensor], block: bytes, files: Mapping[str, bytes]) -> dict[str, str | None]:
    """Return the digests of the parts of a model by role, None for a missing part (section 1.6).

    `files` are the whole files by role: `onnx` (the backbone, if it is a separate file), `model`, `rules`.
    """
    backbone = {name: tensor for name, tensor in tensors.items() if name.startswith(BACKBONE)}
    require(not backbone or "onnx" not in files, "model.onnx: model.safetensors holds a backbone, too")
    parts = {role: sha256(data) for role, data in files.items()}
    return {
        "head": weights_digest({name: tensor for name, tensor in tensors.items() if name not in backbone}),
        "backbone": weights_digest(backbone) if backbone else parts.get("onnx"),
        "block": sha256(block) if block else None,
        "model": parts.get("model"),
        "rules": parts.get("rules"),
    }


def values(tensors: dict[str, Tensor], name: str, dtype: str, shape: tuple[int, ...]) -> list[Fraction]:
    """Return the exact values of a tensor of the given type and shape; refuse NaN and infinities."""
    require(name in tensors, f"weights: tensor {name!r} is missing")
    tensor = tensors[name]
    require((tensor.dtype, tensor.shape) == (dtype, shape), f"tensor {name!r}: expected {dtype} of shape {list(shape)}")
    numbers = struct.unpack(f"<{math.prod(shape)}{ {'F32': 'f', 'F64': 'd', 'U8': 'B'}[dtype] }", tensor.data)
    require(all(map(math.isfinite, numbers)), f"tensor {name!r}: NaN or infinity")
    return [Fraction(v) for v in numbers]


def read_file(path: str, what: str, folder: int | None = None) -> bytes | None:
    """Return the bytes of a regular file (in an open folder), or None if it does not exist.

    Pipes and devices are refused without opening them. If one appears in between, opening does not block.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Rejected(f"{what}: not readable ({error.strerror})") from None
    try:
        require(stat.S_ISREG(os.stat(path, dir_fd=folder).st_mode), f"{what}: not a regular file")
        with open(os.open(path, flags, dir_fd=folder), "rb") as file:
            found = os.fstat(file.fileno())
            require(stat.S_ISREG(found.st_mode), f"{what}: not a regular file")
            require(found.st_size <= MAX_FILE, f"{what}: file too large")
            data = file.read(found.st_size + 1)  # reading reserves as much memory as requested
    except OSError as error:
        raise Rejected(f"{what}: not readable ({error.strerror})") from None
    require(len(data) == found.st_size, f"{what}: the file changed while it was read")
    return data
