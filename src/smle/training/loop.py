"""Training loop: Adam, early stopping with the best weights restored, a progress bar. Deterministic with a seed."""

from __future__ import annotations

import copy
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from smle.errors import TrainingError

__all__ = ["History", "TrainingOptions", "train"]

Loss = Callable[[Tensor, Tensor], Tensor]
_LOG = logging.getLogger("smle.training")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train. `patience` counts epochs without a better validation loss."""

    learning_rate: float = 1e-3
    batch_size: int = 128
    max_epochs: int = 500
    patience: int = 20
    validation_share: float = 0.2
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "max_epochs", "patience"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Expected {name} > 0. Got {getattr(self, name)}.")
        if not 0 < self.validation_share < 1:
            raise ValueError(f"Expected 0 < validation_share < 1. Got {self.validation_share}.")


@dataclass
class History:
    """Loss per epoch, and which epoch was kept."""

    loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0


def train(
    network: nn.Module,
    X: Tensor,
    y: Tensor,
    *,
    loss: Loss,
    options: TrainingOptions,
    seed: int = 0,
    title: str = "train",
) -> History:
    """Train in place on rows of X and y, keep the weights of the best validation loss, and leave eval mode on.

    Raises:
        TrainingError: If the loss becomes NaN or infinite.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator)
    held = max(1, round(options.validation_share * len(X))) if len(X) > 1 else 0
    validation, rows = order[:held], order[held:]
    X_val, y_val = (X[validation], y[validation]) if held else (X, y)
    X_fit, y_fit = X[rows], y[rows]
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    history, best, best_state = History(), math.inf, copy.deepcopy(network.state_dict())
    started = time.monotonic()
    with _progress(options.progress) as bar:
        task = bar.add_task(title, total=options.max_epochs, loss=math.nan, validation=math.nan)
        for epoch in range(options.max_epochs):
            history.loss.append(_epoch(network, optimizer, X_fit, y_fit, loss, options.batch_size, generator))
            history.validation_loss.append(_evaluate(network, X_val, y_val, loss))
            value = history.validation_loss[-1]
            if not math.isfinite(history.loss[-1]) or not math.isfinite(value):
                raise TrainingError(
                    f"The loss became {history.loss[-1]} in epoch {epoch + 1}. Expected a finite number. "
                    "Try a smaller learning_rate, and check the targets for extreme values."
                )
            if value < best:
                best, history.best_epoch, best_state = value, epoch, copy.deepcopy(network.state_dict())
            bar.update(task, advance=1, loss=history.loss[-1], validation=value)
            if epoch - history.best_epoch >= options.patience:
                break
        bar.update(task, total=len(history.loss))
    network.load_state_dict(best_state)
    network.train()
    network.eval()
    history.seconds = time.monotonic() - started
    _LOG.info("%s: best epoch %d of %d, validation loss %.6g", title, history.best_epoch + 1, len(history.loss), best)
    return history


def _epoch(
    network: nn.Module, optimizer: torch.optim.Optimizer, X: Tensor, y: Tensor, loss: Loss, batch: int,
    generator: torch.Generator,
) -> float:  # fmt: skip
    network.train()
    order, total = torch.randperm(len(X), generator=generator), 0.0
    for rows in order.split(batch):
        optimizer.zero_grad(set_to_none=True)
        value = loss(network(X[rows]), y[rows])
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += float(value.detach()) * len(rows)
    return total / max(len(X), 1)


@torch.no_grad()
def _evaluate(network: nn.Module, X: Tensor, y: Tensor, loss: Loss) -> float:
    return float(loss(network(X), y))


def _progress(wanted: bool | None) -> Progress:
    shown = sys.stderr.isatty() if wanted is None else wanted
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4g}  validation {task.fields[validation]:.4g}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True)
