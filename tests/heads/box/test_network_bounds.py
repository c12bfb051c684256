"""Bounds by a ReLU network: never crossing, trained, safe after every step, and certified as deployed."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from smle import SMLERegressor
from smle.doors.load import load
from smle.errors import NotCertifiedError
from smle.export import check_onnx, load_onnx
from smle.heads.box.network.assurance import certify, project, verify
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.cases import cut_region
from smle.heads.box.proof.verdict import Violated
from smle.heads.box.training.refit import refit_network
from smle.networks.folders import weights_of
from smle.regions.geometry import Domain, Region
from smle.rules import Specification
from smle.training.loop import TrainingOptions, train
from support.safe_networks import BRAKING, DOSE, EVERYWHERE, LABELS, SPECIFICATIONS, make_network, make_rows, squared

ROADS = Specification.from_yaml(
    """\
inputs:
  speed: [0, 40]
  road: {categories: [dry, wet, icy]}
outputs: [brake]
rules:
  - name: ice
    when: road == icy and speed >= 10
    then: brake <= 0.2
  - name: range
    then: 0 <= brake <= 1
"""
)
SPECS = {**SPECIFICATIONS, "labels": LABELS, "roads": ROADS}
NETWORKS = {name: make_network(spec, bounds="network") for name, spec in SPECS.items()}
QUICK = TrainingOptions(max_epochs=4, batch_size=64, learning_rate=1e-2, verbose=False)


def shaken(name: str, size: float, seed: int) -> BoxNetwork:
    network = copy.deepcopy(NETWORKS[name]).train()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for parameter in [*network.heads.parameters(), *network.box.parameters()]:
            parameter.copy_(size * torch.randn_like(parameter))
    return network


class Hostile(nn.Module):
    """A backbone that returns NaN, infinities and huge numbers."""

    def __init__(self, units: int, seed: int) -> None:
        super().__init__()
        self.units, self.generator = units, torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        special = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 0.0, 1.0, -1.0])
        return special[torch.randint(len(special), (len(x), self.units), generator=self.generator)]


def attack(network: BoxNetwork, rows: int, seed: int = 0) -> int:
    """Count broken rules of the deployed program under a hostile backbone: random points, corners, thresholds."""
    spec, rng = network.spec, np.random.default_rng(seed)
    low, high = (np.array([float(v) for v in ends]) for ends in (spec.lower, spec.upper))
    x = rng.uniform(low, high, (rows, len(low))).astype("f4")
    x = np.where(rng.random(x.shape) < 0.3, np.where(rng.random(x.shape) < 0.5, low, high), x).astype("f4")
    constants = [r.bound for rule in spec.rules for g in rule.regions for r in g.rows if len(r.coefficients) == 1]
    for i in range(0, rows, 3):
        if constants:
            k, value = int(rng.integers(len(low))), np.float32(float(constants[int(rng.integers(len(constants)))]))
            x[i, k] = np.clip(np.nextafter(value, np.float32(rng.choice([-1e9, 1e9]))), low[k], high[k])
    for group in spec.one_hot:
        x[:, list(group)] = 0
        x[np.arange(rows), rng.choice(group, rows)] = 1
    hostile = copy.deepcopy(network).eval()
    hostile.backbone = Hostile(network.embedding, seed)
    broken = 0
    for part in (slice(0, rows // 2), slice(rows // 2, rows)):
        y = hostile(torch.from_numpy(x[part])).numpy()
        for row, out in zip(x[part], y, strict=True):
            point = [Fraction(float(v)) for v in row]
            for rule in spec.rules:
                if any(region.contains(point) for region in rule.regions):
                    finite = bool(np.isfinite(out).all())
                    broken += not (finite and rule.requirement.holds([Fraction(float(v)) for v in out], point))
    return broken


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("size", [0.1, 0.5])
def test_certified_networks_withstand_attacks(name: str, size: float) -> None:
    network = project(shaken(name, size, 5))
    certify(network)
    assert attack(network, 300) == 0


def test_the_attack_finds_what_is_not_safe() -> None:
    network = make_network(BRAKING, bounds="network")
    network.eval()
    assert attack(network, 300) > 0
    with pytest.raises(NotCertifiedError, match=r"Rule '.*' is not proved: .* by"):
        certify(network)
    assert any(isinstance(v, Violated) for _, v in verify(network))


@given(size=st.floats(-3, 3).map(lambda e: 10.0**e), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_stored_bounds_cannot_cross(size: float, seed: int) -> None:
    stored = shaken("everywhere", size, seed).frozen_heads().bounds.stored()
    assert (stored["lower"] <= stored["upper"]).all()
    assert (stored["lower_slope"] <= stored["upper_slope"]).all()


def test_bounds_start_around_zero_and_can_bend() -> None:
    network = BoxNetwork(nn.Linear(2, 4), EVERYWHERE, embedding=4, bounds="network").eval()
    seen = network.deployed.values(np.random.default_rng(0).uniform(-1, 1, (50, 2)), np.zeros((50, 4)))
    lower, upper = seen["lower"], seen["upper"]
    assert np.allclose(lower, -upper)
    assert 0.3 < upper.min() < upper.max() < 4
    line = np.linspace(-1, 1, 9)[:, None].repeat(2, axis=1)
    bent = shaken("everywhere", 1.0, 0).eval()
    seen = bent.deployed.values(line, np.zeros((9, bent.embedding)))
    lower, upper = seen["lower"], seen["upper"]
    assert np.abs(upper[2:] - 2 * upper[1:-1] + upper[:-2]).max() > 0.01
    assert (upper >= lower).all()


def test_training_and_deployed_program_agree() -> None:
    for name, spec in SPECS.items():
        network = shaken(name, 0.5, 1)
        X, _ = make_rows(spec, 64)
        for group in spec.one_hot:
            X[:, list(group)] = torch.eye(len(group))[torch.arange(len(X)) % len(group)]
        trained = network(X)
        with torch.no_grad():
            assert torch.allclose(trained, network.eval()(X), rtol=1e-4, atol=1e-4)


def test_boxes_of_a_region_cover_it() -> None:
    rng = np.random.default_rng(0)
    domain = Domain(np.array([-1.0, 0.0, 5.0]), np.array([1.0, 10.0, 5.0]), np.array([1.0, 10.0, 5.0]))
    region = Region(domain, (0,), np.array([[0.0, 1.0, 0.0]]), np.array([7.0]))
    boxes = cut_region(region)
    assert len(boxes) == 4
    for x in rng.uniform(domain.low, [1.0, 7.0, 5.0], (200, 3)):
        assert any((box.domain.low <= x).all() and (x <= box.domain.high).all() for box in boxes)


@pytest.mark.parametrize("name", ["everywhere", "braking", "labels"])
def test_training_ends_certified(name: str) -> None:
    spec = SPECS[name]
    network = make_network(spec, bounds="network")
    X, y = make_rows(spec, 200)
    start = copy.deepcopy(network.box.state_dict())
    train(network, X, y, loss=squared, options=QUICK, enforcement="pdcg")
    assert any(not torch.equal(start[key], value) for key, value in network.box.state_dict().items())
    with torch.no_grad():
        before = float(squared(network(X), y).mean())
    refit_network(network, X, y)
    with torch.no_grad():
        assert float(squared(network(X), y).mean()) <= before * (1 + 1e-4) + 1e-6
    certify(network)
    assert attack(network, 150) == 0


def test_gradients_reach_every_part_of_the_bounds() -> None:
    network = shaken("dose", 0.1, 3)
    X, y = make_rows(DOSE, 200)
    squared(network(X), y).mean().backward()
    for name, parameter in network.box.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


def test_projection_makes_network_bounds_safe() -> None:
    network = make_network(EVERYWHERE, bounds="network")
    assert not verify(network).hold
    safe = project(network)
    certify(safe)
    assert attack(safe, 200) == 0


def test_state_dict_and_copies_keep_the_program() -> None:
    network = shaken("braking", 0.7, 4).eval()
    other = make_network(BRAKING, bounds="network", seed=9)
    other.load_state_dict(network.state_dict())
    X, _ = make_rows(BRAKING, 40)
    with torch.no_grad():
        assert torch.equal(other.eval()(X), network(X))
        assert torch.equal(copy.deepcopy(network)(X), network(X))
    names = {name for name in weights_of(network) if name.startswith("bounds.")}
    assert names == {
        "bounds.hidden.0.weight", "bounds.hidden.0.bias", "bounds.hidden.1.weight", "bounds.hidden.1.bias",
        "bounds.lower", "bounds.lower_slope", "bounds.upper", "bounds.upper_slope",
    }  # fmt: skip


def test_estimator_stores_loads_and_exports(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform([0, 0, 0.1], [200, 40, 1.0], (120, 3))
    y = np.stack([X[:, 1] / 40, X[:, 0] / 200], axis=1)
    quick = {"hidden_layer_sizes": (8,), "embedding": 4, "max_epochs": 2, "random_state": 0, "compare": False}
    model = SMLERegressor(BRAKING, bounds="network", **quick).fit(X, y)
    assert model.certificate_.document["program"]["bounds"] == "network"
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(again.predict(X[:5]), model.predict(X[:5]))
    model.to_onnx(tmp_path / "model.onnx")
    table = pd.DataFrame(X.astype(np.float32), columns=["distance", "speed", "friction"])
    assert len(check_onnx(tmp_path / "model.onnx").proved) == len(model.certificate_.proved)
    found = load_onnx(tmp_path / "model.onnx").predict(table)
    assert np.allclose(found.to_numpy(), model.predict(table), atol=1e-4)


def test_unknown_bounds_are_named() -> None:
    with pytest.raises(ValueError, match="'constant', 'fixed', 'affine', 'network' or a module"):
        BoxNetwork(nn.Linear(2, 2), EVERYWHERE, embedding=2, bounds="magic")
