"""Bounds by ReLU networks: envelopes enclose, MILP and splitting agree."""

from __future__ import annotations

import numpy as np
import pytest

from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head, Layer
from smle.heads.box.proof.verdict import Holds, NotProved, Unknown
from smle.heads.box.proof.verify import verify
from smle.heads.box.proof.worst_case import WidenedBox
from smle.regions.geometry import Domain, Region
from smle.rules import Literals
from support.formulations import worst_clause_milp
from support.guarantee_instances import Instance, random_instance


def random_bounds(seed: int, *, n: int = 3, shift: float = 3.0) -> Bounds:
    rng = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int, shift: float = 0.0) -> Layer:
        return Layer(rng.normal(size=(outputs, inputs)) * 0.6, rng.normal(size=outputs) * 0.5 + shift)

    hidden, lower, upper = layer(2, 4), layer(4, n), layer(4, n, shift)
    return Bounds(lower.bias, upper.bias, lower.weight, upper.weight, (hidden,))


def test_envelope_encloses_what_the_deployed_clip_gives() -> None:
    domain = Domain(-np.ones(2), np.ones(2), np.ones(2))
    crossings = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        bounds = random_bounds(seed, shift=rng.uniform(-1, 3))
        envelope = WidenedBox.of(bounds, domain)
        for x in rng.uniform(-1, 1, size=(50, 2)):
            lower, upper = bounds.at(x)
            z = rng.normal(size=3) * 5
            t = np.where(z <= upper, z, upper)
            clipped = np.where(t >= lower, t, lower)
            crossings += int((lower > upper).sum())
            low, high = envelope.at(x)
            assert (low <= clipped + 1e-9).all()
            assert (high >= clipped - 1e-9).all()
    assert crossings > 50


def with_networks(seed: int, *, literals: int = 1) -> Instance:
    base = random_instance(seed, literals=literals)
    rng = np.random.default_rng(seed + 1000)
    heads = tuple(
        Head(rng.normal(size=(2, 3)) * 0.3, rng.normal(size=2), V=rng.normal(size=(2, 2)) * 0.2) for _ in range(2)
    )
    return Instance(base.spec, base.cells, FrozenHeads(random_bounds(seed), heads))


@pytest.mark.parametrize("literals", [1, 2])
def test_verdicts_about_networks_agree_with_milp_and_samples(literals: int) -> None:
    kinds, corners = set(), 0
    for seed in range(5):
        instance = with_networks(seed, literals=literals)
        domain = Domain.of(instance.spec)
        rng = np.random.default_rng(seed)
        for obligation, verdict in verify(instance.over, instance.spec, instance.cells):
            kinds.add(type(verdict))
            head = instance.over.heads[obligation.head]
            assert head is not None
            clause = instance.spec.rules[obligation.rule].requirement.clauses[obligation.clause]
            arrays = Literals.of_clauses(clause, 2, 2)
            active = [*instance.cells[obligation.head]]
            region = Region.of(instance.cells, instance.spec, active, domain=domain)
            milp, _, _ = worst_clause_milp(arrays, instance.over.bounds, head, region)
            if isinstance(verdict, Holds):
                assert milp.objective <= -verdict.margin + 1e-5
                for x in rng.uniform(-1, 1, size=(30, 2)):
                    if (region.A @ x > region.a).any():
                        continue
                    lower, upper = instance.over.bounds.at(x)
                    z = np.where(rng.random(3) < 0.5, lower, np.maximum(lower, upper))
                    y = head.W @ z + head.b + head.V @ x
                    assert (arrays.g @ y + arrays.s @ x - arrays.h).min() <= -verdict.margin + 1e-6
            elif isinstance(verdict, NotProved):
                real = verdict.multipliers is None  # a corner that the bounds reach, not only what is around them
                assert milp.objective >= -1e-4 or not real
                corners += real
            else:
                assert isinstance(verdict, Unknown)
    assert {Holds, NotProved} <= kinds
    assert corners
