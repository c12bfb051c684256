"""Trains perceptrons in torch, and returns plain weights."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import smle_check
from smle.certificates.document import tensors_of
from smle.estimators.tasks import Held, Task, spread
from smle.networks.backbones import MLP, Answers, Standardize
from smle.networks.precision import float32_by_default
from smle.networks.units import DataScale
from smle.parameters import NetworkParameters
from smle.serving.perceptron import Perceptron
from smle.training.batches import split_rows
from smle.training.loop import EpochInfo, History, TrainingOptions, train
from smle_check.reading import BACKBONE

__all__ = ["HeldOut", "Trained", "options_of", "stored_layers", "train_perceptron"]

Array = npt.NDArray[np.float64]


class Trained(NamedTuple):
    """Stored layers, the history, and the rows held out, or None."""

    tensors: dict[str, smle_check.Tensor]
    history: History
    held: Held | None


def train_perceptron(
    parameters: NetworkParameters,
    task: Task,
    X: npt.NDArray[Any],
    targets: Array,
    weight: Array | None,
    seed: int,
    *,
    start: Perceptron | None = None,
    once: bool = False,
) -> Trained:
    """Train a perceptron on rows (n, d), targets (n, m) and weights (n,).

    Starts from the weights of `start`, or from random ones. With `once`, takes one epoch and holds out no rows.
    """
    with float32_by_default():
        network = _network(parameters, task, X, targets, seed)
        if start is not None:
            _continue(network, start)
        rows = torch.tensor(X, dtype=torch.float32)
        wanted = torch.tensor(targets, dtype=torch.float32)
        held = None if once else HeldOut(parameters, (rows,), seed)
        history = train(
            network,
            rows,
            wanted,
            validation=(rows, wanted) if held is None else None,
            loss=task.loss(targets),
            options=_options(parameters, task, targets, once=once),
            seed=seed,
            title="training",
            sample_weight=None if weight is None else torch.tensor(weight, dtype=torch.float32),
            checkpoint=parameters.checkpoint,
            callbacks=parameters.callbacks if held is None else [*parameters.callbacks, held],
        )
        return Trained(stored_layers(_folded(network)), history, None if held is None else held.found(network))


def _network(parameters: NetworkParameters, task: Task, X: npt.NDArray[Any], targets: Array, seed: int) -> Answers:
    """Return a perceptron scaled to the data, with random weights."""
    shift, scale = X.mean(axis=0, dtype=np.float64), spread(X)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = MLP(parameters.hidden_layer_sizes, parameters.embedding, shift=shift, scale=scale)
        return Answers(backbone, parameters.embedding, DataScale(shift, scale, *task.units(targets)))


def _options(parameters: NetworkParameters, task: Task, targets: Array, *, once: bool) -> TrainingOptions:
    """Return how to train, with defaults for None that depend on the task and the targets."""
    options = options_of(parameters)
    if once:
        return replace(options, max_epochs=1, final_epochs=0, patience=None, schedule=None, keep="last")
    if parameters.final_epochs is None:
        final, below = task.final_epochs(parameters.max_epochs, targets)
        options = replace(options, final_epochs=final, final_below=below)
    if parameters.weight_decay is None:
        decay, until = task.decay(targets)
        options = replace(options, weight_decay=decay, decay_below=until)
    return options


def options_of(parameters: NetworkParameters) -> TrainingOptions:
    """Return the options of the training loop."""
    shared = {item.name for item in fields(TrainingOptions)} & {item.name for item in fields(NetworkParameters)}
    given = {name: getattr(parameters, name) for name in shared}
    decided = {"weight_decay": parameters.weight_decay or 0.0, "final_epochs": parameters.final_epochs or 0}
    return TrainingOptions(**{**given, **decided})


def stored_layers(backbone: nn.Module) -> dict[str, smle_check.Tensor]:
    """Return the weights of a perceptron, named as in model.safetensors."""
    return tensors_of({f"{BACKBONE}{name}": value.numpy() for name, value in backbone.state_dict().items()})


class HeldOut:
    """The rows that training holds out, and the network's answers there before final epochs learn from them.

    Training calls it after each epoch; the first final epoch has already taken a few small steps on these rows.
    """

    def __init__(self, parameters: NetworkParameters, rows: tuple[torch.Tensor, ...], seed: int) -> None:
        self.kept, self.held = split_rows(len(rows[0]), share=parameters.validation_fraction, seed=seed)
        self._rows = tuple(part[self.held] for part in rows)
        self._answers: Array | None = None

    def __call__(self, info: EpochInfo) -> None:
        """Keep the network's answers after the first final epoch."""
        if info.final and self._answers is None:
            self._answers = self._asked(info.network)

    def found(self, network: nn.Module) -> Held:
        """Return the rows with the answers kept, or those of the trained network if there were no final epochs."""
        return Held(self.held.numpy(), self._asked(network) if self._answers is None else self._answers)

    @torch.no_grad()
    def _asked(self, network: nn.Module) -> Array:
        device = next(network.parameters()).device
        answers: Array = network(*(part.to(device) for part in self._rows)).cpu().numpy().astype(np.float64)
        return answers


@torch.no_grad()
def _continue(network: Answers, start: Perceptron) -> None:
    """Copy the weights of a folded network, splitting its last layer in two. Raises ValueError if shapes differ."""
    standardize, *others, inner = network.backbone.children()
    layers = [layer for layer in others if isinstance(layer, nn.Linear)]
    assert isinstance(standardize, Standardize)
    assert isinstance(inner, nn.Linear)
    widths = [len(standardize.shift), *(layer.out_features for layer in layers), network.last.out_features]
    if widths != start.widths:
        raise ValueError(
            f"Expected layers of {start.widths}, as before, to continue from the weights. Got {widths}. Set "
            "warm_start=False to start anew."
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
    """Return a trained network as one perceptron, with its last two layers and the units folded into one layer."""
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
