"""Where bounds cross, H(x) = [l, max(l, u)]: the search is the paper's MILP, and the proof speaks of the same set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from smle.heads.box.algorithms import counterexample
from smle.heads.box.algorithms.counterexample import exclusion_counterexample, linear_counterexample
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import run_pdcg, strongest_counterexample
from smle.heads.box.algorithms.projection import nearest_safe_head
from smle.heads.box.proof.cases import Cases
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.verdict import Holds
from smle.heads.box.proof.verify import exclusion, judge_clause, verify
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox
from smle.nn import BoxNetwork
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Literals, Specification
from smle.solvers import Status
from support.builder import CROSSING, crossing_bounds, issued
from support.exact_judge import doubts
from support.formulations import exclusion_counterexample_milp, linear_counterexample_milp
from support.guarantee_instances import random_instance

CASES = 40


def drawn(seed: int, *, linear: bool, d: int = 2, n: int = 5, m: int = 3) -> tuple[Bounds, Bounds, Head, Region]:
    """Return crossing bounds, the same as the paper states them (linear, as drawn), a head and an oblique region."""
    rng = np.random.default_rng(seed)
    low, high = -np.ones(d), np.ones(d)
    Q, q = rng.uniform(-1, 1, (3, d)).round(2), rng.uniform(0, 1, 3).round(2)
    lower, upper = rng.normal(size=n).astype("f4"), rng.normal(size=n).astype("f4")
    slopes = [rng.normal(size=(n, d)).astype("f4") if linear else np.zeros((n, d), "f4") for _ in range(2)]
    stated = Bounds(lower, upper, *slopes)
    head = Head(rng.normal(size=(m, n)).astype("f4"), rng.normal(size=m).astype("f4"))
    region = Region(Domain(low, high, np.ones(d)), tuple(range(3)), Q, q, 3)
    return stated if linear else Bounds(lower, upper), stated, head, region


def reaches(bounds: Bounds, x: np.ndarray, z: np.ndarray, within: float = 1e-5) -> bool:
    """Whether z is in H(x) as the paper has it, up to rounding."""
    lower, upper = bounds.at(x)
    return bool((z >= lower - within).all() and (z <= np.maximum(lower, upper) + within).all())


WAYS = {"constant": False, "at vertices": True, "case by case": True, "by a MILP": True}


@pytest.mark.parametrize("way", list(WAYS))
def test_strongest_counterexamples_equal_the_papers_milp_where_bounds_cross(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it searches: bounds constant or linear, by vertices, by branch and bound, or as a MILP of its own."""
    crossed = found = 0
    linear = WAYS[way]
    if way == "by a MILP":
        monkeypatch.setattr(counterexample, "_MOST_CASES", 0)
    for seed in range(CASES):
        bounds, stated, head, region = drawn(seed, linear=linear)
        rng = np.random.default_rng(1000 + seed)
        R, r = rng.uniform(-1, 1, (4, 3)).round(2), rng.uniform(-1, 4, 4).round(2)
        rows = Literals(R, np.zeros((4, 2)), r, np.zeros(4, dtype=bool))
        support = RegionMaximum(region)
        if way in ("case by case", "by a MILP"):
            support.vertices = None  # type: ignore[assignment]
        envelope = WidenedBox.over_region(bounds, support)
        search = linear_counterexample(rows, HeadNumbers.exact(head), envelope, support)
        milp = linear_counterexample_milp(rows, stated, head, region, as_printed=True)
        crossed += bool((stated.lower > stated.upper).any() if not linear else envelope.crossing is not None)
        assert milp.status is Status.OPTIMAL
        assert search.strongest
        ours, theirs = (0.0 if one.found is None else one.found.strength for one in (search, milp))
        assert ours == pytest.approx(theirs, abs=2e-5), seed
        if search.found is not None:
            found += 1
            assert reaches(stated, search.found.x, search.found.z)
            assert (region.A @ search.found.x <= region.a + 1e-7).all()
    assert crossed > CASES * 3 // 4
    assert CASES // 4 < found <= CASES


@pytest.mark.parametrize("linear", [False, True], ids=["constant", "linear"])
def test_strongest_pairs_equal_the_papers_milp_where_bounds_cross(linear: bool) -> None:
    pairs = np.array([[0, 1], [0, 2], [1, 2]], dtype=np.int32)
    found = 0
    for seed in range(CASES):
        bounds, stated, head, region = drawn(seed, linear=linear)
        envelope = WidenedBox.over_region(bounds, RegionMaximum(region))
        search = exclusion_counterexample(pairs, HeadNumbers.exact(head), envelope, region)
        milp = exclusion_counterexample_milp(pairs, stated, head, region)
        assert milp.status is Status.OPTIMAL
        assert search.strongest
        assert (search.found is None) == (milp.found is None), seed
        if search.found is not None and milp.found is not None:
            found += 1
            assert search.found.strength == pytest.approx(milp.found.strength, abs=2e-5), seed
            assert reaches(stated, search.found.x, search.found.z)
    assert found > CASES // 2


@pytest.mark.parametrize("literals", [1, 2])
def test_search_and_proof_speak_of_the_same_set(literals: int) -> None:
    """No counterexample: all is proved, cases and all. A counterexample: it is not, and z lies in H(x)."""
    proved, refuted, cut = 0, 0, 0
    for seed in range(30):
        instance = random_instance(seed, affine=True, degenerate=True, literals=literals, n=4)
        over, spec, cells = instance.over, instance.spec, instance.cells
        head = over.heads[0]
        assert head is not None
        problem = HeadProblem.of(over, spec, cells, 0)
        for shift in (0.0, 1.0, 4.0):  # heads that are further and further inside
            result = nearest_safe_head(head, problem, margin=shift / 8)
            tried = head if result.head is None else result.head
            tried = Head(tried.W * (1 + shift / 16), tried.b, V=tried.V)
            search, _ = strongest_counterexample(tried, problem)
            verdicts = verify(FrozenHeads(over.bounds, (tried, over.heads[1])), spec, cells)
            own = [verdict for obligation, verdict in verdicts if obligation.head == 0]
            if search.none_exists:
                proved += 1
                assert all(isinstance(v, Holds) for v in own), seed
                cut += any(v.multipliers.cases for v in own if isinstance(v, Holds))
            elif search.found is not None and search.found.strength > 1e-6:
                refuted += 1
                assert not all(isinstance(v, Holds) for v in own), seed
                x, z = search.found.x, search.found.z
                assert reaches(over.bounds, x, z, within=1e-4)
    assert proved > 10
    assert refuted > 10
    assert cut > 1


@pytest.mark.parametrize("room", [1e-3, 0.1])
def test_pairs_that_hold_with_room_are_proved_case_by_case(room: float) -> None:
    """Cuts go on while a unit is open, also where the best weights make it count for nothing."""
    cut = 0
    for seed in range(45):
        bounds, _, head, region = drawn(seed, linear=True, n=8)
        high = replace(head, b=head.b + np.float32(20))
        envelope = WidenedBox.over_region(bounds, RegionMaximum(region))
        pairs = np.array([[0, 1]], dtype=np.int32)
        strongest = exclusion_counterexample(pairs, HeadNumbers.exact(high), envelope, region).found
        assert strongest is not None
        tried = replace(high, b=high.b - np.float32(strongest.strength + room))
        verdict = Cases(bounds, envelope, region, judge_clause).verify(exclusion(0, 1), tried)
        assert isinstance(verdict, Holds), seed
        cut += bool(verdict.multipliers.cases)
    assert cut > 40


def test_pdcg_ends_where_the_proof_does_and_so_does_the_exact_projection() -> None:
    """After a run of Algorithm 1 that succeeds, and after the nearest safe head, the checker accepts."""
    ended = nearest = 0
    for seed in range(25):
        instance = random_instance(seed, affine=True, degenerate=True, passthrough=False, inputs=False, n=4)
        over, spec, cells = instance.over, instance.spec, instance.cells
        heads = []
        for number, head in enumerate(over.heads):
            assert head is not None
            problem = HeadProblem.of(over, spec, cells, number)
            run = run_pdcg(head, problem, n_it=200, n_xs=4)
            found = run.head if run.succeeded else nearest_safe_head(run.head, problem).head
            ended += run.succeeded
            nearest += not run.succeeded and found is not None
            heads.append(found)
        if any(head is None for head in heads):
            continue
        package = issued(spec, cells, FrozenHeads(over.bounds, tuple(heads)))
        assert package.check()
        assert doubts(package.document, package.weights, package.block) is None
    assert ended > 25


def test_every_runtime_clips_to_l_where_bounds_cross() -> None:
    """The NumPy program, row by row and in few calls, torch in training and onnxruntime give max(l, min(u, z))."""
    bounds = crossing_bounds()
    spec = Specification.from_yaml(CROSSING)
    network = BoxNetwork(torch.nn.Linear(2, 3), spec, embedding=3, bounds=Stated(bounds), gate=False)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 2)).astype("f4")
    Z = rng.normal(size=(200, 3)).astype("f4") * 2
    lower, upper = bounds.lower + X @ bounds.lower_slope.T, bounds.upper + X @ bounds.upper_slope.T
    expected = np.maximum(lower, np.minimum(upper, Z))
    assert (lower > upper).any(axis=0).all()
    program = network.deployed
    np.testing.assert_allclose(program.values(X, Z, "clipped")["clipped"], expected, atol=1e-6)
    W, b = program.tensors["heads.weight"][0], program.tensors["heads.bias"][0]
    np.testing.assert_allclose(program(X, Z), expected @ W.T + b, atol=1e-5)
    nan = np.full_like(Z, np.nan)
    np.testing.assert_allclose(program(X, nan), np.maximum(lower, upper) @ W.T + b, atol=1e-5)
    network.train()
    torch.testing.assert_close(
        network._trained(torch.tensor(X), torch.tensor(Z)).detach().numpy(), expected @ W.T + b, atol=1e-5, rtol=0
    )


class Stated(torch.nn.Module):
    """Affine bounds as a module."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        assert bounds.lower_slope is not None
        assert bounds.upper_slope is not None
        self.sides = [
            torch.tensor(np.hstack([offset[:, None], slope]))
            for offset, slope in ((bounds.lower, bounds.lower_slope), (bounds.upper, bounds.upper_slope))
        ]

    def affine_bounds(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sides[0], self.sides[1]
