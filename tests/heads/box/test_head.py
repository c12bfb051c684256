"""The deployed program against the format's text, training, and an exact judge."""

from __future__ import annotations

import copy
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from smle.heads.box.network.assurance import certify
from smle.heads.box.network.box_network import BoxNetwork
from smle_check.program import run
from support.safe_networks import BRAKING, DOSE, SPECIFICATIONS, make_network, make_rows, safe_network
from support.sampling import Judge, hard_points
from support.written_again import BoxAgain

BOUNDS = ("fixed", "affine")


@cache
def safe(name: str, bounds: str) -> BoxNetwork:
    return safe_network(SPECIFICATIONS[name], bounds=bounds)


def embeddings(count: int, width: int, *, seed: int) -> Tensor:
    """Return embeddings inside and far outside the box, with NaN and infinity in some rows."""
    z = 2 * torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    z[3, 1], z[5, 0], z[6, 2], z[7] = torch.nan, torch.inf, -torch.inf, torch.nan
    return z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [*BOUNDS, "network"])
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_program_is_that_of_the_format(name: str, bounds: str, dtype: torch.dtype) -> None:
    """As written down again from its text, but for the rounding of sums; rows together and apart."""
    network = safe(name, bounds)
    features, _ = make_rows(network.spec, 64)
    features = features.to(dtype)
    features[9, 0], features[10, 1], features[11, 0], features[12, 1] = torch.nan, torch.nan, 1e6, -1e6
    z = embeddings(64, 8, seed=1)
    expected = BoxAgain(certify(network))(features.numpy(), z.numpy())
    network = copy.deepcopy(network)
    network.backbone = nn.Identity()
    with torch.no_grad():
        together = network(features, z)
        apart = torch.cat([network(features[i : i + 1], z[i : i + 1]) for i in range(64)])
    for found in (together, apart):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * (1 + np.abs(expected[20:]).max()))


@pytest.mark.parametrize("bounds", [*BOUNDS, "constant", "network"])
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_training_computes_what_is_deployed(name: str, bounds: str) -> None:
    """The gate cell by cell, at hard points; the outputs up to rounding."""
    spec = SPECIFICATIONS[name]
    network = make_network(spec, bounds=bounds)
    network.backbone = nn.Identity()
    seen: list[Tensor | None] = []
    for dtype in (np.float32, np.float64):
        for points in hard_points(spec, np.random.default_rng(0), 300, dtype=dtype):
            features, z = torch.tensor(points), 2 * torch.randn(len(points), 8)
            trained = network.train()(features, z)
            steps = network._front[features.dtype]
            env = {"features": features}
            if steps:
                run(steps, env)
            cells = network.eval().deployed.cell_of(points)
            seen.append(env.get("cell"))
            assert seen[-1] is None or np.array_equal(seen[-1].numpy(), cells)
            size = trained.abs().amax(dim=0).clamp(min=1.0)
            assert ((network(features, z) - trained).abs() <= 1e-3 * size).all()


def test_gradients_of_what_is_deployed_are_those_of_training() -> None:
    network = make_network(BRAKING, bounds="affine")
    features, _ = make_rows(BRAKING, 20)
    gradients = []
    for mode in (True, False):
        x = features.clone().requires_grad_()
        network.train(mode)(x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert gradients[0].abs().max() > 0


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_rules_hold_at_hard_points_for_any_embedding(name: str, bounds: str) -> None:
    spec = SPECIFICATIONS[name]
    head, judge, rng = safe(name, bounds).deployed, Judge(spec), np.random.default_rng(2)
    for points in hard_points(spec, np.random.default_rng(1), 2000):
        z = 100 * rng.standard_normal((len(points), 8), dtype=np.float32)
        special = rng.choice(np.float32([np.nan, np.inf, -np.inf, 1e38, -1e38]), z.shape)
        z = np.where(rng.random(z.shape) < 0.2, special, z)
        rows = range(0, len(points), 20)
        single = [head(points[i : i + 1], z[i : i + 1]) for i in rows]
        assert judge.violations(points, head(points, z)) == []
        assert judge.violations(points[rows], np.concatenate(single)) == []


def _set_legacy() -> None:
    torch.set_float32_matmul_precision("medium")


def _set_backend() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def _set_everything() -> None:
    torch.backends.fp32_precision = "tf32"


@pytest.mark.parametrize("lower", [_set_legacy, _set_backend, _set_everything])
def test_lowered_precision_and_autocast_do_not_reach_the_head(lower: object) -> None:
    network = make_network(DOSE).eval()
    network.backbone = nn.Identity()
    features, _ = make_rows(DOSE, 32)
    z = 1e3 * torch.randn(32, 8)
    expected = network(features, z)
    old = torch.backends.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    old_cuda = torch.backends.cuda.matmul.fp32_precision
    try:
        lower()  # type: ignore[operator]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(network(features, z), expected)
            assert network.train()(features, z).dtype == torch.float32
    finally:
        torch.backends.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = old
        torch.backends.cuda.matmul.fp32_precision = old_cuda


def reloaded(network: BoxNetwork) -> BoxNetwork:
    other = make_network(BRAKING, bounds="network" if network.box.widths else "fixed", seed=9)
    other.load_state_dict(network.state_dict())
    return other.eval()


@pytest.mark.parametrize("bounds", ["fixed", "network"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network)), reloaded])
def test_copies_deploy_the_same(copied: object, bounds: str) -> None:
    network = make_network(BRAKING, bounds=bounds).eval()
    features, _ = make_rows(BRAKING, 32)
    other = copied(network)  # type: ignore[operator]
    assert torch.equal(other(features), network(features))
    assert torch.allclose(other.train()(features), network.train()(features))


def test_as_many_embeddings_as_features() -> None:
    network = make_network(BRAKING)
    network.backbone = nn.Identity()
    features, _ = make_rows(BRAKING, 3)
    for mode in (True, False):
        for rows in (1, 2):
            with pytest.raises(ValueError, match="one row per embedding"):
                network.train(mode)(features, torch.zeros(rows, 8))
