"""The general way to a safe network: take over the model, train it under the gauge on its own scores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smle.guarantees.regions.cells import arrange
from smle.nn.gate import Gate
from smle.nn.head_parameters import Frame
from smle.nn.network import SafeNetwork
from smle.training import TrainingOptions, train
from studies.bench.acasxu_data import Task

__all__ = ["distill"]

_TEMPERATURE = 0.003  # of the scores: neighboring advice is that close in most of the domain


def distill(task: Task, X: npt.NDArray[np.float32], *, epochs: int, seed: int = 0) -> SafeNetwork:
    """Return a safe network, trained from the model on its own scores at X (N, d): values and order of scores."""
    features = torch.from_numpy(X)
    scores = torch.from_numpy(task.scores(X))
    arrangement, spread = arrange(task.spec), float(scores.std())
    d, m = X.shape[1], scores.shape[1]
    cells = Gate(task.spec, arrangement)(features).numpy()
    values = scores.numpy().astype(np.float64)
    prefer = np.array([values[cells == c].mean(axis=0) for c in range(len(arrangement.cells))])
    frame = Frame(np.zeros(d), np.ones(d), values.mean(axis=0), np.full(m, spread))
    network = SafeNetwork.from_model(
        task.model, task.spec, example=features, frame=frame, prefer=prefer, arrangement=arrangement
    ).requires_grad_(True)

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        value = ((outputs - wanted) / spread).square().mean()
        order = nn.functional.cross_entropy(-outputs / _TEMPERATURE, torch.softmax(-wanted / _TEMPERATURE, dim=1))
        return value + order

    options = TrainingOptions(
        max_epochs=epochs, learning_rate=3e-4, batch_size=256, schedule="cosine", patience=None, progress=False
    )
    train(network, features, scores, loss=loss, enforcement="gauge", options=options, seed=seed)
    return network
