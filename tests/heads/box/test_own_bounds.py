"""Auxiliary models that smle does not know: trained with the network, deployed, and judged by the kernel alone."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import smle
from smle.nn import BoxNetwork
from smle.rules import Specification
from support.sampling import Judge, hard_points

SPEC = Specification.from_yaml("""
inputs: {a: [0, 4], b: [-1, 1]}
outputs: [y, z]
rules:
  - {name: sum, then: y + z <= 2}
  - {name: near, when: a <= 1, then: y >= 0.5}
""")
UNITS = 5


class Wedge(nn.Module):
    """Bounds of a stranger: wider to the right, by parameters of its own."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.3))

    def affine_bounds(self):
        upper = torch.stack([torch.tensor(1.0), self.rate, 0 * self.rate]).expand(UNITS, 3)
        return -upper, upper


def layers(*widths):
    parts = []
    for i, (inputs, outputs) in enumerate(zip((2, *widths), (*widths, 2 * UNITS), strict=True)):
        parts += [nn.ReLU()] * (i > 0) + [nn.Linear(inputs, outputs)]
    with torch.no_grad():  # start about 2 wide
        parts[-1].bias += torch.tensor([-1.0] * UNITS + [1.0] * UNITS)
    return nn.Sequential(*parts)


def pair(lower, upper):
    """Two networks of their own, as in the paper: one for lower bounds, one for upper ones."""
    found = []
    for widths, start in ((lower, -1.0), (upper, 1.0)):
        sizes = (2, *widths, UNITS)
        parts = []
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            parts += [nn.ReLU()] * (i > 0) + [nn.Linear(inputs, outputs)]
        with torch.no_grad():
            parts[-1].bias += start
        found.append(nn.Sequential(*parts))
    return tuple(found)


KINDS = {
    "stated": Wedge,
    "two networks": lambda: pair((6,), (4,)),
    "two of other depths": lambda: pair((), (5, 3)),
    "linear": lambda: layers(),
    "one hidden layer": lambda: layers(6),
    "nested": lambda: nn.Sequential(layers(6, 4)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_of_ones_own_are_trained_proved_and_checked(kind):
    torch.manual_seed(3)
    bounds = KINDS[kind]()
    last = [list(m.parameters())[-1] for m in (bounds if isinstance(bounds, tuple) else (bounds,))]
    before = [p.detach().clone() for p in last]
    network = BoxNetwork(nn.Linear(2, UNITS), SPEC, embedding=UNITS, bounds=bounds)
    x = torch.rand(64, 2) * torch.tensor([4.0, 2.0]) - torch.tensor([0.0, 1.0])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(15):
        optimizer.zero_grad()
        (network(x) - 9 * x).square().mean().backward()
        optimizer.step()
    assert all((p != q).any() for p, q in zip(last, before, strict=True)), "the bounds were trained"
    assert not smle.verify(network).hold, "targets that break the rules drew the heads out"
    safe = smle.project(network)
    smle.certify(safe).check()
    for X in hard_points(SPEC, np.random.default_rng(0), 600):
        with torch.no_grad():
            assert Judge(SPEC).violations(X, safe(torch.from_numpy(X)).numpy()) == []
    assert smle.counterexample(safe) is None


def test_what_is_deployed_is_what_the_module_states():
    torch.manual_seed(0)
    module = layers(6)
    network = BoxNetwork(nn.Linear(2, UNITS), SPEC, embedding=UNITS, bounds=module).eval()
    x = torch.rand(50, 2)
    seen = network.deployed.values(x.numpy(), np.zeros((50, UNITS)))
    stated = module(x).detach().numpy()
    assert np.allclose(seen["lower"], stated[:, :UNITS], atol=1e-5)
    assert np.allclose(seen["upper"], stated[:, UNITS:], atol=1e-5)


@pytest.mark.parametrize("widths", [((), ()), ((6,), (4,)), ((), (5, 3)), ((7, 2, 3), (4,))])
def test_two_networks_are_deployed_as_they_are(widths):
    torch.manual_seed(0)
    lower, upper = pair(*widths)
    network = BoxNetwork(nn.Linear(2, UNITS), SPEC, embedding=UNITS, bounds=(lower, upper)).eval()
    assert {id(p) for p in network.parameters()} >= {id(p) for m in (lower, upper) for p in m.parameters()}
    x = torch.rand(50, 2) * 6 - 2  # negative numbers too
    clamped = torch.minimum(torch.maximum(x, torch.tensor([0.0, -1.0])), torch.tensor([4.0, 1.0]))
    seen = network.deployed.values(x.numpy(), np.zeros((50, UNITS)))
    for name, module in (("lower", lower), ("upper", upper)):
        found = np.broadcast_to(seen.get(name, network.deployed.tensors[f"bounds.{name}"]), (50, UNITS))
        assert np.allclose(found, module(clamped).detach().numpy(), atol=1e-5)


class Forward(nn.Sequential):
    """Layers in turn, and a forward of its own."""

    def __init__(self, forward):
        super().__init__(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2 * UNITS))
        self.scale = nn.Parameter(torch.ones(()))
        self.own = forward

    def forward(self, x):
        return self.own(self, x)


OTHERS = {
    "another order": lambda m, x: m[2](m[1](-m[0](x))),
    "something behind": lambda m, x: torch.tanh(m[2](m[1](m[0](x)))),
    "a kink left out": lambda m, x: m[2](m[0](x)),
    "a factor that is 1 as long as it is not trained": lambda m, x: m.scale * m[2](m[1](m[0](x))),
    "two tensors": lambda m, x: m[2](m[1](m[0](x))).chunk(2, dim=1),
    "another shape": lambda m, x: m[2](m[1](m[0](x)))[:, :UNITS],
    "an error": lambda m, x: m[2](x),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_bounds_that_are_not_their_layers_in_turn_are_refused(kind):
    with pytest.raises(TypeError, match=r"Got a Forward whose forward .*bounds=\(lower, upper\)"):
        BoxNetwork(nn.Linear(2, UNITS), SPEC, embedding=UNITS, bounds=Forward(OTHERS[kind]))


def test_a_forward_that_is_its_layers_in_turn_is_read():
    module = Forward(lambda m, x: m[2](torch.relu(m[0](x))))
    BoxNetwork(nn.Linear(2, UNITS), SPEC, embedding=UNITS, bounds=module)


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 10)), TypeError, "Linear and ReLU layers in turn"),
        (nn.Sequential(nn.Linear(2, 10), nn.ReLU()), TypeError, "Linear first and last"),
        (nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 9)), ValueError, "to 10 numbers"),
        (nn.Linear(3, 10), ValueError, "from 2 inputs"),
        ((nn.Linear(2, 5), nn.Linear(2, 4)), ValueError, "to 5 numbers"),
        ((nn.Linear(2, 5),) * 3, TypeError, "Got 3 of Linear"),
        ("wide", ValueError, "'network' or a module. Got 'wide'"),
    ],
)
def test_bounds_that_do_not_fit_are_refused(module, error, message):
    with pytest.raises(error, match=message):
        BoxNetwork(nn.Linear(2, UNITS), SPEC, embedding=UNITS, bounds=module)


def test_stated_bounds_have_a_shape():
    class Flat(nn.Module):
        def affine_bounds(self):
            return torch.zeros(UNITS), torch.ones(UNITS)

    with pytest.raises(ValueError, match=r"two tensors of shape \(5, 3\)"):
        BoxNetwork(nn.Linear(2, UNITS), SPEC, embedding=UNITS, bounds=Flat())
