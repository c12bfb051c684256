"""Small data of scikit-learn: the default networks, without rules, against its own MLP and against a plain loop.

A quarter of the rows is the test. The MLP of scikit-learn reads standardized inputs and, for diabetes, standardized
targets; otherwise it has its own defaults. The plain loop is what one would write in torch: the same network, batches
and number of epochs, on all rows, without validation. Seconds are those of the processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from smle import NetworkClassifier, NetworkRegressor
from studies.experiments.networks import relu_layers
from studies.harness import Array, Table, bench, quietly

DATA = {"breast cancer": load_breast_cancer, "wine": load_wine, "digits": load_digits, "diabetes": load_diabetes}
_SLACK = 0.01
_TIMES = 2.0


@bench("Small data")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Fit all to every data set over several splits; `quick` takes one split and few epochs."""
    scores: list[tuple[object, ...]] = []
    times: list[tuple[object, ...]] = []
    splits = 1 if quick else 3
    X, y = load_wine(return_X_y=True)
    _measured(X, y, 0, True)  # to load everything
    for name, load in DATA.items():
        X, y = load(return_X_y=True)
        found = np.mean([_measured(X, y, seed, quick) for seed in range(splits)], axis=0)
        ours, theirs, our_loss, their_loss, seconds, loop, sklearn = found
        losses = [f"{loss:.3f}" if np.isfinite(loss) else "" for loss in (our_loss, their_loss)]
        scores.append((name, len(X), f"{ours:.4f}", f"{theirs:.4f}", *losses))
        times.append((name, f"{seconds:.2f}", f"{loop:.2f}", f"{sklearn:.2f}", f"{seconds / loop:.2f}"))
        behind = f"{name}: at most {_SLACK} behind scikit-learn's MLP ({theirs - ours:+.4f})"
        passed[behind] = bool(ours >= theirs - _SLACK)
        slower = f"{name}: `fit` takes at most {_TIMES:g} times as long as a plain loop ({seconds / loop:.2f})"
        passed[slower] = bool(seconds <= _TIMES * loop)
    return (
        Table(
            "Scores",
            ("data", "rows", "smle", "scikit-learn's MLP", "log-loss: smle", "log-loss: MLP"),
            tuple(scores),
            f"Accuracy, or R2 for diabetes, on the rows of the test. Splits: {splits}; these are means.",
        ),
        Table(
            "Processor seconds of fit",
            ("data", "smle", "plain loop", "scikit-learn's MLP", "smle to plain loop"),
            tuple(times),
            "The plain loop trains the same network for as many epochs as smle took.",
        ),
    )


def _measured(X: Array, y: Array, seed: int, quick: bool) -> list[float]:
    numbers = y.dtype.kind == "f"
    known, new, wanted, truth = train_test_split(
        X, y, test_size=0.25, random_state=seed, stratify=None if numbers else y
    )
    few: dict[str, Any] = {"max_epochs": 5} if quick else {}
    ours: Any = (NetworkRegressor if numbers else NetworkClassifier)(random_state=seed, verbose=False, **few)
    inside = (MLPRegressor if numbers else MLPClassifier)(random_state=seed, max_iter=20 if quick else 1000)
    theirs: Any = make_pipeline(StandardScaler(), inside)
    theirs = TransformedTargetRegressor(theirs, transformer=StandardScaler()) if numbers else theirs
    seconds, sklearn = (_seconds(partial(model.fit, known, wanted)) for model in (ours, theirs))
    loop = _seconds(lambda: _plain_loop(ours, known, wanted))
    losses = [np.nan, np.nan]
    if not numbers:
        losses = [log_loss(truth, model.predict_proba(new)) for model in (ours, theirs)]
    return [ours.score(new, truth), theirs.score(new, truth), *losses, seconds, loop, sklearn]


def _seconds(fit: Callable[[], object]) -> float:
    before = time.process_time()
    with quietly():
        fit()
    return time.process_time() - before


def _plain_loop(model: Any, X: Array, y: Array) -> None:
    """Train the same network for as many epochs as `fit` took, without early stopping or anything else."""
    classes = 1 if y.dtype.kind == "f" else int(y.max()) + 1
    *layers, _ = relu_layers(X.shape[1], *model.hidden_layer_sizes, model.embedding)
    network = nn.Sequential(*layers, nn.Linear(model.embedding, classes))
    inputs = torch.tensor(StandardScaler().fit_transform(X), dtype=torch.float32)
    targets = torch.tensor(y if classes > 1 else (y[:, None] - y.mean()) / y.std())
    targets = targets.long() if classes > 1 else targets.float()
    loss: Any = nn.functional.cross_entropy if classes > 1 else nn.functional.mse_loss
    optimizer = torch.optim.AdamW(network.parameters(), lr=model.learning_rate, fused=True)
    for _ in range(len(model.history_.loss)):
        for rows in torch.split(torch.randperm(len(inputs)), model.batch_size):
            optimizer.zero_grad()
            loss(network(inputs[rows]), targets[rows]).backward()
            optimizer.step()
