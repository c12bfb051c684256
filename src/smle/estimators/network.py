"""The network of an estimator: trained in torch, handed over as plain weights."""

from __future__ import annotations

import smle.nn  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import smle_check
from smle.assurance import certify
from smle.certificates.document import Certificate, tensors_of
from smle.estimators.inputs import spread
from smle.estimators.tasks import Held, Numbers, Task
from smle.guarantees import Cells, find_cells
from smle.nn.backbones import MLP, Standardize
from smle.nn.box_network import BoxNetwork, moves_with_inputs
from smle.nn.head import gate_program
from smle.nn.network import Answers
from smle.nn.precision import float32_by_default
from smle.nn.units import DataScale
from smle.training.batches import split_rows
from smle.training.enforcement import Enforcement, enforcement_of
from smle.training.loop import EpochInfo, History, TrainingOptions, train
from smle.training.refit import refit_network
from smle_check.reading import BACKBONE

if TYPE_CHECKING:
    from smle.estimators.base import SafeEstimator
    from smle.programs import Perceptron

__all__ = ["Trained", "train_network"]

Array = npt.NDArray[np.float64]


class Trained(NamedTuple):
    """A trained perceptron as it is stored.

    * `tensors`: its weights, `backbone.*`; of a box those of the head are in the certificate.
    * `certificate`: of a box that was learned under the rules; None: a plain perceptron.
    * `held`: the rows that were held out for early stopping; None: there were none.
    """

    tensors: dict[str, smle_check.Tensor]
    certificate: Certificate | None
    history: History
    held: Held | None


def train_network(
    model: SafeEstimator,
    task: Task,
    X: npt.NDArray[Any],
    targets: Array,
    weight: Array | None,
    seed: int,
    *,
    start: Perceptron | None = None,
    once: bool = False,
    further: Callable[[BoxNetwork | Answers, History], None] | None = None,
) -> Trained:
    """Return a trained network: with a box that obeys the rules, or plain where there are none.

    Args:
        model: Says how to train.
        task: What the outputs are, and the rules that heads are learned under.
        X: Encoded inputs (n, d).
        targets: What the loss compares with (n, m).
        weight: Weight of each row (n,), or None.
        seed: Of everything that is random.
        start: A perceptron to go on from, where there are no rules; None: random weights.
        once: Take one epoch and hold out no rows.
        further: Called with the network and its history when it is trained, to train it further.

    Raises:
        NotCertifiedError: If a rule cannot be proved.
    """
    spec = task.spec
    with float32_by_default():
        enforcement = enforcement_of(model.enforcement) if spec.rules else None
        network = _network(model, task, X, targets, seed)
        if start is not None:
            assert isinstance(network, Answers)
            _continue(network, start)
        rows = torch.tensor(X, dtype=None if spec.rules else torch.float32)  # a gate reads numbers as they are
        held = None if once else split_rows(len(X), share=model.validation_fraction, seed=seed)[1]
        before = None if held is None else _Before(rows[held])
        history = _train(model, task, network, rows, targets, weight, enforcement, seed, before)
        if further is not None:
            further(network, history)
        certificate, backbone = None, network.backbone
        if isinstance(network, BoxNetwork):
            certificate = certify(network)
        else:
            backbone = _folded(network)
    state = {f"{BACKBONE}{name}": value.numpy() for name, value in backbone.state_dict().items()}
    seen = None if held is None or before is None else Held(held.numpy(), before.outputs(network))
    return Trained(tensors_of(state), certificate, history, seen)


class _Before:
    """Notes what a network answers to rows that were held out, before final epochs learn from them.

    It is called after each epoch. The first final one has taken a few small steps on them already.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.found: Array | None = None

    def __call__(self, info: EpochInfo) -> None:
        if info.final and self.found is None:
            self.found = self._asked(info.network)

    def outputs(self, network: nn.Module) -> Array:
        """Return the answers; those of the trained network if there were no final epochs."""
        return self._asked(network) if self.found is None else self.found

    @torch.no_grad()
    def _asked(self, network: nn.Module) -> Array:
        device = next(network.parameters()).device
        answers: Array = network(self.rows.to(device)).cpu().numpy().astype(np.float64)
        return answers


def _network(model: SafeEstimator, task: Task, X: npt.NDArray[Any], targets: Array, seed: int) -> BoxNetwork | Answers:
    """Return a network to train: a perceptron in the units of the data, with a box behind it if there are rules."""
    spec = task.spec
    shift, scale = X.mean(axis=0, dtype=np.float64), spread(X)
    frame = DataScale(shift, scale, *task.units(targets))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = MLP(model.hidden_layer_sizes, model.embedding, shift=shift, scale=scale)
        if not spec.rules:
            return Answers(backbone, model.embedding, frame)
        bounds, cells = model.bounds, find_cells(spec)
        if bounds == "auto":
            bounds = "affine" if moves_with_inputs(spec) else "fixed"
        return BoxNetwork(
            backbone,
            spec,
            embedding=model.embedding,
            bounds=bounds,
            gate=model.gate,
            frame=frame,
            prefer=_preferred(task, cells, X, targets),
            cells=cells,
        )


def _preferred(task: Task, cells: Cells, X: npt.NDArray[Any], targets: Array) -> Array:
    """Return typical outputs of each cell (cells, m); those of all rows where a cell has none."""
    cell = gate_program(task.spec, cells).cell_of(X)
    typical = np.tile(task.typical(targets), (len(cells), 1))
    for c in np.unique(cell):
        typical[c] = task.typical(targets[cell == c])
    return typical


def _train(
    model: SafeEstimator,
    task: Task,
    network: BoxNetwork | Answers,
    X: torch.Tensor,
    targets: Array,
    weight: Array | None,
    enforcement: Enforcement | None,
    seed: int,
    before: _Before | None,
) -> History:
    """Train, then replace the heads by the safe ones that fit the training rows best, if validation agrees."""
    final, below = model.final_epochs or 0, math.inf
    if model.final_epochs is None and (isinstance(network, Answers) or isinstance(task, Numbers)):
        final, below = task.final_epochs(model.max_epochs, targets)
    decay, until = model.weight_decay or 0.0, 0.0
    if model.weight_decay is None and isinstance(network, Answers) and before is not None:
        decay, until = task.decay(targets)
    options = TrainingOptions(
        learning_rate=model.learning_rate,
        weight_decay=decay,
        decay_below=until,
        device=model.device,
        batch_size=model.batch_size,
        max_epochs=model.max_epochs,
        patience=model.patience,
        validation_fraction=model.validation_fraction,
        schedule=model.schedule,
        final_epochs=final,
        final_below=below,
        verbose=model.verbose,
    )
    wanted = torch.tensor(targets, dtype=torch.float32)
    if before is None:
        options = replace(options, max_epochs=1, final_epochs=0, patience=None, schedule=None, keep="last")
    history = train(
        network,
        X,
        wanted,
        validation=(X, wanted) if before is None else None,
        loss=task.loss(targets),
        options=options,
        seed=seed,
        title="training" if isinstance(network, BoxNetwork) or model.enforcement == "correct" else "baseline",
        enforcement=enforcement,
        sample_weight=None if weight is None else torch.tensor(weight, dtype=torch.float32),
        checkpoint=model.checkpoint,
        callbacks=model.callbacks if before is None else [*model.callbacks, before],
    )
    if model.refit_heads and isinstance(network, BoxNetwork) and task.refit_loss is not None:
        wanted = torch.tensor(targets)
        kept, held = split_rows(len(X), share=model.validation_fraction, seed=seed)
        refit_network(
            network,
            X[kept],
            wanted[kept],
            loss=task.refit_loss,
            sample_weight=None if weight is None else weight[kept.numpy()],
            validation=(X[held], wanted[held]),
        )
    return history


@torch.no_grad()
def _continue(network: Answers, start: Perceptron) -> None:
    """Give a network the weights of a folded one; its last layer becomes two again.

    Raises:
        ValueError: If it has other inputs, hidden layers or outputs.
    """
    standardize, *others, inner = network.backbone.children()
    layers = [layer for layer in others if isinstance(layer, nn.Linear)]
    assert isinstance(standardize, Standardize)
    assert isinstance(inner, nn.Linear)
    widths = [len(standardize.shift), *(layer.out_features for layer in layers), network.last.out_features]
    if widths != start.widths:
        raise ValueError(
            f"Expected a network with layers of {start.widths}, as before, to go on from its weights. Got {widths}. "
            "Set warm_start=False to start anew."
        )
    for buffer, value in zip((standardize.shift, standardize.scale), start.scaling, strict=True):
        buffer.copy_(torch.tensor(value))
    for layer, (weight, bias) in zip(layers, start.layers[:-1], strict=True):
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    last, offset = (torch.tensor(part, dtype=torch.float64) for part in start.layers[-1])
    left, sizes, right = torch.linalg.svd(last / network.scale.unsqueeze(1), full_matrices=False)
    used = min(len(sizes), inner.out_features)
    root = sizes[:used].sqrt()
    inner.weight[:used] = (root.unsqueeze(1) * right[:used]).to(torch.float32)
    inner.bias[:used] = 0.0
    network.last.weight.zero_()
    network.last.weight[:, :used] = (left[:, :used] * root).to(torch.float32)
    network.last.bias.copy_((offset - network.shift) / network.scale)


@torch.no_grad()
def _folded(network: Answers) -> MLP:
    """Return a trained network without rules as one perceptron: its last two layers and the units become one."""
    standardize, *others, inner = network.backbone.children()
    assert isinstance(standardize, Standardize)
    assert isinstance(inner, nn.Linear)
    hidden = [layer.out_features for layer in others if isinstance(layer, nn.Linear)]
    last, scale = network.last, network.scale.to(torch.float64)
    result = MLP(hidden, last.out_features, shift=standardize.shift.numpy(), scale=standardize.scale.numpy())
    weight = scale.unsqueeze(1) * last.weight.to(torch.float64)
    name = f"{len(others) + 1}."
    state = {k: v for k, v in network.backbone.state_dict().items() if not k.startswith(name)}
    state[f"{name}weight"] = weight @ inner.weight.to(torch.float64)
    state[f"{name}bias"] = weight @ inner.bias.to(torch.float64) + scale * last.bias + network.shift
    result.load_state_dict(state)
    return result
