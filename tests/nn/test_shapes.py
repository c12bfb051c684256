"""Bounds that start as wide as the rules leave room."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from smle.guarantees.regions.geometry import Domain
from smle.guarantees.regions.search import find_cells
from smle.nn.bounds import AffineBox
from smle.nn.bridge import cell_needs
from smle.nn.head_parameters import DataScale
from smle.nn.network import SafeNetwork, moves_with_inputs
from smle.nn.shapes import fitness, moving_shapes
from smle.rules import Specification
from support.safe_networks import SPECIFICATIONS

WEDGE = Specification.from_yaml("""
inputs: {x: [0, 10], u: [-1, 1]}
outputs: [y]
rules:
  - {name: floor, then: y >= 0}
  - {name: ceiling, then: y <= 0.1 + x}
  - {name: low, when: u <= -0.5, then: y <= 0.05}
""")


def ends(spec: Specification) -> tuple[np.ndarray, np.ndarray]:
    domain = Domain.of(spec)
    return domain.low, domain.high


def needs_of(spec: Specification) -> list:
    return cell_needs(spec, find_cells(spec), prefer=None, outer=False)


def test_shapes_are_positive_on_the_domain_and_one_in_its_middle() -> None:
    low, high = ends(WEDGE)
    shapes = moving_shapes(needs_of(WEDGE), DataScale.identity(2, 1), low, high)
    assert len(shapes)
    corners = np.array([[1.0, a, b] for a in (low[0], high[0]) for b in (low[1], high[1])])
    assert (shapes @ corners.T > 0).all()
    assert np.allclose(shapes @ np.append(1.0, (low + high) / 2), 1.0)


def test_rules_that_do_not_move_leave_bounds_constant_and_heads_alone() -> None:
    for spec in SPECIFICATIONS.values():
        if moves_with_inputs(spec):
            continue
        frame = DataScale.identity(len(spec.columns), len(spec.targets))
        needs = needs_of(spec)
        assert len(moving_shapes(needs, frame, *ends(spec))) == 0
        half = AffineBox(4, *(torch.from_numpy(end) for end in ends(spec))).envelope(torch.float64).half
        for cell in needs:
            assert np.allclose(fitness(cell, frame, half.detach().numpy()), 1.0)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_fitness_is_the_least_ratio_of_room_to_width(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = ends(WEDGE)
    frame = DataScale(rng.normal(size=2), rng.uniform(0.5, 2, 2), np.zeros(1), np.ones(1))
    slopes = rng.uniform(-1, 1, (5, 2))
    half = np.column_stack([np.abs(slopes) @ np.maximum(np.abs(low), np.abs(high)) * 5 + 1, slopes])
    for cell in needs_of(WEDGE):
        ratios = np.full(5, np.inf)
        for k in range(len(cell.g)):
            for corner in np.array(np.meshgrid(*zip(cell.lower[k], cell.upper[k], strict=True))).reshape(2, -1).T:
                room = (cell.weights[k] * (cell.slack_offset[k] + cell.slack_slope[k] @ corner)).sum()
                at = np.append(1.0, (corner - frame.x_shift) / frame.x_scale)
                ratios = np.minimum(ratios, room / (half @ at))
        expected = np.clip(ratios / ratios.max(), 0.02, 1.0)
        assert np.allclose(fitness(cell, frame, half), expected, rtol=1e-5)


def test_the_first_step_uses_the_room_of_every_input() -> None:
    """A wedge that is 0.1 wide at one end and 10.1 at the other; constant bounds would leave at most 0.1 everywhere."""
    torch.manual_seed(0)
    network = SafeNetwork(nn.Linear(2, 16), WEDGE, embedding=16, bounds="affine", prefer=np.array([[0.02], [5.0]]))
    with torch.no_grad():
        network.heads.raw_weight.mul_(100.0)
    network.eval()
    x = torch.tensor([[0.0, 0.5], [10.0, 0.5]])
    spread = []
    for row in x:
        lower, upper = network.deployed.limits(row[None])
        weight = network.deployed.heads.weight[network.deployed.gate(row[None])[0], 0]
        spread.append(float((weight.abs() * (upper - lower)).sum()))
    assert spread[1] > 10 * spread[0]
    assert spread[1] > 0.5


def _loss_after(steps: int) -> float:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16))
    network = SafeNetwork(body, WEDGE, embedding=16, bounds="affine", prefer=np.array([[0.02], [5.0]]))
    x = torch.rand(500, 2) * torch.tensor([10.0, 1.5]) - torch.tensor([0.0, 0.5])
    wanted = (0.1 + x[:, :1]) * (0.5 + 0.4 * x[:, 1:])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((network(x) - wanted) ** 2).mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_moving_rules_are_learned_sooner_than_from_constant_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    shaped = _loss_after(100)
    monkeypatch.setattr("smle.nn.network.moving_shapes", lambda *_: np.zeros((0, 3)))
    monkeypatch.setattr("smle.nn.gauge.fitness", lambda cell, frame, half: np.ones(len(half)))
    assert shaped < 0.5 * _loss_after(100)
