"""Refit: the best safe head for given data, with backbone, bounds and weights lambda frozen.

For squared error this is one convex QP from the Gram matrix of the clipped embeddings, a global optimum under the
weights. Other losses are minimized through a series of quadratic models. A head that fits worse is never taken.

    sum_i weight_i ( gradient_i . (y_i - at_i) + 1/2 sum_j curvature_ij (y_ij - at_ij)^2 ),   y_i = W z_i + V x_i + b
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.projection import Objective, safe_head
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.regions.cells import Cells
from smle.rules import Specification

__all__ = ["LOSSES", "Samples", "mean_loss", "refit"]

Array = npt.NDArray[np.float64]

_ROUNDS = 4  # QPs per model while weights and head are optimized in turn
_RIDGE = 1e-9
"""Ties directions without data to the current head, as a share of the Gram matrix's mean diagonal."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Frozen embeddings of a data set. Shapes: embedding (N, n), inputs (N, d), head (N,), targets (N, m), weight (N,).

    `head` is the number of the head that serves each row; the loss compares with `targets`. Embeddings are clipped,
    except in rows that the free head serves.
    """

    embedding: Array
    inputs: Array
    head: npt.NDArray[np.intp]
    targets: Array
    weight: Array = field(default_factory=lambda: np.ones(0))

    def __post_init__(self) -> None:
        if not len(self.weight):
            object.__setattr__(self, "weight", np.ones(len(self.targets)))
        rows = {len(part) for part in (self.embedding, self.inputs, self.head, self.targets, self.weight)}
        if len(rows) != 1:
            raise ValueError(f"Expected arrays with the same number of rows. Got {sorted(rows)}.")

    def of(self, head: int) -> Samples:
        """Return the rows that one head serves, without rows of weight 0."""
        mine = (np.asarray(self.head) == head) & (self.weight > 0)
        return Samples(*(part[mine] for part in vars(self).values()))

    def outputs(self, head: Head) -> Array:
        """Return W z + V x + b in float64, (N, m)."""
        y: Array = self.embedding @ head.W.T.astype(np.float64) + head.b
        return y if head.V is None else y + self.inputs @ head.V.T.astype(np.float64)


@dataclass(frozen=True, eq=False)
class LocalLoss:
    """A loss and its convex quadratic model at given outputs. Shapes: value (N,); gradient, curvature >= 0 (N, m)."""

    value: Array
    gradient: Array
    curvature: Array


Loss = Callable[[Array, Array], LocalLoss]


def squared_error(outputs: Array, targets: Array) -> LocalLoss:
    """Return the sum of squared errors; the model is exact."""
    residual = outputs - targets
    return LocalLoss((residual**2).sum(axis=1), 2 * residual, np.full_like(residual, 2.0))


def logistic_loss(outputs: Array, targets: Array) -> LocalLoss:
    """Return the cross-entropy of independent labels (targets 0 or 1) on logits; curvature 1/4 bounds the true one."""
    value = np.logaddexp(0.0, outputs) - targets * outputs
    chance = 0.5 * (1.0 + np.tanh(outputs / 2))
    return LocalLoss(value.sum(axis=1), chance - targets, np.full_like(outputs, 0.25))


def softmax_loss(outputs: Array, targets: Array) -> LocalLoss:
    """Return the cross-entropy of one choice (targets one-hot) on scores; curvature 1/2 bounds the true one."""
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    value = (targets * (total - shifted)).sum(axis=1)
    return LocalLoss(value, np.exp(shifted - total) - targets, np.full_like(outputs, 0.5))


def softmin_loss(outputs: Array, targets: Array) -> LocalLoss:
    """Like `softmax_loss`, but the smallest score is chosen."""
    mirrored = softmax_loss(-outputs, targets)
    return LocalLoss(mirrored.value, -mirrored.gradient, mirrored.curvature)


LOSSES: dict[str, tuple[Loss, int]] = {
    "squared": (squared_error, 1),
    "logistic": (logistic_loss, 8),
    "softmax": (softmax_loss, 8),
    "softmin": (softmin_loss, 8),
}
"""Losses by name, each with its number of quadratic models; for squared error one is exact."""


def refit(
    over: FrozenHeads, spec: Specification, cells: Cells, *, samples: Samples, loss: str = "squared",
    validation: Samples | None = None, unit: Array | None = None, evidence: float = 0.0,
) -> FrozenHeads:  # fmt: skip
    """Return the safe heads that fit the samples best, cell by cell. A worse head is never returned.

    Starts from the safe heads `over`. If there are `validation` samples, a new head must fit these better than the old
    one, or it is discarded. `unit` (m,) has the units of squared errors, `evidence` the weight, in rows, that ties each
    head to the old one. No clause constrains the free head.
    """
    units = np.ones(len(spec.targets)) if unit is None or loss != "squared" else unit
    heads = []
    for c, head in enumerate(over.serving):
        mine = samples.of(c)
        if head is None or not len(mine.embedding):
            heads.append(head)
            continue
        judge = mine if validation is None else validation.of(c)
        problem = None if over.heads[c] is None else HeadProblem.of(over, spec, cells, c)
        heads.append(_refit_head(head, problem, mine, judge if len(judge.embedding) else mine, loss, units, evidence))
    if over.free is None:
        return replace(over, heads=tuple(heads))
    return replace(over, heads=(*heads[:-1], None), free=heads[-1])


def mean_loss(head: Head, samples: Samples, loss: str, unit: Array) -> float:
    """Return the weighted mean of a loss."""
    return float(samples.weight @ _at(head, samples, LOSSES[loss][0], unit).value / samples.weight.sum())


def _at(head: Head, samples: Samples, loss: Loss, unit: Array) -> LocalLoss:
    return loss(samples.outputs(head) / unit, samples.targets / unit)


def _refit_head(
    head: Head, problem: HeadProblem | None, samples: Samples, judge: Samples, loss: str, unit: Array, evidence: float
) -> Head:
    function, steps = LOSSES[loss]
    best, best_value = head, mean_loss(head, judge, loss, unit)
    if problem is not None and not problem.safe(head, 0.0):
        best_value = np.inf
    for _ in range(steps):
        objective = quadratic_objective(best, samples, _at(best, samples, function, unit), unit, evidence)
        if problem is None:  # no clause constrains it
            found: Head | None = Head.from_vector(objective.minimum(), best)
        else:
            found = safe_head(objective, problem, current=best, rounds=_ROUNDS).head
        value = np.inf if found is None else mean_loss(found, judge, loss, unit)
        if found is None or not value < best_value:
            break
        best, best_value = found, value
    return best


def quadratic_objective(head: Head, samples: Samples, local: LocalLoss, unit: Array, evidence: float) -> Objective:
    """Return the quadratic model of the mean loss as a function of the head's parameters, up to a constant."""
    parts = [samples.embedding] if head.V is None else [samples.embedding, samples.inputs]
    design = np.hstack([*parts, np.ones((len(samples.embedding), 1))])
    theta = head.vector().reshape(len(head.b), -1)
    m, stride = theta.shape
    share = samples.weight / samples.weight.sum()
    ridge = 2.0 * evidence / (samples.weight.sum() * float((unit**2).max()))
    blocks, q = [], np.empty((m, stride))
    for j in range(m):
        curvature, gradient = local.curvature[:, j] * share / unit[j] ** 2, local.gradient[:, j] * share / unit[j]
        gram = design.T @ (curvature[:, None] * design)
        gram = (gram + gram.T) / 2
        gram[np.diag_indices(stride)] += ridge + _RIDGE * float(np.trace(gram)) / stride
        blocks.append(gram)
        q[j] = design.T @ gradient - gram @ theta[j]
    return Objective(sparse.block_diag(blocks, format="csr"), q.reshape(-1))
