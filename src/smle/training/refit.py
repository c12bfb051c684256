"""Refit: with backbone, bounds and gate frozen, the safe heads that fit the data best (`smle.guarantees.refit`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smle.guarantees import LocalLoss, Loss, Samples, logistic_loss, refit, softmax_loss, squared_error
from smle.nn.box_network import BoxNetwork

__all__ = ["RefitResult", "refit_network"]

Array = npt.NDArray[np.float64]
Inputs = Tensor | Sequence[Any]
_LOG = logging.getLogger("smle.training")
_CHUNK = 8192  # rows per call of the backbone
_STEPS = {"squared": 1, "logistic": 8, "softmax": 8}  # quadratic models in turn; for squared error one is exact


@dataclass(frozen=True)
class RefitResult:
    """Loss before and after over the rows that judge (validation if given), and what was replaced."""

    before: float
    after: float
    heads: int
    free: bool


def refit_network(
    network: BoxNetwork,
    X: Inputs,
    y: npt.ArrayLike | Tensor,
    *,
    loss: str | Loss = "squared",
    sample_weight: npt.ArrayLike | None = None,
    validation: tuple[Inputs, npt.ArrayLike | Tensor] | None = None,
    evidence: float = 1.0,
) -> RefitResult:
    """Replace heads by the best safe ones for given rows, and deploy exactly those; never by worse ones.

    Clauses hold the heads as in `smle.guarantees.refit`; the head of the free cell is fitted without any. The
    network is left in eval mode and holds the new heads (`BoxNetwork.pin`).

    Args:
        network: A network with safe heads; it is switched to eval mode.
        X: Arguments of the network's `forward`: features (N, d), or a tuple (features, *backbone_inputs).
        y: Targets (N, m) in the user's units; 0 or 1 for `logistic`, one-hot for `softmax`.
        loss: `squared`, `logistic`, `softmax`, or a function as in `smle.guarantees.refit`.
        sample_weight: Weight per row (N,). Not with a loss of your own.
        validation: (X, y) on which a new head must do better than the old one.
        evidence: How many rows' worth of weight ties each head to the old one.

    Raises:
        ValueError: If the loss is unknown or the rows do not match.
    """
    network.eval()
    inputs = _arguments(X)
    rows = len(inputs[0])
    weight = np.ones(rows) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    clipped, free = _samples(network, inputs, y, weight)
    scale = network.heads.y_scale.cpu().numpy()
    local = _local_loss(loss, scale=scale, total=float(weight.sum()), weighted=sample_weight is not None)
    checks: tuple[Samples | None, Samples | None] = (None, None)
    if validation is not None:
        arguments = _arguments(validation[0])
        checks = _samples(network, arguments, validation[1], np.ones(len(arguments[0])))
    steps = _STEPS.get(loss, 1) if isinstance(loss, str) else 1
    tie = 2.0 * evidence / (max(float(weight.sum()), 1.0) * float((scale**2).max() if loss == "squared" else 1.0))
    before = network.frozen_heads()
    found = refit(
        before, network.spec, network.cells, samples=clipped, loss=local, validation=checks[0], steps=steps,
        ridge=tie,
    )  # fmt: skip
    over = found.over
    if not found.verdicts.hold:
        _LOG.warning("refit: some new heads are not proved; the old ones stay")
        over = before
    head = _refit_free(network, free, checks[1], local, steps=steps, tie=tie)
    judges = (clipped if checks[0] is None else checks[0], free if checks[1] is None else checks[1])
    share = float(weight.sum() / judges[0].targets[:, -1].sum())
    first = share * _value(network, judges, local)
    network.pin(over, head)
    changed = sum(a is not b for a, b in zip(before.heads, over.heads, strict=True))
    result = RefitResult(first, share * _value(network, judges, local), changed, head is not None)
    _LOG.info("refit: %d heads, loss %.6g before, %.6g after", result.heads + result.free, result.before, result.after)
    return result


def _arguments(X: Inputs) -> tuple[Any, ...]:
    return (X,) if isinstance(X, Tensor) else tuple(X)


@torch.no_grad()
def _samples(
    network: BoxNetwork, inputs: tuple[Any, ...], y: npt.ArrayLike | Tensor, weight: Array
) -> tuple[Samples, Samples]:
    """Return the rows as the deployed program sees them: clipped for certified heads, as they are for the free one.

    Targets carry the weight as their last column.
    """
    head = network.deployed
    parts = []
    for start in range(0, len(inputs[0]), _CHUNK):
        chunk = [value[start : start + _CHUNK] if isinstance(value, Tensor) else value for value in inputs]
        z = network.embed(*chunk).to(torch.float32)
        x32 = head.domain(chunk[0]).to(torch.float32)
        parts.append((head.clipped(chunk[0], z), z, x32, head.cells(chunk[0])))
    stacked = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    clipped, embedding, seen, cell = (part.astype(np.float64) for part in stacked)
    wanted = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    targets = np.hstack([wanted.astype(np.float64).reshape(len(embedding), -1), weight.reshape(-1, 1)])
    cells = cell.astype(np.intp)
    everything = Samples(clipped, seen, cells, targets)
    count = len(network.cells)
    return everything, Samples(embedding, seen, cells, targets).of(count - 1 if network.heads.has_free else count)


def _local_loss(loss: str | Loss, *, scale: Array, total: float, weighted: bool) -> Loss:
    """Return a loss on targets with a weight column: a weighted sum over rows, divided by the weight of all rows."""
    if not isinstance(loss, str):
        if weighted:
            raise ValueError("Expected no sample_weight with a loss of your own. Put the weights into the loss.")
        own = loss

        def unweighted(outputs: Array, targets: Array) -> LocalLoss:
            return own(outputs, targets[:, :-1])

        return unweighted
    if loss not in _STEPS:
        raise ValueError(f"Expected a loss: {', '.join(map(repr, _STEPS))} or a function. Got {loss!r}.")
    units = scale if loss == "squared" else np.ones(len(scale))

    def local(outputs: Array, targets: Array) -> LocalLoss:
        y, weight = targets[:, :-1] / units, targets[:, -1:] / total
        rows = len(outputs)
        base = _BASES[loss](outputs / units, y)
        values = _row_values(loss, outputs / units, y)
        gradient, curvature = base.gradient * rows * weight / units, base.curvature * rows * weight / units**2
        return LocalLoss(float(values @ weight[:, 0]), gradient, curvature)

    return local


_BASES: dict[str, Loss] = {"squared": squared_error, "logistic": logistic_loss, "softmax": softmax_loss}


def _row_values(loss: str, outputs: Array, y: Array) -> Array:
    """Return the loss of every row (N,)."""
    if loss == "squared":
        values = ((outputs - y) ** 2).sum(axis=1)
    elif loss == "logistic":
        values = (np.logaddexp(0.0, outputs) - y * outputs).sum(axis=1)
    else:
        values = np.logaddexp.reduce(outputs, axis=1) * y.sum(axis=1) - (outputs * y).sum(axis=1)
    result: Array = values
    return result


def _refit_free(
    network: BoxNetwork, samples: Samples, check: Samples | None, loss: Loss, *, steps: int, tie: float
) -> tuple[Tensor, Tensor] | None:
    """Return a better head for the free cell, or None: Newton steps of the same quadratic models, no clauses."""
    if network.deployed.free is None or not len(samples.embedding):
        return None
    start = np.hstack([network.deployed.free.weight.cpu().numpy(), network.deployed.free.bias.cpu().numpy()[:, None]])
    design = np.hstack([samples.embedding, np.ones((len(samples.embedding), 1))])
    judge = samples if check is None or not len(check.embedding) else check
    known = np.hstack([judge.embedding, np.ones((len(judge.embedding), 1))])
    theta = start.astype(np.float64)
    best, improved = loss(known @ theta.T, judge.targets).value, False
    for _ in range(steps):
        local = loss(design @ theta.T, samples.targets)
        moved = np.empty_like(theta)
        for j in range(len(theta)):
            gram = design.T @ (local.curvature[:, j : j + 1] * design)
            gram[np.diag_indices_from(gram)] += tie + 1e-9 * float(np.trace(gram)) / len(gram)
            moved[j] = theta[j] - np.linalg.solve(gram, design.T @ local.gradient[:, j])
        moved = moved.astype(np.float32).astype(np.float64)
        value = loss(known @ moved.T, judge.targets).value
        if not value < best:
            break
        theta, best, improved = moved, value, True
    return (torch.from_numpy(theta[:, :-1].copy()), torch.from_numpy(theta[:, -1].copy())) if improved else None


def _value(network: BoxNetwork, judges: tuple[Samples, Samples], loss: Loss) -> float:
    """Return the loss of the deployed heads over the rows that judge."""
    clipped, free = judges
    total = 0.0
    for c, head in enumerate(network.deployed.frozen_heads().heads):
        mine = clipped.of(c)
        if head is not None and len(mine.embedding):
            total += loss(mine.outputs(head), mine.targets).value
    if network.deployed.free is not None and len(free.embedding):
        weight, bias = (p.cpu().numpy() for p in (network.deployed.free.weight, network.deployed.free.bias))
        total += loss(free.embedding @ weight.T.astype(np.float64) + bias, free.targets).value
    return total
