"""Heads as ONNX files: onnxruntime at all levels, other versions of it, and backbones with the wrong number of rows."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.extras import require
from smle.graphs.certified_files import companion, write_onnx
from smle.graphs.head_graph import certified_program, graph_model, interface_of
from smle.heads.grid.grid_onnx import grid_proposals
from smle.heads.rules.rules_onnx import proposals_of
from smle.nearest.onnx.pieces import Backbone
from smle.networks.folders import weights_of
from smle.rules import Choice, Specification
from smle.storage import ModelRecord
from smle_check.onnx.nodes import EMBEDDING, STACKED
from studies.attacks.points import Attacker, Batch, Serve, chunks, in_batches, plural
from studies.attacks.subjects import Subject
from tests.support.exported import accepted, feed, resealed, session
from tests.support.runtimes import Case

Array = npt.NDArray[np.float32]
BATCHES = (1, 2, 3, 33)
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def head_file(spec: Specification, certificate: Certificate, *, monitor: bool = False, stacked: bool = False) -> bytes:
    """Return a certified head as an ONNX file that takes what the model computes as an input."""
    onnx = require("onnx", "ONNX export")
    tensors = {k: v for k, v in certificate.tensors.items() if not k.startswith("backbone.")}
    width = tensors["bounds.lower"].shape[0] if "bounds.lower" in tensors else len(spec.targets)
    value = onnx.helper.make_tensor_value_info(EMBEDDING, onnx.TensorProto.FLOAT, ["N", width])
    interface = interface_of(spec, monitor=monitor, head=certificate.document["program"]["head"], stacked=stacked)
    proposals = grid_proposals if "grid.numerator" in tensors else proposals_of
    nodes, count = proposals(certificate) if "check.scale" in tensors else ([], 1)
    program = certified_program(interface, certificate, tensors, proposals=count)
    titles = [rule.name for rule in spec.rules]
    data: bytes = graph_model(interface, program, Backbone([], [], [value]), titles, nodes).SerializeToString()
    return data


def columns_of(spec: Specification) -> list[str]:
    """Return the names of the outputs of an exported model that are numbers, in the order of the rules' outputs."""
    return interface_of(spec).columns


def answer_of(found: Sequence[npt.NDArray[Any]], rows: int, columns: int) -> Array:
    """Return the answer (rows, columns). One with another number of rows answers nobody: it is judged as NaN."""
    parts = [part.reshape(len(part), -1) for part in found if part.ndim and len(part) == rows]
    together = np.concatenate(parts, axis=1) if len(parts) == len(found) else np.zeros((rows, 0))
    good = together.shape[1] == columns
    return np.asarray(together if good else np.full((rows, columns), np.nan), dtype=np.float32)


def _session(spec: Specification, data: bytes, level: str, threads: int, stacked: bool) -> Serve:
    """Return an exported head in onnxruntime, at a level of optimization. Features are float32 there."""
    running, names = session(data, threads, level=level), [STACKED] if stacked else columns_of(spec)
    return lambda X, Z: np.concatenate(running.run(names, {**feed(spec, X), EMBEDDING: Z}), axis=1)


def levels(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve at all levels of optimization, several batch sizes, two threads; answers with reports have names."""
    if not attacker.subject.is_exported:
        return
    settings = [(level, 1, monitor, 1 << 15, 0.11) for level in LEVELS for monitor in (False, True)]
    settings += [(LEVELS[-1], 1, False, 1, 0.003), (LEVELS[-1], 1, False, 33, 0.02)]
    settings += [(LEVELS[-1], 2, False, 5000, 0.1)]
    for level, threads, monitor, batch, share in settings:
        stacked = not monitor and not any(isinstance(item, Choice) for item in attacker.spec.outputs)
        data = head_file(attacker.spec, attacker.subject.certificate, monitor=monitor, stacked=stacked)
        serve = _session(attacker.spec, data, level, threads, stacked)
        for size, _ in chunks(max(8, int(share * count)), attacker.chunk):
            X, Z = attacker.mixture(size, np.float32)
            yield Batch(
                X, X, Z, in_batches(serve, batch, X, Z), f"onnxruntime, {level}, batch {batch:,}, {plural(threads)}"
            )


def versions(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Serve by heads, and models with their heads, in every version of onnxruntime, flushed and not."""
    if not attacker.subject.is_exported or not attacker.runtimes:
        return
    X, Z = attacker.zeros(max(64, count // (4 * len(attacker.runtimes))), np.float32)
    cuts = [slice(0, 0)]
    for size in (*BATCHES, len(X)):
        start = cuts[-1].stop
        cuts += [slice(i, min(i + size, len(X))) for i in range(start, min(start + 5 * size, len(X)), size)]
    cuts = [cut for cut in cuts if cut.stop > cut.start]
    names, feeds = columns_of(attacker.spec), [feed(attacker.spec, X[cut]) for cut in cuts]
    chosen = [{**own, EMBEDDING: Z[cut]} for own, cut in zip(feeds, cuts, strict=True)]
    head = head_file(attacker.spec, attacker.subject.certificate)
    cases = {level: Case(head, names, chosen, level) for level in (LEVELS[0], LEVELS[-1])}
    if attacker.subject.onnx is not None:
        cases["model and head"] = Case(attacker.subject.onnx, names, feeds, LEVELS[-1])
    for runtime, flush in itertools.product(attacker.runtimes, (False, True)):
        found = runtime.answers(list(cases.values()), flush=flush)
        for title, calls in zip(cases, found, strict=True):
            done = [(cut, y) for cut, y in zip(cuts, calls, strict=True) if y is not None]
            if done:
                rows = np.concatenate([np.arange(cut.start, cut.stop) for cut, _ in done])
                m = len(attacker.spec.targets)
                Y = np.concatenate([answer_of(y, cut.stop - cut.start, m) for cut, y in done])
                way = f"onnxruntime {runtime.version}, {title}{', flush to zero' if flush else ''}"
                yield Batch(X[rows], X[rows], Z[rows], Y, way)


# --- backbones that return another number of rows than they are given

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


def wrong_rows(attacker: Attacker, count: int) -> Iterator[Batch]:
    """Put hostile backbones into the exported file; run what the ONNX checker accepts, in every onnxruntime."""
    subject, spec = attacker.subject, attacker.spec
    if not subject.is_exported or not attacker.runtimes:
        return
    calls = max(2, count // (9 * sum(BATCHES) * len(attacker.runtimes)))
    honest, sealed = exported(subject)
    _, values = attacker.mixture(64, np.float32)
    Xs = [attacker.mixture(size, np.float32)[0] for size in BATCHES for _ in range(calls)]
    cases = {}
    for name, hostile in HOSTILE.items():
        data = spoiled(honest, hostile, values)
        if accepted(data, resealed(sealed, data)) is not None:
            cases[name] = Case(data, columns_of(spec), [feed(spec, X) for X in Xs])
    for runtime in attacker.runtimes:
        for name, found in zip(cases, runtime.answers(list(cases.values())), strict=True):
            for X, y in zip(Xs, found, strict=True):
                if y is not None:
                    Y = answer_of(y, len(X), len(spec.targets))
                    Z = values[:1].repeat(len(X), axis=0)
                    yield Batch(X, X, Z, Y, f"onnxruntime {runtime.version}, {name}")


def exported(subject: Subject) -> tuple[bytes, bytes]:
    """Return a box with its backbone as an ONNX file, and its certificate."""
    assert subject.network is not None
    record = ModelRecord(weights_of(subject.network), {}, subject.spec.to_yaml(), subject.certificate)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.onnx"
        write_onnx(record, place, monitor=False)
        return place.read_bytes(), companion(place).read_bytes()


def spoiled(data: bytes, hostile: Hostile, values: Array) -> bytes:
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
