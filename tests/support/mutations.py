"""Random changes to model folders: of the bytes as they lie, and of the content with all digests made new."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

import smle_check
from smle_check.reading import number

from .builder import Package, safetensors_bytes

Files = dict[str, bytes]


def files_of(package: Package) -> Files:
    files = {"certificate.json": package.text, "model.safetensors": safetensors_bytes(package.tensors)}
    files |= {smle_check.FILES[role]: data for role, data in package.files.items()}
    return files | ({"certificate.bin": package.block} if package.block else {})


def check_files(files: Files) -> list[smle_check.Proved]:
    """Check a model folder given as bytes."""
    tensors = smle_check.read_weights(files["model.safetensors"])
    bound = {role: files[name] for role, name in smle_check.FILES.items() if name in files}
    return smle_check.check_certificate(files["certificate.json"], tensors, files.get("certificate.bin", b""), bound)


def changed_bytes(rng: random.Random, files: Files) -> tuple[str, Files]:
    """Flip, overwrite, insert, remove, swap or cut bytes of one file."""
    name = rng.choice(sorted(files))
    data = bytearray(files[name])
    at = rng.randrange(len(data))
    kind = rng.choice(["flip", "flip", "flip", "set", "insert", "remove", "swap", "cut", "double", "drop"])
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "set":
        data[at] = rng.randrange(256)
    elif kind == "insert":
        data.insert(at, rng.randrange(256))
    elif kind == "remove":
        del data[at]
    elif kind == "swap":
        other = rng.randrange(len(data))
        data[at], data[other] = data[other], data[at]
    elif kind == "cut":
        del data[at:]
    elif kind == "double":
        data[at:at] = data[at : at + rng.randrange(1, 40)]
    result = {k: v for k, v in files.items() if not (kind == "drop" and k == name)}
    if kind != "drop":
        result[name] = bytes(data)
    return f"{kind} at {at} of {name}", result


# --- Changes of the content ------------------------------------------------------------------------------------

NUMBERS = ["0", "1", "-1", "1/3", "2", "-7/2", "1000000", "1/1000000", "0x1.8p+1", "-0x1p-20", "0x1p+120"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed_number(rng: random.Random, text: str) -> str:
    try:
        value = number(text, "number")
    except smle_check.Rejected:
        return rng.choice(NUMBERS)
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return str(-value)
    if kind == 2:
        return str(value + rng.choice([1, -1]) * Fraction(1, 2 ** rng.randrange(1, 40)))
    if kind == 3:
        return str(value * rng.choice([2, 3]) / rng.choice([1, 2, 5]))
    if kind == 4:
        return str(value * (1 + rng.choice([1, -1]) * Fraction(1, 2 ** rng.randrange(1, 40))))
    return "0"


def changed_value(rng: random.Random, value: Any) -> Any:
    """Return another value of the same kind, or of another kind now and then."""
    if rng.random() < 0.04:
        return rng.choice([None, True, False, 0, 1, -1, "", "0", [], {}, [[]], "nan", 10**14])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice([1, -1, 2])
    if isinstance(value, str):
        return changed_number(rng, value)
    if isinstance(value, list) and value:
        other, at = list(value), rng.randrange(len(value))
        kind = rng.randrange(4)
        if kind == 0:
            del other[at]
        elif kind == 1:
            other.insert(at, other[at])
        elif kind == 2:
            other.insert(rng.randrange(len(other)), other.pop(at))
        else:
            other = other[::-1]
        return other
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        if rng.random() < 0.7:
            return {k: changed_value(rng, v) if k == key else v for k, v in value.items()}
        return {k: v for k, v in value.items() if k != key}
    return rng.choice([None, 0, "0", [], {}])


def change_document(rng: random.Random, package: Package, *, rules: bool = True) -> str:
    part = rng.choice(
        ["specification", "specification", "proof", "proof", "proof", "gate", "program"][2 * (not rules) :]
    )
    found = list(places(package.document[part], (part,)))
    path = rng.choice(found) if found else (part,)
    holder: Any = package.document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = changed_value(rng, holder[path[-1]])
    return f"document at {path}"


def flip_bit(package: Package, name: str, bit: int) -> None:
    array = np.ascontiguousarray(package.weights[name])
    data = bytearray(array.tobytes())
    data[bit // 8] ^= 1 << (bit % 8)
    package.weights[name] = np.frombuffer(bytes(data), array.dtype).reshape(array.shape)


def change_weights(rng: random.Random, package: Package) -> str:
    names = sorted(n for n, a in package.weights.items() if a.size)
    name = rng.choice(names)
    array = package.weights[name]
    kind = rng.randrange(8)
    if kind < 5:
        flip_bit(package, name, rng.randrange(8 * array.nbytes))
    elif kind == 5:
        other = array.copy().ravel()
        other[rng.randrange(other.size)] = rng.choice([0, 1, 2, 100]) if array.dtype == np.uint8 else rng.gauss(0, 1)
        package.weights[name] = other.reshape(array.shape)
    elif kind == 6:
        package.weights[name] = array[::-1].copy()
    else:
        swap = rng.choice(names)
        package.weights[name], package.weights[swap] = package.weights[swap], package.weights[name]
    return f"weights {name} ({kind})"


def change_block(rng: random.Random, package: Package) -> str:
    data = bytearray(package.block)
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    package.block = bytes(data)
    return f"block at {at}"


def attacked(rng: random.Random, package: Package, *, rules: bool = True) -> tuple[str, Package]:
    """Change the content in one to three places, that of the rules among it, and make all digests new."""
    what = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.random()
        if kind < 0.5:
            what.append(change_document(rng, package, rules=rules))
        elif kind < 0.9 or not package.block or not rules:
            what.append(change_weights(rng, package))
        else:
            what.append(change_block(rng, package))
    return "; ".join(what), package.seal()
