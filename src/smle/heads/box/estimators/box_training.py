"""Trains the paper's learned box in torch, certifies it, and returns plain weights."""

from __future__ import annotations

import smle.networks  # noqa: F401  # first: where torch is missing it says what to install

# isort: split
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from smle.certificates.document import Certificate
from smle.estimators.perceptrons import HeldOut, Trained, options_of, stored_layers
from smle.estimators.tasks import Numbers, Task, spread
from smle.heads.box.network.assurance import certify
from smle.heads.box.network.box_network import BoxNetwork, moves_with_inputs
from smle.heads.box.network.deployed import gate_program
from smle.heads.box.training.enforcement import enforcement_of
from smle.heads.box.training.refit import refit_network
from smle.networks.backbones import MLP
from smle.networks.precision import float32_by_default
from smle.networks.units import DataScale
from smle.regions.cell_search import find_cells
from smle.regions.cells import Cells
from smle.training.loop import train

if TYPE_CHECKING:
    from smle.heads.box.estimators.learned_box import LearnedBox

__all__ = ["read_by", "train_box"]

Array = npt.NDArray[np.float64]


def train_box(
    model: LearnedBox,
    task: Task,
    encoded: npt.NDArray[Any],
    wide: npt.NDArray[Any],
    targets: Array,
    weight: Array | None,
    seed: int,
) -> tuple[Trained, Certificate]:
    """Train a network with a box under the rules of a task; return its backbone and the certificate of the box.

    After training, heads are replaced by the safe ones that fit the training rows best, if validation improves. Shapes:
    encoded (n, d), the inputs of the rules; wide (n, D), all columns that the backbone reads, those of the rules first;
    targets (n, m); weight (n,). Raises NotCertifiedError if a rule cannot be proved.
    """
    with float32_by_default():
        network = _network(model, task, encoded, wide, targets, seed)
        rows, wanted = read_by(encoded, wide), torch.tensor(targets, dtype=torch.float32)
        held = HeldOut(model, rows, seed)
        options = options_of(model)
        if model.final_epochs is None and isinstance(task, Numbers):
            final, below = task.final_epochs(model.max_epochs, targets)
            options = replace(options, final_epochs=final, final_below=below)
        history = train(
            network,
            rows,
            wanted,
            loss=task.loss(targets),
            options=options,
            seed=seed,
            title="training",
            enforcement=enforcement_of(model.enforcement),
            sample_weight=None if weight is None else torch.tensor(weight, dtype=torch.float32),
            checkpoint=model.checkpoint,
            callbacks=[*model.callbacks, held],
        )
        refitted = model.gate if model.refit_heads is None else model.refit_heads
        if refitted and task.refit_loss is not None:
            exact = torch.tensor(targets)
            refit_network(
                network,
                tuple(part[held.kept] for part in rows),
                exact[held.kept],
                loss=task.refit_loss,
                sample_weight=None if weight is None else weight[held.kept.numpy()],
                validation=(tuple(part[held.held] for part in rows), exact[held.held]),
            )
        certificate = certify(network)
        return Trained(stored_layers(network.backbone), history, held.found(network)), certificate


def read_by(encoded: npt.NDArray[Any], wide: npt.NDArray[Any]) -> tuple[torch.Tensor, ...]:
    """Return the arguments of a network: the inputs of the rules, then all columns if there are more."""
    gate = torch.tensor(encoded)
    return (gate,) if wide.shape[1] == encoded.shape[1] else (gate, torch.tensor(wide, dtype=torch.float32))


def _network(
    model: LearnedBox, task: Task, encoded: npt.NDArray[Any], wide: npt.NDArray[Any], targets: Array, seed: int
) -> BoxNetwork:
    """Return a perceptron, scaled to the data, with a box behind it."""
    spec = task.spec
    shift, scale, d = wide.mean(axis=0, dtype=np.float64), spread(wide), encoded.shape[1]
    bounds, cells = model.bounds, find_cells(spec)
    if bounds == "auto":
        bounds = "affine" if moves_with_inputs(spec) else "fixed"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BoxNetwork(
            MLP(model.hidden_layer_sizes, model.embedding, shift=shift, scale=scale),
            spec,
            embedding=model.embedding,
            bounds=bounds,
            gate=model.gate,
            frame=DataScale(shift[:d], scale[:d], *task.units(targets)),
            prefer=_preferred(task, cells, encoded, targets),
            cells=cells,
        )


def _preferred(task: Task, cells: Cells, X: npt.NDArray[Any], targets: Array) -> Array:
    """Return typical outputs of each cell (cells, m), using all rows for a cell without any."""
    cell = gate_program(task.spec, cells).cell_of(X)
    center = task.units if isinstance(task, Numbers) else task.default
    typical = np.tile(center(targets)[0], (len(cells), 1))
    for c in np.unique(cell):
        typical[c] = center(targets[cell == c])[0]
    return typical
