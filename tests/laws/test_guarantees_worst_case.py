"""Closed form = LP = brute force over the vertices, in rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smle.certificates.document import tensors_of
from smle.heads.box.algorithms.projection import project
from smle.heads.box.proof.clause_lp import clause_optimum
from smle.heads.box.proof.issue_box import issue
from smle.heads.box.proof.verdict import Holds, NotProved
from smle.heads.box.proof.verify import verify
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox, worst_case
from smle.regions.geometry import Domain, Region, RegionMaximum, enlarged_rows
from smle.rules import Literals
from support.builder import weights_of
from support.guarantee_instances import Instance, random_instance, vertices


def as_fractions(array: np.ndarray) -> list[Fraction]:
    return [Fraction(float(v)) for v in array]


def brute_force(literals: Literals, head: HeadNumbers, envelope: WidenedBox, region: Region) -> list[Fraction]:
    """max over vertices x of (max over box z at x), rounding margin included, exactly.

    For given x the maximum over z is a sum of coordinate-wise maxima; the result is convex in x for affine
    bounds l <= u, so vertices suffice.
    """
    domain = region.domain
    points = vertices(
        [as_fractions(row) for row in region.A],
        as_fractions(region.a),
        as_fractions(domain.low),
        as_fractions(domain.high),
    )
    d = len(domain.low)
    zero = [[Fraction(0)] * d] * len(envelope.lower)
    lower_slope = zero if envelope.lower_slope is None else [as_fractions(r) for r in envelope.lower_slope]
    upper_slope = zero if envelope.upper_slope is None else [as_fractions(r) for r in envelope.upper_slope]
    W, b = [as_fractions(r) for r in head.W], as_fractions(head.b)
    V = [[Fraction(0)] * d] * len(b) if head.V is None else [as_fractions(r) for r in head.V]
    result = []
    for k in range(len(literals.h)):
        g, s = as_fractions(literals.g[k]), as_fractions(literals.s[k])
        v = [sum(g[j] * W[j][i] for j in range(len(g))) for i in range(len(W[0]))]
        best = None
        for x in points:
            value = sum(g[j] * (b[j] + sum(V[j][i] * x[i] for i in range(d))) for j in range(len(g)))
            value += sum(s[i] * x[i] for i in range(d)) - Fraction(float(literals.h[k]))
            for i, weight in enumerate(v):
                low = Fraction(float(envelope.lower[i])) + sum(p * q for p, q in zip(lower_slope[i], x, strict=True))
                high = Fraction(float(envelope.upper[i])) + sum(p * q for p, q in zip(upper_slope[i], x, strict=True))
                value += max(weight * low, weight * high)
            best = value if best is None else max(best, value)
        assert best is not None
        margin = sum(abs(g[j]) * Fraction(float(head.errors[j])) for j in range(len(g)))
        margin += sum(abs(s[i]) * (Fraction(float(domain.sizes[i])) / 2**24 + Fraction(1, 2**126)) for i in range(d))
        result.append(best + margin)
    return result


def parts(instance: Instance) -> tuple[WidenedBox, HeadNumbers, Region, Literals]:
    domain = Domain.of(instance.spec)
    envelope = WidenedBox.of(instance.over.bounds, domain)
    head = HeadNumbers.of(instance.over.heads[0], envelope, domain)
    rows = enlarged_rows(instance.cells, instance.spec)
    region = Region.of(instance.cells, instance.spec, [1], domain=domain, rows=rows)
    clauses = instance.spec.rules[0].requirement.clauses
    return envelope, head, region, Literals.of_clauses(clauses, len(head.b), len(domain.low))


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("oblique", [False, True])
def test_closed_form_equals_brute_force_over_vertices(affine: bool, oblique: bool) -> None:
    for seed in range(40):
        envelope, head, region, literals = parts(random_instance(seed, affine=affine, oblique=oblique))
        worst = worst_case(literals, head, envelope, RegionMaximum(region))
        truth = brute_force(literals, head, envelope, region)
        for bound, value in zip(worst.bound, truth, strict=True):
            assert Fraction(float(bound)) >= value
            assert float(bound) <= float(value) + 1e-8 * (1 + abs(float(value)))


@pytest.mark.parametrize("affine", [False, True])
def test_lp_of_a_single_literal_equals_the_closed_form(affine: bool) -> None:
    for seed in range(30):
        envelope, head, region, literals = parts(random_instance(seed, affine=affine))
        worst = worst_case(literals, head, envelope, RegionMaximum(region))
        for k in range(len(literals.h)):
            one = literals.combined(np.eye(len(literals.h))[k : k + 1])
            optimum = clause_optimum(one, head, envelope, region)
            assert optimum.value == pytest.approx(worst.bound[k], abs=1e-7)


@pytest.mark.parametrize("affine", [False, True])
def test_weights_of_the_lp_close_the_duality_gap(affine: bool) -> None:
    for seed in range(30):
        envelope, head, region, literals = parts(random_instance(seed, affine=affine))
        optimum = clause_optimum(literals, head, envelope, region)
        assert optimum.weights is not None
        worst = worst_case(literals.combined(optimum.weights[None]), head, envelope, RegionMaximum(region))
        assert worst.bound[0] == pytest.approx(optimum.value, abs=1e-7)
        grid = np.random.default_rng(seed).dirichlet(np.ones(len(literals.h)), size=50)
        others = worst_case(literals.combined(grid), head, envelope, RegionMaximum(region))
        assert others.bound.min() >= optimum.value - 1e-7


@pytest.mark.parametrize("literals", [1, 2, 3])
@pytest.mark.parametrize("affine", [False, True])
def test_sampled_points_never_refute_holds_and_witnesses_are_real(affine: bool, literals: int) -> None:
    kinds = set()
    for seed in range(12):
        instance = random_instance(seed, affine=affine, literals=literals)
        rng = np.random.default_rng(seed)
        domain = Domain.of(instance.spec)
        rows = enlarged_rows(instance.cells, instance.spec)
        envelope = WidenedBox.of(instance.over.bounds, domain)
        for obligation, verdict in verify(instance.over, instance.spec, instance.cells):
            head = instance.over.heads[obligation.head]
            assert head is not None
            kinds.add(type(verdict))
            clause = instance.spec.rules[obligation.rule].requirement.clauses[obligation.clause]
            arrays = Literals.of_clauses(clause, len(head.b), len(domain.low))

            def excess(x: np.ndarray, z: np.ndarray, head=head, arrays=arrays) -> float:
                y = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
                return float((arrays.g @ y + arrays.s @ x - arrays.h).min())

            if isinstance(verdict, NotProved):
                lower, upper = envelope.at(verdict.x)
                assert (verdict.z >= lower - 1e-9).all()
                assert (verdict.z <= upper + 1e-9).all()
                assert excess(verdict.x, verdict.z) >= -verdict.margin - 1e-4
            elif isinstance(verdict, Holds):
                for _ in range(40):
                    x = rng.uniform(domain.low, domain.high)
                    active = obligation.head == 0
                    if active and (rows[0] @ x > rows[1]).any():
                        continue
                    lower, upper = envelope.at(x)
                    z = np.where(rng.random(len(lower)) < 0.5, lower, upper)
                    assert excess(x, z) <= -verdict.margin + 1e-6
    assert {Holds, NotProved} <= kinds


@pytest.mark.parametrize("literals", [1, 2])
@pytest.mark.parametrize("affine", [False, True])
def test_margins_are_confirmed_in_exact_arithmetic(affine: bool, literals: int) -> None:
    """What verify computes in float64 is never more than what its multipliers prove to the exact checker."""
    checked = 0
    for seed in range(15):
        instance = random_instance(seed, affine=affine, literals=literals, degenerate=bool(seed % 3 == 0))
        found = project(instance.over, instance.spec, instance.cells)
        if not found.succeeded:  # random rules may contradict each other
            continue
        tensors = tensors_of(weights_of(instance.spec, instance.cells, found.over))
        certificate = issue(instance.spec, instance.cells, found.over, tensors=tensors, files={})
        proved = {(p.obligation.head, p.obligation.rule, p.obligation.clause): p.margin for p in certificate.check()}
        for obligation, verdict in verify(found.over, instance.spec, instance.cells):
            assert isinstance(verdict, Holds)
            if not verdict.multipliers.empty:
                truth = proved[obligation.head, obligation.rule, obligation.clause]
                checked += 1
                assert 0 < Fraction(verdict.margin) <= truth
                assert verdict.margin == pytest.approx(float(truth), rel=1e-8, abs=1e-8)
    assert checked > 10
