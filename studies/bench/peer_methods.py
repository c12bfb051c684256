"""Methods, trained on one case with one seed: same backbone, same rows, same epochs, same order of rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle import correct
from smle.heads.box.network.assurance import certify
from smle.nearest.oracle import nearest_outputs
from smle.networks.safe_network import SafeNetwork
from smle.training.loop import train
from smle.training.options import TrainingOptions
from studies.bench.peer_layers import LAYERS, Guarded, guarded
from studies.bench.peer_tasks import Case
from studies.experiments.networks import Settings, train_safe
from studies.experiments.presets import settings_of
from studies.experiments.tasks import Array

FloatArray = npt.NDArray[np.floating]
_LATE = 2  # epochs with an optimization per row, after training without it

GUARANTEES = {
    "plain": "none",
    "preprocess": "none",
    "postprocess (MAP)": "per answer, by its solver",
    "projection layer (cvxpylayers)": "up to the solver's tolerance and rounding",
    "RAYEN": "in real arithmetic",
    "PiShield": "in real arithmetic",
    "HardNet-style": "in real arithmetic",
    "smle, paper preset": "proved for all inputs, rounding included",
    "smle": "proved for all inputs, rounding included",
}
"""What each method promises, by its authors' own words; for smle the exact checker's."""

METHODS = tuple(GUARANTEES)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained method.

    * `answer(x)`: from float32 inputs (rows, d) to outputs, as it is deployed; what is timed.
    * `module`: what would be exported to ONNX; None if an answer is more than a network.
    * `seconds`: processor time of training; `epochs` that it was spent on.
    """

    answer: Callable[[Tensor], Any]
    module: nn.Module | None
    seconds: float
    epochs: int
    facts: dict[str, Any] = field(default_factory=dict)

    def outputs(self, X: FloatArray) -> FloatArray:
        """Return the outputs in the format in which the method gives them."""
        with torch.inference_mode():
            y = self.answer(torch.tensor(X, dtype=torch.float32))
        found: FloatArray = y.numpy() if isinstance(y, Tensor) else np.asarray(y)
        return found


def train_method(method: str, case: Case, *, seed: int, epochs: int) -> Trained:
    """Train a method.

    Raises:
        NotStatableError: If it cannot express the rules.
        ImportError: If its package is not there.
    """
    # The same schedule for all, and no early stopping: costs are then comparable and no method trains longer.
    options = replace(
        case.settings.options, max_epochs=epochs, patience=None, schedule="cosine", warmup_epochs=0, keep="best"
    )
    settings = replace(case.settings, options=options)
    if method == "smle":
        return _corrected(case, options, seed)
    if method.startswith("smle"):
        return _learned(case, _preset(case, settings), seed)
    if method == "preprocess":
        start = time.process_time()
        targets = nearest_outputs(case.task.specification, case.task.X, case.task.y)
        before = time.process_time() - start
        found = _network("plain", case, options, targets, seed)
        return replace(found, seconds=found.seconds + before)
    if method == "postprocess (MAP)":
        return _postprocess(case, options, seed)
    return _network(method, case, options, case.task.y, seed)


# --- with a layer, or none


def _network(method: str, case: Case, options: TrainingOptions, targets: Array, seed: int) -> Trained:
    late = method.startswith("projection")
    network = _built("plain" if late else method, case, targets, seed)
    epochs = options.max_epochs
    if late:
        first = max(epochs - _LATE, 1)
        _fit(network, case, replace(options, max_epochs=first), targets, seed)
        plain = network
        network = guarded(
            method, case, plain.backbone, plain.last, shift=plain.get_buffer("shift").numpy(), size=plain.size
        )
        epochs = _LATE
        options = replace(options, max_epochs=epochs, learning_rate=options.learning_rate / 10)
    seconds = _fit(network, case, options, targets, seed)
    network.fold()
    return Trained(network, network, seconds, epochs)


def _built(method: str, case: Case, targets: Array, seed: int) -> Guarded:
    task, backbone = case.task, case.settings.backbone
    m = task.y.shape[1]
    shift, size = np.zeros(m), 1.0
    if not task.has_labels:
        shift, size = targets.mean(axis=0), float(np.sqrt(targets.var(axis=0).mean()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = backbone.build(task.X)
        last = nn.Linear(backbone.embedding, m)
        if method not in LAYERS:
            return Guarded(body, last, shift=shift, size=size)
        return guarded(method, case, body, last, shift=shift, size=size)


def _fit(network: Guarded, case: Case, options: TrainingOptions, targets: Array, seed: int) -> float:
    """Train in place; return the processor time."""
    X, y = (torch.tensor(part, dtype=torch.float32) for part in (case.task.X, targets))
    count = len(X) - int(len(X) * options.validation_fraction)
    size = network.size

    def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
        if case.task.has_labels:
            return nn.functional.binary_cross_entropy_with_logits(predicted, wanted)
        return ((predicted - wanted) ** 2).mean() / size**2

    start = time.process_time()
    train(
        network, X[:count], y[:count], loss=loss, options=options, seed=seed, title="peer",
        validation=(X[count:], y[count:]),
    )  # fmt: skip
    return time.process_time() - start


def _postprocess(case: Case, options: TrainingOptions, seed: int) -> Trained:
    spec, labels = case.task.specification, case.task.has_labels
    found = _network("plain", case, options, case.task.y, seed)

    def answer(x: Tensor) -> Array:
        plain: Array = found.answer(x).numpy().astype(np.float64)
        if labels:
            return nearest_outputs(spec, x.numpy(), 0.5 * (1.0 + np.tanh(plain / 2))) - 0.5
        return nearest_outputs(spec, x.numpy(), plain)

    return replace(found, answer=answer, module=None)


# --- safe networks


def _preset(case: Case, shared: Settings) -> Settings:
    """Return the paper's way to enforce (PDCG, its bounds, no refit) with the backbone and the epochs of the others."""
    benchmark = "classification" if case.task.has_labels else "synthetic"
    paper = settings_of(benchmark, "paper", inputs=case.task.X.shape[1], outputs=case.task.y.shape[1])
    # The last epoch is kept, as in the paper: heads are nearly safe only, so the best epoch may be far from safe.
    options = replace(shared.options, keep="last")
    moves = case.kind == "input-dependent"
    assert paper.choices is not None
    # Bounds that move with the inputs where the rules do, and a gate: no single g obeys the rules of doses for all x.
    choices = replace(paper.choices, gate=paper.choices.gate or moves)
    return replace(paper, backbone=shared.backbone, options=options, linear=paper.linear or moves, choices=choices)


def _corrected(case: Case, options: TrainingOptions, seed: int) -> Trained:
    """Train the plain network, and put the certified head of the rules behind it: the default of the estimators."""
    plain = _network("plain", case, options, case.task.y, seed)
    assert plain.module is not None
    start = time.process_time()
    network: SafeNetwork = correct(plain.module.requires_grad_(False), case.task.specification, case.task.X)
    proved = network.eval().certificate_.check()
    facts = {"statements": len(proved), "proof_seconds": time.process_time() - start}
    return Trained(network, network, plain.seconds, plain.epochs, facts)


def _learned(case: Case, settings: Settings, seed: int) -> Trained:
    start = time.process_time()
    task = case.task
    targets = nearest_outputs(task.specification, task.X, task.y) if settings.enforced else task.y
    network, _ = train_safe(task, settings, targets, settings.enforcement(), seed=seed)
    seconds = time.process_time() - start
    proved = certify(network).check()
    return Trained(
        network.eval(), network, seconds, settings.options.max_epochs,
        {"statements": len(proved), "proof_seconds": time.process_time() - start - seconds},
    )  # fmt: skip
