"""Other precisions than float32 are refused at every door, and nothing is half changed by the attempt."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import smle
from smle import Specification
from smle.networks.folders import weights_of
from smle.nn import BoxNetwork
from support.sampling import Judge, hard_points

RULES = """
inputs: {a: [0, 1], b: [0, 1]}
outputs: [y]
rules: [{name: r, when: a + 0.3 * b <= 0.5, then: 0.1 <= y <= 0.7}]
"""


def make_network(bounds: str = "constant") -> BoxNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = BoxNetwork(nn.Linear(2, 4), Specification.from_yaml(RULES), embedding=4, bounds=bounds)
    return smle.project(network)


CONVERSIONS = {
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.bfloat16(),
    "double": lambda module: module.double(),
    "to": lambda module: module.to(torch.float16),
    "to device and type": lambda module: module.to("cpu", torch.bfloat16),
    "type": lambda module: module.type(torch.float16),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
@pytest.mark.parametrize("bounds", ["constant", "affine"])
def test_conversions_are_refused_and_change_nothing(convert, bounds):
    network = make_network(bounds)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(TypeError, match="Convert the backbone alone"):
        convert(network)
    after = network.state_dict()
    assert all(torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items())
    with pytest.raises(TypeError, match="stay in float32"):
        convert(nn.Sequential(nn.Linear(2, 2), network))
    smle.certify(network)


def test_moving_leaves_the_gate_alone():
    """`network.float()` is meant to do nothing; rounded to float32, the gate's 0.7 would turn inputs away."""
    text = "inputs: {a: [0.1, 1]}\noutputs: [y]\nrules: [{name: r, when: a <= 0.7, then: y <= 1}]\n"
    network = BoxNetwork(nn.Linear(1, 2), Specification.from_yaml(text), embedding=2).eval()
    before, x = weights_of(network), torch.tensor([[0.7]], dtype=torch.float64)
    for moved in (network.float(), network.to(torch.float32), network.to("cpu").share_memory(), network.cpu()):
        after = weights_of(moved)
        assert all(after[name].tobytes() == value.tobytes() for name, value in before.items())
        assert moved.deployed.bits_of(x.numpy()).all()
    smle.certify(network)


class Half(nn.Module):
    """A backbone in a low precision of its own."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(2, 4).to(kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.to(self.kind))


def quantized() -> nn.Module:
    """Return torch's 8-bit linear layers."""
    layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
    return torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, dtype=torch.qint8)


BACKBONES = {str(kind): partial(Half, kind) for kind in (torch.float16, torch.bfloat16, torch.float64)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", [*BACKBONES.values(), quantized], ids=[*BACKBONES, "8 bits"])
def test_backbones_may_have_any_precision(make):
    """The proof does not need the backbone: certificate and head stay, bit by bit, and sampling finds nothing."""
    network = make_network("affine").eval()
    certificate, before = smle.certify(network), dict(network.deployed.tensors)
    network.backbone = make()
    certificate.check()
    assert all(np.array_equal(network.deployed.tensors[name], value) for name, value in before.items())
    judge = Judge(network.spec)
    for X in hard_points(network.spec, np.random.default_rng(0), 3000):
        with torch.inference_mode():
            y = network(torch.from_numpy(X))
        assert y.dtype == torch.float32
        assert judge.violations(X, y.numpy()) == []
