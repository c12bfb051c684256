"""SafeNetwork: plain training, answers that obey, in any units; what it says about wrong arguments; its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import smle
from smle import Specification
from smle.errors import DataError, RuleError
from smle.export import check_onnx, load_onnx
from smle.networks.units import DataScale
from smle.nn import SafeNetwork
from smle.training import TrainingOptions, train
from support.safe_networks import squared
from support.sampling import Judge
from support.torch_backbones import Recurrent

LOADS = Specification.from_yaml("""
inputs: {last: [0, 120000], temperature: [-20, 40]}
outputs: [load]
rules:
  - {name: line, then: 0 <= load <= 115000}
  - {name: ramp, then: -9000 <= load - last <= 9000}
""")


def body(width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh())


def rows(count: int = 400) -> tuple[Tensor, Tensor]:
    """Return loads in kW around 60,000, with a deviation of about 10,000."""
    generator = torch.Generator().manual_seed(0)
    last = 60_000 + 10_000 * torch.randn(count, 1, generator=generator).clamp(-3, 3)
    temperature = 60 * torch.rand(count, 1, generator=generator) - 20
    change = 4000 * torch.sin(temperature / 10)
    return torch.cat([last, temperature], dim=1), last + change


def score(network: nn.Module, X: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 1 - float(squared(network(X), y).mean() / y.var())


def by_hand(network: SafeNetwork, X: Tensor, y: Tensor) -> SafeNetwork:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        squared(network(X), y).mean().backward()
        optimizer.step()
    return network.eval()


def by_loop(network: SafeNetwork, X: Tensor, y: Tensor) -> SafeNetwork:
    options = TrainingOptions(learning_rate=1e-2, batch_size=64, max_epochs=40, verbose=False)
    train(network, X, y, loss=squared, options=options)
    return network


def by_loader(network: SafeNetwork, X: Tensor, y: Tensor) -> SafeNetwork:
    options = TrainingOptions(learning_rate=1e-2, max_epochs=40, verbose=False)
    train(network, list(zip(X.split(64), y.split(64), strict=True)), loss=squared, options=options)
    return network


@pytest.mark.parametrize("way", [by_hand, by_loop, by_loader])
@pytest.mark.parametrize("example", [False, True])
def test_units_of_any_size_are_learned_whoever_trains(way: object, example: bool) -> None:
    X, y = rows()
    network = SafeNetwork(body(), LOADS, embedding=16, example=(X, y) if example else None)
    way(network, X, y)  # type: ignore[operator]
    assert score(network, X, y) > 0.98
    assert Judge(LOADS).violations(X.numpy(), network(X).detach().numpy()) == []
    network.certificate_.check()


def test_units_come_from_data_or_else_from_the_rules() -> None:
    X, y = rows()
    inner = SafeNetwork(body(), LOADS, embedding=16, example=(X, y)).backbone
    np.testing.assert_allclose(inner.standardize.shift, X.mean(dim=0), rtol=1e-5)
    np.testing.assert_allclose(inner.scale, y.std(dim=0, correction=0), rtol=1e-5)
    frame = DataScale.of_rules(LOADS)
    np.testing.assert_allclose(frame.x_shift, [60_000, 10])
    np.testing.assert_allclose([*frame.y_shift, *frame.y_scale], [60_000, 34_500])  # -9,000 <= load <= 129,000
    coupled = Specification.from_yaml(
        "{inputs: {a: [0, 1]}, outputs: [p, q, r], rules: [{name: s, then: p + 2 * q <= 8 and q >= 1}]}\n"
    )
    frame = DataScale.of_rules(coupled)
    np.testing.assert_allclose(frame.y_shift, [0, 0, 0])
    np.testing.assert_allclose(frame.y_scale, [4, 1, 1])
    fresh = SafeNetwork(body(), LOADS, embedding=16)
    fresh(X)  # a first batch
    np.testing.assert_allclose(fresh.backbone.standardize.shift, X.mean(dim=0), rtol=1e-5)
    fresh(X[:100] + 5)
    np.testing.assert_allclose(fresh.backbone.standardize.shift, X.mean(dim=0), rtol=1e-5)
    other = SafeNetwork(body(), LOADS, embedding=16)
    other.load_state_dict(fresh.state_dict())
    other(X[:100] + 5)
    np.testing.assert_allclose(other.backbone.standardize.shift, X.mean(dim=0), rtol=1e-5)


def test_answers_without_a_gradient_obey_in_every_mode() -> None:
    X, _ = rows()
    network, judge = SafeNetwork(nn.Linear(2, 1), LOADS), Judge(LOADS)
    plain = network(X)
    assert torch.equal(plain, network.backbone(X))
    assert plain.requires_grad
    assert judge.violations(X.numpy(), plain.detach().numpy()) != []
    with torch.no_grad():
        assert judge.violations(X.numpy(), network(X).numpy()) == []
    assert judge.violations(X.numpy(), network.eval()(X).detach().numpy()) == []
    frozen = SafeNetwork(nn.Linear(2, 1).requires_grad_(False), LOADS)
    assert judge.violations(X.numpy(), frozen(X).numpy()) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net, X, s: net(s), r"features of shape \(\.\.\., 2\), the columns last, temperature, as the first"),
        (lambda net, X, s: net(X.numpy(), s), r"features as a tensor.*Got ndarray.*network\.predict"),
        (
            lambda net, X, s: net(X, s, None, s),
            r"Recurrent takes \(sequences.*lengths.*Got 3: network\(features, Tensor",
        ),
        (lambda net, X, s: net(X[:5], s), r"Got \(5, 2\) and \(60, 1\)"),
    ],
)
def test_wrong_arguments_are_named(call: object, message: str) -> None:
    X, _ = rows(60)
    network = SafeNetwork(Recurrent(1, 8), LOADS, embedding=8)
    with pytest.raises((TypeError, ValueError), match=message):
        call(network, X, torch.rand(60, 5, 1))  # type: ignore[operator]


def test_what_cannot_be_built_is_said() -> None:
    X, y = rows(60)
    with pytest.raises(ValueError, match=r"an embedding of shape \(\.\.\., 7\)\. Got \(60, 16\)"):
        SafeNetwork(body(), LOADS, embedding=7)(X)
    with pytest.raises(ValueError, match="at least one unit"):
        SafeNetwork(body(), LOADS, embedding=0)
    with pytest.raises(DataError, match="the columns last, temperature"):
        SafeNetwork(body(), LOADS, embedding=16, example=(X[:, :1], y))
    with pytest.raises(DataError, match="1 output columns"):
        SafeNetwork(body(), LOADS, embedding=16, example=(X, X))
    free = Specification.from_yaml("{inputs: {a: [0, 1]}, outputs: [y], rules: []}\n")
    with pytest.raises(RuleError, match="at least one rule"):
        SafeNetwork(nn.Linear(1, 1), free)
    with pytest.raises(TypeError, match="from_yaml"):
        SafeNetwork(nn.Linear(1, 1), "rules.yaml")


def test_saved_loaded_and_exported_with_its_units(tmp_path: Path) -> None:
    X, y = rows()
    table = pd.DataFrame(X.numpy(), columns=["last", "temperature"])
    network = SafeNetwork(body(), LOADS, embedding=16, example=(table, y)).eval()
    network.save(tmp_path / "model")
    again = smle.load(tmp_path / "model", backbone=body())
    np.testing.assert_array_equal(again.predict(table), network.predict(X))
    again.certificate_.check()
    again.train()(X)  # units stay
    np.testing.assert_array_equal(again.predict(table), network.predict(X))
    network.to_onnx(tmp_path / "model.onnx")
    check_onnx(tmp_path / "model.onnx")
    found = load_onnx(tmp_path / "model.onnx").predict(table)["load"]
    np.testing.assert_allclose(found, network.predict(table), rtol=1e-5)


def test_further_arguments_are_exported_beside_the_features(tmp_path: Path) -> None:
    X, _ = rows(20)
    sequences = torch.rand(20, 5, 1)
    network = SafeNetwork(nn.Sequential(nn.Flatten(), nn.Linear(5, 8)), LOADS, embedding=8)
    network.to_onnx(tmp_path / "model.onnx", example=(sequences,))
    check_onnx(tmp_path / "model.onnx")
    assert network.training
    assert network.predict(X, sequences).shape == (20,)


class Slope(nn.Module):
    """Answers with a derivative that it takes itself, as networks of energies and forces do."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad((1e9 * self.energy(x) ** 2).sum(), x, create_graph=True)
        return slope[:, :1]


def test_modules_that_ask_for_gradients_themselves_are_held_to_the_rules_without_gradients():
    X, _ = rows()
    network, judge = SafeNetwork(Slope(), LOADS).train(), Judge(LOADS)
    assert network(X).requires_grad
    with torch.no_grad():
        assert not judge.violations(X.numpy(), network(X).numpy())
    assert not judge.violations(X.numpy(), network.predict(X)[:, None])
