"""Adversarial training before PDCG: attacks, through the backbone, at inputs where the network breaks a rule.

The paper suggests this as a cheaper way to train: attacks instead of projections while the network learns, and a full
run of PDCG at the end. Attacks prove nothing; only the final run does.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.training.enforcement import PDCG, ProjectionReport

__all__ = ["Adversarial"]


class Adversarial(PDCG):
    """Attacks on the network in training, instead of projections; PDCG projects at the end.

    After a gradient step, inputs in the rules' regions climb the gradient of the violation through backbone, clip and
    head. Then all parameters take one Adam step to reduce it.

    Args:
        points: Inputs per head that are attacked at once.
        steps: Steps of the ascent, each at most a tenth of the domain.
        rate: Learning rate of the Adam steps.
        options: Options of `PDCG`.
    """

    name = "adversarial"

    def __init__(self, *, points: int = 32, steps: int = 3, rate: float = 1e-3, **options: Any) -> None:
        super().__init__(**options)
        if points < 1 or steps < 0 or not rate > 0:
            raise ValueError(f"Expected points >= 1, steps >= 0 and rate > 0. Got {points}, {steps} and {rate}.")
        self.points, self.steps, self.rate = points, steps, rate

    def start(self, network: BoxNetwork) -> None:
        """Reset the optimizer and the random state."""
        super().start(network)
        self._optimizer: torch.optim.Optimizer | None = None
        self._random = np.random.default_rng(0)

    def after_step(self, network: BoxNetwork, step: int) -> None:
        """Attack every head, and reduce the violations found."""
        if step % self.every:
            return
        if self._optimizer is None:
            self._optimizer = torch.optim.Adam(network.parameters(), lr=self.rate)
        over = network.frozen_heads()
        for number, head in enumerate(over.heads):
            if head is None:
                continue
            started = time.perf_counter()
            problem = self.problem(over, number)
            x = self._climbed(network, number, problem)
            broken = _broken(network, number, problem, x)
            strength = float(broken.detach().max()) if len(broken) else 0.0
            if strength > 0:
                self._optimizer.zero_grad(set_to_none=True)
                broken.mean().backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
            self.reports.append(
                ProjectionReport(step, number, strength <= 0, 0, strength, time.perf_counter() - started)
            )

    def _climbed(self, network: BoxNetwork, number: int, problem: HeadProblem) -> Tensor:
        """Return inputs (points, d), drawn from the head's regions and moved a few steps toward violations."""
        low, high = (torch.tensor(end, dtype=torch.float64) for end in (problem.domain.low, problem.domain.high))
        x = torch.tensor(self._drawn(problem), dtype=torch.float64)
        for step in range(self.steps):
            x = x.requires_grad_()
            total = _broken(network, number, problem, x).sum()
            if not total.requires_grad:
                break
            (slope,) = torch.autograd.grad(total, x)
            move = torch.nan_to_num(slope).sign() * (high - low) * (0.1 * 0.5**step)
            x = torch.minimum(torch.maximum(x.detach() + move, low), high)
        return x.detach()

    def _drawn(self, problem: HeadProblem) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return random inputs for each region: between its known vertices, else in its box."""
        parts = problem.parts
        share = -(-self.points // max(1, len(parts)))
        found = []
        for part in parts:
            corners = part.support.vertices
            if corners is None:
                low, high, _ = part.region.tight_box()
                found.append(self._random.uniform(low, high, (share, len(low))))
            else:
                weights = self._random.dirichlet(np.full(len(corners), 0.3), share)
                found.append(weights @ corners)
        return np.concatenate(found) if found else np.zeros((0, len(problem.domain.low)))


def _broken(network: BoxNetwork, number: int, problem: HeadProblem, x: Tensor) -> Tensor:
    """Return by how much each input breaks the clauses of the head that serves it (points,)."""
    served = torch.from_numpy(network.deployed.cell_of(x.detach().numpy()) == number)
    y = network(x).double()
    total = torch.zeros(len(x), dtype=torch.float64)
    for part in problem.parts:
        inside = torch.from_numpy((x.detach().numpy() @ part.region.A.T <= part.region.a).all(axis=1))
        own = torch.zeros(len(x), dtype=torch.float64)
        for literals in part.stated:
            g, s, h = (torch.tensor(array) for array in (literals.g, literals.s, literals.h))
            own = own + torch.relu((y @ g.T + x @ s.T - h).amin(dim=1))
        for h_, k in part.exclusions.tolist():
            own = own + torch.relu(torch.minimum(y[:, h_], y[:, k]))
        total = total + torch.where(inside, own, torch.zeros_like(own))
    return torch.where(served, total, torch.zeros_like(total))
