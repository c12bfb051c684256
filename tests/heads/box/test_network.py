"""Both networks with any backbone, and torch's own tools around them."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from smle.heads.box.network.assurance import verify
from smle.networks.backbones import MLP
from smle.nn import BoxNetwork, SafeNetwork
from smle.rules import Specification
from smle.training.loop import TrainingOptions, train
from support.safe_networks import BRAKING, EVERYWHERE, ONE_RULE, make_network, make_rows, safe_network, squared
from support.torch_backbones import Recurrent, convolutions

CONTEXT = Specification.from_yaml(
    """\
inputs: {level: [0, 1], mode: [0, 1]}
outputs: [action]
rules:
  - name: range
    then: -1 <= action <= 1
  - name: careful
    when: level >= 0.5
    then: action <= 0.2
"""
)


def sequences(count: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features, padded sequences, lengths, and targets that need the sequence."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(count, 2, generator=generator)
    lengths = torch.randint(1, 9, (count,), generator=generator)
    values = torch.randn(count, 8, 1, generator=generator)
    mask = torch.arange(8) < lengths.unsqueeze(1)
    mean = (values[..., 0] * mask).sum(dim=1) / lengths
    return features, values, lengths, torch.tanh(mean).unsqueeze(1)


def fit(network: SafeNetwork, inputs: tuple[Tensor, ...], y: Tensor, epochs: int = 12) -> float:
    """Train, check, and return the share of the loss that is left."""
    options = TrainingOptions(learning_rate=5e-3, batch_size=64, max_epochs=epochs, verbose=False)
    history = train(network, inputs, y, loss=squared, options=options)
    network.certificate_.check()
    return history.best / history.validation_loss[0]


def test_sequences_of_any_length_train_to_a_certified_model() -> None:
    torch.manual_seed(0)
    features, values, lengths, y = sequences(512)
    network = SafeNetwork(Recurrent(1, 16), CONTEXT, embedding=16)
    assert fit(network, (features, values, lengths), y) < 0.8
    with torch.no_grad():
        answer = network(features, values, lengths)
        assert (answer[features[:, 0] >= 0.5] <= 0.2).all()
        # What stands behind the end of a sequence does not matter.
        noisy = torch.where(torch.arange(8).unsqueeze(1) < lengths[:, None, None], values, 1e3)
        assert torch.allclose(network(features, noisy, lengths), answer, atol=1e-5)


def test_images_train_to_a_certified_model() -> None:
    torch.manual_seed(0)
    features = torch.rand(512, 2)
    images = torch.randn(512, 1, 9, 7)
    images[::2] += 1.0
    y = torch.where(torch.arange(512) % 2 == 0, 0.9, -0.9).unsqueeze(1)
    network = SafeNetwork(convolutions(1, 12), CONTEXT, embedding=12)
    assert fit(network, (features, images), y, epochs=8) < 0.8
    with torch.no_grad():
        assert (network(features, images)[features[:, 0] >= 0.5] <= 0.2).all()


def test_wrong_width_of_the_backbone_is_named() -> None:
    for bounds in ("constant", "fixed"):
        network = BoxNetwork(nn.Linear(2, 5), EVERYWHERE, embedding=6, bounds=bounds)
        with pytest.raises(ValueError, match=r"embedding of shape \(batch, 6\). Got \(3, 5\)"):
            network(torch.zeros(3, 2))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(3, 1), (1, 2), (3, 3), (3,)])
def test_features_of_another_shape_are_refused(training: bool, shape: tuple[int, ...]) -> None:
    network = BoxNetwork(nn.Linear(4, 3), ONE_RULE, embedding=3).train(training)
    with pytest.raises(ValueError, match=r"features of shape \(3, 2\)"):
        network(torch.rand(shape), torch.rand(3, 4))


# --- torch's tools


def test_state_dict_carries_held_heads() -> None:
    network, other = make_network(EVERYWHERE, seed=1), make_network(EVERYWHERE, seed=2)
    network.eval()
    over = network.frozen_heads()
    head = over.heads[0]
    assert head is not None
    half = type(head)(head.W / 2, head.b, V=head.V, fallback=head.fallback)
    network.pin(type(over)(over.bounds, (half,)))
    assert network.pinned
    X, _ = make_rows(EVERYWHERE, 20)
    other.load_state_dict(network.state_dict())
    other.eval()
    assert torch.equal(other(X), network(X))
    np.testing.assert_array_equal(other.frozen_heads().heads[0].W, half.W)  # type: ignore[union-attr]
    other.train()
    assert not other.pinned


@pytest.mark.parametrize(("border", "end"), [("0.5", "2"), ("0.4", "3")])
def test_a_state_of_other_rules_is_refused(border: str, end: str) -> None:
    """Its gate would send rows past the rules of this network."""

    def made(border: str, end: str) -> BoxNetwork:
        rule = f"{{name: r, when: a <= {border}, then: y <= 1}}"
        text = f"{{inputs: {{a: [0, {end}], b: [0, 1]}}, outputs: [y], rules: [{rule}]}}\n"
        return BoxNetwork(nn.Linear(2, 3), Specification.from_yaml(text), embedding=3)

    network, same, other = made("0.4", "2"), made("0.4", "2"), made(border, end)
    network.load_state_dict(same.state_dict())
    with pytest.raises(RuntimeError, match="belongs to a network with other rules"):
        network.load_state_dict(other.state_dict())


def test_held_heads_survive_evaluation_but_not_training() -> None:
    network = make_network(EVERYWHERE)
    X, y = make_rows(EVERYWHERE, 20)
    network.eval()
    over = network.frozen_heads()
    head = over.heads[0]
    assert head is not None
    network.pin(type(over)(over.bounds, (type(head)(head.W * 0, head.b, V=head.V, fallback=head.fallback),)))
    for _ in range(2):
        network.eval()
        assert not network.frozen_heads().heads[0].W.any()  # type: ignore[union-attr]
    fresh = make_network(EVERYWHERE, seed=3)  # in training mode
    fresh.load_state_dict(network.state_dict())
    assert fresh.pinned
    squared(fresh(X), y).mean().backward()
    assert not fresh.pinned


def test_deepcopy_is_independent() -> None:
    network = safe_network(BRAKING, bounds="affine").train()
    X, _ = make_rows(BRAKING, 20)
    first = network(X)
    twin = copy.deepcopy(network)
    assert torch.equal(twin(X), first)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.5)
    assert torch.equal(network(X), first)
    assert not torch.equal(twin(X), first)
    assert verify(network).hold


def compiled_twin(bounds: str, backend: str) -> None:
    network = make_network(ONE_RULE, bounds=bounds)
    twin = copy.deepcopy(network)
    compiled = torch.compile(network, fullgraph=True, backend=backend)
    X, y = make_rows(ONE_RULE, 64)
    for net in (compiled, twin):
        squared(net(X), y).mean().backward()
    for one, two in zip(network.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert torch.allclose(one.grad, two.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns about parts of torch
@pytest.mark.parametrize("bounds", ["fixed", pytest.param("affine", marks=pytest.mark.audit)])
def test_training_is_one_graph_for_compilers(bounds: str) -> None:
    compiled_twin(bounds, "aot_eager")


@pytest.mark.audit
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_training_step() -> None:
    compiled_twin("fixed", "inductor")


def test_mlp_standardizes() -> None:
    backbone = MLP((4,), 3, shift=[1.0, 2.0], scale=[2.0, 4.0])
    assert torch.equal(backbone[0](torch.tensor([[3.0, 6.0]])), torch.ones(1, 2))
    assert backbone(torch.zeros(5, 2)).shape == (5, 3)
