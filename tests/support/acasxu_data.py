"""The ACAS Xu networks with their properties and points, and a small generated stand-in of the same kind."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from smle.errors import DataError
from smle.extras import require
from smle.regions.cells import regions_of
from smle.rules import Choice, Specification
from smle.violations.points import finished, region_boxes

FloatArray = npt.NDArray[np.float32]

ADVICE = ("COC", "weak_left", "weak_right", "strong_left", "strong_right")
_RANGES = MappingProxyType(
    {"rho": ("-0.32842288", "0.679857769"), **dict.fromkeys(("theta", "psi", "v_own", "v_int"), ("-0.5", "0.5"))}
)
"""Domain of the normalized inputs: distance up to 60,760 ft, angles, and speeds up to 1,200 ft/s."""

_EXTRA = {"1_1": (5,), "3_3": (9,)}
_WITHOUT_3_4 = ("1_7", "1_8", "1_9")


@dataclass(frozen=True, eq=False)
class Task:
    """A network that maps inputs (batch, 5) to scores (batch, 5), the rules that it should obey, and points.

    The smallest score is the advice. Shapes: train (N, 5), test (M, 5).
    """

    name: str
    model: nn.Sequential
    spec: Specification
    train: FloatArray
    test: FloatArray

    @property
    def rules(self) -> list[str]:
        """The names of the rules."""
        return [rule.name for rule in self.spec.rules]

    def scores(self, X: FloatArray) -> FloatArray:
        """Return the network's scores (rows, 5)."""
        with torch.no_grad():
            y: FloatArray = self.model(torch.from_numpy(X)).numpy()
        return y


def advice(scores: FloatArray) -> npt.NDArray[np.intp]:
    """Return the position of the smallest score (rows,), the first one of equals."""
    smallest: npt.NDArray[np.intp] = scores.argmin(axis=1)
    return smallest


def points_of(spec: Specification, rule: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Return float32 points (count, d), uniform in the box of a rule's first region."""
    region = next(i for i, rules in enumerate(regions_of(spec).rules) if rule in rules)
    low, high = region_boxes(spec)[region]
    return finished(spec, rng.uniform(low, high, (count, len(low))), np.float32).astype(np.float32, copy=False)


# --- the real ones


def read_tasks() -> list[Task]:
    """Read all networks below `acasxu/` in the folder that the environment variable SMLE_DATA names.

    Raises:
        DataError: If the variable is not set or files are missing.
        MissingDependencyError: If onnx is not installed.
    """
    root = os.environ.get("SMLE_DATA")
    if not root:
        raise DataError(
            "Expected the environment variable SMLE_DATA to name a folder that holds acasxu/ (networks as .onnx, "
            "prop_*.vnnlib, points/*.npz). Set it, or use --quick, which needs no data."
        )
    folder = Path(root) / "acasxu"
    found = {}
    for path in sorted(folder.glob("ACASXU_run2a_*_batch_2000.onnx")):
        match = re.fullmatch(r"ACASXU_run2a_(\d_\d)_batch_2000\.onnx", path.name)
        if match is not None:
            found[match.group(1)] = path
    if not found:
        raise DataError(f"Expected ACAS Xu networks (*.onnx) in '{folder}'. Check SMLE_DATA, or use --quick.")
    return [_read_task(folder, name, path) for name, path in found.items()]


def _read_task(folder: Path, name: str, network: Path) -> Task:
    numbers = (1, 2, *(() if name in _WITHOUT_3_4 else (3, 4)), *_EXTRA.get(name, ()))
    properties = [folder / f"prop_{number}.vnnlib" for number in numbers]
    points = [folder / "points" / f"acas_art.{name.replace('_', '.')}.{part}.npz" for part in ("train", "test")]
    for path in (*properties, *points):
        if not path.is_file():
            raise DataError(f"Expected the file '{path}' for network {name}. Complete the data below SMLE_DATA.")
    spec = Specification.from_vnnlib(*properties, inputs=dict(_RANGES), outputs=[_choice()])
    train, test = (_read_points(path) for path in points)
    return Task(name, _read_network(network), spec, train, test)


def _choice() -> Choice:
    return Choice("advice", ADVICE, pick="min")


def _read_points(path: Path) -> FloatArray:
    with np.load(path, allow_pickle=False) as stored:
        return np.ascontiguousarray(stored["x"], dtype=np.float32)


def _read_network(path: Path) -> nn.Sequential:
    """Read a chain of MatMul, Add and Relu as linear layers; a Sub of constants before it is folded in.

    Raises:
        DataError: If the graph is another one.
    """
    onnx = require("onnx", "Reading ACAS Xu networks")
    graph: Any = onnx.load(path).graph
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    layers: list[nn.Module] = []
    shift: npt.NDArray[Any] | None = None
    weight: npt.NDArray[Any] | None = None
    for node in graph.node:
        known = [constants[name] for name in node.input if name in constants]
        if node.op_type == "Sub" and len(known) == 1 and not layers:
            shift = known[0].reshape(-1)
        elif node.op_type == "MatMul" and len(known) == 1:
            weight = known[0].T
        elif node.op_type == "Add" and len(known) == 1 and weight is not None:
            bias = known[0] if shift is None or not shift.any() else known[0] - weight @ shift
            layers.append(_linear(weight, bias))
            shift = weight = None
        elif node.op_type == "Relu":
            layers.append(nn.ReLU())
        elif node.op_type != "Flatten":
            raise DataError(f"'{path}': expected a chain of MatMul, Add and Relu. Got {node.op_type}.")
    return nn.Sequential(*layers).requires_grad_(False)


def _linear(weight: npt.NDArray[Any], bias: npt.NDArray[Any]) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.copy()))
        layer.bias.copy_(torch.from_numpy(bias.copy()))
    return layer


# --- the stand-in


_STAND_IN = """
inputs: {ranges}
choices: {{advice: {{options: [{options}], pick: min}}}}
rules:
  - {{name: bounded, when: {far}, then: "score(COC) < {bound}"}}
  - {{name: not the worst, when: {far}, then: {not_worst}}}
  - {{name: not the best, when: {near}, then: {not_best}}}
  - {{name: turn, when: {side}, then: advice == {usual}}}
"""


def stand_in(*, rows: int = 1000, seed: int = 0) -> Task:
    """Return a small random network with rules of the same four kinds, all of which it breaks somewhere."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (2 * rows, 5)).astype(np.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(24, 5)
        model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), last)
    model.requires_grad_(False)
    last.weight.mul_(4)  # spread and centered, so that every advice is given somewhere
    last.bias.sub_(model(torch.from_numpy(X)).mean(dim=0))
    bound = float(np.quantile(model(torch.from_numpy(X[X[:, 0] >= 0.3])).numpy()[:, 0], 0.9))
    side = X[(X[:, 0] <= -0.3) & (X[:, 1] >= 0.1)]
    usual = ADVICE[int(np.bincount(advice(model(torch.from_numpy(side)).numpy())).argmax())]
    others = ADVICE[1:]
    text = _STAND_IN.format(
        ranges="{" + ", ".join(f"x{i}: [-0.5, 0.5]" for i in range(5)) + "}",
        options=", ".join(ADVICE), far="x0 >= 0.3", near="x0 <= -0.3 and x1 <= 0", side="x0 <= -0.3 and x1 >= 0.1",
        bound=f"{bound:.4f}", usual=usual,
        not_worst=" or ".join(f"score(COC) < score({name})" for name in others),
        not_best=" or ".join(f"score({name}) < score(COC)" for name in others),
    )  # fmt: skip
    return Task("stand-in", model, Specification.from_yaml(text), X[:rows], X[rows:])
