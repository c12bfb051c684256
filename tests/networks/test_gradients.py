"""Gradients through a head are those of the correction: differences of what it serves say the same."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smle
from smle import Specification, correct
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.table import certify_head
from smle.networks.certified_head import CertifiedHead
from smle.nn import BoxNetwork
from support.drawn_rules import alternatives, draw
from support.finite_differences import Agreement, compare, jacobians
from support.random_rules import random_rules

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

INPUTS = "inputs: {a: [-1, 1], b: [-1, 1]}\noutputs: [y, z]\nrules:\n"
MOVING = Specification.from_yaml(
    INPUTS + "  - {name: own, then: y <= a + 0.5}\n  - {name: both, then: y + z <= 1.5 - 0.3 * b}\n"
)


def head_of(spec: Specification, **options: object) -> CertifiedHead:
    return CertifiedHead(certify_head(spec, **options))


def rows(*values: tuple[float, float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


# --- against differences


def drawn(seed: int) -> tuple[Specification, np.ndarray] | None:
    """Draw rules by one of two generators; None: they say nothing."""
    if seed % 2:
        return random_rules(np.random.default_rng(seed))[:2]
    found = draw(seed)
    try:
        return found.spec, found.units
    except RuleError:
        return None


def compared(seeds: range) -> Agreement:
    whole = Agreement(0, 0, 0, 0.0)
    for seed in seeds:
        found = drawn(seed)
        try:
            head = None if found is None else head_of(found[0], scale=found[1])
        except (NotCertifiedError, ContradictionError):
            continue
        if found is not None and head is not None:
            own = compare(head, *found, seed)
            whole = Agreement(*(a + b for a, b in zip(whole[:3], own[:3], strict=True)), max(whole.worst, own.worst))
    return whole


@pytest.mark.parametrize("start", [0, 10, 20, 30])
def test_random_rules(start: int) -> None:
    found = compared(range(start, start + 10))
    assert found.rows > 100
    assert found.agree == found.rows
    assert found.kinks <= 0.02 * found.rows
    assert found.worst <= 1e-3


@pytest.mark.audit
def test_three_hundred_random_rule_sets() -> None:
    found = compared(range(310))
    print(found)
    assert found.rows > 6000
    assert found.agree == found.rows


@pytest.mark.parametrize("seed", range(4))
def test_many_alternatives(seed: int) -> None:
    """More than are tried at once: a search finds the nearest part."""
    rng = np.random.default_rng(seed)
    spec = alternatives("inputs: {x: [0, 1]}\n", rng.normal(size=4), (4, 7), rng)
    found = compare(head_of(spec, scale=np.ones(4)), spec, np.ones(4), seed, count=200)
    assert found.rows > 20
    assert found.agree == found.rows


def test_limits_that_move() -> None:
    head = head_of(MOVING)
    X, t = rows((0.1, 0.2), (0.9, 0.3), (0.5, 0.5), (0.2, -0.4)), rows((3, 0.1), (3, 0.1), (0.1, 0.2), (0.1, 9))
    y, by_inputs, by_answers = jacobians(head, X, t)
    np.testing.assert_allclose(y, [[0.6, 0.1], [1.4, 0.01], [0.1, 0.2], [-3.64, 5.26]], atol=1e-5)
    at_limit = [[[1, 0], [0, 0]], [[1, 0], [-1, -0.3]], [[0, 0], [0, 0]], [[0, -0.15], [0, -0.15]]]
    np.testing.assert_allclose(by_inputs, at_limit, atol=1e-6)
    beside = [[[0, 0], [0, 1]], [[0, 0], [0, 0]], [[1, 0], [0, 1]], [[0.5, -0.5], [-0.5, 0.5]]]
    np.testing.assert_allclose(by_answers, beside, atol=1e-6)


def test_an_output_at_its_limit_beside_others_that_are_repaired() -> None:
    names = "inputs: {a: [-1, 1], b: [-1, 1]}\noutputs: [y, z, w]\nrules:\n"
    head = head_of(
        Specification.from_yaml(
            names + "  - {name: own, then: y <= 2 * a + 0.5}\n  - {name: both, then: z + w <= 1.5 - 0.3 * b}\n"
        )
    )
    _, by_inputs, by_answers = jacobians(head, rows((0.1, 0.2), (0.1, 0.2)), torch.tensor([[3.0, 9, 9], [-1, 9, 9]]))
    shared = [[0, -0.15], [0, -0.15]]
    np.testing.assert_allclose(by_inputs, [[[2, 0], *shared], [[0, 0], *shared]], atol=1e-6)
    halves = [[0, 0.5, -0.5], [0, -0.5, 0.5]]
    np.testing.assert_allclose(by_answers, [[[0, 0, 0], *halves], [[1, 0, 0], *halves]], atol=1e-6)


def test_the_metric_is_that_of_the_repair() -> None:
    """In units of 1 and 100 the second output takes nearly all of the move, and of the derivative."""
    head = head_of(MOVING, scale=np.array([1.0, 100.0]))
    _, by_inputs, by_answers = jacobians(head, rows((0.9, 0.0)), rows((1.0, 900.0)))
    share = 1e-4 / (1 + 1e-4)
    np.testing.assert_allclose(by_answers[0], [[1 - share, -share], [share - 1, share]], rtol=1e-4)
    np.testing.assert_allclose(by_inputs[0], [[0, -0.3 * share], [0, -0.3 * (1 - share)]], rtol=1e-4)


def test_many_limits_are_looked_up() -> None:
    rules = "".join(
        f"  - {{name: r{i}, when: {i / 60} <= a <= {(i + 1) / 60}, then: 0 <= y <= 1 + {i / 10} * b}}\n"
        for i in range(60)
    )
    spec = Specification.from_yaml("inputs: {a: [0, 1], b: [0, 1]}\noutputs: [y]\nrules:\n" + rules)
    found = compare(head_of(spec), spec, np.array([20.0]), 0, count=200)
    assert found.rows > 100
    assert found.agree == found.rows


TABLE = """
inputs: {kind: {categories: [low, high]}, a: [0, 1]}
tables: {cap: {key: kind, values: {low: 1, high: 2}}}
outputs: [y]
rules: [{name: cap, then: "y <= cap[kind] + 0.5 * a"}]
"""


def test_categories_have_no_derivative_and_numbers_beside_them_do() -> None:
    spec = Specification.from_yaml(TABLE)
    X = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])
    y, by_inputs, by_answers = jacobians(head_of(spec), X, torch.tensor([[9.0], [9.0]]))
    np.testing.assert_allclose(y, [[1.25], [2.25]], atol=1e-6)
    np.testing.assert_allclose(by_inputs, [[[0, 0, 0.5]], [[0, 0, 0.5]]])
    assert not by_answers.any()


def test_inputs_beyond_the_domain_are_clamped_and_have_none() -> None:
    _, by_inputs, _ = jacobians(head_of(MOVING), rows((1.5, 0.2), (0.1, -3)), rows((9, -9), (9, 9)))
    assert not by_inputs[0, :, 0].any()
    assert by_inputs[1, :, 0].any()
    assert not by_inputs[1, :, 1].any()


def test_answers_that_are_no_numbers_have_none() -> None:
    t = torch.tensor([[float("nan"), 9], [float("inf"), -1], [1e35, 0]])
    for spec in (MOVING, Specification.from_yaml(INPUTS + "  - {name: own, then: y <= a + 0.5}\n")):
        _, by_inputs, by_answers = jacobians(head_of(spec), rows((0.9, 0.1), (0.9, 0.1), (0.9, 0.1)), t)
        assert not by_answers[:, :, 0].any()
        assert np.isfinite(by_inputs).all()
        assert np.isfinite(by_answers).all()


@pytest.mark.parametrize("share", [1.0, 2.0**-6])
def test_safe_answers_move_with_inputs_alone(share: float) -> None:
    """Where the stored safe answer, or a point on the way to it, serves a row."""
    spec, unit = random_rules(np.random.default_rng(41))[:2]  # its safe answer is affine
    program = head_of(spec, scale=unit).program
    rng = np.random.default_rng(0)
    X, t = rng.uniform(0.3, 0.7, (40, len(spec.columns))), (9 * rng.normal(size=(40, len(unit))) * unit).astype("f")
    rows = np.flatnonzero(program.explained(X, t)[1] == 1)
    assert len(rows) > 5
    assert program.stored["safe.slope"].any()
    X, t = X[rows], t[rows]

    def served(X: np.ndarray) -> np.ndarray:
        return (1 - share) * program(X, t) + share * program._safe(X, program.bits_of(X)).astype(np.float64)

    step = 2.0**-7 * rng.normal(size=X.shape)
    slopes = program.slopes(X, t, served(X).astype("f"))
    differences = (served(X + step) - served(X - step)) / 2
    agree = np.abs(slopes.push(step, None) - differences) <= 1e-5 * unit * (1 + np.abs(differences / unit))
    assert agree.all(axis=1).mean() > 0.8  # others cross a border
    inputs, answers = slopes.pull(np.ones(t.shape), X.shape[1])
    assert inputs.any()
    assert answers.any() == (share < 1)


def test_labels_and_steps_pass_what_is_kept() -> None:
    labels = Specification.from_yaml(
        "inputs: {a: [0, 1]}\nlabels: [p, q]\nrules: [{name: r, then: 'at_most_one(p, q)'}]\n"
    )
    _, _, by_answers = jacobians(head_of(labels), torch.zeros(2, 1), rows((3, 1), (3, -1)))
    np.testing.assert_array_equal(by_answers, [[[1, 0], [0, 0]], [[1, 0], [0, 1]]])
    steps = Specification.from_yaml(
        "inputs: {a: [0, 1]}\noutputs: {n: {integer: true}}\nrules: [{name: r, then: 0 <= n <= 5}]\n"
    )
    y, _, by_answers = jacobians(head_of(steps), torch.zeros(3, 1), torch.tensor([[3.0], [3.2], [8.0]]))
    np.testing.assert_array_equal(y[:, 0], [3, 3, 5])
    np.testing.assert_array_equal(by_answers[:, 0, 0], [1, 0, 0])


# --- formats, modes, twice


class Linear(nn.Module):
    """Answers far off, so that nearly all are moved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[2.0, -1.0], [1.0, 4.0]]))
            self.layer.bias.copy_(torch.tensor([1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def gradients(network: nn.Module, X: Tensor, *, autocast: bool = False) -> list[Tensor]:
    X = X.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = network(X)
    (y * torch.tensor([1.0, -2.0])).sum().backward()
    return [X.grad, *(parameter.grad for parameter in network.parameters())]


POINTS = torch.tensor([[0.5, 0.25], [0.75, -0.5], [-0.25, 0.5], [0.0, 0.125]])


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_formats_of_backbone_and_features_and_autocast(kind: torch.dtype) -> None:
    expected = gradients(correct(Linear(), MOVING), POINTS)
    assert expected[0].abs().max() > 0.1
    of_features = gradients(correct(Linear(), MOVING), POINTS.to(kind))
    assert of_features[0].dtype is kind
    of_backbone = gradients(correct(Linear().to(kind), MOVING), POINTS)
    for found in (of_features, of_backbone, gradients(correct(Linear(), MOVING), POINTS, autocast=True)):
        for own, other in zip(expected, found, strict=True):
            torch.testing.assert_close(own, other.to(own.dtype), rtol=2e-2, atol=2e-2)


def test_second_derivatives_are_those_of_affine_pieces() -> None:
    network = correct(Linear(), MOVING)
    jacobian = torch.func.jacrev(network)(POINTS).reshape(8, 8)
    twice = 2 * jacobian.T @ jacobian  # the network is affine on pieces, too

    def squared(X: Tensor) -> Tensor:
        return (network(X) ** 2).sum()

    torch.testing.assert_close(torch.func.hessian(squared)(POINTS).reshape(8, 8), twice)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(squared))(POINTS).reshape(8, 8), twice)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacfwd(squared))(POINTS).reshape(8, 8), twice)
    torch.testing.assert_close(torch.autograd.functional.hessian(squared, POINTS).reshape(8, 8), twice)


def test_gradients_outlive_the_network() -> None:
    network = correct(Linear(), MOVING)
    X = POINTS.clone().requires_grad_()
    total = network(X).sum()
    del network
    gc.collect()
    total.backward()
    assert X.grad.abs().max() > 0


def test_any_leading_dimensions() -> None:
    head, X, t = head_of(MOVING), POINTS, 3 * POINTS.flip(0) + 1
    whole = jacobians(head, X, t)[1:]
    X, t = X.reshape(2, 1, 2, 2).requires_grad_(), t.reshape(2, 1, 2, 2).requires_grad_()
    head(X, t).sum().backward()
    for own, grad in zip(whole, (X.grad, t.grad), strict=True):
        torch.testing.assert_close(grad.reshape(4, 2), torch.from_numpy(own.sum(axis=1)).float())


def test_descent_through_the_head_finds_the_best_allowed_answer() -> None:
    """Only inputs move here: without the derivative of the limits nothing would."""
    head, X = head_of(MOVING), torch.tensor([[0.9, 0.9]], requires_grad=True)
    step = torch.optim.SGD([X], lr=0.1)
    for _ in range(200):
        step.zero_grad()
        ((head(X, torch.tensor([[5.0, -5.0]])) - torch.tensor([[0.25, -5.0]])) ** 2).sum().backward()
        step.step()
    np.testing.assert_allclose(X.detach()[0, 0], -0.25, atol=1e-3)


# --- boxes

BOXED = Specification.from_yaml(
    "inputs: {a: [-1, 1], b: [-1, 1]}\noutputs: [p, q]\nrules:\n  - {name: r, when: a >= 0.2, then: p <= 0.3 + b}\n"
)


@pytest.mark.parametrize("bounds", ["constant", "fixed", "affine", "network"])
def test_boxes(bounds: str, tmp_path: object) -> None:
    """The network, which trains, and what is stored of it say the same; differences do, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        backbone = nn.Linear(2, 4)
        network = BoxNetwork(backbone, BOXED, embedding=4, bounds=bounds)
        with torch.no_grad():
            backbone.weight.mul_(8)
            for parameter in network.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    network = smle.project(network)
    network.save(f"{tmp_path}/model")
    loaded = smle.load(f"{tmp_path}/model", backbone=nn.Linear(2, 4))
    X = 1.8 * torch.rand(200, 2, generator=torch.Generator().manual_seed(0)) - 0.9
    one, two = (torch.func.vmap(torch.func.jacrev(lambda row, n=n: n(row[None])[0]))(X) for n in (network, loaded))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    forward = torch.func.vmap(torch.func.jacfwd(lambda row: loaded(row[None])[0]))(X)
    torch.testing.assert_close(forward, two, rtol=1e-4, atol=1e-5)
    step = torch.randn(X.shape, generator=torch.Generator().manual_seed(1)) / 64
    with torch.no_grad():
        up, down, here = loaded(X + step), loaded(X - step), loaded(X)
    smooth = (up + down - 2 * here).abs().amax(dim=1) < 1e-5
    assert smooth.float().mean() > 0.5
    expected = torch.einsum("nij,nj->ni", two, 2 * step)
    torch.testing.assert_close((up - down)[smooth], expected[smooth], rtol=1e-3, atol=3e-5)
    values = loaded.head.program.values(X.numpy(), loaded.backbone(X).detach().numpy())
    assert (values["clipped"] != loaded.backbone(X).detach().numpy())[smooth.numpy()].any()
