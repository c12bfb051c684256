"""Torch modules with a certified head behind them: the module's answers where rules allow them, near ones elsewhere."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smle
from smle import Specification, correct
from smle.errors import CertificateError, DataError, ModelFormatError, RuleError
from smle.export import load_onnx
from smle.nearest.oracle import nearest_outputs
from smle.nn import BoxNetwork
from support.sampling import Judge, hard_points
from support.torch_backbones import convolutions

INPUTS = "inputs: {a: [-1, 1], b: [-1, 1]}\n"
RULES = {
    "limits": (
        "outputs: [p, q, s]\nrules:\n  - {name: r, then: -0.2 <= p <= 0.3}\n  - {name: s, when: a >= 0, then: q <= b}\n"
    ),
    "regions that touch": (
        "outputs: [p]\nrules:\n  - {name: r, when: a >= 0.5, then: p <= 0.1}\n"
        "  - {name: s, when: a <= 0.5, then: p >= 0}\n"
    ),
    "coupled": "outputs: [p, q]\nrules:\n  - {name: r, when: a >= 0.2, then: p <= 0.1 and p - q <= 0.05}\n",
    "oblique regions that meet": (
        "outputs: [p, q]\nrules:\n  - {name: r, when: a + 2 * b >= 0.3, then: p + q >= 0}\n"
        "  - {name: s, when: b <= 0.4, then: -1 <= p - q <= 1}\n"
    ),
    "shares": "outputs: [p, q]\nrules:\n  - {name: sum, then: p >= 0 and q >= 0 and p + q <= 1}\n",
    "ramp": "outputs: [p, q]\nrules:\n  - {name: ramp, then: -0.3 <= q - p <= 0.3 + 0.1 * a}\n",
    "either end": "outputs: [p]\nrules:\n  - {name: r, when: a >= 0.2, then: p <= -0.1 or p >= 0.1}\n",
    "labels": (
        "labels: [cat, dog, animal]\nrules:\n  - {name: r, then: cat or dog implies animal}\n"
        "  - {name: s, never_together: [[cat, dog]]}\n"
    ),
    "choices": (
        "choices: {way: [x, y, z]}\nrules:\n  - {name: r, when: a <= 0, then: way != x}\n"
        "  - {name: s, when: b >= 0, then: way == z}\n"
    ),
}


def spec_of(text: str) -> Specification:
    return Specification.from_yaml(INPUTS + text)


def inputs(count: int, seed: int = 0) -> Tensor:
    return 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) - 1


def wild_model(outputs: int, seed: int = 0) -> nn.Sequential:
    """Return a random network whose outputs have mean about 0 and deviation about 1."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(3)
        y = model(inputs(500))
        model[-1].weight.div_(y.std(dim=0)[:, None])
        model[-1].bias.zero_()
        model[-1].bias.copy_(-model(inputs(500)).mean(dim=0))
    return model


def answers(model: nn.Module, X: Tensor) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(X).numpy()
    return found


def breaking(spec: Specification, X: Tensor, y: np.ndarray) -> np.ndarray:
    wrong = np.zeros(len(X), dtype=bool)
    wrong[Judge(spec).judge(X.numpy(), y).rows] = True
    return wrong


@pytest.mark.parametrize("text", RULES.values(), ids=RULES)
def test_no_violation_on_hard_points_and_no_change_where_rules_allow(text: str) -> None:
    spec = spec_of(text)
    model = wild_model(len(spec.targets))
    network = correct(model, spec, inputs(400, seed=1)).eval()
    assert {proved.rule for proved in network.certificate_.check()} == {rule.name for rule in spec.rules}
    judge, before = Judge(spec), 0
    for kind in (np.float32, np.float64):
        for X in hard_points(spec, np.random.default_rng(0), 1500, dtype=kind):
            points = torch.from_numpy(X)
            before += len(judge.judge(X, answers(model, points.float())).rows)
            assert judge.violations(X, answers(network, points)) == []
    assert before > 0  # there was something to correct
    X = inputs(2000, seed=9)
    original, ours = answers(model, X), answers(network, X)
    wrong = breaking(spec, X, original)
    moved = (ours != original).any(axis=1)
    assert moved[wrong].all()
    assert np.abs(ours - original)[~wrong].max() < 1e-5  # within rounding of a border


@pytest.mark.parametrize("name", ["ramp", "shares", "either end", "labels"])
def test_answers_are_the_nearest_allowed_ones(name: str) -> None:
    spec = spec_of(RULES[name])
    model, X = wild_model(len(spec.targets), 3), inputs(500, seed=4)
    original, ours = answers(model, X).astype(np.float64), answers(correct(model, spec).eval(), X)
    if name == "labels":
        nearest = nearest_outputs(spec, X.numpy(), 0.5 * (1 + np.tanh(original / 2)))
        assert ((ours >= 0) == (nearest > 0.5)).mean() > 0.99
    else:
        np.testing.assert_allclose(ours, nearest_outputs(spec, X.numpy(), original), atol=1e-4)


def test_a_module_that_breaks_nothing_stays_as_it_is() -> None:
    spec = spec_of(RULES["ramp"])
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.5], [1.0, 0.4]]))  # q - p = -b / 10
        model.bias.zero_()
    X = inputs(1000)
    np.testing.assert_array_equal(answers(correct(model, spec), X), answers(model, X))


def test_further_arguments_go_to_the_module_and_rules_read_the_features() -> None:
    spec = spec_of(RULES["limits"])
    images, X = torch.rand(60, 1, 8, 8), inputs(60)
    network = correct(convolutions(1, 3), spec, examples=(X, images)).eval()
    y = answers_of_images(network, X, images)
    assert y.shape == (60, 3)
    assert not breaking(spec, X, y).any()
    np.testing.assert_array_equal(network.predict(X, images), y)


def answers_of_images(network: nn.Module, X: Tensor, images: Tensor) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = network(X, images).numpy()
    return found


def test_counts_and_numbers_that_are_none() -> None:
    class Sometimes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, :1] > 0.9, torch.nan, x[:, :1])

    spec = spec_of("outputs: [p]\nrules:\n  - {name: r, then: p >= 0}\n")
    network = correct(Sometimes(), spec, torch.tensor([[0.5, 0.0], [0.3, 0.0], [0.7, 0.0]])).eval()
    X = torch.tensor([[0.95, 0.0], [0.5, 0.0], [-0.5, 0.0]])
    np.testing.assert_allclose(answers(network, X)[:, 0], [0.5, 0.5, 0])  # the median of the examples; as it was; moved
    assert network.counts == {"rows": 3, "moved": 1, "replaced": 1}
    assert "3 rows, 1 moved, 1 replaced" in repr(network)


# --- folders


def test_saved_and_loaded_with_the_module(tmp_path: Path) -> None:
    spec, X = spec_of(RULES["limits"]), inputs(300)
    network = correct(wild_model(3), spec, X).eval()
    network.save(tmp_path / "model")
    again = smle.load(tmp_path / "model", backbone=wild_model(3, seed=5))
    np.testing.assert_array_equal(answers(again, X), answers(network, X))
    again.certificate_.check()
    with pytest.raises(ModelFormatError, match=r"no code\. Bring the module: smle\.load\(folder, backbone=module\)"):
        smle.load(tmp_path / "model")
    with pytest.raises(ModelFormatError, match=r"a module like the stored one \(torch\.nn.*Sequential\)"):
        smle.load(tmp_path / "model", backbone=nn.Linear(2, 3))
    weights = tmp_path / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CertificateError, match="digest"):
        smle.load(tmp_path / "model", backbone=wild_model(3))


@pytest.mark.parametrize("bounds", ["constant", "fixed", "affine"])
def test_safe_networks_are_saved_and_loaded(tmp_path: Path, bounds: str) -> None:
    spec, X = spec_of("outputs: [p]\nrules:\n  - {name: r, when: a >= 0, then: p <= 2 + b}\n"), inputs(300)
    network = smle.project(BoxNetwork(wild_model(4), spec, embedding=4, bounds=bounds))
    network.save(tmp_path / "model")
    again = smle.load(tmp_path / "model", backbone=wild_model(4, seed=5))
    np.testing.assert_array_equal(answers(again, X), answers(network, X))
    np.testing.assert_array_equal(again.predict(X), answers(network, X)[:, 0])
    again.certificate_.check()
    np.testing.assert_array_equal(again.train()(X).numpy(), answers(network, X))  # embeddings are no answers
    with pytest.raises(TypeError, match="learned box"):
        again.set_units(X)
    again.save(tmp_path / "copy")
    third = smle.load(tmp_path / "copy", backbone=wild_model(4, seed=6))
    np.testing.assert_array_equal(answers(third, X), answers(network, X))
    third.to_onnx(tmp_path / "box.onnx")
    found = load_onnx(tmp_path / "box.onnx").predict({"a": X[:, 0].numpy(), "b": X[:, 1].numpy()})
    np.testing.assert_allclose(found["p"], answers(network, X)[:, 0], rtol=1e-4, atol=1e-4)


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    spec = spec_of(RULES["limits"])
    with pytest.raises(ModelFormatError, match=r"bfloat16\. Call model\.float\(\)"):
        correct(wild_model(3).to(torch.bfloat16), spec).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


SIDES = """inputs: {x: [-10, 10]}
outputs: [y]
rules:
  - {name: left, when: x < 0, then: y <= -1}
  - {name: right, when: x >= 0, then: y >= 1}
"""


@pytest.mark.parametrize("kind", ["rules", "box", "stored box"])
def test_a_module_that_works_in_place_changes_nothing_about_what_rules_read(tmp_path: Path, kind: str) -> None:
    """`nn.ReLU(inplace=True)` in front turned -5 into 0 before the head read it: the other rule was obeyed."""
    spec, width = Specification.from_yaml(SIDES), 1 if kind == "rules" else 4
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(1, width))
    network = correct(module, spec) if kind == "rules" else smle.project(BoxNetwork(module, spec, embedding=width))
    if kind == "stored box":
        network.save(tmp_path / "model")
        network = smle.load(tmp_path / "model", backbone=module)
    X = np.linspace(-10, 10, 21, dtype=np.float32)[:, None]
    with torch.no_grad():
        by_call = network(torch.tensor(X)).numpy()[:, 0]
        features = torch.tensor(X)
        if kind == "rules":
            further = network(features, features).numpy()[:, 0]  # the same tensor as a further input
            assert np.array_equal(further, by_call)
    for served in (by_call, by_call if kind == "box" else network.predict(X)):
        assert (served[X[:, 0] < 0] <= -1).all()
        assert (served[X[:, 0] >= 0] >= 1).all()


def test_a_copy_with_other_numbers_is_refused() -> None:
    network = correct(wild_model(3), spec_of(RULES["limits"]))
    again = pickle.loads(pickle.dumps(network))
    np.testing.assert_array_equal(answers(again, inputs(50)), answers(network, inputs(50)))
    tensors = network.head.certificate.tensors
    name = next(name for name in tensors if name.startswith("clips."))
    other = tensors[name]._replace(data=bytes([tensors[name].data[0] ^ 1]) + tensors[name].data[1:])
    network.head.certificate = replace(network.head.certificate, tensors={**tensors, name: other})
    with pytest.raises(CertificateError, match="digest"):
        pickle.loads(pickle.dumps(network))


# --- refusals


@pytest.mark.parametrize(
    ("text", "model", "message"),
    [
        (RULES["coupled"], wild_model(3), r"answers of shape \(\.\.\., 2\).*\(50, 3\)"),
        (RULES["coupled"], nn.LSTM(2, 2), "Got tuple"),
        (RULES["coupled"], nn.Sequential(wild_model(2), nn.Flatten(0)), r"\(100,\)"),
    ],
    ids=["outputs", "tuple", "flat"],
)
def test_answers_of_another_shape_are_refused(text: str, model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correct(model, spec_of(text))(inputs(50))


def test_features_of_another_shape_and_rules_that_are_none_are_refused() -> None:
    network = correct(wild_model(2), spec_of(RULES["coupled"]))
    with pytest.raises(DataError, match=r"\(rows, 2\), the columns a, b\. Got \(50, 3\)"):
        network.predict(np.zeros((50, 3)))
    free = spec_of("outputs: [p, q]\nrules: []\n")
    with pytest.raises(RuleError, match="at least one rule"):
        correct(wild_model(2), free)
    with pytest.raises(RuleError, match="at least one rule"):
        BoxNetwork(nn.Linear(2, 4), free, embedding=4)
    with pytest.raises(TypeError, match="Expected a Specification"):
        correct(wild_model(2), RULES["coupled"])
