"""The paper's MILPs and our faster searches agree; so do per-clause verdicts and the existence of counterexamples."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from smle.heads.box.algorithms import counterexample
from smle.heads.box.algorithms.counterexample import exclusion_counterexample, linear_counterexample
from smle.heads.box.proof.clause_lp import clause_optimum
from smle.heads.box.proof.frozen_heads import Bounds, Head
from smle.heads.box.proof.pairs import verify_exclusions
from smle.heads.box.proof.verdict import Holds, NotProved
from smle.heads.box.proof.verify import verify_clauses
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Literals
from smle.solvers import LinearProgram, Solution, Status, solve
from support.formulations import (
    exclusion_counterexample_milp,
    linear_counterexample_milp,
    plain_envelope,
    worst_clause_milp,
)
from support.guarantee_instances import Instance, random_instance, random_over

MANY = pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 150), marks=pytest.mark.audit)], ids=["some", "many"]
)
PAIRS = np.array([[0, 1], [0, 2], [1, 2]], dtype=np.int32)


def plain(instance: Instance) -> tuple[WidenedBox, Region, Literals]:
    domain = Domain.of(instance.spec)
    bounds = instance.over.bounds
    assert not hasattr(bounds, "layers")
    region = Region.of(instance.cells, instance.spec, [1], domain=domain)
    clauses = [clause for rule in instance.spec.rules for clause in rule.requirement.clauses]
    m = len(instance.spec.targets)
    return plain_envelope(bounds, domain), region, Literals.of_clauses(clauses, m, len(domain.low))  # type: ignore[arg-type]


@MANY
@pytest.mark.parametrize("affine", [False, True])
def test_linear_search_has_the_optimum_of_the_papers_milp(affine: bool, seeds: range) -> None:
    found = 0
    for seed in seeds:
        instance = random_instance(seed, affine=affine, n=4, m=3)
        envelope, region, rows = plain(instance)
        head = instance.over.heads[0]
        assert head is not None
        fast = linear_counterexample(rows, HeadNumbers.exact(head), envelope, RegionMaximum(region))
        slow = linear_counterexample_milp(rows, instance.over.bounds, head, region)
        assert (fast.found is None) == (slow.found is None)
        if fast.found is not None and slow.found is not None:
            found += 1
            assert fast.found.strength == pytest.approx(slow.found.strength, abs=1e-6)
    assert found > len(seeds) // 5


@MANY
@pytest.mark.parametrize("affine", [False, True])
def test_exclusion_search_has_the_optimum_of_the_papers_milp(affine: bool, seeds: range) -> None:
    both = set()
    for seed in seeds:
        instance = random_instance(seed, affine=affine, n=4, m=3)
        rng = np.random.default_rng(seed)
        over = random_over(rng, 1, affine=affine, passthrough=True, d=2, n=4, m=3)
        head = over.heads[0]
        assert head is not None
        head = type(head)(head.W, head.b - rng.uniform(0, 6), V=head.V)
        domain = Domain.of(instance.spec)
        region = Region.of(instance.cells, instance.spec, [1], domain=domain)
        envelope = plain_envelope(over.bounds, domain)  # type: ignore[arg-type]
        fast = exclusion_counterexample(PAIRS, HeadNumbers.exact(head), envelope, region)
        slow = exclusion_counterexample_milp(PAIRS, over.bounds, head, region)
        assert (fast.found is None) == (slow.found is None)
        both.add(fast.found is None)
        if fast.found is not None and slow.found is not None:
            assert fast.found.strength == pytest.approx(slow.found.strength, abs=1e-6)
    assert both == {True, False}


@MANY
@pytest.mark.parametrize("affine", [False, True])
def test_verdicts_agree_with_the_papers_milp_about_linear_rules(affine: bool, seeds: range) -> None:
    judged = set()
    for seed in seeds:
        instance = random_instance(seed, affine=affine, n=4, m=3)
        _, region, rows = plain(instance)
        head = instance.over.heads[0]
        assert head is not None
        assert head.V is not None
        size = np.float32(0.05 if seed % 2 else 1.0)  # small heads keep the rules more often
        head = Head(head.W * size, head.b * size, V=head.V * size)
        envelope = WidenedBox.of(instance.over.bounds, region.domain)
        clauses = [clause for rule in instance.spec.rules for clause in rule.requirement.clauses]
        verdicts = verify_clauses(clauses, head, envelope, region)
        search = linear_counterexample_milp(rows, instance.over.bounds, head, region)
        worst = min(v.margin for v in verdicts if isinstance(v, Holds | NotProved))
        if abs(worst) < 1e-4:
            continue  # between "holds over the reals" and "holds with rounding": the two may differ
        assert all(isinstance(v, Holds) for v in verdicts) == search.none_exists
        judged.add(search.none_exists)
    assert judged == {True, False}


@MANY
def test_verdicts_agree_with_the_papers_milp_about_exclusions(seeds: range) -> None:
    judged = set()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        over = random_over(rng, 1, affine=False, passthrough=False, d=2, n=4, m=3)
        head = over.heads[0]
        assert head is not None
        head = type(head)(head.W, head.b - rng.uniform(0, 4))
        domain = Domain(-np.ones(2), np.ones(2), np.ones(2))
        _, margins = verify_exclusions(PAIRS, head, WidenedBox.of(over.bounds, domain), domain, best=True)
        if np.abs(margins).min() < 1e-4:
            continue
        search = exclusion_counterexample_milp(PAIRS, over.bounds, head, Region.whole(domain))
        assert bool((margins > 0).all()) == search.none_exists
        judged.add(search.none_exists)
    assert judged == {True, False}


def test_pair_weights_equal_the_lp_of_the_pair() -> None:
    for seed in range(40):
        instance = random_instance(seed, affine=bool(seed % 2), n=5, m=3)
        domain = Domain.of(instance.spec)
        envelope = WidenedBox.of(instance.over.bounds, domain)
        head = instance.over.heads[0]
        assert head is not None
        _, margins = verify_exclusions(PAIRS, head, envelope, domain, best=True)
        numbers = HeadNumbers.of(head, envelope, domain)
        for (h, k), margin in zip(PAIRS, margins, strict=True):
            optimum = clause_optimum(Literals.of_pairs(np.array([h, k]), 3, 2), numbers, envelope, Region.whole(domain))
            assert -margin == pytest.approx(optimum.value, abs=2e-6)


@pytest.mark.parametrize("affine", [False, True])
def test_many_rows_are_decided_by_the_milp_with_the_same_optimum(affine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in range(15):
        instance = random_instance(seed, affine=affine, n=4, m=3)
        envelope, region, rows = plain(instance)
        head = instance.over.heads[0]
        assert head is not None
        arguments = rows, HeadNumbers.exact(head), envelope, RegionMaximum(region)
        monkeypatch.setattr(counterexample, "_SUBSET_ROWS", 12)
        tried = linear_counterexample(*arguments)
        monkeypatch.setattr(counterexample, "_SUBSET_ROWS", 0)
        decided = linear_counterexample(*arguments)
        assert decided.strongest
        assert (tried.found is None) == (decided.found is None)
        if tried.found is not None and decided.found is not None:
            found += 1
            assert decided.found.strength == pytest.approx(tried.found.strength, rel=1e-9)
    assert found > 3


def test_a_milp_out_of_time_says_that_a_stronger_one_may_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = random_instance(1, n=4, m=3)
    envelope, region, rows = plain(instance)
    head = instance.over.heads[0]
    assert head is not None
    solved: list[Solution] = []

    def out_of_time(program: object, **options: float) -> Solution:
        solved.append(replace(solve(program, **options), status=Status.LIMIT))  # type: ignore[arg-type]
        return solved[-1]

    monkeypatch.setattr(counterexample, "_SUBSET_ROWS", 0)
    monkeypatch.setattr(counterexample, "solve", out_of_time)
    search = linear_counterexample(rows, HeadNumbers.exact(head), envelope, RegionMaximum(region))
    assert solved
    assert search.found is not None
    assert not search.strongest


def enumerate_crossings(literals: Literals, bounds: Bounds, head: object, region: Region) -> float:
    """max min_j literal_j by one LP per pattern of units that stand at l (the others lie between l and u)."""
    d, n = region.A.shape[1], len(bounds.lower)
    W, V, b = head.W.astype(float), head.V.astype(float), head.b.astype(float)  # type: ignore[attr-defined]
    L, U = bounds.lower_slope.astype(float), bounds.upper_slope.astype(float)
    best = -np.inf
    for pattern in itertools.product([False, True], repeat=n):
        at_lower = np.array(pattern)
        rows = [np.hstack([-literals.g @ V - literals.s, -literals.g @ W, np.ones((len(literals.h), 1))])]
        upper = [literals.g @ b - literals.h]
        rows.append(np.hstack([region.A, np.zeros((len(region.a), n + 1))]))
        upper.append(region.a)
        above = np.hstack([L, -np.eye(n), np.zeros((n, 1))])
        rows.append(above)
        upper.append(-bounds.lower.astype(float))
        rows.append(-above[at_lower])
        upper.append(bounds.lower.astype(float)[at_lower])
        below = np.hstack([-U, np.eye(n), np.zeros((n, 1))])
        rows.append(below[~at_lower])
        upper.append(bounds.upper.astype(float)[~at_lower])
        A, right = np.vstack(rows), np.concatenate(upper)
        cost = np.zeros(d + n + 1)
        cost[-1] = -1.0
        low = np.concatenate([region.domain.low, np.full(n + 1, -np.inf)])
        high = np.concatenate([region.domain.high, np.full(n + 1, np.inf)])
        found = solve(LinearProgram(cost, A, np.full(len(right), -np.inf), right, low, high))
        if found.status is Status.OPTIMAL:
            best = max(best, -found.objective)
        else:
            assert found.status is Status.INFEASIBLE
    return best


@MANY
def test_milp_with_crossing_bounds_equals_enumeration(seeds: range) -> None:
    crossed = 0
    for seed in seeds:
        instance = random_instance(seed, affine=True, degenerate=True, literals=1 + seed % 2)
        bounds, head = instance.over.bounds, instance.over.heads[0]
        assert bounds.kind == "affine"
        assert head is not None
        region = Region.of(instance.cells, instance.spec, [1])
        crossed += WidenedBox.of(bounds, region.domain).crossing is not None
        clause = instance.spec.rules[0].requirement.clauses[0]
        literals = Literals.of_clauses(clause, len(head.b), region.A.shape[1])
        found, x, z = worst_clause_milp(literals, bounds, head, region)
        assert found.objective == pytest.approx(enumerate_crossings(literals, bounds, head, region), abs=1e-6)
        assert x is not None
        assert z is not None
        lower, upper = bounds.lower + bounds.lower_slope @ x, bounds.upper + bounds.upper_slope @ x
        assert (z >= lower - 1e-6).all()
        assert (z <= np.maximum(lower, upper) + 1e-6).all()
    assert crossed > len(seeds) // 4
