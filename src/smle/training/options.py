"""The options of the training loop, and its history."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from smle.parameters import NetworkParameters, require_parameters

__all__ = ["Callback", "EpochInfo", "History", "Loss", "TrainingOptions"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""(predicted, wanted) -> a mean over the rows, or one number per row (needed with sample weights)."""

OptimizerFactory = Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]
ScheduleFactory = Callable[[torch.optim.Optimizer], Any]

SMALL_NETWORK = 500_000
"""Parameters up to which one thread is faster than several (measured in docs/training.md)."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of `train`, by the names of the estimators' parameters (`smle.parameters.NetworkParameters`).

    Defaults are the same but for `weight_decay` and `final_epochs`, which the estimators choose by the task.

    * `max_epochs`: the most epochs to train. Training ends earlier after `patience` epochs without a better validation
      loss; None: it does not.
    * `validation_fraction`: share of the rows to hold out if no validation set is given.
    * `schedule` of the learning rate: `plateau` (falls to a third each time a third of the patience is used up),
      `cosine`, or a function optimizer -> torch scheduler, advanced once per epoch; None: constant.
    * `optimizer`: (parameters, learning rate) -> optimizer; None: Adam, with `weight_decay` as in AdamW. Once the best
      validation loss is below `decay_below`, weight decay falls in proportion to it.
    * `keep`: `best` restores the weights of the best validation loss, `last` keeps those of the last epoch.
    * `warmup_epochs`: start with at most this many epochs without rules, with the same patience; training with rules
      then continues from there with a new optimizer.
    * `final_epochs`: end with this many epochs on all rows, validation included, from the weights kept before, with a
      tenth of the learning rate falling to zero as a cosine. The last weights are kept. For rows in memory.
      `final_below`: only if the best validation loss is below this.
    * `threads` of torch; None: one for small networks, torch's default for others. `device`: `auto`, `cpu`, ...
    * `verbose`: show a progress bar; None: only on a terminal.
    """

    learning_rate: float = NetworkParameters.learning_rate
    batch_size: int = NetworkParameters.batch_size
    max_epochs: int = NetworkParameters.max_epochs
    patience: int | None = NetworkParameters.patience
    validation_fraction: float = NetworkParameters.validation_fraction
    schedule: str | ScheduleFactory | None = NetworkParameters.schedule
    optimizer: OptimizerFactory | None = None
    weight_decay: float = 0.0
    decay_below: float = 0.0
    keep: str = "best"
    warmup_epochs: int = 0
    final_epochs: int = 0
    final_below: float = math.inf
    threads: int | None = None
    device: str = "auto"
    verbose: bool | None = None

    def __post_init__(self) -> None:
        own = ("schedule", "final_epochs") if callable(self.schedule) else ("final_epochs",)
        shared = [item.name for item in fields(NetworkParameters) if hasattr(self, item.name) and item.name not in own]
        require_parameters(NetworkParameters, {name: getattr(self, name) for name in shared})
        if self.threads is not None and not self.threads > 0:
            raise ValueError(f"Expected threads > 0. Got {self.threads}.")
        for name in ("warmup_epochs", "final_epochs"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected {name} >= 0. Got {getattr(self, name)}.")
        if self.keep not in ("best", "last"):
            raise ValueError(f"Expected keep to be 'best' or 'last'. Got {self.keep!r}.")

    def final_phase(self) -> TrainingOptions:
        """Return the options of the final epochs."""
        rate = self.learning_rate / 10
        return replace(self, learning_rate=rate, schedule="cosine", max_epochs=self.final_epochs, final_epochs=0)

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer for given parameters."""
        if self.optimizer is None:
            parameters = list(parameters)
            plain = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
            return torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=plain)
        return self.optimizer(parameters, self.learning_rate)

    def decay(self, best: float) -> float:
        """Return the weight decay for a best validation loss."""
        return self.weight_decay * min(1.0, best / self.decay_below) if self.decay_below else self.weight_decay

    def make_schedule(self, optimizer: torch.optim.Optimizer, epochs: int) -> Any:
        """Return the scheduler, or None."""
        if self.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
        if self.schedule == "plateau":
            waiting = max(1, (self.patience or 20) // 3)
            return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=1 / 3, patience=waiting)
        return self.schedule(optimizer) if callable(self.schedule) else None

    def torch_threads(self, network: nn.Module) -> int:
        """Return how many threads to use for a network."""
        if self.threads is not None:
            return self.threads
        small = sum(p.numel() for p in network.parameters()) <= SMALL_NETWORK
        return 1 if small else torch.get_num_threads()

    def torch_device(self) -> torch.device:
        """Return the device; `auto` is a GPU if torch has one."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)


@dataclass
class History:
    """A record of training, epoch by epoch (those without rules first), and the epoch that was kept.

    * `safety`: what the enforcement reports per epoch; `safety_name` says what it is: `margin`, the worst margin of the
      heads at that time.
    * `final_epochs`: how many of the last epochs were on all rows; their validation loss is not on held-out rows.
    * `stopped`: what ended the search for the best epoch: `patience`, `max_epochs` or `callback`.
    * `projections`: the runs of an enforcement that projects, as columns `step` (0: the run at the end), `head`,
      `succeeded`, `iterations`, `strength` of the strongest counterexample and `seconds`.
    """

    loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    safety: list[float] = field(default_factory=list)
    safety_name: str = ""
    learning_rate: list[float] = field(default_factory=list)
    warmup_epochs: int = 0
    final_epochs: int = 0
    best_epoch: int = 0
    seconds: float = 0.0
    stopped: str = ""
    projections: dict[str, list[float]] = field(default_factory=dict)

    @property
    def success_rate(self) -> float:
        """The share of projection runs that succeeded; NaN if there were none."""
        succeeded = self.projections.get("succeeded", [])
        return sum(succeeded) / len(succeeded) if succeeded else math.nan

    def __str__(self) -> str:
        """Summarize in one line."""
        epochs = f"{len(self.loss)} epochs ({self.stopped}), best {self.best_epoch + 1}"
        text = f"{epochs}, validation loss {self.best:.6g}, {self.seconds:.1f} s"
        if not self.projections:
            return text
        count, seconds, strength = (self.projections[name] for name in ("iterations", "seconds", "strength"))
        return (
            f"{text}; {sum(count)} projections in {sum(seconds):.1f} s, {self.success_rate:.0%} of the runs found no "
            f"counterexample, the strongest had {max(strength):.3g}"
        )

    @property
    def best(self) -> float:
        """The validation loss of the best epoch."""
        return self.validation_loss[self.best_epoch] if self.validation_loss else math.inf


@dataclass(frozen=True)
class EpochInfo:
    """The argument of callbacks; `epoch` counts from 0, `warmup` marks one without rules, `final` one on all rows."""

    epoch: int
    history: History
    network: nn.Module
    warmup: bool
    final: bool = False


Callback = Callable[[EpochInfo], bool | None]
"""Called after each epoch; True ends training."""
