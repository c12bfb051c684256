"""The training loop: epochs of gradient steps, validation, early stopping, checkpoints. Deterministic given a seed."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smle.errors import NotCertifiedError, TrainingError
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.training.enforcement import Enforcement, enforcement_of
from smle.networks.safe_network import SafeNetwork
from smle.training.batches import Batch, Batches, Inputs, Loader, Rows, batches_of, split_rows
from smle.training.checkpoints import Checkpoint, load_optimizer, optimizer_state, read_checkpoint, write_checkpoint
from smle.training.distributed import Group
from smle.training.losses import loss_of
from smle.training.options import Callback, EpochInfo, History, Loss, TrainingOptions
from smle.training.progress import Bar

__all__ = ["Callback", "EpochInfo", "History", "Loss", "TrainingOptions", "train"]

_LOG = logging.getLogger("smle.training")
Data = Inputs | Loader


def train(
    network: nn.Module,
    X: Data,
    y: Tensor | None = None,
    *,
    loss: str | Loss,
    options: TrainingOptions | None = None,
    seed: int = 0,
    title: str = "train",
    enforcement: str | Enforcement | None = None,
    validation: tuple[Inputs, Tensor] | Loader | None = None,
    sample_weight: Tensor | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
) -> History:
    """Train a network in place and switch it to eval mode. With an enforcement, its heads are then safe.

    Args:
        network: A SafeNetwork, which takes its units from these rows, or any module; a BoxNetwork for an enforcement.
        X: Features (N, d), a tuple (features, *backbone_inputs), or a loader of batches (inputs, targets[, weights]).
        y: Targets (N, m); None with a loader.
        loss: `squared_error`, `absolute_error`, `quantile` (the median), `poisson` (the network predicts the logarithm
            of a rate), or a function (predicted, wanted) -> mean over the rows or a value per row, such as
            `quantile_loss(0.9)`.
        options: How to train.
        seed: Fixes the held-out rows, the order of rows, and what layers draw at random.
        title: Name of the run in progress bar and log.
        enforcement: What keeps a BoxNetwork safe: `pdcg` or an object. A SafeNetwork needs none.
        validation: (X, y) or a loader. By default a share of the rows is held out; with a loader for X, the training
            loss replaces the validation loss.
        sample_weight: Weight per row (N,); the loss must then return a value per row.
        checkpoint: File to continue from if it exists, and to write to after epochs.
        callbacks: Called after each epoch; one that returns True ends training.

    Raises:
        TrainingError: If the loss becomes NaN or infinite, or a checkpoint belongs to another run.
        NotCertifiedError: If the enforcement cannot make the heads safe at the end.
    """
    run = _Run(network, loss_of(loss), options or TrainingOptions(), seed=seed, title=title)
    run.callbacks, run.path = callbacks, None if checkpoint is None else Path(checkpoint)
    run.set_data(batches_of(X, y, sample_weight), validation)
    if enforcement is not None:
        if not isinstance(network, BoxNetwork):
            raise ValueError(
                f"Expected a BoxNetwork for an enforcement. Got {type(network).__name__}. A SafeNetwork needs none: "
                "rules are enforced behind its answers."
            )
        run.enforcement = enforcement_of(enforcement)
        run.enforcement.start(network)
    with _settings(network, run.options, seed):
        return run.execute()


class _Run:
    """The state of one run. Phase 0 is without rules, phase 1 with them, phase 2 on all rows."""

    callbacks: Sequence[Callback] = ()
    path: Path | None = None
    enforcement: Enforcement | None = None

    def __init__(self, network: nn.Module, loss: Loss, options: TrainingOptions, *, seed: int, title: str) -> None:
        self.network, self.loss, self.options, self.seed, self.title = network, loss, options, seed, title
        self.group, self.history = Group(), History()
        self.device = options.torch_device()
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.phase, self.step, self.finished = 0 if options.warmup_epochs else 1, 0, False

    def set_data(self, data: Batches, validation: tuple[Inputs, Tensor] | Loader | None) -> None:
        """Set training and validation data, holding out rows if no validation data are given."""
        self.data, self.validation = data, None if validation is None else _validation(validation)
        if validation is None and isinstance(data, Rows) and len(data) > 1:
            kept, held = split_rows(len(data), share=self.options.validation_fraction, seed=self.seed)
            self.data, self.validation = data.take(kept), data.take(held)
        self.all_rows: Batches = self.data if self.options.final_epochs == 0 else _joined(self.data, self.validation)

    def execute(self) -> History:
        """Train through all phases, continuing from a checkpoint if there is one, and finish."""
        if isinstance(self.data, Rows):
            self.take_units(self.data.inputs[0], self.data.targets)
        elif self.group.size > 1 and isinstance(self.network, SafeNetwork):
            self.network.is_fresh = False  # each process would see other rows
        self.network.to(self.device)
        self.group.broadcast(self.network)
        self.new_phase()
        if self.path is not None and self.path.exists():
            self.restore(read_checkpoint(self.path))
        started = time.monotonic() - self.history.seconds
        options = self.options
        shown = options.verbose if self.group.is_first else False
        total = options.warmup_epochs + options.max_epochs
        with Bar(self.title, total, final=options.final_epochs, shown=shown) as bar:
            while not self.finished:
                self.epoch()
                self.history.seconds = time.monotonic() - started
                bar.show(self.history)
                self.close_epoch()
        self.finish()
        self.history.seconds = time.monotonic() - started
        _LOG.info("%s: %s", self.title, self.history)
        return self.history

    def new_phase(self) -> None:
        """Start with a new optimizer and no best epoch."""
        options = self.options.final_phase() if self.phase == 2 else self.options
        self.optimizer = options.make_optimizer(self.network.parameters())
        self.limit = options.warmup_epochs if self.phase == 0 else options.max_epochs
        self.schedule = options.make_schedule(self.optimizer, self.limit)
        if self.phase == 2:
            self.generator.manual_seed(self.seed + 1)  # the same order, however long it took to get here
        self.first_epoch, self.best = len(self.history.loss), math.inf
        self.best_state = _copied(self.network)

    # --- one epoch

    def epoch(self) -> None:
        """Take all steps of an epoch, then validate."""
        history, number = self.history, len(self.history.loss)
        history.learning_rate.append(float(self.optimizer.param_groups[0]["lr"]))
        if self.options.decay_below:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = self.options.decay(history.best)
        history.loss.append(self.gradient_steps(number))
        history.final_epochs += self.phase == 2
        if self.enforcement is not None and self.phase:
            self.enforce(self.enforcement.after_epoch)
        self.network.eval()
        value = history.loss[-1] if self.validation is None else self.evaluate(self.validation)
        history.validation_loss.append(value)
        self.require_finite(value, "validation loss", number)
        if self.enforcement is not None and isinstance(self.network, BoxNetwork):
            history.safety_name, safety = self.enforcement.margin(self.network)
            history.safety.append(safety)
        if value < self.best and self.phase < 2:
            self.best, history.best_epoch = value, number
            self.best_state = _copied(self.network)
        if isinstance(self.schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.schedule.step(value)
        elif self.schedule is not None:
            self.schedule.step()
        _LOG.debug("%s: epoch %d, loss %.6g, validation %.6g", self.title, number + 1, history.loss[-1], value)

    def gradient_steps(self, number: int) -> float:
        """Take the steps of an epoch; return the mean loss. All processes take the same number of steps."""
        self.network.train()
        total = weight = 0.0
        data = self.all_rows if self.phase == 2 else self.data
        batches = data.shuffled(self.options.batch_size, self.generator, self.group)
        while True:
            batch = next(batches, None)
            self.optimizer.zero_grad(set_to_none=True)
            rows, value = (0, 0.0) if batch is None or not len(batch.targets) else self.backward(batch)
            all_rows, all_value = self.group.sums(rows, rows * value)
            if not all_rows:  # every process is done
                break
            self.require_finite(all_value / all_rows, "loss", number)
            self.group.average_gradients(self.network.parameters(), rows / all_rows)
            self.optimizer.step()
            self.step += 1
            if self.enforcement is not None and self.phase:
                self.enforce(self.enforcement.after_step, self.step)
            total, weight = total + all_value, weight + all_rows
        if not weight:
            raise TrainingError("No rows to train on. Check the loader and validation_fraction.")
        return total / weight

    def backward(self, batch: Batch) -> tuple[int, float]:
        """Compute gradients; return the number of rows and the mean loss."""
        self.take_units(batch.inputs[0], batch.targets)
        value = self.mean_loss(batch.to(self.device))
        value.backward()  # type: ignore[no-untyped-call]
        return len(batch.targets), float(value.detach())

    def take_units(self, features: Tensor, targets: Tensor) -> None:
        """Let a network that has seen no data take its units from these."""
        network = self.network
        if isinstance(network, SafeNetwork) and network.is_fresh:
            m = len(network.spec.targets)
            known = (
                targets.shape[-1:] in ((1,), (m,)) and targets.is_floating_point() and bool(targets.isfinite().all())
            )
            network.set_units(features, targets.expand(*targets.shape[:-1], m) if known else None)

    def mean_loss(self, batch: Batch) -> Tensor:
        """Return the (weighted) mean loss of a batch."""
        value = self.loss(self.network(*batch.inputs), batch.targets)
        if batch.weight is None:
            return value if value.ndim == 0 else value.mean()
        if value.ndim == 0 or len(value) != len(batch.targets):
            raise ValueError(
                "Expected a loss that returns one value per row, for sample weights (reduction='none'). "
                f"Got shape {tuple(value.shape)}."
            )
        return (value.reshape(len(value), -1).mean(dim=1) * batch.weight).mean()

    def enforce(self, action: Any, *arguments: Any) -> None:
        """Let the first process act on the heads, and copy them to the others."""
        assert self.enforcement is not None
        assert isinstance(self.network, BoxNetwork)
        if self.group.is_first:
            action(self.network, *arguments)
            self.take_reports()
        self.group.broadcast(self.network.heads)

    def take_reports(self) -> None:
        """Move the reports of the enforcement to the history."""
        assert self.enforcement is not None
        for report in self.enforcement.reports:
            for name, value in report._asdict().items():
                self.history.projections.setdefault(name, []).append(value)
        self.enforcement.reports.clear()

    @torch.no_grad()
    def evaluate(self, data: Batches) -> float:
        """Return the mean loss of the network as it would be deployed."""
        rows = total = 0.0
        for batch in data.ordered(self.group):
            if len(batch.targets):
                total += len(batch.targets) * float(self.mean_loss(batch.to(self.device)))
                rows += len(batch.targets)
        rows, total = self.group.sums(rows, total)
        return total / rows if rows else math.nan

    def require_finite(self, value: float, what: str, epoch: int) -> None:
        """Raise TrainingError if a loss is NaN or infinite."""
        if not math.isfinite(value):
            raise TrainingError(
                f"The {what} became {value} in epoch {epoch + 1}, step {self.step + 1}. Expected a finite number. "
                "Try a smaller learning_rate, and check inputs and targets for missing or extreme values."
            )

    # --- between epochs

    def close_epoch(self) -> None:
        """Decide whether the phase is over, and write a checkpoint."""
        history, options = self.history, self.options
        done = len(history.loss) - self.first_epoch
        info = EpochInfo(len(history.loss) - 1, history, self.network, self.phase == 0, self.phase == 2)
        patience = None if self.phase == 2 else options.patience
        asked = sum(bool(callback(info)) for callback in self.callbacks)
        stopped = ""
        if self.group.sums(asked)[0]:
            stopped = "callback"
        elif patience is not None and len(history.loss) - 1 - history.best_epoch >= patience:
            stopped = "patience"
        elif done >= self.limit:
            stopped = "max_epochs"
        if stopped:
            self.end_phase(stopped)
        if self.path is not None:
            self.save(self.path)

    def end_phase(self, stopped: str) -> None:
        """Restore the weights to keep and go to the next phase."""
        if self.options.keep == "best" and self.phase < 2:
            self.network.load_state_dict(self.best_state)
        if self.phase == 0:
            self.history.warmup_epochs = len(self.history.loss)
        if self.phase < 2:
            self.history.stopped = stopped
        final = self.options.final_epochs > 0 and self.best < self.options.final_below
        self.finished = stopped == "callback" or not (self.phase == 0 or (self.phase == 1 and final))
        if not self.finished:
            self.phase += 1
            self.new_phase()

    def finish(self) -> None:
        """Make the heads safe on the first process, and copy its network to all."""
        network = self.network
        network.train()
        message = ""
        if self.enforcement is not None and isinstance(network, BoxNetwork) and self.group.is_first:
            try:
                self.enforcement.finish(network)
            except NotCertifiedError as error:
                message = str(error)
            self.take_reports()
        message = self.group.of_first(message)
        if message:
            raise NotCertifiedError(message)
        network.eval()
        self.group.broadcast(network)
        if isinstance(network, BoxNetwork):
            network.set_extra_state(self.group.of_first(network.get_extra_state()))
        if isinstance(network, SafeNetwork):
            network.counts.update(dict.fromkeys(network.counts, 0))  # do not count validation
        network.to("cpu")

    # --- checkpoints

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The digests, by name, of everything that must stay the same for a run to continue."""
        ignored = ("verbose", "threads", "device")
        options = {f.name: _plain(getattr(self.options, f.name)) for f in fields(self.options) if f.name not in ignored}
        shapes = {name: list(value.shape) for name, value in self.network.named_parameters()}
        enforcement = None if self.enforcement is None else self.enforcement.name
        parts = {
            "network": shapes,
            "rules": self.network.spec.to_yaml() if isinstance(self.network, BoxNetwork | SafeNetwork) else None,
            "seed": self.seed,
            "enforcement": enforcement,
            "number of processes": self.group.size,
            "data": self.data.fingerprint(),
        } | options
        return {
            name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest() for name, part in parts.items()
        }

    def save(self, path: Path) -> None:
        """Write a checkpoint from the first process."""
        if not self.group.is_first:
            return
        tensors, numbers = optimizer_state(self.optimizer)
        generators = [self.generator, *self.data.generators()]
        states = {"torch": torch.get_rng_state(), **{str(i): g.get_state() for i, g in enumerate(generators)}}
        memory = {} if self.enforcement is None else self.enforcement.state()
        content = Checkpoint(
            tensors={
                "network": self.network.state_dict(),
                "best": self.best_state,
                "optimizer": tensors,
                "random": states,
                "enforcement": {name: torch.from_numpy(value) for name, value in memory.items()},
            },
            data={
                "fingerprint": self.fingerprint,
                "optimizer": numbers,
                "schedule": None if self.schedule is None else self.schedule.state_dict(),
                "history": asdict(self.history),
                "progress": [self.phase, self.step, self.finished, self.first_epoch, self.best],
            },
        )
        write_checkpoint(content, path)

    def restore(self, content: Checkpoint) -> None:
        """Continue from a checkpoint."""
        data = content.data
        stored, ours = data["fingerprint"], self.fingerprint
        if stored != ours:
            theirs = stored if isinstance(stored, dict) else {}
            names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
            raise TrainingError(
                f"The checkpoint {self.path} belongs to another run; these differ: {', '.join(names)}. Delete it, or "
                "choose another file."
            )
        self.phase, self.step, self.finished, first, best = data["progress"]
        self.history = History(**data["history"])
        self.new_phase()
        self.first_epoch, self.best, self.best_state = first, best, content.tensors["best"]
        self.network.load_state_dict(content.tensors["network"])
        load_optimizer(self.optimizer, content.tensors["optimizer"], data["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(data["schedule"])
        states = content.tensors["random"]
        torch.set_rng_state(states["torch"])
        for i, generator in enumerate([self.generator, *self.data.generators()]):
            generator.set_state(states[str(i)])
        if self.enforcement is not None:
            self.enforcement.load_state({k: v.numpy() for k, v in content.tensors["enforcement"].items()})
        _LOG.info("%s: resuming after epoch %d from %s", self.title, len(self.history.loss), self.path)


def _validation(given: tuple[Inputs, Tensor] | Loader) -> Batches:
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Tensor):
        return batches_of(given[0], given[1])
    return batches_of(given, None)


def _joined(data: Batches, validation: Batches | None) -> Batches:
    if not isinstance(data, Rows) or not isinstance(validation, Rows | None):
        raise ValueError("Expected rows in memory for final_epochs, validation included. Got a loader.")
    return data if validation is None else data.joined(validation)


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _plain(value: Any) -> Any:
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else value


@contextmanager
def _settings(network: nn.Module, options: TrainingOptions, seed: int) -> Iterator[None]:
    """Set threads and seed during training."""
    before = torch.get_num_threads()
    device = options.torch_device()
    torch.set_num_threads(options.torch_threads(network))
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)
