"""Bounds by ReLU networks: relaxations enclose, MILP and splitting agree, rounding stays inside its bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from guarantee_instances import Instance, random_instance

from smle.guarantees.proof.milp import worst_clause_milp
from smle.guarantees.proof.overapproximation import Head, Layer, NetworkBounds, Overapproximation
from smle.guarantees.proof.refine import bounds_at
from smle.guarantees.proof.relaxation import network_error, relax, unit_intervals
from smle.guarantees.proof.verdict import Holds, NotProved, Unknown
from smle.guarantees.proof.verify import verify
from smle.guarantees.proof.worst_case import Envelope, Literals
from smle.guarantees.regions.geometry import Domain, Region


def random_network(rng: np.random.Generator, widths: list[int], shift: float = 0.0) -> tuple[Layer, ...]:
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers.append(Layer(rng.normal(size=(outputs, inputs)) * 0.6, rng.normal(size=outputs) * 0.5))
    last = layers[-1]
    layers[-1] = Layer(last.weight, last.bias + np.float32(shift))
    return tuple(layers)


def random_bounds(seed: int, *, n: int = 3, shift: float = 3.0) -> NetworkBounds:
    rng = np.random.default_rng(seed)
    return NetworkBounds(random_network(rng, [2, 4, n]), random_network(rng, [2, 4, n], shift))


def forward(layers: tuple[Layer, ...], x: np.ndarray, dtype: type) -> np.ndarray:
    value = x.astype(dtype)
    for depth, layer in enumerate(layers):
        value = np.maximum(value, 0) if depth else value
        value = (layer.weight.astype(dtype) @ value + layer.bias.astype(dtype)).astype(dtype)
    return value


def test_relaxations_and_intervals_enclose_the_network() -> None:
    low, high = -np.ones(2), np.ones(2)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        layers = random_network(rng, [2, 5, 4, 3])
        below, above = relax(layers, low, high)
        lowest, highest = unit_intervals(layers, low, high)[-1]
        for x in rng.uniform(low, high, size=(60, 2)):
            y = forward(layers, x, np.float64)
            assert (below.slope @ x + below.offset <= y + 1e-9).all()
            assert (above.slope @ x + above.offset >= y - 1e-9).all()
            assert (lowest <= y + 1e-9).all()
            assert (highest >= y - 1e-9).all()


def test_rounding_of_networks_stays_inside_its_bound() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        layers = random_network(rng, [2, 8, 8, 3])
        bound = network_error(layers, np.ones(2))
        for x in rng.uniform(-1, 1, size=(40, 2)).astype(np.float32):
            error = np.abs(forward(layers, x, np.float32).astype(np.float64) - forward(layers, x, np.float64))
            assert (error <= bound).all()


def test_envelope_encloses_what_the_deployed_clip_gives() -> None:
    domain = Domain(-np.ones(2), np.ones(2), np.ones(2))
    crossings = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        bounds = random_bounds(seed, shift=rng.uniform(-1, 3))
        envelope = Envelope.of(bounds, domain)
        for x in rng.uniform(-1, 1, size=(50, 2)):
            lower, upper = bounds_at(bounds, x)
            z = rng.normal(size=3) * 5
            t = np.where(z >= lower, z, lower)
            clipped = np.where(t <= upper, t, upper)
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
    return Instance(base.spec, base.arrangement, Overapproximation(random_bounds(seed), heads))


@pytest.mark.parametrize("literals", [1, 2])
def test_verdicts_about_networks_agree_with_milp_and_samples(literals: int) -> None:
    kinds = set()
    for seed in range(5):
        instance = with_networks(seed, literals=literals)
        domain = Domain.of(instance.spec)
        rng = np.random.default_rng(seed)
        for obligation, verdict in verify(instance.over, instance.spec, instance.arrangement):
            kinds.add(type(verdict))
            head = instance.over.heads[obligation.head]
            assert head is not None
            clause = instance.spec.rules[obligation.rule].requirement.clauses[obligation.clause]
            arrays = Literals.of(clause, 2, 2)
            active = [*instance.arrangement.cells[obligation.head]]
            region = Region.of(instance.arrangement, instance.spec, active, domain=domain)
            milp, _, _ = worst_clause_milp(arrays, instance.over.bounds, head, region)
            if isinstance(verdict, Holds):
                assert milp.objective <= -verdict.margin + 1e-5
                for x in rng.uniform(-1, 1, size=(30, 2)):
                    if (region.A @ x > region.a).any():
                        continue
                    lower, upper = bounds_at(instance.over.bounds, x)
                    z = np.where(rng.random(3) < 0.5, np.minimum(lower, upper), upper)
                    y = head.W @ z + head.b + head.V @ x
                    assert (arrays.g @ y + arrays.s @ x - arrays.h).min() <= -verdict.margin + 1e-6
            elif isinstance(verdict, NotProved):
                assert milp.objective >= -1e-4
            else:
                assert isinstance(verdict, Unknown)
    assert {Holds, NotProved} <= kinds
