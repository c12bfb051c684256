"""Bounds by a ReLU network: never crossing, trained, safe after every step, and certified as deployed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from smle import SMLERegressor
from smle.doors.load import load
from smle.errors import NotCertifiedError
from smle.export import check_onnx, load_onnx
from smle.heads.box.network.assurance import certify, project, verify
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.cases import cut_region
from smle.heads.box.proof.verdict import Violated
from smle.regions.geometry import Domain, Region
from smle.rules import Specification
from support.safe_networks import (
    BRAKING,
    DOSE,
    EVERYWHERE,
    LABELS,
    SPECIFICATIONS,
    make_network,
    make_rows,
    shake,
    squared,
)
from support.sampling import Judge, hard_points

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


def shaken(name: str, size: float, seed: int) -> BoxNetwork:
    return shake(NETWORKS[name], size, seed)


def broken(network: BoxNetwork) -> int:
    """Count broken rules of the deployed program at hard points, for embeddings of NaN, infinities and huge numbers."""
    judge, rng, special = (
        Judge(network.spec),
        np.random.default_rng(0),
        [np.nan, np.inf, -np.inf, 3e38, -3e38, 0, 1, -1],
    )
    count = 0
    for X in hard_points(network.spec, rng, 1000):
        z = rng.choice(special, (len(X), network.embedding)).astype(np.float32)
        count += len(judge.violations(X, network.deployed(X, z)))
    return count


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("size", [0.1, 0.5])
def test_certified_networks_obey_for_any_embedding(name: str, size: float) -> None:
    network = project(shaken(name, size, 5))
    certify(network)
    assert broken(network) == 0


def test_what_is_not_safe_is_found() -> None:
    network = make_network(BRAKING, bounds="network").eval()
    assert broken(network) > 0
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


def test_boxes_of_a_region_cover_it() -> None:
    rng = np.random.default_rng(0)
    domain = Domain(np.array([-1.0, 0.0, 5.0]), np.array([1.0, 10.0, 5.0]), np.array([1.0, 10.0, 5.0]))
    region = Region(domain, (0,), np.array([[0.0, 1.0, 0.0]]), np.array([7.0]))
    boxes = cut_region(region)
    assert len(boxes) == 4
    for x in rng.uniform(domain.low, [1.0, 7.0, 5.0], (200, 3)):
        assert any((box.domain.low <= x).all() and (x <= box.domain.high).all() for box in boxes)


def test_gradients_reach_every_part_of_the_bounds() -> None:
    network = shaken("dose", 0.1, 3)
    X, y = make_rows(DOSE, 200)
    squared(network(X), y).mean().backward()
    for name, parameter in network.box.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


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
