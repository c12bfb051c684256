"""Algorithms of the paper step by step: ours against its MILP, QP and MIQP, where its training starts and goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import nn

from smle.heads.box.algorithms.counterexample import counterexample_at, linear_counterexample
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import Memory, memory_clauses, run_pdcg, strongest_counterexample
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.heads.box.proof.worst_case import HeadNumbers
from smle.rules import Literals, Specification
from smle.solvers import QuadraticProgram, Solution, solve
from studies.bench.training import box_rule
from studies.experiments import synthetic
from studies.experiments.methods import Job, settings_for
from studies.experiments.networks import safe_network
from studies.harness import Table, interleaved
from tests.support.formulations import exclusion_counterexample_milp, linear_counterexample_milp, memory_projection_miqp

NEAR = 1e-6
"""A strength this near to the optimum, relative to it, is the optimum."""


class Point(NamedTuple):
    """One start: strengths in the rows as stated, and seconds of both searches."""

    group: str
    optimum: float
    ours: float
    leading: float
    seconds: float
    milp_seconds: float


def counterexamples(quick: bool, passed: dict[str, bool]) -> Table:
    """Compare strongest counterexamples at 54 properties and 3 seeds; `quick`: six properties, one seed."""
    keys = [item.key for item in synthetic.properties()]
    found = list(points(keys[:6] if quick else keys, seeds=range(1 if quick else 3)))
    rows: list[tuple[object, ...]] = []
    for group in [*sorted({point.group for point in found}), "all"]:
        some = [point for point in found if group in ("all", point.group)]
        ours, leading = ([_ratio(point, which) for point in some] for which in ("ours", "leading"))
        reached = [sum(ratio >= 1 - NEAR for ratio in ratios) for ratios in (ours, leading)]
        slower = float(np.median([point.milp_seconds / point.seconds for point in some]))
        rows.append((group, len(some), reached[0], min(ours), reached[1], min(leading), slower))
    passed[f"all {len(found)} counterexamples reach the MILP's optimum"] = all(
        _ratio(p, "ours") >= 1 - NEAR for p in found
    )
    return Table(
        "Strongest counterexamples at the start of the preset `paper`",
        (
            "property", "starts", "reach the optimum", "worst ratio", "rows scaled to a leading 1: reach it",
            "worst ratio there", "MILP time / ours",
        ),
        tuple(rows),
        "Strength is the sum of violations in the rows as stated. The optimum is that of the paper's MILP by HiGHS, "
        f"over real numbers; to reach it is to come within {NEAR:g} of it, relatively. Beside it the same search with "
        "rows that are scaled to a leading coefficient of 1, as they were before.",
    )  # fmt: skip


def points(keys: list[str], seeds: range) -> Iterator[Point]:
    """Yield a comparison for every task and seed, at the network that training starts from."""
    for key in keys:
        task = synthetic.load(key)
        settings = settings_for(Job("synthetic", key, "paper", "main", 0), task)
        for seed in seeds:
            network = safe_network(task, settings, seed=seed)
            frozen = network.frozen_heads()
            head = frozen.heads[0]
            assert head is not None
            problem = HeadProblem.of(frozen, network.spec, network.cells, 0)
            part = problem.parts[0]
            stated, plain = Literals.stacked(part.stated), HeadNumbers.exact(head)
            clock = [time.perf_counter()]
            ours, _ = strongest_counterexample(head, problem)
            clock.append(time.perf_counter())
            milp = linear_counterexample_milp(stated, frozen.bounds, head, part.region)
            clock.append(time.perf_counter())
            leading = linear_counterexample(Literals.stacked(part.literals), plain, part.envelope, part.support)
            strengths = []
            for search in (milp, ours, leading):
                assert search.found is not None, search.message
                point = counterexample_at(stated, plain, search.found.x, search.found.z)
                strengths.append(0.0 if point is None else point.strength)
            optimum, own, scaled = strengths
            yield Point(task.group, optimum, own, scaled, clock[1] - clock[0], clock[2] - clock[1])


def _ratio(point: Point, which: str) -> float:
    return float(getattr(point, which)) / point.optimum


# --- one iteration of PDCG


def _labels(count: int) -> Specification:
    names = [f"l{i}" for i in range(count)]
    inputs = "\n".join(f"  x{i}: [-2, 2]" for i in range(4))
    listed = ", ".join(names)
    return Specification.from_yaml(
        f"inputs:\n{inputs}\nlabels: [{listed}]\nrules:\n  - name: one\n    then: at_most_one({listed})\n"
    )


def _direct(spec: Specification, bounds: str, units: int) -> tuple[BoxNetwork, FrozenHeads, HeadProblem]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = BoxNetwork(nn.Linear(len(spec.columns), units), spec, embedding=units, bounds=bounds)
        with torch.no_grad():
            network.heads.raw_weight.mul_(2.0)
    over = network.frozen_heads()
    return network, over, HeadProblem.of(over, spec, network.cells, 0)


def iterations(quick: bool, passed: dict[str, bool]) -> Table:
    """Compare an iteration of PDCG after a gradient step with its MILP and QP or MIQP form."""
    rows: list[tuple[object, ...]] = []
    cases = [("linear", box_rule(4, 4), bounds, 1) for bounds in ("fixed", "affine")]
    cases.append(("exclusions of 6 labels", _labels(6), "fixed", 10))
    for kind, spec, bounds, memory in cases:
        _, over, problem = _direct(spec, bounds, 16)
        head = over.heads[0]
        assert head is not None
        contenders = {
            "ours": _ours(head, problem, memory),
            "paper": _paper(over, head, problem, memory, exclusions=kind != "linear"),
        }
        times = interleaved(contenders, rounds=5 if quick else 15, budget=8.0)
        ours, paper = (times[which].undisturbed * 1e3 for which in ("ours", "paper"))
        ratio = paper / ours
        rows.append((kind, bounds, memory, ours, paper, ratio))
        passed[
            f"pdcg, {kind}, {bounds} bounds: a step at least 10x cheaper than its MILP / MIQP form ({ratio:.0f}x)"
        ] = ratio >= 10
    return Table(
        "One iteration of PDCG after a gradient step",
        ("rules", "bounds", "memory", "ours (ms)", "MILP + QP / MIQP (ms)", "ratio"),
        tuple(rows),
        "Strongest counterexample and projection over the memory, 16 embedding units. Ours: closed forms and the dual "
        "of the small QP; beside it the paper's MILP and QP / MIQP by HiGHS and SCIP, each written down anew.",
    )


def _ours(head: Head, problem: HeadProblem, memory: int) -> Callable[[], None]:
    def iterate() -> None:
        assert run_pdcg(head, problem, n_it=1, n_xs=memory).iterations == 1

    return iterate


def _paper(over: FrozenHeads, head: Head, problem: HeadProblem, memory: int, *, exclusions: bool) -> Callable[[], None]:
    part = problem.parts[0]

    def iterate() -> None:
        if exclusions:
            search = exclusion_counterexample_milp(part.exclusions, over.bounds, head, part.region)
        else:
            rows = Literals(*(np.concatenate([getattr(a, f) for a in part.stated]) for f in ("g", "s", "h", "strict")))
            search = linear_counterexample_milp(rows, over.bounds, head, part.region)
        assert search.found is not None, search.message
        points = Memory(memory)
        points.append(search.found.x, search.found.z, 0)
        if exclusions:
            found = memory_projection_miqp(head, points, problem, tolerance=1e-6, big=1e3)
        else:
            found = _memory_qp(head, points, problem)
        assert found.x is not None, found.message

    return iterate


def _memory_qp(head: Head, points: Memory, problem: HeadProblem) -> Solution:
    """Solve the paper's QP over the memory, equation polytopes_projection, as it is written."""
    z = points.points[-1][1]
    features = np.append(z, 1.0)
    required = memory_clauses(points, problem, like=head, tolerance=1e-6)
    A = np.vstack([np.einsum("km,s->kms", g, features).reshape(len(g), -1) for _, g, _ in required])
    theta = head.vector()
    size = len(theta)
    return solve(
        QuadraticProgram(
            sparse.identity(size, format="csr"), -theta, A, np.full(len(A), -np.inf),
            np.concatenate([right for *_, right in required]), np.full(size, -np.inf), np.full(size, np.inf),
        )
    )  # fmt: skip
