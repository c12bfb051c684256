"""The gauge: safe for every value of the raw parameters, no more careful than it must be, and trainable."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smle.assurance import verify
from smle.nn.bridge import frozen
from smle.nn.gauge import Gauge
from support.safe_networks import DOSE, EVERYWHERE, SPECIFICATIONS, make_network, make_rows, shake

NETWORKS = {
    (name, bounds): make_network(spec, bounds=bounds)
    for name, spec in SPECIFICATIONS.items()
    for bounds in ("fixed", "affine")
}


@given(key=st.sampled_from(sorted(NETWORKS)), size=st.floats(-4, 3).map(lambda e: 10.0**e), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_heads_are_proved_for_any_raw_parameters(key: tuple[str, str], size: float, seed: int) -> None:
    assert verify(shake(NETWORKS[key], size, seed)).hold


def reference_step(heads: Gauge) -> list[float]:
    """Return the step of each head over the box -1..1 by the formula, clause by clause, without rounding."""
    steps = []
    for h in range(len(heads.raw_weight)):
        W, db = heads.raw_weight[h].detach().double(), (heads.raw_bias[h] - heads.center[h]).detach().double()
        step = 1.0
        for k in range(heads.clause_slack.shape[1]):
            g = (heads.weights[h, k].unsqueeze(-1) * heads.g[h, k]).sum(dim=0)
            worst = float((g @ W).abs().sum() + g @ db)
            if worst > 0:
                step = min(step, float(heads.clause_slack[h, k]) / worst)
        steps.append(step)
    return steps


@pytest.mark.parametrize("name", ["everywhere", "one rule", "oblique"])
@pytest.mark.parametrize("size", [0.01, 0.3, 10.0])
def test_step_is_the_formula(name: str, size: float) -> None:
    heads = shake(NETWORKS[name, "fixed"], size, 3).heads
    assert isinstance(heads, Gauge)
    assert heads.raw_lambda is None
    envelope = NETWORKS[name, "fixed"].box.envelope(torch.float64)
    assert heads.step(envelope).tolist() == pytest.approx(reference_step(heads), rel=1e-4)


def test_step_is_one_where_nothing_binds_and_tight_where_something_does() -> None:
    loose, tight = shake(NETWORKS["everywhere", "fixed"], 1e-3, 0), shake(NETWORKS["everywhere", "fixed"], 5.0, 0)
    assert loose.step() == 1.0
    assert 0 < tight.step() < 1
    assert 0 < verify(tight).margin < 1e-4 < verify(loose).margin


def test_relaxed_heads_are_the_raw_ones() -> None:
    network = shake(NETWORKS["everywhere", "fixed"], 5.0, 0)
    network.heads.relaxed = True
    assert not verify(network).hold
    network.heads.relaxed = False
    network.train()
    assert verify(network).hold


@pytest.mark.parametrize("key", sorted(NETWORKS))
def test_every_trained_parameter_gets_a_gradient(key: tuple[str, str]) -> None:
    network = shake(NETWORKS[key], 0.7, 1)
    X, y = make_rows(network.spec, 200)
    ((network(X) - y) ** 2).mean().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("key", sorted(NETWORKS))
def test_training_and_deployed_program_agree(key: tuple[str, str]) -> None:
    network = shake(NETWORKS[key], 0.7, 2)
    X, _ = make_rows(network.spec, 100)
    with torch.no_grad():
        trained = network.train()(X)
        deployed = network.eval()(X)
    assert torch.allclose(trained, deployed, rtol=1e-3, atol=1e-3)


def test_gradient_is_that_of_finite_differences() -> None:
    heads = shake(NETWORKS["dose", "affine"], 0.5, 4).heads.double()
    envelope = NETWORKS["dose", "affine"].box.envelope(torch.float64)
    envelope = envelope._replace(**{name: getattr(envelope, name).detach() for name in ("center", "half")})
    weight = heads.raw_weight.detach().clone().requires_grad_()

    def total(raw: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(heads, {"raw_weight": raw}, (envelope,))[0][2].sum()

    assert torch.autograd.gradcheck(total, (weight,), eps=1e-7, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("spec", [EVERYWHERE, DOSE])
def test_assigned_heads_come_back(spec: object) -> None:
    network = make_network(spec, gauge=False)  # type: ignore[arg-type]
    over = frozen(network.heads, network.box, fallback=False)[0]
    network.load_heads(over)
    again = frozen(network.heads, network.box, fallback=False)[0]
    for one, two in zip(over.heads, again.heads, strict=True):
        assert one is not None
        assert two is not None
        np.testing.assert_allclose(one.W, two.W, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.b, two.b, rtol=1e-5, atol=1e-4)


def test_constants_follow_the_state_dict() -> None:
    one, two = make_network(EVERYWHERE, seed=1), make_network(EVERYWHERE, seed=2)
    two.heads.y_scale.mul_(3.0)
    X, _ = make_rows(EVERYWHERE, 10)
    one(X)  # fills what is kept between steps
    one.load_state_dict(two.state_dict())
    two.heads.load_state_dict(two.heads.state_dict())
    assert torch.equal(one(X), two(X))
