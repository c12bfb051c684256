"""Small specifications, data and networks that the tests of networks and training share."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from smle.heads.box.network.assurance import project
from smle.heads.box.network.box_network import BoxNetwork
from smle.networks.backbones import MLP
from smle.networks.units import DataScale
from smle.rules import Specification
from smle.training import Enforcement

BRAKING = Specification.from_yaml(
    """\
inputs:
  distance: [0, 200]
  speed: [0, 40]
  friction: [0.1, 1.0]
outputs: [brake, light]
rules:
  - name: emergency braking
    when: distance <= 10 and speed >= 20
    then: brake >= 0.8 and light >= 0.5
  - name: tailgating
    when: distance <= 0.8 * speed - 4
    then: brake >= 0.5
  - name: no phantom braking
    when: distance >= 150 and speed <= 10
    then: brake <= 0.1 or light <= brake
"""
)
EVERYWHERE = Specification.from_yaml(
    """\
inputs: {a: [-1, 1], b: [-1, 1]}
outputs: [p, q]
rules:
  - name: range
    then: 0 <= p <= 1 and p + q <= 1.5
"""
)
ONE_RULE = Specification.from_yaml(
    """\
inputs: {a: [-1, 1], b: [-1, 1]}
outputs: [p, q]
rules:
  - name: corner
    when: a <= 0.1 and b >= -0.3
    then: p <= 0.2 and p - q <= 0.1
"""
)
OBLIQUE = Specification.from_yaml(
    """\
inputs: {a: [-1, 1], b: [-1, 1]}
outputs: [p]
rules:
  - name: wedge
    when: a + 0.3 * b <= 0.1
    then: p <= 0.2
"""
)
DOSE = Specification.from_yaml(
    """\
inputs: {weight: [20, 120], age: [1, 90]}
outputs: [dose]
rules:
  - name: limit
    then: dose <= 0.5 * weight and dose >= 0
"""
)
LABELS = Specification.from_yaml(
    """\
inputs: {a: [-1, 1], b: [-1, 1]}
labels: [cat, dog, animal]
rules:
  - name: one pet
    then: at_most_one(cat, dog)
  - name: pets are animals
    when: a >= 0
    then: dog implies animal
"""
)
SPECIFICATIONS = {"braking": BRAKING, "everywhere": EVERYWHERE, "one rule": ONE_RULE, "oblique": OBLIQUE, "dose": DOSE}


def make_network(
    spec: Specification, *, bounds: str = "fixed", seed: int = 0, embedding: int = 8, **options: object
) -> BoxNetwork:
    """Return an MLP with heads that are not at rest."""
    lower, upper = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    shift, scale = (lower + upper) / 2, (upper - lower) / 3
    m = len(spec.targets)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = MLP((16,), embedding, shift=shift, scale=scale)
        network = BoxNetwork(
            backbone, spec, embedding=embedding, bounds=bounds,
            frame=DataScale(shift, scale, np.full(m, 0.3), np.full(m, 0.7)), **options,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def safe_network(spec: Specification, **options: object) -> BoxNetwork:
    """Return such a network with the nearest safe heads, in eval mode; training would go on from them."""
    return project(make_network(spec, **options), margin=1e-3)  # type: ignore[arg-type]


class AtTheEnd(Enforcement):
    """Nothing while a box is trained, and the nearest safe heads at the end: quick, for tests that need some box."""

    name = "at the end"

    def finish(self, network: BoxNetwork) -> None:
        network.pin(project(network).frozen_heads())


def make_rows(spec: Specification, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random inputs in the domain, and smooth targets."""
    rng = np.random.default_rng(seed)
    lower, upper = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    X = rng.uniform(lower, upper, (count, len(lower)))
    unit = (X - lower) / (upper - lower)
    y = np.stack([np.sin(3 * unit @ rng.normal(size=len(lower))) for _ in spec.targets], axis=1)
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def squared(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Squared errors, one per row and output."""
    return (predicted - wanted) ** 2


def shake(network: BoxNetwork, size: float, seed: int) -> BoxNetwork:
    """Return a copy with random heads and bounds, ready to train."""
    network = copy.deepcopy(network).train()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for parameter in [*network.heads.parameters(), *network.box.parameters()]:
            parameter.copy_(size * torch.randn_like(parameter))
    return network
