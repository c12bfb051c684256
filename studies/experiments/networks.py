"""Networks of the experiments: their backbones, and how a preset trains them with and without rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from smle.guarantees.regions.search import find_cells
from smle.nn.backbones import MLP, Standardize
from smle.nn.box_network import BoxNetwork
from smle.nn.units import DataScale
from smle.training.enforcement import PDCG, Enforcement
from smle.training.loop import train
from smle.training.options import TrainingOptions
from smle.training.refit import refit_network
from studies.experiments.tasks import Array, Task

__all__ = ["PaperLayers", "Perceptron", "Settings", "train_plain", "train_safe"]


@dataclass(frozen=True)
class Perceptron:
    """ReLU layers on standardized inputs and a linear embedding.

    `skip` adds a linear map of the inputs to the embedding; `recurrent`: an LSTM comes first, as wide as
    the first layer.
    """

    hidden: tuple[int, ...]
    embedding: int
    skip: bool = False
    recurrent: bool = False

    def build(self, X: Array) -> nn.Module:
        """Return the backbone for inputs like X (rows, d)."""
        deviation = X.std(axis=0)
        scaling = {"shift": X.mean(axis=0), "scale": np.where(deviation > 0, deviation, 1.0)}
        if self.recurrent:
            width = self.hidden[0]
            identity = {"shift": np.zeros(width), "scale": np.ones(width)}
            rest = MLP(self.hidden, self.embedding, **identity)
            return nn.Sequential(Standardize(**scaling), _Recurrent(width), *list(rest)[1:])
        layers = MLP(self.hidden, self.embedding, **scaling)
        return _Skip(layers, X.shape[1], self.embedding) if self.skip else layers


class _Skip(nn.Module):
    """z = layers(x) + linear(x) on the standardized inputs."""

    def __init__(self, layers: MLP, inputs: int, embedding: int) -> None:
        super().__init__()
        self.standardize = layers[0]
        self.layers = nn.Sequential(*list(layers)[1:])
        self.linear = nn.Linear(inputs, embedding, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embedding (batch, n)."""
        x = self.standardize(x)
        z: Tensor = self.layers(x) + self.linear(x)
        return z


@dataclass(frozen=True)
class PaperLayers:
    """The paper's backbones: ReLU layers, the embedding included, on inputs as they are; `recurrent`: an LSTM first.

    Weights start as Keras draws them: Glorot uniform, biases zero, recurrent weights orthogonal, forget gates open.
    """

    widths: tuple[int, ...]
    recurrent: bool = False

    @property
    def embedding(self) -> int:
        """Width of the last layer."""
        return self.widths[-1]

    def build(self, X: Array) -> nn.Module:
        """Return the backbone for inputs like X (rows, d)."""
        layers: list[nn.Module] = []
        width = X.shape[1]
        for position, units in enumerate(self.widths):
            if self.recurrent and not position:
                layers.append(_Recurrent(units))
            else:
                layer = nn.Linear(width, units)
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
                layers += [layer, nn.ReLU()]
            width = units
        return nn.Sequential(*layers)


class _Recurrent(nn.Module):
    """A row (batch, d) read as a sequence of d numbers -> the LSTM's last state (batch, units)."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, units, batch_first=True)
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
        """Return the last state."""
        states: Tensor = self.lstm(x.unsqueeze(-1))[0]
        return states[:, -1]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one preset trains the networks of one benchmark.

    * `backbone` is shared by all methods; `bounds`, `enforcement` and `refit` are for safe networks.
    * `options` of training; the last fifth of the rows decides when to stop.
    * `scaled`: raw parameters live in units taken from the data. False: in the units of the data, as in the paper.
    * `enforced_share`: safe networks are trained on this share of the nearest targets that obey the property, and the
      rest of the original ones; 1 in the paper.
    * `corrects`: a plain network, trained on the original targets, is made safe by `smle.correct`; nothing else above
      that concerns safe networks has a meaning then.
    """

    backbone: Perceptron | PaperLayers
    bounds: str = "fixed"
    enforcement: Callable[[], Enforcement] = PDCG
    options: TrainingOptions = field(default_factory=TrainingOptions)
    refit: bool = True
    scaled: bool = True
    enforced_share: float = 1.0
    corrects: bool = False


def train_plain(task: Task, settings: Settings, targets: Array, *, seed: int) -> tuple[nn.Module, int]:
    """Train the backbone with one linear layer behind it, without rules; also return the epochs."""
    shift, size = _units(task, settings, targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # In the order of a safe network: both start from the same backbone, and their scores can be compared in pairs.
        backbone = settings.backbone.build(task.X)
        last = nn.Linear(settings.backbone.embedding, targets.shape[1])
        network = nn.Sequential(backbone, last)
        if not settings.scaled:
            nn.init.xavier_uniform_(last.weight)
            nn.init.zeros_(last.bias)
    (X, y), held = _split(task.X, (targets - shift) / size, settings.options.validation_share)
    history = train(
        network, X.float(), y.float(), loss=_loss(task), options=settings.options, seed=seed, title="plain",
        validation=(held[0].float(), held[1].float()),
    )  # fmt: skip
    with torch.no_grad():
        last.weight.mul_(size)
        last.bias.mul_(size).add_(torch.tensor(shift, dtype=torch.float32))
    return network.requires_grad_(False), len(history.loss)


def train_safe(
    task: Task, settings: Settings, targets: Array, enforcement: Enforcement, *, seed: int
) -> tuple[BoxNetwork, int]:
    """Train a safe network; its heads are then proved, or NotCertifiedError is raised. Also return the epochs."""
    (X, y), held = _split(task.X, targets, settings.options.validation_share)
    loss = _loss(task, _units(task, settings, targets)[1])
    network = _safe_network(task, settings, targets, seed=seed)
    history = train(
        network, X, y.float(), loss=loss, options=settings.options, seed=seed, title="safe",
        enforcement=enforcement, validation=(held[0], held[1].float()),
    )  # fmt: skip
    if settings.refit:
        refit_network(network, X, y, loss="logistic" if task.has_labels else "squared", validation=held)
    return network, len(history.loss)


def _safe_network(task: Task, settings: Settings, targets: Array, *, seed: int) -> BoxNetwork:
    spec = task.specification
    cells = find_cells(spec)
    d, m = task.X.shape[1], targets.shape[1]
    frame = DataScale.identity(d, m)
    if settings.scaled:
        deviation = task.X.std(axis=0)
        shift, size = _units(task, settings, targets)
        frame = DataScale(task.X.mean(axis=0), np.where(deviation > 0, deviation, 1.0), shift, np.full(m, size))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = BoxNetwork(
            settings.backbone.build(task.X),
            spec,
            embedding=settings.backbone.embedding,
            bounds=settings.bounds,
            frame=frame,
            cells=cells,
        )
        if not settings.scaled:
            _draw_as_keras(network)
    return network


@torch.no_grad()
def _draw_as_keras(network: BoxNetwork) -> None:
    """Draw all heads anew, in the frame of the data: Glorot uniform, biases zero."""
    for weight in network.heads.raw_weight:
        nn.init.xavier_uniform_(weight)
    nn.init.zeros_(network.heads.raw_bias)


def _units(task: Task, settings: Settings, targets: Array) -> tuple[Array, float]:
    """Return shift (m,) and scale of the outputs; one scale, since the score weighs all squared errors alike."""
    m = targets.shape[1]
    if task.has_labels or not settings.scaled:
        return np.zeros(m), 1.0
    return targets.mean(axis=0), max(float(np.sqrt(targets.var(axis=0).mean())), 1e-12)


def _loss(task: Task, size: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """Return cross-entropy, or the mean squared error in units of `size`."""
    if task.has_labels:
        return nn.functional.binary_cross_entropy_with_logits

    def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
        return ((predicted - wanted) ** 2).mean() / size**2

    return loss


def _split(X: Array, y: Array, share: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the rows to train on, and the last ones, which are held out as in Keras."""
    count = len(X) - int(len(X) * share)
    rows, wanted = torch.tensor(X), torch.tensor(y)
    return (rows[:count], wanted[:count]), (rows[count:], wanted[count:])
