"""Heads between constant bounds: the step that is written down is the one that autograd derives."""

import copy

import pytest
import torch
from torch import nn

from smle.nn.gauge import Gauge
from smle.nn.network import SafeNetwork
from smle.rules import Specification
from support.safe_networks import BRAKING, EVERYWHERE, OBLIQUE, ONE_RULE


def _network(spec: Specification, *, size: float, bounds: str = "constant", gate: bool = True) -> SafeNetwork:
    torch.manual_seed(3)
    network = SafeNetwork(nn.Linear(len(spec.columns), 5), spec, embedding=5, bounds=bounds, gate=gate)
    with torch.no_grad():
        network.heads.raw_weight.mul_(size)
        network.heads.raw_bias.add_(0.3 * size * torch.randn_like(network.heads.raw_bias))
    return network


def _step(network: SafeNetwork, X: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    X = X.clone().requires_grad_()
    y = network(X)
    ((y - 0.7) ** 2).sum().backward()
    return y.detach(), {"inputs": X.grad, **{name: p.grad for name, p in network.named_parameters()}}


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("bounds", ["constant", "fixed"])
@pytest.mark.parametrize(("spec", "gate"), [(ONE_RULE, True), (ONE_RULE, False), (EVERYWHERE, True), (OBLIQUE, True)])
def test_equals_the_general_gauge(monkeypatch, spec, gate, bounds, size):
    ours = _network(spec, size=size, bounds=bounds, gate=gate)
    general = copy.deepcopy(ours)
    X = 3 * torch.rand(64, len(spec.columns)) - 1.5  # beyond the domain too
    assert ours.heads.closed_form(ours.box.envelope()) is not None
    y, gradients = _step(ours, X)
    with monkeypatch.context() as patch:
        patch.setattr(Gauge, "closed_form", lambda self, envelope: None)
        expected, wanted = _step(general, X)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)
    assert (ours.step() < 1) == (size > 0.1)  # a rule binds
    for name, gradient in wanted.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def test_is_not_taken_where_it_does_not_hold():
    """Several cells and literals in a clause, bounds that move, a phase without rules."""
    for spec, bounds in ((BRAKING, "constant"), (ONE_RULE, "affine"), (ONE_RULE, "network")):
        network = _network(spec, size=1.0, bounds=bounds)
        assert network.heads.closed_form(network.box.envelope()) is None
    network = _network(ONE_RULE, size=1.0)
    network.heads.relaxed = True
    assert network.heads.closed_form(network.box.envelope()) is None


def test_follows_a_loaded_state():
    """The constants that are kept between steps are those of the state that is loaded."""
    first, second = _network(ONE_RULE, size=1.0), _network(ONE_RULE, size=5.0)
    X = 2 * torch.rand(32, 2) - 1
    with torch.no_grad():
        second.heads.center.add_(0.01)
    first(X), second(X)
    first.load_state_dict(second.state_dict())
    second.heads._forget()
    torch.testing.assert_close(first(X), second(X))


def test_parameters_that_change_before_the_gradient_are_an_error():
    network = _network(ONE_RULE, size=1.0)
    y = network(torch.zeros(4, 2))
    with torch.no_grad():
        network.heads.raw_weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_penalty_on_gradients_for_inputs_trains(monkeypatch):
    ours = _network(ONE_RULE, size=30.0)
    general = copy.deepcopy(ours)
    X = 2 * torch.rand(64, 2) - 1

    def penalized(network: SafeNetwork) -> dict[str, torch.Tensor]:
        features = X.clone().requires_grad_()
        y = network(features)
        (slope,) = torch.autograd.grad(y.sum(), features, create_graph=True)
        (y.sum() + (slope**2).sum()).backward()
        return {name: p.grad for name, p in network.named_parameters()}

    gradients = penalized(ours)
    monkeypatch.setattr(Gauge, "closed_form", lambda self, envelope: None)
    for name, gradient in penalized(general).items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))


def test_a_frozen_backbone_gets_no_gradient():
    network = _network(ONE_RULE, size=1.0, bounds="fixed")
    network.backbone.requires_grad_(False)
    network(torch.rand(8, 2)).sum().backward()
    assert network.backbone.weight.grad is None
    assert network.heads.raw_weight.grad.abs().sum() > 0
