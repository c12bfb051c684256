"""Quantile forecast: 10 %, 50 % and 90 % quantiles of demand that never cross.

Shows: a torch network with a loss of your own (pinball), training options, and the certificate of the network.
`SafeQuantileRegressor` does the same in one step.
Run it: python examples/quantile_forecast.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from smle import Specification
from smle.nn import SafeNetwork
from smle.training import TrainingOptions, train

RULES = """
inputs: {price: [1, 10], weekday: [0, 6], promotion: [0, 1]}
outputs: [q10, q50, q90]
rules:
  - name: quantiles never cross
    then: q10 <= q50 <= q90
  - name: demand is not negative
    then: q10 >= 0
"""
LEVELS = torch.tensor([0.1, 0.5, 0.9])


def pinball(predicted: Tensor, demand: Tensor) -> Tensor:
    """Return the loss whose minimum is the quantile at each level."""
    gap = demand - predicted
    return torch.maximum(LEVELS * gap, (LEVELS - 1) * gap)


def sales(rows: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Simulate demand whose scatter grows with its level. Shapes (rows, 3), (rows, 1)."""
    rng = np.random.default_rng(seed)
    price, weekday, promotion = rng.uniform(1, 10, rows), rng.integers(0, 7, rows), rng.random(rows) < 0.2
    level = 60 / price + 8 * (weekday >= 5) + 15 * promotion
    demand = level * np.exp(rng.normal(0, 0.35, rows))
    features = np.column_stack([price, weekday, promotion]).astype(np.float32)
    return torch.from_numpy(features), torch.from_numpy(demand.astype(np.float32)[:, None])


def main(*, rows: int = 5000, max_epochs: int = 100) -> float:
    """Train; return the share of rows whose quantiles cross."""
    spec = Specification.from_yaml(RULES)
    features, demand = sales(rows)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    network = SafeNetwork(backbone, spec, embedding=32)
    train(
        network, features, demand, loss=pinball, seed=0,
        options=TrainingOptions(max_epochs=max_epochs, learning_rate=1e-2, batch_size=256, verbose=False),
    )  # fmt: skip
    print(network.certificate_)
    with torch.inference_mode():
        quantiles = network(features)
    below = (demand <= quantiles).float().mean(dim=0)
    print("Share of demand below q10, q50, q90:", ", ".join(f"{share:.1%}" for share in below))
    return float((quantiles.diff(dim=1) < 0).any(dim=1).float().mean())


if __name__ == "__main__":
    main()
