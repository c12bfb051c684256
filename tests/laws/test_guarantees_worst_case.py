"""Closed form = LP = brute force over the vertices, in rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from smle.guarantees.proof.clause_lp import clause_optimum
from smle.guarantees.proof.verdict import Holds, NotProved, Obligation
from smle.guarantees.proof.verify import verify
from smle.guarantees.proof.worst_case import HeadNumbers, WidenedBox, worst_case
from smle.guarantees.regions.geometry import Domain, Region, RegionMaximum, enlarged_rows
from smle.rules import Literals
from smle_check.floats import BINARY32, BINARY64, affine_error, cast_error, guard_slack, nearest, round_up, upward
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


def exact_margin(instance: Instance, obligation: Obligation, verdict: Holds) -> Fraction:
    """The margin that the verdict's multipliers prove, in rationals, with the exact rounding bounds."""
    spec, cells, over = instance.spec, instance.cells, instance.over
    head, bounds = over.heads[obligation.head], over.bounds
    assert head is not None
    d, n, m = len(spec.columns), head.W.shape[1], len(head.b)
    low = [nearest(v, BINARY32) for v in spec.lower]
    high = [nearest(v, BINARY32) for v in spec.upper]
    sizes = [
        max(abs(a), abs(b)) * (1 + Fraction(1, 2**24)) + Fraction(1, 2**126) for a, b in zip(low, high, strict=True)
    ]
    zero = [[Fraction(0)] * d for _ in range(n)]
    affine = bounds.kind == "affine"
    slopes = (
        [[as_fractions(r) for r in s] for s in (bounds.lower_slope, bounds.upper_slope)] if affine else [zero, zero]
    )
    ends = [as_fractions(bounds.lower), as_fractions(bounds.upper)]
    reach = []
    for i in range(n):
        extra = Fraction(1, 2**126)
        if affine:
            extra += upward(max(affine_error(slopes[k][i], sizes, ends[k][i], "bounds") for k in (0, 1)))
        gap = (
            ends[0][i]
            - ends[1][i]
            + sum(
                max((a - b) * p, (a - b) * q) for a, b, p, q in zip(slopes[0][i], slopes[1][i], low, high, strict=True)
            )
        )
        extra += max(Fraction(0), gap)
        top = max(
            ends[1][i] + sum(max(s * p, s * q) for s, p, q in zip(slopes[1][i], low, high, strict=True)),
            -ends[0][i] + sum(max(-s * p, -s * q) for s, p, q in zip(slopes[0][i], low, high, strict=True)),
            Fraction(0),
        )
        reach.append((extra, top + 2 * extra))
    W, b = [as_fractions(r) for r in head.W], as_fractions(head.b)
    V = [as_fractions(r) for r in head.V] if head.V is not None else [[Fraction(0)] * d] * m
    clause = spec.rules[obligation.rule].requirement.clauses[obligation.clause]
    lam = as_fractions(verdict.multipliers.weights)
    g, s = [Fraction(0)] * m, [Fraction(0)] * d
    offset = Fraction(0)
    for weight, literal in zip(lam, clause.literals, strict=True):
        for j, value in literal.outputs:
            g[j] += weight * value
        for j, value in literal.inputs:
            s[j] += weight * value
        offset -= weight * literal.bound
    slope = list(s)
    for j in range(m):
        offset += g[j] * b[j]
        passing = V[j] if head.V is not None else []
        error = affine_error([*W[j], *passing], [r[1] for r in reach] + (sizes if passing else []), b[j], "head")
        offset += abs(g[j]) * error
        for t in range(d):
            slope[t] += g[j] * V[j][t]
    for t in range(d):
        offset += abs(s[t]) * (sizes[t] / 2**24 + Fraction(1, 2**126))
    for i in range(n):
        v = sum(g[j] * W[j][i] for j in range(m))
        side = 1 if v > 0 else 0
        offset += v * ends[side][i] + abs(v) * reach[i][0]
        for t in range(d):
            slope[t] += v * slopes[side][i][t]
    for r, mu in verdict.multipliers.rows:
        weight, row = Fraction(mu), cells.rows[r]
        if row.is_comparison:
            closed = max(nearest(row.bound, BINARY32), nearest(nearest(row.bound, BINARY64), BINARY32))
        else:
            slack = guard_slack(dict(row.coefficients), sizes)
            cast = sum(abs(q) * cast_error(sizes[t]) for t, q in row.coefficients)
            closed = round_up(row.bound + slack, BINARY64) + slack + cast
        offset += weight * closed
        for t, q in row.coefficients:
            slope[t] -= weight * q
    return -(offset + sum(max(e * p, e * q) for e, p, q in zip(slope, low, high, strict=True))) / sum(lam)


@pytest.mark.parametrize("literals", [1, 2])
@pytest.mark.parametrize("affine", [False, True])
def test_margins_are_confirmed_in_exact_arithmetic(affine: bool, literals: int) -> None:
    """What verify computes in float64 is never more than what its multipliers prove exactly."""
    checked = 0
    for seed in range(15):
        instance = random_instance(seed, affine=affine, literals=literals, degenerate=bool(seed % 3 == 0))
        for obligation, verdict in verify(instance.over, instance.spec, instance.cells):
            if isinstance(verdict, Holds) and not verdict.multipliers.empty:
                checked += 1
                truth = exact_margin(instance, obligation, verdict)
                assert truth > 0
                assert Fraction(verdict.margin) <= truth
                assert verdict.margin == pytest.approx(float(truth), rel=1e-8, abs=1e-8)
    assert checked > 10
