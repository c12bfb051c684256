"""Networks of the experiments: their backbones, and how a preset trains them with and without rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smle.heads.box.training.enforcement import PDCG
from smle.networks.backbones import MLP
from smle.training import Adversarial as Attacks
from smle.training.loop import train
from smle.training.options import History, TrainingOptions
from studies.experiments.paper_network import Adversarial, AllPoints, PaperChoices, PaperNetwork
from studies.experiments.tasks import Task
from studies.harness import Array, seeded
from tests.support.formulations import label_search, scaled_projection


def relu_layers(*widths: int) -> list[nn.Module]:
    """Return linear layers from width to width, each with ReLU behind it."""
    pairs = itertools.pairwise(widths)
    return [layer for inner, outer in pairs for layer in (nn.Linear(inner, outer), nn.ReLU())]


def adam_step(network: nn.Module, X: Tensor, y: Tensor, *, rate: float = 1e-3) -> Callable[[], None]:
    """Return a gradient step of Adam on the mean squared error."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = nn.functional.mse_loss(network(X), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


State = Mapping[str, Tensor]
"""Weights of a module by name."""


@dataclass(frozen=True)
class Perceptron:
    """ReLU layers on standardized inputs and a linear embedding."""

    hidden: tuple[int, ...]
    embedding: int

    def build(self, X: Array) -> nn.Module:
        """Return the backbone for inputs like X (rows, d)."""
        deviation = X.std(axis=0)
        return MLP(self.hidden, self.embedding, shift=X.mean(axis=0), scale=np.where(deviation > 0, deviation, 1.0))


@dataclass(frozen=True)
class PaperLayers:
    """The paper's backbones: ReLU layers, the embedding included, on inputs as they are; first `recurrent` LSTM layers.

    Weights start as Keras draws them: Glorot uniform, biases zero, recurrent weights orthogonal, forget gates open.
    """

    widths: tuple[int, ...]
    recurrent: int = 0

    @property
    def embedding(self) -> int:
        """Width of the last layer."""
        return self.widths[-1]

    def build(self, X: Array) -> nn.Module:
        """Return the backbone for inputs like X (rows, d)."""
        layers: list[nn.Module] = []
        width = X.shape[1]
        for position, units in enumerate(self.widths):
            if position < self.recurrent:
                layers.append(_Recurrent(units, inputs=width if position else 1, whole=position + 1 < self.recurrent))
            else:
                layer = nn.Linear(width, units)
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
                layers += [layer, nn.ReLU()]
            width = units
        return nn.Sequential(*layers)


class _Recurrent(nn.Module):
    """An LSTM; a row (batch, d) is read as a sequence of d numbers -> its last state (batch, units).

    `inputs`: width of each element, 1 for numbers. `whole`: all states (batch, d, units), for another LSTM.
    """

    def __init__(self, units: int, *, inputs: int = 1, whole: bool = False) -> None:
        super().__init__()
        self.whole = whole
        self.lstm = nn.LSTM(inputs, units, batch_first=True)
        for name, parameter in self.lstm.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            elif "hh" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.xavier_uniform_(parameter)
        with torch.no_grad():  # torch orders the gates input, forget, cell, output
            self.lstm.get_parameter("bias_ih_l0")[units : 2 * units] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Return the last state, or all."""
        states: Tensor = self.lstm(x.unsqueeze(-1) if x.ndim == 2 else x)[0]
        return states if self.whole else states[:, -1]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one preset trains the networks of one benchmark.

    * `backbone` is shared by all methods. `options` of training; the last fifth of the rows decides when to stop.
    * `choices`: how the paper's network is trained; None: a plain network, trained on the original targets, is made
      safe by `smle.correct`, and what follows has no meaning.
    * `linear`: bounds are linear, not constant. `memory`: counterexamples kept, the paper's n_xs.
    * `enforced`: the paper's network sees the nearest targets that obey the property, not the original ones.
    * `scaled`: a plain network is trained on standardized targets. False: on targets as they are, as in the paper.
    """

    backbone: Perceptron | PaperLayers
    options: TrainingOptions = field(default_factory=TrainingOptions)
    choices: PaperChoices | None = None
    linear: bool = False
    memory: int = 1
    enforced: bool = True
    scaled: bool = True

    def enforcement(self) -> PDCG:
        """Return what keeps the paper's network safe.

        Raises:
            ValueError: If the preset trains none.
        """
        choices = self.choices
        if choices is None:
            raise ValueError("Expected settings of the paper's network. Got those of a plain one, corrected later.")
        projected = AllPoints if choices.queue == "all" else PDCG
        kind = {"projection": projected, "adversarial": Adversarial, "attacks": Attacks}[choices.after_steps]
        least, share = {"scaled": (0.0, 1e-6), "threshold": (1e-5, 1e-5), "flat": (0.0, None)}[choices.tolerance]
        return kind(
            memory=self.memory, keep_memory=choices.keep_memory, anchored=choices.anchored, cost=choices.cost,
            search=partial(label_search, sums=choices.pairs == "sum", least=least),
            projection=None if share is None else partial(scaled_projection, share=share, cost=choices.cost),
        )  # fmt: skip


def train_plain(
    task: Task, settings: Settings, targets: Array, *, seed: int, start: State | None = None
) -> tuple[nn.Module, int]:
    """Train the backbone with one linear layer behind it, without rules; also return the epochs.

    `start`: the backbone's weights, if it was trained before.
    """
    shift, size = units_of(task, settings, targets)
    with seeded(seed):
        # In the order of a safe network: both start from the same backbone, and their scores can be compared in pairs.
        backbone = settings.backbone.build(task.X)
        last = nn.Linear(settings.backbone.embedding, targets.shape[1])
        network = nn.Sequential(backbone, last)
        if not settings.scaled:
            nn.init.xavier_uniform_(last.weight)
            nn.init.zeros_(last.bias)
    if start is not None:
        backbone.load_state_dict(start)
    units = (targets - shift) / size
    history = fitted(network, task.X, units, settings.options, loss=_loss(task), seed=seed, title="plain")
    with torch.no_grad():
        last.weight.mul_(size)
        last.bias.mul_(size).add_(torch.tensor(shift, dtype=torch.float32))
    return network.requires_grad_(False), len(history.loss)


def train_safe(
    task: Task, settings: Settings, targets: Array, enforcement: PDCG, *, seed: int, start: State | None = None
) -> tuple[PaperNetwork, History]:
    """Train the paper's network; its heads are then proved, or NotCertifiedError is raised.

    `start`: the weights of backbone and bounds, if they were trained before.
    """
    network = safe_network(task, settings, seed=seed)
    if start is not None:
        network.load_state_dict({**network.state_dict(), **start})
    history = fitted(
        network, task.X, targets, settings.options, dtype=None, loss=_loss(task), seed=seed, title="safe",
        enforcement=enforcement,
    )  # fmt: skip
    return network, history


def fitted(
    network: nn.Module, X: Array, y: Array, options: TrainingOptions, *, dtype: torch.dtype | None = torch.float32,
    **asked: Any,
) -> History:  # fmt: skip
    """Train on all rows but the last ones, held out as in Keras; with `dtype` None inputs stay as they are."""
    count = len(X) - int(len(X) * options.validation_fraction)
    inputs, wanted = torch.tensor(X, dtype=dtype), torch.tensor(y, dtype=torch.float32)
    held = inputs[count:], wanted[count:]
    return train(network, inputs[:count], wanted[:count], options=options, validation=held, **asked)


def safe_network(task: Task, settings: Settings, *, seed: int) -> PaperNetwork:
    """Return the paper's network for a task as it is before training."""
    assert settings.choices is not None
    with seeded(seed):
        return PaperNetwork(
            settings.backbone.build(task.X),
            task.specification,
            embedding=settings.backbone.embedding,
            linear=settings.linear,
            choices=settings.choices,
        )


def units_of(task: Task, settings: Settings, targets: Array) -> tuple[Array, float]:
    """Return shift (m,) and scale of the outputs; one scale, since the score weighs all squared errors alike."""
    m = targets.shape[1]
    if task.has_labels or not settings.scaled:
        return np.zeros(m), 1.0
    return targets.mean(axis=0), max(float(np.sqrt(targets.var(axis=0).mean())), 1e-12)


def _loss(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """Return cross-entropy, or the mean squared error."""
    return nn.functional.binary_cross_entropy_with_logits if task.has_labels else nn.functional.mse_loss
