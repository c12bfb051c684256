"""Attacks on exported models as whole files: backbones with the wrong number of rows, in every runtime."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import smle_check
from smle.certificates.document import tensors_of
from smle.extras import require
from smle.graphs.certified_files import companion, write_onnx
from smle.networks.folders import weights_of
from smle.storage import ModelRecord
from smle_check.onnx.program import EMBEDDING
from studies.bench.soundness_attacks import BATCHES, answer_of
from studies.bench.soundness_programs import columns_of, feed
from studies.bench.soundness_subjects import Subject
from tests.support.runtimes import Case, Runtime
from tests.support.sampling import FloatArray

__all__ = ["HOSTILE", "wrong_rows"]

Array = npt.NDArray[np.float32]
Answer = tuple[FloatArray, Array, Array, str]
"""Inputs, embeddings, outputs, and by which runtime."""

Hostile = Callable[[Any, Array, str, str], tuple[list[Any], list[Any]]]
"""(onnx, values (64, n), honest embedding, name to make) -> nodes, initializers."""


def _fixed(*rows: int) -> Hostile:
    def make(onnx: Any, values: Array, honest: str, name: str) -> tuple[list[Any], list[Any]]:
        part = values[: rows[0]] if rows else values[0]
        stored = onnx.numpy_helper.from_array(np.ascontiguousarray(part), "backbone/fixed")
        return [onnx.helper.make_node("Identity", ["backbone/fixed"], [name])], [stored]

    return make


def _one_more(onnx: Any, values: Array, honest: str, name: str) -> tuple[list[Any], list[Any]]:
    stored = onnx.numpy_helper.from_array(values[:1], "backbone/row")
    return [onnx.helper.make_node("Concat", ["backbone/row", honest], [name], axis=0)], [stored]


def _one_less(onnx: Any, values: Array, honest: str, name: str) -> tuple[list[Any], list[Any]]:
    ends = [onnx.numpy_helper.from_array(np.array([v]), f"backbone/{k}") for k, v in (("one", 1), ("end", 1 << 40))]
    return [onnx.helper.make_node("Slice", [honest, "backbone/one", "backbone/end"], [name])], ends


def _one_axis_more(onnx: Any, values: Array, honest: str, name: str) -> tuple[list[Any], list[Any]]:
    axes = onnx.numpy_helper.from_array(np.array([1]), "backbone/axes")
    return [onnx.helper.make_node("Unsqueeze", [honest, "backbone/axes"], [name])], [axes]


def _transposed(onnx: Any, values: Array, honest: str, name: str) -> tuple[list[Any], list[Any]]:
    return [onnx.helper.make_node("Transpose", [honest], [name])], []


HOSTILE: dict[str, Hostile] = {
    "two rows": _fixed(2), "one row": _fixed(1), "no axis of rows": _fixed(), "64 rows": _fixed(64),
    "no rows": _fixed(0), "one row more": _one_more, "one row less": _one_less, "one axis more": _one_axis_more,
    "rows and columns swapped": _transposed,
}  # fmt: skip


def wrong_rows(
    subject: Subject, runtimes: Sequence[Runtime], draw: Callable[[int], tuple[FloatArray, Array]], calls: int
) -> Iterator[Answer]:
    """Put hostile backbones into the exported file; run what the ONNX checker accepts.

    `draw(rows)` gives inputs and embeddings. `calls`: how often each batch size is asked.
    """
    spec = subject.spec
    honest, sealed = _exported(subject)
    _, values = draw(64)
    names, cases = [], []
    Xs = [draw(size)[0] for size in BATCHES for _ in range(calls)]
    for name, hostile in HOSTILE.items():
        data = _spoiled(honest, hostile, values)
        if _accepted(data, _resealed(sealed, data)):
            names.append(name)
            cases.append(Case(data, columns_of(spec), [feed(spec, X) for X in Xs]))
    for runtime in runtimes:
        for name, found in zip(names, runtime.answers(cases), strict=True):
            for X, y in zip(Xs, found, strict=True):
                if y is not None:
                    Y = answer_of(y, len(X), len(spec.targets))
                    yield X, values[:1].repeat(len(X), axis=0), Y, f"onnxruntime {runtime.version}, {name}"


def _exported(subject: Subject) -> tuple[bytes, bytes]:
    weights = weights_of(subject.network)
    record = ModelRecord(weights, {}, subject.spec.to_yaml(), subject.certificate)
    assert set(tensors_of(weights)) == set(subject.certificate.tensors)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.onnx"
        write_onnx(record, place, monitor=False)
        return place.read_bytes(), companion(place).read_bytes()


def _spoiled(data: bytes, hostile: Hostile, values: Array) -> bytes:
    """Return the file with hostile nodes between the backbone and the name under which the head reads it."""
    onnx = require("onnx", "ONNX export")
    model = onnx.load_from_string(data)
    nodes = list(model.graph.node)
    at = next(i for i, node in enumerate(nodes) if EMBEDDING in node.output)
    nodes[at].output[0] = "backbone/honest"
    made, constants = hostile(onnx, values, "backbone/honest", EMBEDDING)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[: at + 1], *made, *nodes[at + 1 :]])
    model.graph.initializer.extend(constants)
    result: bytes = model.SerializeToString(deterministic=True)
    return result


def _resealed(sealed: bytes, data: bytes) -> bytes:
    """Bind the certificate file to other bytes, as an attacker would."""
    document = json.loads(sealed)
    del document["digest"]
    document["onnx"] = hashlib.sha256(data).hexdigest()
    document["digest"] = hashlib.sha256(smle_check.canonical(document)).hexdigest()
    return smle_check.canonical(document) + b"\n"


def _accepted(data: bytes, sealed: bytes) -> bool:
    try:
        smle_check.check_onnx(data, sealed)
    except smle_check.Rejected:
        return False
    return True
