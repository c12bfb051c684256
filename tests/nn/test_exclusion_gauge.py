"""The gauge for long lists of exclusions: safe for any raw parameters, a step per label, and trainable."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from smle.assurance import certify, verify
from smle.nn.exclusion_gauge import MANY_PAIRS, ExclusionSteps, l1_norms_of_sums
from smle.nn.gauge import Gauge
from smle.rules import CNF, Clause, Label, Literal, NumericInput, Polytope, Row, Rule, Specification, linear
from support.safe_networks import make_network, shake

LABELS = 60


def some_pairs(labels: int, count: int, seed: int = 0) -> npt.NDArray[np.int32]:
    pairs = np.stack(np.triu_indices(labels, 1), axis=1).astype(np.int32)
    return pairs[np.sort(np.random.default_rng(seed).choice(len(pairs), count, replace=False))]


def specification(*, clauses: bool = False, gated: bool = False) -> Specification:
    """Return 1,200 exclusions among 60 labels; with clauses label 0 implies label 1 and label 2 is always on."""
    region = Polytope((Row(linear({0: Fraction(1)}), Fraction(1, 4)),)) if gated else Polytope(())
    excluded = some_pairs(LABELS, MANY_PAIRS + 200)
    excluded = excluded[~((excluded < 3).all(axis=1))]
    rules = [Rule("never together", (region,), CNF((), excluded), "...", "...")]
    if clauses:
        implied = Clause(
            (
                Literal(linear({0: Fraction(1)}), (), Fraction(0), True),
                Literal(linear({1: Fraction(-1)}), (), Fraction(0)),
            )
        )
        on = Clause((Literal(linear({2: Fraction(-1)}), (), Fraction(0)),))
        rules.append(Rule("more", (Polytope(()),), CNF((implied, on)), "...", "..."))
    inputs = tuple(NumericInput(name, Fraction(-1), Fraction(1)) for name in "ab")
    return Specification(inputs, tuple(Label(f"l{i}") for i in range(LABELS)), tuple(rules))


NETWORKS = {
    "constant": make_network(specification()),
    "affine": make_network(specification(), bounds="affine"),
    "pass-through": make_network(specification(), bounds="affine", passthrough=True),
    "gated": make_network(specification(gated=True)),
    "clauses": make_network(specification(clauses=True)),
}


@given(key=st.sampled_from(sorted(NETWORKS)), size=st.floats(-3, 3).map(lambda e: 10.0**e), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_heads_are_proved_for_any_raw_parameters(key: str, size: float, seed: int) -> None:
    assert verify(shake(NETWORKS[key], size, seed)).hold


@pytest.mark.parametrize("key", sorted(NETWORKS))
def test_no_clause_is_made_of_a_pair_and_the_head_is_certified(key: str) -> None:
    network = shake(NETWORKS[key], 2.0, 5)
    assert isinstance(network.heads, Gauge)
    assert network.heads.g.shape[1] <= 2
    assert 0 < network.step() < 1
    assert certify(network).check()


def test_raw_heads_would_break_the_rules() -> None:
    network = shake(NETWORKS["constant"], 2.0, 5)
    network.heads.relaxed = True
    assert not verify(network).hold


def test_each_label_takes_the_least_step_of_its_own_pairs() -> None:
    rng, m = np.random.default_rng(3), 30
    pairs = some_pairs(m - 1, 60)
    room = rng.uniform(0.5, 2.0, m)
    room[4] = -0.2  # its center is on
    rows, tops = rng.normal(size=(m, 5)), rng.normal(size=m)
    expected = np.ones(m)
    for h, k in pairs.tolist():
        t = [0.0 if room[i] < 0 else 1 / np.abs(rows[i]).sum() for i in (h, k)]
        reach = np.abs(t[0] * rows[h] + t[1] * rows[k]).sum() + t[0] * tops[h] + t[1] * tops[k]
        allowed = (t[0] * room[h] + t[1] * room[k]) * (1 - 2.0**-10)
        for label in (h, k):
            if room[label] > 0 and reach > 0:
                expected[label] = min(expected[label], allowed / reach)
    steps = ExclusionSteps(pairs, room=room, tied=np.zeros(m, dtype=bool))
    found = steps(torch.from_numpy(rows), torch.from_numpy(tops), torch.tensor(0.5, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert found[4] == 1.0
    assert found[m - 1] == 1.0
    assert len(np.unique(expected)) > 5


def test_outputs_of_other_clauses_take_one_step() -> None:
    heads = shake(NETWORKS["clauses"], 2.0, 1).heads
    steps = heads.step(NETWORKS["clauses"].box.envelope())
    assert steps is not None
    assert len(steps[0, :3].unique()) == 1
    assert len(steps[0, 3:].unique()) > 5


@pytest.mark.parametrize("count", [40, 3_000])
def test_norms_of_sums_by_either_way(count: int) -> None:
    pairs = torch.from_numpy(some_pairs(100, count).astype(np.int64)).T.contiguous()
    rows = torch.randn(100, 7, dtype=torch.float64)
    found = l1_norms_of_sums(rows, *pairs)
    expected = (rows[pairs[0]] + rows[pairs[1]]).abs().sum(dim=1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("key", sorted(NETWORKS))
def test_every_trained_parameter_gets_a_gradient(key: str) -> None:
    network = shake(NETWORKS[key], 0.7, 1)
    X = 2 * torch.rand(100, 2) - 1
    nn.functional.binary_cross_entropy_with_logits(network(X), (torch.rand(100, LABELS) < 0.1).float()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_gradient_is_that_of_finite_differences() -> None:
    heads = shake(NETWORKS["constant"], 0.5, 4).heads.double()
    envelope = NETWORKS["constant"].box.envelope(torch.float64)
    weight = heads.raw_weight.detach().clone()[:, :, :2].requires_grad_()
    rest = heads.raw_weight.detach().clone()[:, :, 2:]
    mixture = torch.randn(1, LABELS, 8, dtype=torch.float64)

    def total(raw: torch.Tensor) -> torch.Tensor:
        full = torch.cat([raw, rest], dim=2)
        return (torch.func.functional_call(heads, {"raw_weight": full}, (envelope,))[0][0] * mixture).sum()

    assert torch.autograd.gradcheck(total, (weight,), eps=1e-7, atol=1e-3, rtol=1e-3)
