"""Golden models: rules, learned numbers, rows and answers in plain files, and how a network is built of them.

A folder holds nothing that this program may come to write in another way: no certificate, no constants of the gate.

* `rules.yaml`
* `model.safetensors`: `backbone.<i>.weight`, `.bias` (linear layers, ReLU between them); `bounds.lower`, `.upper`, with
  `.lower_slope`, `.upper_slope` where bounds move with the input, and `bounds.hidden.<i>.weight`, `.bias` where they
  are a network; `heads.weight` (c, m, n), `.bias` (c, m), perhaps `.passthrough` (c, m, d) and `.fallback` (c, m);
  `heads.at` (c, d), an input that each head serves (without it one head serves all); perhaps `free.weight`, `.bias`.
* `rows.safetensors`: groups `float32`, `float64` (with an `embedding` per row) and `backbone` (without), of `features`,
  `answers` (exact, rounded to float64) and `margins` (by which the rounding of the deployed program may move them).
* `table.csv`: a table in place of features, for the group `table`.

Rules and tables are written by hand, the rest by `make.py`. When classes change, `built` and `exported` follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import torch
from safetensors.numpy import load_file
from torch import nn

import smle_check
from smle.certificates.issue import compiled
from smle.export import write_network
from smle.heads.box.box_program import Box
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.nn import BoxNetwork
from smle.regions.cells import Cells
from smle.rules import Categorical, Specification
from smle.tables import encode_inputs
from smle_check.program import box, gate_of

from .exported import session

FOLDER = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/rules.yaml"))
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Inputs (N, d), embeddings (N, n) or None, what has to come out (N, m), and how far it may be off."""

    features: np.ndarray
    embedding: np.ndarray | None
    answers: np.ndarray
    margins: np.ndarray

    def wrong(self, found: np.ndarray) -> list[str]:
        """Name the rows whose answers are off by more than their margins."""
        assert found.shape == self.answers.shape
        bad = ~(np.abs(found.astype(np.float64) - self.answers) <= self.margins).all(axis=1)
        return [f"row {i}: {found[i]} in place of {self.answers[i]} +- {self.margins[i]}" for i in np.flatnonzero(bad)]


@dataclass(frozen=True)
class Golden:
    """What a folder holds."""

    rules: str
    tensors: Arrays
    rows: dict[str, Rows]
    table: pd.DataFrame | None

    @property
    def spec(self) -> Specification:
        return Specification.from_yaml(self.rules)


def read(name: str) -> Golden:
    """Read a golden model."""
    folder = FOLDER / name
    stored = load_file(folder / "rows.safetensors")
    table = pd.read_csv(folder / "table.csv") if (folder / "table.csv").exists() else None
    rules = (folder / "rules.yaml").read_text()
    groups = {}
    for group in sorted({key.partition(".")[0] for key in stored}):
        if group == "table":
            features = encode_inputs(Specification.from_yaml(rules), table)
        else:
            features = stored[f"{group}.features"]
        parts = (stored.get(f"{group}.{part}") for part in ("embedding", "answers", "margins"))
        groups[group] = Rows(features, *parts)  # type: ignore[arg-type]
    return Golden(rules, load_file(folder / "model.safetensors"), groups, table)


def layers(tensors: Arrays, prefix: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield weight and bias of the layers `<prefix>.<i>`."""
    i = 0
    while f"{prefix}.{i}.weight" in tensors:
        yield tensors[f"{prefix}.{i}.weight"], tensors[f"{prefix}.{i}.bias"]
        i += 1


def active_regions(cells: Cells, x: np.ndarray) -> tuple[int, ...]:
    """Return the gated regions that an input lies in; constants are read as numbers of its format."""
    kind = x.dtype.type

    def holds(i: int) -> bool:
        row = cells.rows[i]
        if len(row.coefficients) > 1:
            return sum(Fraction(float(x[k])) * q for k, q in row.coefficients) <= row.bound
        ((k, sign),) = row.coefficients
        value, bound = x[k] * kind(float(sign)), kind(float(row.bound))
        return bool(value < bound if row.strict else value <= bound)

    return tuple(sorted(g for g in cells.gated if all(holds(i) for i in cells.regions[g])))


def built(golden: Golden, *, with_backbone: bool) -> BoxNetwork:
    """Return the network in eval mode; without a backbone it is called with (features, embedding)."""
    spec, tensors = golden.spec, golden.tensors
    n = len(tensors["bounds.lower"])
    bounds = {name.removeprefix("bounds."): value for name, value in tensors.items() if name.startswith("bounds.")}
    kind = "network" if "hidden.0.weight" in bounds else "affine" if "lower_slope" in bounds else "fixed"
    network = BoxNetwork(
        _backbone(tensors) if with_backbone else nn.Identity(), spec, embedding=n, bounds=kind,
        gate="heads.at" in tensors, passthrough="heads.passthrough" in tensors,
    )  # fmt: skip
    heads: list[Head | None] = [None] * len(network.cells)
    for i, weight in enumerate(tensors["heads.weight"]):
        cell = 0
        if "heads.at" in tensors:
            cell = list(network.cells).index(active_regions(network.cells, tensors["heads.at"][i]))
        assert heads[cell] is None, "two heads for one cell"
        V, fallback = (
            tensors[f"heads.{k}"][i] if f"heads.{k}" in tensors else None for k in ("passthrough", "fallback")
        )
        heads[cell] = Head(weight, tensors["heads.bias"][i], V=V, fallback=fallback)
    free = Head(tensors["free.weight"], tensors["free.bias"]) if "free.weight" in tensors else None
    assert heads.count(None) == (free is not None)
    network.pin(FrozenHeads(Bounds.of_stored(bounds), tuple(heads), free))
    return network.requires_grad_(False)


def _backbone(tensors: Arrays) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weight, bias in layers(tensors, "backbone"):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": torch.from_numpy(weight.copy()), "bias": torch.from_numpy(bias.copy())})
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def answered(network: BoxNetwork, rows: Rows, *, one_by_one: bool = False) -> np.ndarray:
    """Return what the network answers in torch (N, m)."""
    inputs = [torch.from_numpy(a.copy()) for a in (rows.features, rows.embedding) if a is not None]
    with torch.no_grad():
        if not one_by_one:
            return network(*inputs).numpy()
        return np.concatenate([network(*(part[i : i + 1] for part in inputs)).numpy() for i in range(len(inputs[0]))])


def in_numpy(network: BoxNetwork) -> Box:
    """Return the program of the network's head, as its certificate would state it."""
    block, tensors = bytearray(), network.deployed.tensors
    stated = smle_check.StatedSpecification(compiled(network.spec, network.cells, block), bytes(block))
    bounds, clip = network.frozen_heads().bounds.kind, "clamp" if "heads.fallback" in tensors else "where"
    return Box(box(gate_of(stated, network.cells.gated), clip, bounds, tensors), tensors)


def embedded(golden: Golden, features: np.ndarray) -> np.ndarray:
    """Return what the backbone makes of features."""
    z = features.astype(np.float32)
    stack = list(layers(golden.tensors, "backbone"))
    for i, (weight, bias) in enumerate(stack):
        z = z @ weight.T + bias
        z = np.maximum(z, 0) if i < len(stack) - 1 else z
    return z


def exported(golden: Golden, network: BoxNetwork, path: Path, *, with_backbone: bool) -> onnxruntime.InferenceSession:
    """Return the exported network; without a backbone it has an input `given`, the embedding."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes, constants = [], []
    source, width = ("features", len(golden.spec.columns)) if with_backbone else ("given", network.embedding)
    inputs = [helper.make_tensor_value_info(source, kind, ["N", width])]
    stack = list(layers(golden.tensors, "backbone")) if with_backbone else []
    for i, (weight, bias) in enumerate(stack):
        constants += [onnx.numpy_helper.from_array(weight, f"W{i}"), onnx.numpy_helper.from_array(bias, f"b{i}")]
        nodes.append(helper.make_node("Gemm", [source, f"W{i}", f"b{i}"], [f"p{i}"], transB=1))
        source = f"p{i}"
        if i < len(stack) - 1:
            nodes.append(helper.make_node("Relu", [source], [f"h{i}"]))
            source = f"h{i}"
    nodes.append(helper.make_node("Identity", [source], ["z"]))
    outputs = [helper.make_tensor_value_info("z", kind, ["N", network.embedding])]
    graph = helper.make_graph(nodes, "backbone", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    write_network(network, path, backbone=model)
    return session(path.read_bytes())


def asked(running: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the named answers of an exported network."""
    return dict(zip([output.name for output in running.get_outputs()], running.run(None, feed), strict=True))


def fed(golden: Golden, group: str) -> dict[str, np.ndarray]:
    """Return rows as the named inputs of an exported network."""
    rows, feed, place = golden.rows[group], {}, 0
    for item in golden.spec.inputs:
        width = len(item.categories) if isinstance(item, Categorical) else 1
        own, place = rows.features[:, place : place + width], place + width
        if group == "table":
            assert golden.table is not None
            own = golden.table[item.name].to_numpy()[:, None]
        if not isinstance(item, Categorical):
            feed[item.name] = own.astype(np.float32)
        elif group == "table":
            feed[item.name] = np.where(pd.isna(own), "", own).astype(object)
        else:
            feed[item.name] = np.array(item.categories, dtype=object)[own.argmax(axis=1)][:, None]
    if rows.embedding is not None:
        feed["given"] = rows.embedding
    return feed
