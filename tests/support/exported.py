"""Models to export: hand-made certified heads with a small backbone, and untrained boxes with safe heads."""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from safetensors.numpy import save

import smle_check
from smle.certificates.document import Certificate, arrays_of, tensors_of
from smle.graphs.backbone import mlp_backbone
from smle.graphs.certified_files import _sealed
from smle.graphs.head_graph import certified_program, graph_model, interface_of
from smle.heads.box.network.assurance import certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.table import head_of
from smle.nearest.onnx.pieces import Backbone
from smle.networks.backbones import MLP
from smle.networks.folders import weights_of
from smle.rules import Categorical, Specification
from smle.storage import ModelRecord
from smle_check.onnx.graph import Graph

from .builder import case

MIXED = """
inputs:
  speed: {range: [0, 40], missing: 7.5}
  load: [-1, 1]
  road: {categories: [dry, wet, icy], missing: wet}
  tyre: {categories: [summer, winter]}
outputs: [brake]
labels: [warn, stop]
choices: {advice: [keep, slow, halt], gear: {options: [low, high], pick: min}}
rules:
  - {name: icy, when: road == icy and speed > 10, then: brake >= 0.5 and advice != keep}
  - {name: heavy, when: speed + 3 * load >= 20, then: warn}
  - {name: never both, then: not (warn and stop)}
  - {name: winter, when: tyre == winter, then: gear == low}
"""

DIRECT = """
inputs: {speed: {range: [0, 40], missing: 7.5}, load: [-1, 1], grip: [0.1, 0.9], slope: [-0.3, 0.3]}
outputs: [brake, light]
rules:
  - {name: r, when: speed >= 20 and speed < 33.3 and load <= 0.1 and grip > 0.3, then: brake >= 0.5 and light <= 0.7}
"""

HAND_MADE = (
    "braking", "clauses", "affine", "affine without gate", "dose", "roads", "roads without gate", "strict", "labels",
    "affine labels",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Exported:
    """A record, and the files made of it."""

    spec: Specification
    record: ModelRecord
    onnx: bytes
    companion: bytes


@cache
def hand_made(name: str) -> Exported:
    """Return a hand-made certified head behind a random backbone."""
    package = case(name)
    spec = Specification.from_yaml(package.files["rules"].decode())
    d, n = len(spec.columns), len(package.weights["bounds.lower"])
    rng = np.random.default_rng(5)
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    package.weights |= {
        "backbone.0.shift": ((low + high) / 2).astype("f4"),
        "backbone.0.scale": ((high - low) / 4).astype("f4"),
        "backbone.1.weight": rng.normal(size=(6, d)).astype("f4"),
        "backbone.1.bias": rng.normal(size=6).astype("f4"),
        "backbone.3.weight": rng.normal(size=(n, 6)).astype("f4"),
        "backbone.3.bias": rng.normal(size=n).astype("f4"),
    }
    package.seal()
    certificate = Certificate(package.text, package.block, package.tensors, package.files)
    return _exported(spec, package.weights, package.files["rules"].decode(), certificate)


@cache
def untrained(text: str, bounds: str = "fixed", embedding: int = 8) -> Exported:
    """Return a box that was not trained, with the nearest safe heads."""
    spec = Specification.from_yaml(text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
        backbone = MLP((12,), embedding, shift=(low + high) / 2, scale=(high - low) / 4)
        network = BoxNetwork(backbone, spec, embedding=embedding, bounds=bounds)
        network.heads.raw_weight.data.normal_()
    network = project(network)
    weights = weights_of(network)
    certificate = certify(network, tensors=tensors_of(weights), files={"rules": spec.to_yaml().encode()})
    return _exported(spec, weights, spec.to_yaml(), certificate)


def _exported(spec: Specification, weights: dict[str, Any], rules: str, certificate: Certificate) -> Exported:
    return exported(ModelRecord(weights, {}, rules, certificate), mlp_backbone(weights))


def exported(record: ModelRecord, backbone: Backbone, **options: Any) -> Exported:
    """Return a record as ONNX, with its certificate; options as in `model_of`."""
    spec = Specification.from_yaml(record.rules)
    data = model_of(spec, record, backbone, **options).SerializeToString(deterministic=True)
    assert record.certificate is not None
    return Exported(spec, record, data, _sealed(record.certificate, data))


def model_of(
    spec: Specification, record: ModelRecord, backbone: Backbone, *, monitor: bool = True,
    stacked: bool = False, proposals: tuple[list[Backbone], int] | None = None,
) -> Any:  # fmt: skip
    """Return the graph of a record's head behind a backbone; `proposals` in place of the nearest allowed answers."""
    certificate = record.certificate
    assert certificate is not None
    interface = interface_of(spec, monitor=monitor, head=certificate.kind, stacked=stacked)
    parts, count = proposals or head_of(certificate).nodes(certificate)
    program = certified_program(interface, certificate, certificate.tensors, proposals=count)
    titles = [rule["name"] for rule in certificate.document["specification"]["rules"]]
    return graph_model(interface, program, backbone, titles, parts)


def resealed(companion: bytes, onnx: bytes) -> bytes:
    """Return the certificate file bound to other bytes, and to the head in them, as an attacker would make it."""
    outer, changes = json.loads(companion), {"onnx": smle_check.sha256(onnx)}
    inner = outer["certificate"]
    with contextlib.suppress(smle_check.Rejected):  # bytes from which no head can be read
        tensors = _head_in(onnx, outer["head"])
        inner["binds"]["head"] = smle_check.weights_digest(tensors)
        changes["head"] = base64.b64encode(save(arrays_of(tensors))).decode()
    return changed_outer(companion, inner, **changes)


def changed_outer(companion: bytes, inner: Any = None, **changes: Any) -> bytes:
    """Return a certificate file with other parts, maybe with another certificate in it, and with digests made new."""
    outer = json.loads(companion) | changes
    if inner is not None:
        outer["certificate"] = _digested(inner)
        outer["model_certificate"] = smle_check.sha256(smle_check.canonical(outer["certificate"]) + b"\n")
    return smle_check.canonical(_digested(outer)) + b"\n"


def _digested(document: dict[str, Any]) -> dict[str, Any]:
    body = {key: part for key, part in document.items() if key != "digest"}
    return {**body, "digest": smle_check.sha256(smle_check.canonical(body))}


def _head_in(onnx: bytes, head: str) -> dict[str, smle_check.Tensor]:
    """Return the stored head with the numbers that the graph has under the same names."""
    tensors, constants = smle_check.read_weights(base64.b64decode(head)), Graph(onnx).constants
    for name, tensor in tensors.items():
        found = constants.get(name)
        if found is None or found.dtype != tensor.dtype:
            continue
        data = found.data * tensor.shape[0] if found.shape == () else found.data
        if len(data) == len(tensor.data):
            tensors[name] = tensor._replace(data=data)
    return tensors


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message: bytes, a text or another message."""
    size, length = b"", len(content)
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


def accepted(onnx: bytes, companion: bytes) -> smle_check.OnnxResult | None:
    """Return the result of the checker, None if it rejects; other exceptions pass."""
    try:
        return smle_check.check_onnx(onnx, companion)
    except smle_check.Rejected:
        return None


def session(
    data: bytes | str | Path, threads: int = 1, *, level: str = "ORT_ENABLE_ALL", flush: bool = False
) -> onnxruntime.InferenceSession:
    """Return a file or its bytes in onnxruntime; with `flush`, subnormal numbers are read as zero."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # errors are raised anyway
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[level]
    if flush:
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def feed(spec: Specification, X: np.ndarray) -> dict[str, np.ndarray]:
    """Return named inputs from encoded columns (rows, d)."""
    result, column = {}, 0
    for item in spec.inputs:
        if isinstance(item, Categorical):
            k = len(item.categories)
            winner = X[:, column : column + k].argmax(axis=1)
            result[item.name] = np.array(item.categories, dtype=object)[winner][:, None]
            column += k
        else:
            result[item.name] = np.ascontiguousarray(X[:, [column]], dtype=np.float32)
            column += 1
    return result


def run(running: onnxruntime.InferenceSession, spec: Specification, X: np.ndarray) -> dict[str, np.ndarray]:
    names = [output.name for output in running.get_outputs()]
    return dict(zip(names, running.run(None, feed(spec, X)), strict=True))


def columns_of(spec: Specification, answers: dict[str, np.ndarray]) -> np.ndarray:
    """Return the outputs (rows, m) in the order of the targets."""
    found = []
    for target in spec.targets:
        names = (target, f"logit({target})", f"score({target})")
        found.append(next(a for n in reversed(names) if (a := answers.get(n)) is not None and a.dtype == np.float32))
    return np.concatenate(found, axis=1)
