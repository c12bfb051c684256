"""Adjusts a model before its head: a temperature for probabilities, thresholds of labels, sorted quantiles.

Each is folded into the model, so the certificate, the stored files and the exports include it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from smle.certificates.document import arrays_of, tensors_of
from smle.estimators.class_tasks import LabelTask, Options
from smle.estimators.tasks import Held
from smle.extras import require
from smle.parameters import by_name
from smle.serving.fronts import StoredModel
from smle.serving.perceptron import Perceptron

__all__ = ["rescaled", "sorted_answers", "temperature", "thresholds_of"]

Array = npt.NDArray[np.float64]
_STEEP = 4.0  # logits are multiplied by exp(-4) to exp(4)


def temperature(task: LabelTask | Options, outputs: Array, targets: Array, weight: Array | None) -> float:
    """Return the factor for logits or scores (n, m) that gives the least loss on held-out rows.

    It changes no decision. Targets are smoothed by one row, as Platt does, so that the factor stays finite if all rows
    are right.
    """
    import torch

    share = 1.0 / (len(targets) + 2.0)
    even = 0.5 if isinstance(task, LabelTask) else 1.0 / targets.shape[1]
    wanted = torch.from_numpy(targets * (1 - share) + even * share)
    found, loss = torch.from_numpy(outputs), task.loss(targets)

    def mean_loss(logarithm: float) -> float:
        rows = loss(np.exp(logarithm) * found, wanted).reshape(len(wanted), -1).mean(dim=1).numpy()
        return float(np.average(rows, weights=weight))

    return float(np.exp(minimize_scalar(mean_loss, bounds=(-_STEEP, _STEEP), method="bounded").x))


def thresholds_of(given: Any, task: LabelTask, targets: Array, held: Held | None) -> Array:
    """Return the threshold (m,) of each label: as given, or the best on held-out rows.

    Raises ValueError if thresholds are to be tuned and no rows are held out.
    """
    names = task.spec.targets
    if not isinstance(given, str):
        known = dict.fromkeys(names, given) if isinstance(given, int | float | np.number) else given
        return np.asarray(by_name("thresholds", known, names, 0.5))
    if held is None:
        raise ValueError(
            f"Expected thresholds as numbers, since no rows are held out here. Got {given!r}. Tune them on your own "
            "rows, or put TunedThresholdClassifierCV around the estimator."
        )
    weight = np.ones(len(held.rows)) if held.weight is None else held.weight
    on = targets[held.rows] > 0.5
    return np.array([_best(given, held.outputs[:, j], on[:, j], weight) for j in range(len(names))])


def _best(aim: str, logits: Array, on: npt.NDArray[np.bool_], weight: Array) -> float:
    """Return the best threshold of a label, or one half if only one side occurs."""
    order = np.argsort(-logits, kind="stable")
    right, wrong = (np.concatenate([[0.0], np.cumsum(weight[order] * side[order])]) for side in (on, ~on))
    if not (right[-1] and wrong[-1]):
        return 0.5
    ordered = logits[order]
    ends = np.concatenate([[ordered[0] + 1], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] - 1]])
    score = 2 * right / (right + wrong + right[-1]) if aim == "f1" else right / right[-1] - wrong / wrong[-1]
    score[1:-1][ordered[1:] == ordered[:-1]] = -np.inf  # never cut between equal logits
    best = np.flatnonzero(score >= score.max() - 1e-12)
    cut = ends[best[np.abs(ends[best]).argmin()]]  # of equal scores, the cut nearest to even odds
    return float(np.clip(1 / (1 + np.exp(-cut)), 1e-6, 1 - 1e-6))


def rescaled(front: Perceptron | StoredModel, slope: float, shift: Array) -> Perceptron | StoredModel:
    """Return a model that answers `slope * answers + shift`."""
    if isinstance(front, StoredModel):
        assert front.onnx is not None
        return StoredModel(_rescaled_onnx(front.onnx, slope, shift))
    arrays = dict(arrays_of(front.tensors))
    last = max((name for name in arrays if name.endswith(".bias")), key=lambda name: int(name.split(".")[-2]))
    weight = last.removesuffix("bias") + "weight"
    for name, added in ((weight, 0.0), (last, shift)):
        arrays[name] = (slope * arrays[name].astype(np.float64) + added).astype(np.float32)
    return Perceptron(tensors_of(arrays), front.further)


def _rescaled_onnx(data: bytes, slope: float, shift: Array) -> bytes:
    def nodes(onnx: Any, source: str, result: str) -> list[Any]:
        constants = [np.float32(slope), shift.astype(np.float32)]
        tensors = [onnx.numpy_helper.from_array(np.asarray(value)) for value in constants]
        names = [f"{result}/slope", f"{result}/shift"]
        return [
            *(onnx.helper.make_node("Constant", [], [k], value=v) for k, v in zip(names, tensors, strict=True)),
            onnx.helper.make_node("Mul", [source, names[0]], [f"{result}/scaled"]),
            onnx.helper.make_node("Add", [f"{result}/scaled", names[1]], [result]),
        ]

    return _continued(data, nodes)


def sorted_answers(front: StoredModel, columns: int) -> StoredModel:
    """Return a model that sorts its answers in increasing order."""

    def nodes(onnx: Any, source: str, result: str) -> list[Any]:
        count = onnx.numpy_helper.from_array(np.array([columns], dtype=np.int64))
        return [
            onnx.helper.make_node("Constant", [], [f"{result}/count"], value=count),
            onnx.helper.make_node(
                "TopK", [source, f"{result}/count"], [result, f"{result}/order"], largest=0, sorted=1
            ),
        ]

    assert front.onnx is not None
    return StoredModel(_continued(front.onnx, nodes))


def _continued(data: bytes, nodes: Callable[[Any, str, str], list[Any]]) -> bytes:
    """Append nodes to an ONNX model; `nodes` gets onnx and the names of the old and new answers."""
    onnx = require("onnx", "Storing an estimator")
    model = onnx.load_from_string(data)
    result = model.graph.output[0].name
    source = f"{result}/before"
    for node in model.graph.node:
        node.output[:] = [source if name == result else name for name in node.output]
        node.input[:] = [source if name == result else name for name in node.input]
    model.graph.node.extend(nodes(onnx, source, result))
    return bytes(model.SerializeToString(deterministic=True))
