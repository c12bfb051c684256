"""Batches of a data set: from tensors in memory, or from a loader that is iterated in every epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from smle.errors import DataError
from smle.training.distributed import Group

__all__ = ["Batch", "Batches", "Inputs", "Loader", "Rows", "Stream", "batches_of", "split_rows"]

Inputs = Tensor | Sequence[Tensor]
"""Arguments of the network's `forward`: features (N, d), or (features, *backbone_inputs) with N rows each."""

Loader = Iterable[Any]
"""Yields (inputs, targets) or (inputs, targets, weights) in every epoch, such as a torch DataLoader."""

_EVALUATION_ROWS = 4096


class Batch(NamedTuple):
    """Arguments of the network, targets (rows, m) and weights (rows,) or None."""

    inputs: tuple[Any, ...]
    targets: Tensor
    weight: Tensor | None

    def to(self, device: torch.device) -> Batch:
        """Move the batch to a device."""
        if device.type == "cpu":
            return self
        inputs = tuple(v.to(device) if isinstance(v, Tensor) else v for v in self.inputs)
        weight = None if self.weight is None else self.weight.to(device)
        return Batch(inputs, self.targets.to(device), weight)


class Rows:
    """Tensors in memory. Every process holds all of them and takes every size-th row of each batch."""

    def __init__(self, X: Inputs, y: Tensor, weight: Tensor | None = None) -> None:
        self.inputs = (X,) if isinstance(X, Tensor) else tuple(X)
        for part in (*self.inputs, y):
            if not isinstance(part, Tensor):
                raise DataError(
                    f"Expected tensors as inputs and targets. Got {type(part).__name__}. Use torch.as_tensor."
                )
        self.targets = y
        self.weight = weight
        lengths = [len(part) for part in (*self.inputs, y, *([] if weight is None else [weight]))]
        if len(set(lengths)) != 1:
            raise DataError(f"Expected the same number of rows in inputs, targets and weights. Got {lengths}.")

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Tensor) -> Rows:
        """Return some rows."""
        weight = None if self.weight is None else self.weight[rows]
        return Rows(tuple(part[rows] for part in self.inputs), self.targets[rows], weight)

    def joined(self, other: Rows) -> Rows:
        """Concatenate the rows of both. If only one has weights, the other's are 1."""
        weight = None
        if self.weight is not None or other.weight is not None:
            weight = torch.cat([torch.ones(len(r)) if r.weight is None else r.weight for r in (self, other)])
        inputs = tuple(torch.cat(pair) for pair in zip(self.inputs, other.inputs, strict=True))
        return Rows(inputs, torch.cat([self.targets, other.targets]), weight)

    def _batch(self, rows: Tensor | slice) -> Batch:
        weight = None if self.weight is None else self.weight[rows]
        return Batch(tuple(part[rows] for part in self.inputs), self.targets[rows], weight)

    def shuffled(self, size: int, generator: torch.Generator, group: Group) -> Iterator[Batch]:
        """Yield batches in random order."""
        order = torch.randperm(len(self), generator=generator)
        for start in range(0, len(self), size):
            yield self._batch(order[start : start + size][group.rank :: group.size])

    def ordered(self, group: Group) -> Iterator[Batch]:
        """Yield large batches in order."""
        for start in range(group.rank, len(self), step := _EVALUATION_ROWS * group.size):
            yield self._batch(slice(start, start + step, group.size))

    def fingerprint(self) -> str:
        """Return a digest of all numbers."""
        digest = hashlib.sha256()
        for part in (*self.inputs, self.targets, *([] if self.weight is None else [self.weight])):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def generators(self) -> list[torch.Generator]:
        """Return []: the order comes from the run's own generator."""
        return []


class Stream:
    """A loader, in its own order and batch size. Of several processes, each brings a loader for its own rows."""

    def __init__(self, loader: Loader) -> None:
        if iter(loader) is loader:
            raise DataError(
                "Expected a loader that can be iterated once per epoch, for example a DataLoader or a list of "
                "batches. Got an iterator, which is empty after the first epoch."
            )
        self.loader = loader

    def shuffled(self, size: int, generator: torch.Generator, group: Group) -> Iterator[Batch]:
        """Yield the loader's batches."""
        return self.ordered(group)

    def ordered(self, group: Group) -> Iterator[Batch]:
        """Yield the loader's batches."""
        for item in self.loader:
            parts = tuple(item) if isinstance(item, list | tuple) else ()
            if len(parts) not in (2, 3):
                raise DataError(
                    "Expected a loader to yield (inputs, targets) or (inputs, targets, weights). "
                    f"Got {type(item).__name__}{f' of length {len(parts)}' if parts else ''}."
                )
            inputs = (parts[0],) if isinstance(parts[0], Tensor) else tuple(parts[0])
            yield Batch(inputs, parts[1], parts[2] if len(parts) == 3 else None)

    def fingerprint(self) -> str:
        """Return the kind of loader, without reading its data."""
        return type(self.loader).__name__

    def generators(self) -> list[torch.Generator]:
        """Return the loader's own generators."""
        found = [getattr(part, "generator", None) for part in (self.loader, getattr(self.loader, "sampler", None))]
        distinct = {id(g): g for g in found if isinstance(g, torch.Generator)}
        return list(distinct.values())


Batches = Rows | Stream
"""Batches, shuffled for training and in order for evaluation."""


def batches_of(X: Inputs | Loader, y: Tensor | None, weight: Tensor | None = None) -> Batches:
    """Turn tensors or a loader into batches. Weights are scaled to a mean of 1."""
    if y is None:
        if weight is not None:
            raise DataError("Expected the weights inside the loader's batches. Got sample_weight beside a loader.")
        return Stream(X)
    if weight is not None:
        weight = torch.as_tensor(weight, dtype=torch.float32)
        if not bool((weight >= 0).all()) or not float(weight.sum()) > 0:
            raise DataError("Expected sample weights >= 0 with a positive sum.")
        weight = weight / weight.mean()
    inputs = X if isinstance(X, Tensor) else tuple(X)
    return Rows(inputs, y, weight)


def split_rows(count: int, *, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the row numbers for training and those held out, as `train` chooses them for a seed."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, round(share * count)) if count > 1 else 0
    return order[held:], order[:held]
