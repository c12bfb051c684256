"""Cost of a training step: safe networks against plain ones. What PDCG adds is on the page of guarantees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from smle.heads.box.network.box_network import BoxNetwork
from smle.rules import Specification
from studies.experiments.networks import adam_step, relu_layers
from studies.harness import Table, bench, interleaved, seeded

_BATCH = 128
_NETWORKS = {
    "synthetic, 4 inputs": (4, 4, (1, 2, 1)),
    "synthetic, 8 inputs": (8, 4, (1, 2, 1)),
    "forecasting": (8, 4, (1, 2, 3, 2, 1)),
}
"""The paper's networks h_1 and h_2: inputs n, outputs m, widths of the ReLU layers in units of n m."""

_KINDS = {
    "constant (-1, 1)": ("fixed", 1.5, 2.0),
    "constant, trained": ("constant", 1.5, 2.0),
    "affine": ("affine", 2.0, 3.0),
}
"""Bounds, and the ratios that are asked for: compiled, eager."""


@bench("Training: cost of a step")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Run all parts; `quick` compiles one network only and takes few rounds."""
    return _steps(quick, compiled=False, passed=passed), _steps(quick, compiled=True, passed=passed)


def box_rule(n: int, m: int) -> Specification:
    """Return one rule over a box: four linear inequalities on m outputs."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (4, m)).round(2)
    sums = [" + ".join(f"({c}) * y{j}" for j, c in enumerate(row)) + " <= 0.5" for row in rows]
    rules = {"rule": ("x0 <= 0.5 and x1 >= -0.5", " and ".join(sums))}
    return Specification.build(
        inputs={f"x{i}": (-2, 2) for i in range(n)}, outputs=[f"y{j}" for j in range(m)], rules=rules
    )


def _networks(name: str, bounds: str) -> tuple[BoxNetwork, Any]:
    n, m, widths = _NETWORKS[name]

    with seeded(0):
        bodies = [nn.Sequential(*relu_layers(n, *(factor * n * m for factor in widths))) for _ in range(2)]
        safe = BoxNetwork(bodies[0], box_rule(n, m), embedding=n * m, bounds=bounds)
        return safe, nn.Sequential(bodies[1], nn.Linear(n * m, m))


def _steps(quick: bool, *, compiled: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    names = list(_NETWORKS)[:1] if quick and compiled else list(_NETWORKS)
    worst: dict[str, float] = {}
    for name in names:
        n, m, _ = _NETWORKS[name]
        X, y = 2 * torch.rand(_BATCH, n) - 1, torch.rand(_BATCH, m)
        for kind, (bounds, *_) in _KINDS.items():
            if quick and compiled and bounds == "constant":
                continue
            safe, plain = _networks(name, bounds)
            if compiled:
                torch._dynamo.reset()
                plain = torch.compile(plain)
                safe.compile()
            contenders = {"plain": adam_step(plain, X, y), "safe": adam_step(safe, X, y)}
            times = interleaved(contenders, rounds=40 if quick else 150, budget=15.0)
            slow, fast = (times[which].undisturbed * 1e6 for which in ("safe", "plain"))
            rows.append((name, kind, fast, slow, slow / fast))
            worst[kind] = max(worst.get(kind, 0.0), slow / fast)
    mode = "torch.compile" if compiled else "eager"
    for kind, (_, *limits) in _KINDS.items():
        limit = limits[0] if compiled else limits[1]
        if kind in worst:  # a quick run leaves some out
            passed[f"{kind} bounds, {mode}: at most {limit}x a plain step (worst {worst[kind]:.2f}x)"] = (
                worst[kind] <= limit
            )
    return Table(
        f"A gradient step, {mode}, batch {_BATCH}, one thread",
        ("network", "bounds", "plain (us)", "safe (us)", "safe / plain"),
        tuple(rows),
        "The paper's networks, one rule over a box with four inequalities, torch.optim.Adam as it comes, without "
        "what PDCG adds after each step; first quartile over rounds taken in turns.",
    )
