"""What is fuzzed: each parser, and both checkers as wholes."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import smle_check
from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.errors import DataError, RuleError
from smle.heads.box.network.assurance import certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import program_of
from smle.networks.backbones import MLP
from smle.networks.folders import weights_of
from smle.rules import Specification
from smle.storage import ModelRecord, write_record
from smle.tables.table_files import read_table
from smle_check.onnx.graph import Graph
from studies.attacks.doors import columns_of, file_of
from studies.attacks.subjects import RULES
from studies.fuzz.mutate import mutated, mutated_onnx, mutated_weights
from studies.harness import seeded
from tests.support.exported import feed, resealed, session
from tests.support.sampling import Judge, hard_points
from tests.support.vnnlib import write_vnnlib
from tests.support.written_again import BoxAgain

T = TypeVar("T")


class Defect(Exception):  # noqa: N818 - a finding, not a malfunction of the fuzzer
    """Something came out that should not."""


@dataclass(frozen=True)
class Target:
    """Something that reads bytes: `run` raises `Defect`; `seeds` are valid inputs, by name; `mutate` changes them."""

    run: Callable[[bytes], None]
    seeds: Callable[[], dict[str, bytes]]
    mutate: Callable[[bytes, random.Random, Sequence[bytes]], bytes] = mutated


def _asked(call: Callable[[], T], *documented: type[Exception]) -> T | None:
    """Return what a reader makes of an input, None where it refuses it as documented; other exceptions are defects."""
    try:
        return call()
    except TimeoutError:  # the clock's
        raise
    except documented:
        return None
    except Exception as error:
        raise Defect(f"{type(error).__name__} came out: {str(error)[:300]}") from error


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise Defect(what)


# --- Rules and tables ----------------------------------------------------------------------------------------


def _rules(data: bytes) -> None:
    spec = _asked(lambda: Specification.from_yaml(data.decode("utf-8", "replace") + "\n"), RuleError)
    if spec is not None:
        again = _asked(lambda: Specification.from_yaml(spec.to_yaml()))
        _require(again == spec, "what was read is written as something else")


_READ = ("braking", "dose", "labels", "advice", "mixed", "around zero")


def _vnnlib(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "a.vnnlib"), Path(folder, "b.vnnlib")
        first.write_bytes(data)
        spec = _asked(lambda: Specification.from_vnnlib(first), RuleError)
        if spec is None:
            return
        text = _asked(lambda: write_vnnlib(spec), RuleError)
        if text is None:
            return
        second.write_text(text, encoding="utf-8")
        again = _asked(lambda: Specification.from_vnnlib(second))
        assert again is not None
        rng = np.random.default_rng(0)
        ends = [(float(low), float(high)) for low, high in zip(spec.lower, spec.upper, strict=True)]
        for _ in range(10):
            x = [rng.choice([low, high, (low + high) / 2]) for low, high in ends]
            y = rng.normal(size=len(spec.targets)).round(1).tolist()
            broken = (bool(s.violated(x, y)) for s in (spec, again))
            _require(len(set(broken)) == 1, f"what was read is written as something else: x = {x}, y = {y}")


def _vnnlib_seeds() -> dict[str, bytes]:
    found = {}
    for name in ("braking", "dose", "around zero"):
        found[name] = write_vnnlib(Specification.from_yaml(RULES[name])).encode()
    lines = ["(declare-const X_0 Real)", "(declare-const Y_0 Real)", "(declare-const Y_1 Real)", "(assert (>= X_0 -1))",
             "(assert (<= X_0 1e3))", "(assert (or (and (<= Y_0 Y_1)) (and (>= Y_0 0.5) (<= X_0 0))))"]  # fmt: skip
    return found | {"small": "\n".join(lines).encode()}


def _table(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "table.csv.gz" if data[:2] == b"\x1f\x8b" else "table.csv")
        place.write_bytes(data)
        table = _asked(lambda: read_table(place, text={"road": frozenset({"NA", "dry"})}), DataError)
    if table is not None:
        _require(len(table) > 0, "an empty table came out")
        _require(len(set(table.columns)) == len(table.columns), "two columns of one name came out")


def _table_seeds() -> dict[str, bytes]:
    return {
        "comma": b"a,b,road\n1,2.5,dry\n-3e5,,NA\n0.1,7,01\n",
        "semicolon": b'"a;b";c\r\n1;2\r\n"3";4\r\n',
        "tab": "\ufeffa\tb\n1\t2\n".encode(),
        "single": b"a\n1\n\n2\n",
        "packed": gzip.compress(b"a,b\n1,2\n3,4\n", mtime=0),
    }


# --- Readers of the checkers ---------------------------------------------------------------------------------


def _json(data: bytes) -> None:
    found = _asked(lambda: (smle_check.read_json(data, "fuzz"),), smle_check.Rejected)
    if found is None:
        return
    (value,) = found
    _require(_asked(lambda: (json.loads(data),)) == found, "Python's reader reads something else")
    again = _asked(lambda: (smle_check.read_json(smle_check.canonical(value), "again"),))
    _require(again == found, "the canonical form reads otherwise")


def _weights(data: bytes) -> None:
    import safetensors.numpy

    found = _asked(lambda: smle_check.read_weights(data), smle_check.Rejected)
    if found is None or any(tensor.dtype == "BF16" for tensor in found.values()):  # NumPy has no such type
        return
    try:
        theirs = safetensors.numpy.load(data)
    except Exception as error:
        raise Defect(f"safetensors does not read what our reader accepts: {error}") from error
    _require(set(found) == set(theirs), "safetensors finds other tensors")
    for name, tensor in found.items():
        same = tensor.shape == theirs[name].shape and tensor.data == theirs[name].tobytes()
        _require(same, f"safetensors reads tensor {name!r} otherwise")


def _protobuf(data: bytes) -> None:
    import onnx

    graph = _asked(lambda: Graph(data), smle_check.Rejected)
    if graph is None:
        return
    try:
        theirs = onnx.load_from_string(data).graph
    except Exception as error:
        raise Defect(f"protobuf does not read what our reader accepts: {error}") from error
    ours = [(found.node.op, found.node.inputs, found.node.outputs) for found in graph.nodes]
    _require(ours == [(n.op_type, tuple(n.input), tuple(n.output)) for n in theirs.node], "protobuf reads other nodes")
    integers = {(i, a.name): a.i for i, n in enumerate(theirs.node) for a in n.attribute if a.type == 2}
    plain = [(i, found.node) for i, found in enumerate(graph.nodes) if found.plain]
    known = {(i, k): v for i, node in plain for k, v in node.attributes.items()}
    _require(all(integers.get(key) == value for key, value in known.items()), "protobuf reads other attributes")
    _require(list(graph.constants) == [t.name for t in theirs.initializer], "protobuf reads other initializers")
    for tensor in theirs.initializer:
        constant = graph.constants[tensor.name]
        if constant is not None and isinstance(constant.data, bytes):
            _require((constant.shape, constant.data) == (tuple(tensor.dims), tensor.raw_data), "other constants")
    for mine, values in ((graph.inputs, theirs.input), (graph.outputs, theirs.output)):
        listed = [(v.name, v.type.tensor_type.elem_type) for v in values]
        _require([(name, kind or 0) for name, (kind, _) in mine.items()] == listed, "protobuf reads other values")


# --- Checkers as wholes --------------------------------------------------------------------------------------

_SMALL = {
    "braking": ("braking", "fixed", True),
    "dose": ("dose", "affine", True),
    "one head": ("dose", "affine", False),
    "labels": ("labels", "fixed", True),
    "mixed": ("mixed", "fixed", True),
    "network": ("half", "network", True),
}
"""Names of rules, bounds, and whether there is a gate."""


@cache
def _records() -> dict[str, ModelRecord]:
    """Return small certified models of all kinds, not trained."""
    made = {}
    for name, (rules, bounds, gate) in _SMALL.items():
        spec = Specification.from_yaml(RULES[rules])
        with seeded(0):
            backbone = MLP((3,), 3, shift=np.zeros(len(spec.columns)), scale=np.ones(len(spec.columns)))
            network = project(BoxNetwork(backbone, spec, embedding=3, bounds=bounds, gate=gate))
        weights = weights_of(network)
        files = {"rules": spec.to_yaml().encode(), "model": ModelRecord.description_bytes({})}
        certificate = certify(network, tensors=tensors_of(weights), files=files)
        made[name] = ModelRecord(weights, {}, spec.to_yaml(), certificate)
    for name, text in (("limits", "moving"), ("coupled", "coupled")):
        spec = Specification.from_yaml(RULES[text])
        record = ModelRecord({}, {}, spec.to_yaml(), None, _linear(len(spec.columns), len(spec.targets)))
        certificate = certify_rules(spec, files=record.bound_files())
        made[name] = replace(record, weights=arrays_of(certificate.tensors), certificate=certificate)
    return made


def _linear(d: int, m: int) -> bytes:
    """Return a linear model whose answers break rules."""
    import onnx

    helper = onnx.helper
    weights = np.random.default_rng(0).normal(size=(d, m)).astype(np.float32) * 30
    ends = [helper.make_tensor_value_info(name, 1, ["N", size]) for name, size in (("X", d), ("y", m))]
    nodes = [helper.make_node("MatMul", ["X", "W"], ["y"])]
    graph = helper.make_graph(nodes, "linear", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "W")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString(deterministic=True))


@cache
def _folders() -> dict[str, dict[str, bytes]]:
    made = {}
    for name, record in _records().items():
        with tempfile.TemporaryDirectory() as folder:
            write_record(record, Path(folder) / "model")
            made[name] = {place.name: place.read_bytes() for place in sorted((Path(folder) / "model").iterdir())}
    return made


@cache
def _exported() -> dict[str, tuple[bytes, bytes]]:
    return {name: file_of(record) for name, record in _records().items()}


_FILES = ("certificate.json", "model.safetensors", "certificate.bin", "rules.yaml", "model.json", "model.onnx")


def _folder(data: bytes) -> None:
    """Replace one file of a valid folder. First byte: the model; second: the file, and whether digests are renewed."""
    if len(data) < 2:
        return
    names = sorted(_folders())
    name = names[data[0] % len(names)]
    changed, new_digests, content = _FILES[data[1] % len(_FILES)], bool(data[1] & 8), data[2:]
    files = {**_folders()[name], changed: content}
    if new_digests:
        files = _resealed(files)
    with tempfile.TemporaryDirectory() as folder:
        for place, value in files.items():
            Path(folder, place).write_bytes(value)
        parts = _asked(lambda: smle_check.read_folder(folder), smle_check.Rejected)
        if parts is None or _asked(lambda: smle_check.check_certificate(*parts), smle_check.Rejected) is None:
            return
    original = _records()[name].certificate
    assert original is not None
    document = json.loads(parts[0])
    if not new_digests:
        same = (document, parts[2]) == (original.document, original.block) and parts[1] == original.tensors
        _require(same and parts[3] == original.files, "another folder is accepted as it lies")
    elif document["specification"] == original.document["specification"]:
        _sampled(Certificate(parts[0], parts[2], parts[1], parts[3]), name)


def _resealed(files: dict[str, bytes]) -> dict[str, bytes]:
    """Renew the digests, as an attacker would; leave files that cannot be read."""
    try:
        document = json.loads(files["certificate.json"])
        tensors = smle_check.read_weights(files["model.safetensors"])
        bound = {role: files[place] for role, place in smle_check.FILES.items() if place in files}
        document["binds"] = smle_check.bindings(tensors, files.get("certificate.bin", b""), bound)
        document.pop("digest", None)
        document["digest"] = hashlib.sha256(smle_check.canonical(document)).hexdigest()
        return {**files, "certificate.json": smle_check.canonical(document) + b"\n"}
    except (ValueError, TypeError, AttributeError, RecursionError):  # Rejected among them
        return files


def _sampled(certificate: Certificate, name: str) -> None:
    """Run an accepted head at hard points behind hostile answers; the rules hold, judged exactly."""
    spec = Specification.from_yaml(_records()[name].rules or "")
    rng = np.random.default_rng(0)
    program: Any
    if certificate.document["program"]["head"] == "rules":
        program, width = program_of(certificate), len(spec.targets)
    else:
        if "bounds.lower" not in certificate.tensors:
            raise Defect("accepted without bounds")
        program = BoxAgain(certificate)
        width = certificate.tensors["bounds.lower"].shape[0]
    for X in hard_points(spec, rng, 60, dtype=np.float32):
        Z = rng.choice(np.array([-np.inf, -1, 0, 1, np.inf, np.nan], dtype=np.float32), size=(len(X), width))
        found = Judge(spec).violations(X, program(X, Z))
        _require(not found, f"a head is accepted that breaks a rule: {found[:1]}")


def _folder_seeds() -> dict[str, bytes]:
    seeds = {}
    for number, name in enumerate(sorted(_folders())):
        for which, place in enumerate(_FILES):
            if place not in _folders()[name]:
                continue
            for flag, word in ((0, "lies"), (8, "new digests")):
                code = next(b for b in range(256) if b % len(_FILES) == which and bool(b & 8) == bool(flag))
                seeds[f"{name}, {place}, {word}"] = bytes([number, code]) + _folders()[name][place]
    return seeds


def _behind(
    special: Callable[..., bytes], wanted: Callable[[bytes], bool]
) -> Callable[[bytes, random.Random, Sequence[bytes]], bytes]:
    """Return a mutation of what follows the first two bytes: a special one where those two say so."""

    def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        change = special if len(data) >= 2 and wanted(data[:2]) else mutated
        return data[:2] + change(data[2:], rng, [other[2:] for other in others])

    return mutate


def _onnx(data: bytes) -> None:
    """Check an ONNX file with a renewed digest (first byte: the model), or a certificate beside a valid file."""
    if len(data) < 2:
        return
    names = sorted(_exported())
    name = names[data[0] % len(names)]
    onnx, sealed = _exported()[name]
    if data[1] & 1:
        sealed = data[2:] if data[1] & 2 else _bound(data[2:], onnx)
    else:
        onnx = data[2:]
        sealed = _bound(sealed, onnx)
    if _asked(lambda: (smle_check.check_onnx(onnx, sealed),), smle_check.Rejected) is None:
        return
    theirs = json.loads(sealed)["certificate"]["specification"]
    if theirs == json.loads(_exported()[name][1])["certificate"]["specification"]:
        _served(onnx, name)


def _bound(sealed: bytes, onnx: bytes) -> bytes:
    """Renew the digests, as an attacker would, that of the head in the file included."""
    try:
        return resealed(sealed, onnx)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return sealed


def _served(data: bytes, name: str) -> None:
    """Run an accepted file in onnxruntime at hard points; it refuses, or the rules hold, judged exactly."""
    spec = Specification.from_yaml(_records()[name].rules or "")
    try:
        running = session(data)
    except Exception:  # noqa: BLE001 - a backbone that it does not run
        return
    for X in hard_points(spec, np.random.default_rng(0), 30, dtype=np.float32):
        if not len(X):
            continue
        try:
            parts: list[Any] = running.run(columns_of(spec), feed(spec, X))
        except Exception:  # noqa: BLE001
            return
        _require(all(len(part) == len(X) for part in parts), "an accepted file answers for other rows")
        found = Judge(spec).violations(X, np.concatenate(parts, axis=1))
        _require(not found, f"a file is accepted that breaks a rule: {found[:1]}")


def _onnx_seeds() -> dict[str, bytes]:
    seeds = {}
    for number, name in enumerate(sorted(_exported())):
        onnx, sealed = _exported()[name]
        seeds[f"{name}, file"] = bytes([number, 0]) + onnx
        seeds[f"{name}, certificate"] = bytes([number, 1]) + sealed
        seeds[f"{name}, certificate as it lies"] = bytes([number, 3]) + sealed
    return seeds


TARGETS: dict[str, Target] = {
    "rules": Target(_rules, lambda: {name: RULES[name].strip().encode() for name in _READ}),
    "vnnlib": Target(_vnnlib, _vnnlib_seeds),
    "table": Target(_table, _table_seeds),
    "json": Target(
        _json,
        lambda: {
            "object": b'{"a":[1,-2,"3/4",null,true,{"b":"\\u00e9"}],"c":{}}',
            "text": b'"abc"',
            "number": b"-12345678901234",
            **{name: files["certificate.json"] for name, files in _folders().items()},
        },
    ),
    "weights": Target(
        _weights, lambda: {name: files["model.safetensors"] for name, files in _folders().items()}, mutated_weights
    ),
    "protobuf": Target(_protobuf, lambda: {name: onnx for name, (onnx, _) in _exported().items()}, mutated_onnx),
    "folder": Target(
        _folder,
        _folder_seeds,
        _behind(mutated_weights, lambda head: _FILES[head[1] % len(_FILES)] == "model.safetensors"),
    ),
    "onnx": Target(_onnx, _onnx_seeds, _behind(mutated_onnx, lambda head: not head[1] & 1)),
}
