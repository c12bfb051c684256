"""Water network: a graph network decides at every node what to pump and what to store; graphs have 3 to 500 nodes.

Shows: message passing in plain torch, rules at every node, graphs without edges, a file whose sizes stay free.
The data are simulated.
Run it: python examples/water_network.py
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import smle
from smle import Specification
from smle.baselines import violation_rate
from smle.export import check_onnx
from smle.nn import SafeNetwork

RULES = """
inputs:
  inflow: [0, 10]        # m3/h that reach the node
  demand: [0, 10]        # of the houses there
  tank: [0, 5]           # m3 that are left
outputs: [pump, drain]   # m3/h
rules:
  - {name: demand is met, then: pump + drain + inflow >= demand}
  - {name: pumps and pipes, then: 0 <= pump <= 12 and -5 <= drain <= 5}
  - {name: no more than the tank holds, then: drain <= tank}
  - {name: a pump is off or runs, then: pump <= 0 or pump >= 1}
"""


class Messages(nn.Module):
    """Nodes (n, 3) and pipes (2, e), from and to -> an embedding of each node."""

    def __init__(self, width: int = 32, rounds: int = 2) -> None:
        super().__init__()
        self.up = nn.Linear(3, width)
        self.along = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))

    def forward(self, nodes: Tensor, pipes: Tensor) -> Tensor:
        """Return (n, width)."""
        h = torch.relu(self.up(nodes))
        for layer in self.along:
            sent = torch.relu(layer(torch.cat([h[pipes[0]], h[pipes[1]]], dim=-1)))
            h = h + torch.zeros_like(h).index_add(0, pipes[1], sent)
        return h


def districts(sizes: list[int], *, seed: int, pipes: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes of several districts (n, 3), pipes between those of one (2, e), and what operators did (n, 2)."""
    rng = np.random.default_rng(seed)
    n, start, ends = sum(sizes), 0, [np.zeros((2, 0), dtype=np.int64)]
    for size in sizes:
        ends.append(start + rng.integers(0, size, (2, pipes * size)))
        start += size
    edges = np.concatenate(ends, axis=1)
    inflow, demand, tank = rng.uniform(0, 10, n), rng.uniform(0, 10, n), rng.uniform(0, 5, n)
    nearby = np.bincount(edges[1], demand[edges[0]], n) / np.maximum(np.bincount(edges[1], minlength=n), 1)
    missing = demand - inflow
    drain = np.clip(0.5 * missing - 0.1 * nearby, -5, tank)  # where neighbors need water, tanks stay full
    pump = np.clip(missing - drain, 0, 12) + rng.normal(0, 0.2, n)
    x, y = np.stack([inflow, demand, tank], axis=-1), np.stack([pump, drain], axis=-1)
    return torch.tensor(x).float(), torch.from_numpy(edges), torch.tensor(y).float()


def scaled(nodes: Tensor) -> Tensor:
    """Return what the backbone reads: numbers of order one."""
    return (nodes - torch.tensor([5.0, 5, 2.5])) / torch.tensor([3.0, 3, 1.5])


def main(*, rows: int = 4000, max_epochs: int = 60) -> float:
    """Train, export, attack; return the share of nodes at which a rule is broken."""
    spec = Specification.from_yaml(RULES)
    torch.manual_seed(0)
    x, pipes, y = districts([20] * (rows // 20), seed=0)
    network = SafeNetwork(Messages(), spec, embedding=32, example=(x, y))
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for epoch in range(max_epochs):
        x, pipes, y = districts([20] * (rows // 20), seed=epoch)
        optimizer.zero_grad()
        (network(x, nodes=scaled(x), pipes=pipes) - y).square().mean().backward()
        optimizer.step()
    network.eval()
    print(network.certificate_)

    x, pipes, y = districts([3, 40, 500], seed=1)  # other districts
    answers = network.predict(x, nodes=scaled(x), pipes=pipes)
    print(f"{len(x)} nodes: mean error {np.abs(answers - y.numpy()).mean():.2f} m3/h; {network.counts}")

    network.to_onnx("water.onnx", example={"nodes": scaled(x[:4]), "pipes": torch.tensor([[0, 1, 2], [1, 2, 3]])})
    check_onnx("water.onnx")
    session = onnxruntime.InferenceSession("water.onnx")
    for size, count in ((3, 2), (500, 3), (5, 0)):  # the last one without pipes
        x, pipes, _ = districts([size], seed=size, pipes=count)
        columns = {name: x[:, [i]].numpy() for i, name in enumerate(spec.columns)}
        given = {"nodes": scaled(x).numpy(), "pipes": pipes.numpy()}
        found = np.concatenate(session.run(list(spec.targets), columns | given), axis=1)
        wanted = network.predict(x, nodes=scaled(x), pipes=pipes)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)

    attack = smle.attack(Ring(network), spec, tries=5_000)
    print(attack)
    x, pipes, _ = districts([3, 40, 500], seed=2)
    return violation_rate(spec, x.numpy(), network.predict(x, nodes=scaled(x), pipes=pipes)) + attack.found


class Ring(nn.Module):
    """Takes rows (n, 3) for the nodes of a ring of pipes, for an attack."""

    def __init__(self, network: SafeNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return what to pump and to drain at each node, (n, 2)."""
        places = torch.arange(len(x))
        answers: Tensor = self.network(x, nodes=scaled(x), pipes=torch.stack([places, places.roll(1)]))
        return answers


if __name__ == "__main__":
    main()
