"""Refit a network: with backbone, bounds and gate frozen, find the safe heads that fit the data best."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smle.heads.box.algorithms.refitting import LOSSES as REFIT_LOSSES
from smle.heads.box.algorithms.refitting import Samples, mean_loss, refit
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.frozen_heads import FrozenHeads
from smle.heads.box.proof.verify import verify

__all__ = ["RefitResult", "refit_network"]

Array = npt.NDArray[np.float64]
Inputs = Tensor | Sequence[Tensor]
_LOG = logging.getLogger("smle.training")
_CHUNK = 8192  # rows per call of the backbone
_EVIDENCE = 1.0  # weight, in rows, that ties each head to the old one


class RefitResult(NamedTuple):
    """Mean loss before and after (on validation data if given), and how many heads changed."""

    before: float
    after: float
    heads: int


def refit_network(
    network: BoxNetwork,
    X: Inputs,
    y: npt.ArrayLike | Tensor,
    *,
    loss: str = "squared",
    sample_weight: npt.ArrayLike | None = None,
    validation: tuple[Inputs, npt.ArrayLike | Tensor] | None = None,
) -> RefitResult:
    """Replace heads by the best safe ones for the given rows, and deploy these. A worse head is never taken.

    Heads obey their clauses as in `smle.heads.box.algorithms.refit`; the head of the free cell has none. The network is
    left in eval mode with the new heads pinned (`BoxNetwork.pin`).

    Args:
        network: A network with safe heads.
        X: Arguments of the network's `forward`: features (N, d), or a tuple (features, *backbone_inputs).
        y: Targets (N, m) in the user's units; 0 or 1 for `logistic`, one-hot for the others.
        loss: `squared`; `logistic`; `softmax`, or `softmin` where the smallest score is chosen.
        sample_weight: Weight per row (N,).
        validation: (X, y) on which a new head must do better than the old one.

    Raises:
        ValueError: If the loss is unknown or the rows do not match.
    """
    if loss not in REFIT_LOSSES:
        raise ValueError(f"Expected a loss: {', '.join(map(repr, REFIT_LOSSES))}. Got {loss!r}.")
    network.eval()
    samples = _samples(network, X, y, sample_weight)
    judge = samples if validation is None else _samples(network, *validation, None)
    unit = network.heads.y_scale.cpu().numpy() if loss == "squared" else np.ones(len(network.spec.targets))
    over, spec, cells = network.frozen_heads(), network.spec, network.cells
    found = refit(over, spec, cells, samples=samples, loss=loss, validation=judge, unit=unit, evidence=_EVIDENCE)
    if not verify(found, spec, cells).hold:
        _LOG.warning("refit: some new heads are not proved; the old ones stay")
        found = replace(over, free=found.free)

    def value(heads: FrozenHeads) -> float:
        parts = [(judge.of(c), head) for c, head in enumerate(heads.serving) if head is not None]
        total = sum(part.weight.sum() * mean_loss(head, part, loss, unit) for part, head in parts if len(part.weight))
        return float(total / judge.weight.sum())

    changed = sum(old is not new for old, new in zip(over.serving, found.serving, strict=True))
    network.pin(found)
    result = RefitResult(value(over), value(found), changed)
    _LOG.info("refit: %d heads, loss %.6g before, %.6g after", result.heads, result.before, result.after)
    return result


@torch.no_grad()
def _samples(network: BoxNetwork, X: Inputs, y: npt.ArrayLike | Tensor, weight: npt.ArrayLike | None) -> Samples:
    """Return the rows as the deployed program sees them: clipped, or unclipped for the free head."""
    inputs: tuple[Any, ...] = (X,) if isinstance(X, Tensor) else tuple(X)
    parts = []
    for start in range(0, len(inputs[0]), _CHUNK):
        chunk = [value[start : start + _CHUNK] if isinstance(value, Tensor) else value for value in inputs]
        features, z = chunk[0].cpu().numpy(), network.embed(*chunk).float().cpu().numpy()
        seen = network.deployed.values(features, z)
        cell = network.deployed.cell_of(features)
        is_free = (cell == len(network.cells) - 1) & network.heads.has_free
        parts.append((np.where(is_free[:, None], z, seen["clipped"]), seen["x"].astype(np.float32), cell))
    embedding, x, cell = (np.concatenate(column) for column in zip(*parts, strict=True))
    wanted = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    targets = wanted.astype(np.float64).reshape(len(cell), -1)
    weights = np.ones(len(cell)) if weight is None else np.asarray(weight, dtype=np.float64)
    return Samples(embedding.astype(np.float64), x.astype(np.float64), cell, targets, weights)
