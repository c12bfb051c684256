"""Refit: the best safe head for given data, with backbone, bounds and weights lambda frozen.

For squared error this is one convex QP from the Gram matrix of the clipped embeddings, a global optimum under the
weights; for other losses a quadratic model of the loss is minimized, and the caller keeps the result only if a
validation score improves (`refit` does so itself when it is given validation data).

    sum_i weight_i ( gradient_i . (y_i - at_i) + 1/2 sum_j curvature_ij (y_ij - at_ij)^2 ),   y_i = W z_i + V x_i + b
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.guarantees.box.head_problem import HeadProblem
from smle.guarantees.box.projection import HeadResult, Objective, safe_head
from smle.guarantees.proof.frozen_heads import FrozenHeads, Head
from smle.guarantees.proof.verdict import Verdicts
from smle.guarantees.proof.verify import verify
from smle.guarantees.regions.cells import Cells
from smle.rules import Specification

__all__ = ["LocalLoss", "Refit", "Samples", "logistic_loss", "refit", "softmax_loss", "squared_error"]

Array = npt.NDArray[np.float64]

_RIDGE = 1e-9
"""Share of the Gram matrix's mean diagonal that ties directions without data to the current head."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Frozen embeddings of a data set. Shapes: embedding (N, n) clipped, inputs (N, d), head (N,), targets (N, m).

    `head` is the number of the head that serves each row; `targets` is what the loss compares with.
    """

    embedding: Array
    inputs: Array
    head: npt.NDArray[np.intp]
    targets: Array

    def __post_init__(self) -> None:
        rows = {len(self.embedding), len(self.inputs), len(self.head), len(self.targets)}
        if len(rows) != 1:
            raise ValueError(f"Expected arrays with the same number of rows. Got {sorted(rows)}.")

    def of(self, head: int) -> Samples:
        """Return the rows that one head serves."""
        mine = np.asarray(self.head) == head
        return Samples(self.embedding[mine], self.inputs[mine], self.head[mine], self.targets[mine])

    def outputs(self, head: Head) -> Array:
        """Return W z + V x + b in float64, (N, m)."""
        y: Array = self.embedding @ head.W.T.astype(np.float64) + head.b
        return y if head.V is None else y + self.inputs @ head.V.T.astype(np.float64)


@dataclass(frozen=True, eq=False)
class LocalLoss:
    """A loss and its convex quadratic model at given outputs. Shapes (N, m): gradient, curvature >= 0."""

    value: float
    gradient: Array
    curvature: Array


Loss = Callable[[Array, Array], LocalLoss]


def squared_error(outputs: Array, targets: Array) -> LocalLoss:
    """Mean over rows of the sum of squared errors; the model is exact."""
    residual, rows = outputs - targets, max(1, len(outputs))
    return LocalLoss(float((residual**2).sum()) / rows, 2 * residual / rows, np.full_like(residual, 2.0 / rows))


def logistic_loss(outputs: Array, targets: Array) -> LocalLoss:
    """Cross-entropy of independent labels (targets 0 or 1) on logits; curvature 1/4 bounds the true one."""
    rows = max(1, len(outputs))
    value = np.logaddexp(0.0, outputs) - targets * outputs
    chance = 0.5 * (1.0 + np.tanh(outputs / 2))
    return LocalLoss(float(value.sum()) / rows, (chance - targets) / rows, np.full_like(outputs, 0.25 / rows))


def softmax_loss(outputs: Array, targets: Array) -> LocalLoss:
    """Cross-entropy of one choice (targets one-hot) on scores; curvature 1/2 bounds the true one."""
    rows = max(1, len(outputs))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    value = (targets * (total - shifted)).sum()
    chance = np.exp(shifted - total)
    return LocalLoss(float(value) / rows, (chance - targets) / rows, np.full_like(outputs, 0.5 / rows))


@dataclass(frozen=True, eq=False)
class Refit:
    """A refitted over-approximation, the verdicts about it, and per head (loss before, loss after, result)."""

    over: FrozenHeads
    verdicts: Verdicts
    heads: tuple[tuple[float, float, HeadResult] | None, ...]


def refit(
    over: FrozenHeads, spec: Specification, cells: Cells, *, samples: Samples,
    loss: Loss = squared_error, validation: Samples | None = None, steps: int = 1, ridge: float = 0.0,
    margin: float = 0.0, rounds: int = 4,
) -> Refit:  # fmt: skip
    """Return the safe heads that fit the samples best, cell by cell; never a head that fits worse.

    Args:
        over: Safe heads to start from (their best weights are the first ones).
        spec: What must hold.
        cells: Its regions and cells.
        samples: Clipped embeddings, inputs, serving head and targets.
        loss: `squared_error`, `logistic_loss`, `softmax_loss`, or your own.
        validation: Samples that a refitted head must fit better than the old one, or it is discarded.
        steps: Quadratic models minimized in turn (1 is exact for squared error).
        ridge: Weight of the squared distance to the current head.
        margin: Extra room to keep in every clause.
        rounds: QPs per model while weights and head take turns.

    """
    heads: list[Head | None] = []
    results: list[tuple[float, float, HeadResult] | None] = []
    for c, head in enumerate(over.heads):
        mine = samples.of(c)
        if head is None or not len(mine.embedding):
            heads.append(head)
            results.append(None)
            continue
        problem = HeadProblem.of(over, spec, cells, c)
        check = None if validation is None else validation.of(c)
        fitted, result = _refit_head(
            head, problem, mine, check, loss=loss, steps=steps, ridge=ridge, margin=margin, rounds=rounds
        )
        heads.append(fitted)
        before, after = (loss(mine.outputs(h), mine.targets).value for h in (head, fitted))
        results.append((before, after, result))
    refitted = replace(over, heads=tuple(heads))
    return Refit(refitted, verify(refitted, spec, cells), tuple(results))


def _refit_head(
    head: Head, problem: HeadProblem, samples: Samples, validation: Samples | None, *,
    loss: Loss, steps: int, ridge: float, margin: float, rounds: int,
) -> tuple[Head, HeadResult]:  # fmt: skip
    judge = validation if validation is not None and len(validation.embedding) else samples
    best, best_value = head, loss(judge.outputs(head), judge.targets).value
    if not problem.safe(head, margin):
        best_value = np.inf
    result = HeadResult(head)
    for _ in range(steps):
        objective = quadratic_objective(best, samples, loss(samples.outputs(best), samples.targets), ridge)
        result = safe_head(objective, problem, current=best, margin=margin, rounds=rounds)
        if result.head is None:
            break
        value = loss(judge.outputs(result.head), judge.targets).value
        if not value < best_value:
            break
        best, best_value = result.head, value
    return best, result


def quadratic_objective(head: Head, samples: Samples, local: LocalLoss, ridge: float) -> Objective:
    """Return the quadratic model of the loss as a function of the head's parameters."""
    N = len(samples.embedding)
    parts = [samples.embedding] if head.V is None else [samples.embedding, samples.inputs]
    design = np.hstack([*parts, np.ones((N, 1))])
    theta = head.vector().reshape(len(head.b), -1)
    m, stride = theta.shape
    blocks, q = [], np.empty((m, stride))
    shared = design.T @ design if (local.curvature == local.curvature.flat[0]).all() else None
    for j in range(m):
        curvature = local.curvature[:, j]
        gram = curvature[0] * shared if shared is not None else design.T @ (curvature[:, None] * design)
        gram = (gram + gram.T) / 2
        tie = ridge + _RIDGE * float(np.trace(gram)) / stride
        gram[np.arange(stride), np.arange(stride)] += tie
        blocks.append(gram)
        q[j] = design.T @ local.gradient[:, j] - gram @ theta[j]
    P = sparse.block_diag(blocks, format="csr")
    flat = theta.reshape(-1)
    constant = local.value - float(0.5 * (flat @ (P @ flat)) + q.reshape(-1) @ flat)
    return Objective(P, q.reshape(-1), constant)
