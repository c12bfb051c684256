"""Gradients of heads against differences of what they serve, along random directions of inputs and answers.

Heads are affine on pieces: on a piece, differences of any size are exact up to the rounding of what is served. A row
whose second difference does not vanish left its piece on the way; a smaller step is tried, and in the end it is
counted as a kink.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from smle.networks.certified_head import CertifiedHead
from smle.rules import Specification

STEPS = (2.0**-5, 2.0**-8, 2.0**-11)
ROUNDING = 2.0**-20  # of an answer in its unit: the cast, and what answers are moved inward


class Agreement(NamedTuple):
    """Rows that were moved and stay on a piece, those whose gradients agree, kinks, and the largest error.

    The error is that of a row's derivative along its direction, as a share of that direction, in units.
    """

    rows: int
    agree: int
    kinks: int
    worst: float


def jacobians(head: CertifiedHead, X: Tensor, t: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is served (n, m), and its derivatives by inputs (n, m, d) and by answers (n, m, m), row by row."""
    X, t = X.clone().requires_grad_(), t.clone().requires_grad_()
    y = head(X, t)
    by_inputs, by_answers = [], []
    for i in range(y.shape[1]):
        found = torch.autograd.grad(y[:, i].sum(), (X, t), retain_graph=True, allow_unused=True)
        by_inputs.append(torch.zeros_like(X) if found[0] is None else found[0])
        by_answers.append(found[1])
    return y.detach().numpy(), *(torch.stack(own, dim=1).double().numpy() for own in (by_inputs, by_answers))


def compare(head: CertifiedHead, spec: Specification, unit: np.ndarray, seed: int, count: int = 40) -> Agreement:
    """Compare the gradients of a head at random inputs and answers, in float64 and float32."""
    rng = np.random.default_rng(seed)
    low, high = (np.asarray(end) for end in spec.ends())
    d, m = len(low), len(unit)
    X = low + (high - low) * rng.uniform(0.05, 0.95, (count, d))
    t = (rng.normal(0, 2, (count, m)) * unit).astype(np.float32)
    y, by_inputs, by_answers = jacobians(head, torch.from_numpy(X), torch.from_numpy(t))
    dx, dt = rng.normal(size=(count, d)) * (high - low), rng.normal(size=(count, m)) * unit
    moved = (y != t).any(axis=1)
    identity = np.broadcast_to(np.eye(m), by_answers.shape)
    assert np.array_equal(by_answers[~moved], identity[~moved])
    assert not by_inputs[~moved].any()
    size = 1 + (np.abs(t) / unit).max(axis=1) + (np.abs(y) / unit).max(axis=1)
    left, agree, worst = moved.copy(), 0, 0.0
    for step in STEPS:
        (X1, t1), (X2, t2) = ((X + s * step * dx, (t + s * step * dt).astype(np.float32)) for s in (1, -1))
        y1, y2 = (head.program(at, own).astype(np.float64) for at, own in ((X1, t1), (X2, t2)))
        bent = (np.abs(y1 + y2 - 2.0 * y) / unit).max(axis=1)
        smooth = left & (bent <= ROUNDING * size)
        expected = np.einsum("nij,nj->ni", by_inputs, X1 - X2)
        expected += np.einsum("nij,nj->ni", by_answers, t1.astype(np.float64) - t2)
        error = (np.abs(y1 - y2 - expected) / unit).max(axis=1)
        agree += int((smooth & (error <= 2 * ROUNDING * size)).sum())
        worst = max(worst, float((error / (2 * step * np.abs(dt / unit).max(axis=1)))[smooth].max(initial=0.0)))
        left &= ~smooth
    return Agreement(int(moved.sum() - left.sum()), agree, int(left.sum()), worst)
