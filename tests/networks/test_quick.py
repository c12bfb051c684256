"""Backbones without the calls of modules: the same numbers, and the modules themselves wherever they are needed."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from smle.heads.box.network.assurance import certify, project
from smle.heads.box.network.box_network import BoxNetwork
from smle.networks.backbones import Quick
from smle.nn import MLP, SafeNetwork
from support.safe_networks import BRAKING, make_rows


@pytest.fixture
def deployed() -> SafeNetwork:
    network = SafeNetwork(MLP((8,), 2, shift=[100.0, 20.0, 0.5], scale=[50.0, 10.0, 0.3]), BRAKING).eval()
    assert network._quick is not None
    return network


def answers(network: nn.Module, rows: int = 32) -> torch.Tensor:
    features, _ = make_rows(BRAKING, rows)
    with torch.no_grad():
        return torch.cat([network(features), *(network(row.unsqueeze(0)) for row in features)])


def by_modules(network: SafeNetwork | BoxNetwork) -> torch.Tensor:
    slow = copy.deepcopy(network)
    slow._quick = None
    return answers(slow)


def test_the_numbers_are_those_of_the_modules(deployed):
    assert torch.equal(answers(deployed), by_modules(deployed))


def test_copies_and_loaded_networks_use_their_own_weights(deployed):
    before = answers(deployed)
    buffer = io.BytesIO()
    torch.save(deployed, buffer)
    buffer.seek(0)
    others = [copy.deepcopy(deployed), pickle.loads(pickle.dumps(deployed)), torch.load(buffer, weights_only=False)]
    for other in others:
        assert torch.equal(answers(other), before)
        with torch.no_grad():
            other.backbone[1].weight.mul_(0.5)
        assert torch.equal(answers(other), by_modules(other))
        assert not torch.equal(answers(other), before)
    others[0].load_state_dict(deployed.state_dict())
    assert torch.equal(answers(others[0]), before)
    assert torch.equal(answers(deployed), before)


def test_exchanged_tensors_and_layers_are_seen(deployed):
    deployed.backbone[1].weight = nn.Parameter(0.5 * deployed.backbone[1].weight)
    assert torch.equal(answers(deployed), by_modules(deployed))
    width = deployed.backbone[-1].out_features
    deployed.backbone[-1] = nn.Linear(deployed.backbone[-1].in_features, width)
    assert torch.equal(answers(deployed), by_modules(deployed))


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_are_called(deployed, everywhere):
    seen = []

    def hook(module, inputs, output):
        seen.append(type(module))

    register = (
        nn.modules.module.register_module_forward_hook if everywhere else deployed.backbone[1].register_forward_hook
    )
    handle = register(hook)
    try:
        answers(deployed, rows=1)
    finally:
        handle.remove()
    assert nn.Linear in seen
    seen.clear()
    answers(deployed, rows=1)
    assert not seen


@pytest.mark.parametrize("bounds", ["constant", "fixed"])
def test_learned_boxes_are_quick_too(bounds):
    backbone = nn.Sequential(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), nn.Linear(8, 4))
    network = BoxNetwork(backbone, BRAKING, embedding=4, bounds=bounds).eval()
    assert network._quick is not None
    assert torch.equal(answers(network), by_modules(network))
    backbone[0][0] = nn.Linear(3, 8)
    assert torch.equal(answers(network), by_modules(network))
    safe = project(network)
    certified = SafeNetwork.of(safe.backbone, safe.spec, certify(safe)).eval()
    assert certified._quick is not None
    assert torch.equal(answers(certified), answers(safe))
    assert torch.equal(answers(certified), by_modules(certified))


def test_an_embedding_of_one_unit_is_not_repeated():
    network = BoxNetwork(nn.Sequential(nn.Linear(3, 1)), BRAKING, embedding=4, bounds="constant").eval()
    with pytest.raises(ValueError, match="Expected the backbone to return an embedding"):
        answers(network)


def test_other_layers_are_left_to_themselves():
    assert Quick.of(nn.Sequential(nn.Linear(2, 2), nn.Tanh())) is None
    assert Quick.of(nn.Sequential(nn.Sequential(nn.Tanh()))) is None
    assert Quick.of(nn.Linear(2, 2)) is None
    assert Quick.of(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))) is None
