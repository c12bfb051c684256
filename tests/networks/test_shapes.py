"""Shapes of SafeNetwork: whatever stands in front of the rows and behind them, an answer is that to its row alone."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smle
from smle import Specification
from smle.errors import DataError
from smle.nn import SafeNetwork
from support.sampling import Judge

SPEC = Specification.from_yaml("""
inputs: {kind: {categories: [u, v]}, cap: [0, 1]}
outputs: [p, q]
tables:
  most: {key: kind, values: {u: 0.25, v: 2}}
rules:
  - {name: shared, then: p + q <= cap and p >= 0 and q >= 0}
  - {name: of its kind, then: "p <= most[kind]"}
""")
ONE = Specification.from_yaml("{inputs: {a: [0, 1]}, outputs: [y], rules: [{name: cap, then: y <= a}]}\n")


def features(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 2, shape, generator=generator)
    return torch.stack([1.0 - kind, kind, torch.rand(shape, generator=generator)], dim=-1)


def answers(*shape: int, seed: int = 1) -> Tensor:
    return 3 * torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed)) - 1


def passes(given: Tensor, scale: Tensor | None = None) -> Tensor:
    return given if scale is None else given * scale


NETWORK = SafeNetwork(passes, SPEC).eval()


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 2), (0,), (3, 0), (0, 4)])
def test_an_answer_is_that_to_its_row_alone(shape: tuple[int, ...]) -> None:
    x, y = features(*shape), answers(*shape)
    served = NETWORK(x, y)
    assert served.shape == y.shape
    rows = [NETWORK(a, b) for a, b in zip(x.reshape(-1, 3), y.reshape(-1, 2), strict=True)]
    assert torch.equal(served.reshape(-1, 2), torch.stack(rows) if rows else torch.zeros(0, 2))
    assert not rows or not Judge(SPEC).violations(x.reshape(-1, 3).numpy(), served.reshape(-1, 2).numpy())


@pytest.mark.parametrize("shape", [(4, 4), (4, 6), (4, 6, 5), (4, 0)])
def test_features_of_a_sequence_hold_at_each_of_its_steps(shape: tuple[int, ...]) -> None:
    """They stand for the first dimensions, also where sequences have as many steps as there are sequences."""
    x, y = features(4), answers(*shape)
    repeated = torch.stack([x[i].expand(*shape[1:], 3) for i in range(4)])
    assert torch.equal(NETWORK(x, y), NETWORK(repeated, y))


@pytest.mark.parametrize("fill", [float("nan"), 0.0, -1.0])
def test_what_a_mask_leaves_out_is_the_constant_and_no_answer(fill: float) -> None:
    x, y = features(3, 5), answers(3, 5)
    mask = torch.arange(5) < torch.tensor([0, 5, 2])[:, None]
    whole, network = NETWORK(x, y), copy.deepcopy(NETWORK)
    before = dict(network.counts)
    x[~mask], y[~mask] = float("nan"), float("inf")  # padding may be anything, categories included
    served = network(x, y, mask=mask, fill=fill)
    assert torch.equal(served[mask], whole[mask])
    np.testing.assert_array_equal(served[~mask], np.full((8, 2), fill, dtype=np.float32))
    assert {name: network.counts[name] - before[name] for name in ("rows", "replaced")} == {"rows": 7, "replaced": 0}
    np.testing.assert_array_equal(network.predict(x.numpy(), y, mask=mask.numpy(), fill=fill), served)
    assert network(x, y, mask=torch.zeros(3, 5, dtype=torch.bool), fill=0.5).eq(0.5).all()


def test_padding_has_no_gradient_and_no_say_in_the_units() -> None:
    torch.manual_seed(0)
    network = SafeNetwork(nn.Linear(1, 1), ONE, embedding=1).train()
    x = torch.rand(4, 9, 1, requires_grad=True)
    mask = torch.rand(4, 9) < 0.5
    with torch.no_grad():
        x[~mask] = 1e6
    found = network(x, mask=mask, fill=0.0)
    found.square().mean().backward()
    assert float(network.backbone.standardize.shift) <= 1
    assert x.grad is not None
    assert x.grad[~mask].eq(0).all()
    assert x.grad[mask].ne(0).all()


def test_masks_are_compiled_and_exported() -> None:
    x, y, mask = features(3, 5), answers(3, 5), torch.rand(3, 5) < 0.5
    torch._dynamo.reset()
    compiled = torch.compile(NETWORK, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(NETWORK, (x, y), {"mask": mask}).module()
    for other in (mask, ~mask, mask & False):
        wanted = NETWORK(x, y, mask=other)
        for recorded in (compiled, exported):
            np.testing.assert_array_equal(recorded(x, y, mask=other), wanted)


def test_gradients_of_answers_that_move_reach_the_features_of_their_sequence() -> None:
    """y <= a holds at every step of a sequence: each step that is moved, and wanted, adds 1."""
    a, y = torch.full((3, 1), 0.5, requires_grad=True), torch.rand(3, 8, 1, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(8) < torch.tensor([0, 8, 3])[:, None]
    network = SafeNetwork(passes, ONE).eval()
    network(a, y, mask=mask, fill=0.0).sum().backward()
    assert a.grad is not None
    assert a.grad[:, 0].tolist() == pytest.approx(((y[..., 0] > 0.5) & mask).sum(dim=1).tolist(), rel=1e-5)


def test_arguments_of_the_backbone_by_name_in_dicts_and_tuples() -> None:
    x, y = features(4), answers(4)

    class Nested(nn.Module):
        def forward(self, batch: dict[str, Tensor], pair: tuple[Tensor, Tensor] = (), *, shift: float = 0.0) -> Tensor:
            return batch["y"] + sum(pair) + shift

    network = SafeNetwork(Nested(), SPEC).eval()
    wanted = NETWORK(x, y + 1)
    assert torch.equal(network(x, {"y": y}, (torch.zeros(1), torch.ones(1))), wanted)
    assert torch.equal(network(x, {"y": y}, shift=1.0), wanted)
    assert torch.equal(network(features=x, batch={"y": y}, shift=1.0), wanted)
    np.testing.assert_array_equal(network.predict(x, batch={"y": y}, shift=1.0), wanted)


def test_a_function_is_a_backbone_and_a_method_brings_its_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), features(20)
    network = SafeNetwork(layer.forward, SPEC).eval()
    assert [value.shape for value in network.parameters()] == [(2, 3), (2,)]
    assert torch.equal(network(x), SafeNetwork(layer, SPEC).eval()(x))
    network.save(tmp_path / "model")
    again = smle.load(tmp_path / "model", backbone=nn.Linear(3, 2).forward)
    assert torch.equal(again(x), network(x))
    other = copy.deepcopy(network)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    assert torch.equal(again(x), network(x))
    assert not torch.equal(other(x), network(x))


def test_one_output_may_leave_out_its_dimension_under_a_mask() -> None:
    network, a = SafeNetwork(lambda a: 2 * a[..., 0], ONE).eval(), torch.rand(3, 4, 1)
    mask = a[..., 0] < 0.5
    np.testing.assert_array_equal(network(a, mask=mask), torch.where(mask, network(a), torch.nan))
    np.testing.assert_array_equal(network.predict(a, mask=mask), network(a, mask=mask))
    assert network.predict(a[0, :1]).shape == (1,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: NETWORK([x[0], x[1, :2]], y), r"a list of 2 tensors\. Pad .*pad_sequence.*mask="),
        (lambda x, y: NETWORK(torch.nested.nested_tensor([x[0], x[1, :2]]), y), r"a nested tensor.*to_padded_tensor"),
        (
            lambda x, y: NETWORK(x, nn.utils.rnn.pack_sequence([y[0], y[1]])),
            r"return a tensor of floats.*Got a PackedSequence.*return data",
        ),
        (lambda x, y: NETWORK(x, y, mask=torch.ones(3, 4)), r"a tensor of bool, True where.*Got torch\.float32"),
        (lambda x, y: NETWORK(x, y, mask=[True]), "a tensor of bool.*Got list"),
        (lambda x, y: NETWORK(x, y, mask=torch.ones(3).bool()), r"mask of shape \(3, 4\).*Got \(3,\).*expand"),
        (lambda x, y: NETWORK(x, y, mask=torch.ones(3, 4, 2).bool()), r"mask of shape \(3, 4\).*Got \(3, 4, 2\)"),
        (lambda x, y: NETWORK(x, y, size=2), r"passes takes \(given.*Got 2: network\(features, Tensor, size=int\)"),
        (lambda x, y: NETWORK(x[:2, 0], y), r"Got \(2, 3\) and \(3, 4, 2\)"),
        (lambda x, y: NETWORK(x, y[:, 0]), r"Got \(3, 4, 3\) and \(3, 2\)"),
        (lambda x, y: NETWORK(x[:, :1], y), r"Got \(3, 1, 3\) and \(3, 4, 2\)"),
        (lambda x, y: NETWORK(x[:2], y, mask=torch.ones(3, 4).bool()), r"Got \(2, 4, 3\) and \(3, 4, 2\)"),
        (lambda x, y: SafeNetwork(nn.Linear, SPEC), "a module or a function as the backbone. Got the class Linear"),
        (lambda x, y: NETWORK(2 * x, y), "one 1 among zeros"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_does_not_fit_is_said(call: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError, DataError), match=message):
        call(features(3, 4), answers(3, 4))  # type: ignore[operator]
