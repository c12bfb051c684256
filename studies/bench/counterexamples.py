"""Strongest counterexamples against the paper's MILP, where its training starts: 54 properties, 3 seeds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from smle.heads.box.algorithms.counterexample import counterexample_at, linear_counterexample
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import strongest_counterexample
from smle.rules import Literals
from studies.experiments import synthetic
from studies.experiments.methods import Job, settings_for
from studies.experiments.networks import safe_network
from studies.harness import BenchResult, Table
from tests.support.formulations import linear_counterexample_milp, plain_numbers

__all__ = ["Point", "points", "run"]

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


def run(quick: bool = False) -> BenchResult:
    """Compare at every start; `quick`: six properties, one seed."""
    keys = [item.key for item in synthetic.properties()]
    found = list(points(keys[:6] if quick else keys, seeds=range(1 if quick else 3)))
    rows: list[tuple[object, ...]] = []
    for group in [*sorted({point.group for point in found}), "all"]:
        some = [point for point in found if group in ("all", point.group)]
        ours, leading = ([_ratio(point, which) for point in some] for which in ("ours", "leading"))
        reached = [sum(ratio >= 1 - NEAR for ratio in ratios) for ratios in (ours, leading)]
        slower = float(np.median([point.milp_seconds / point.seconds for point in some]))
        rows.append((group, len(some), reached[0], min(ours), reached[1], min(leading), slower))
    passed = {f"all {len(found)} reach the MILP's optimum": all(_ratio(p, "ours") >= 1 - NEAR for p in found)}
    table = Table(
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
    return BenchResult("counterexamples", "Strongest counterexamples", (table,), passed=passed, quick=quick)


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
            stated, plain = Literals.stacked(part.stated), plain_numbers(head)
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
