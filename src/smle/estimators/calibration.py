"""Between a trained classifier and the head of rules: a temperature for probabilities, thresholds for labels.

Both are an affine map of logits and scores, folded into the model in front of the head: what is proved, stored and
exported includes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from smle.certificates.document import arrays_of, tensors_of
from smle.estimators.parameters import by_name
from smle.estimators.tasks import Labels, Options
from smle.export.stored import StoredModel
from smle.extras import require
from smle.programs import Perceptron

__all__ = ["rescaled", "temperature", "thresholds_of"]

Array = npt.NDArray[np.float64]
_STEEP = 4.0  # logits are multiplied by between exp(-4) and exp(4)


def temperature(task: Labels | Options, outputs: Array, targets: Array, weight: Array | None) -> float:
    """Return the factor of logits or scores (n, m) with the least loss on rows held out; decisions stay.

    Targets are smoothed by one row's worth, as Platt does, so that rows which are all right leave it finite.
    """
    import torch

    share = 1.0 / (len(targets) + 2.0)
    even = 0.5 if isinstance(task, Labels) else 1.0 / targets.shape[1]
    wanted = torch.from_numpy(targets * (1 - share) + even * share)
    found, loss = torch.from_numpy(outputs), task.loss(targets)

    def mean_loss(logarithm: float) -> float:
        rows = loss(np.exp(logarithm) * found, wanted).reshape(len(wanted), -1).mean(dim=1).numpy()
        return float(np.average(rows, weights=weight))

    return float(np.exp(minimize_scalar(mean_loss, bounds=(-_STEEP, _STEEP), method="bounded").x))


def thresholds_of(given: Any, task: Labels, logits: Array | None, targets: Array, weight: Array | None) -> Array:
    """Return the chance (m,) from which on each label is on: as given, or the best on rows held out."""
    names = task.spec.targets
    if not isinstance(given, str):
        known = dict.fromkeys(names, given) if isinstance(given, int | float | np.number) else given
        return np.asarray(by_name("thresholds", known, names, 0.5))
    if logits is None:
        raise ValueError(
            f"Expected thresholds as numbers here: no rows are held out. Got {given!r}. Tune them on "
            "rows of your own, or with TunedThresholdClassifierCV around the estimator."
        )
    weight = np.ones(len(targets)) if weight is None else weight
    return np.array([_best(given, logits[:, j], targets[:, j] > 0.5, weight) for j in range(len(names))])


def _best(aim: str, logits: Array, on: npt.NDArray[np.bool_], weight: Array) -> float:
    """Return the chance from which on a label is best set on; one half if only one side occurs."""
    order = np.argsort(-logits, kind="stable")
    right, wrong = (np.concatenate([[0.0], np.cumsum(weight[order] * side[order])]) for side in (on, ~on))
    if not (right[-1] and wrong[-1]):
        return 0.5
    ordered = logits[order]
    ends = np.concatenate([[ordered[0] + 1], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] - 1]])
    score = 2 * right / (right + wrong + right[-1]) if aim == "f1" else right / right[-1] - wrong / wrong[-1]
    score[1:-1][ordered[1:] == ordered[:-1]] = -np.inf  # no cut between equal logits
    best = np.flatnonzero(score >= score.max() - 1e-12)
    cut = ends[best[np.abs(ends[best]).argmin()]]  # of equal ones the nearest to even odds
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
    return Perceptron(tensors_of(arrays))


def _rescaled_onnx(data: bytes, slope: float, shift: Array) -> bytes:
    onnx = require("onnx", "Storing an estimator")
    model = onnx.load_from_string(data)
    graph, name = model.graph, model.graph.output[0].name
    for node in graph.node:
        node.output[:] = [f"{name}/plain" if item == name else item for item in node.output]
        node.input[:] = [f"{name}/plain" if item == name else item for item in node.input]
    constants = {f"{name}/slope": np.float32(slope), f"{name}/shift": shift.astype(np.float32)}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    graph.node.append(onnx.helper.make_node("Mul", [f"{name}/plain", f"{name}/slope"], [f"{name}/scaled"]))
    graph.node.append(onnx.helper.make_node("Add", [f"{name}/scaled", f"{name}/shift"], [name]))
    return bytes(model.SerializeToString(deterministic=True))
