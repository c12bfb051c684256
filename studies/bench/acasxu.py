"""ACAS Xu: networks that provably obey their properties, and how often they give the original's advice.

The original network with a certified head behind it (`smle.correct`), which leaves its scores alone where the
properties allow them. Networks, properties and points are read from the folder that SMLE_DATA names; `quick` uses a
small generated network instead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from smle import correct
from smle.nn.network import SafeNetwork
from studies.bench.acasxu_attack import Effort, attack_answers, attack_borders, attack_rule
from studies.bench.acasxu_data import FloatArray, Task, advice, read_tasks, rule_box, sample_box, stand_in
from studies.bench.harness import BenchResult, Plot, Table, interleaved
from studies.bench.sampling import Judge

__all__ = ["run"]

_WANTED = 0.995
_PUBLISHED = "96.1 % on average, published safe training at 100 % certified"
_MOVED = 1e-5
_THRESHOLDS = np.logspace(-8, 0, 33)


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    region_points: int = 100_000
    effort: Effort = field(default_factory=Effort)


_QUICK = _Sizes(region_points=2000, effort=Effort(random=1000, starts=32, steps=10, borders=2000))


@dataclass(frozen=True, eq=False)
class _Made:
    """A safe network with what it cost (processor seconds, one thread) and what the exact checker says about it."""

    network: SafeNetwork
    build: float
    check: float
    size: int
    proved: int
    certified: float

    def scores(self, X: FloatArray) -> FloatArray:
        with torch.no_grad():
            y: FloatArray = self.network(torch.from_numpy(X)).numpy()
        return y


def run(quick: bool = False) -> BenchResult:
    """Build, certify, compare and attack; `quick` takes a small generated network, few points and few epochs.

    Raises:
        DataError: If the data are not found (not with `quick`).
    """
    sizes, tasks = (_QUICK, [stand_in()]) if quick else (_Sizes(), read_tasks())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    passed: dict[str, bool] = {}
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in ("made", "agreement", "attack", "wild", "cost")}
    curves: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    try:
        for task in tasks:
            made = _make(task)
            regions = _compare(task, made, sizes)
            rows["agreement"] += [region.row(task.name) for region in regions]
            curves[task.name] = _curve(np.concatenate([region.moved for region in regions]))
            rows["made"].append(_made_row(task, made, regions))
            rows["attack"] += _attacks(task, made, sizes)
            rows["wild"].append(_wild(task, made, sizes))
            rows["cost"] += _cost(task, made, quick=quick)
            _judge(task, made, regions, passed, stand_in=quick)
    finally:
        torch.set_num_threads(threads)
    _judge_attacks(rows["attack"], rows["wild"], passed)
    plot = Plot("Scores in the regions, corrected against original", "change of a score", "share of points", curves)
    return BenchResult(
        "acasxu", "ACAS Xu: provably safe networks that keep the advice", _tables(rows, sizes), (plot,), passed=passed,
        quick=quick,
    )  # fmt: skip


# --- making and certifying


def _make(task: Task) -> _Made:
    start = time.process_time()
    network = correct(task.model, task.spec, task.train).eval()
    built = time.process_time()
    proved = network.certificate_.check()
    checked = time.process_time()
    rules = {rule.name for rule in task.spec.rules}
    return _Made(
        network, built - start, checked - built, len(network.certificate_.text) + len(network.certificate_.block),
        len(proved), len(rules & {p.rule for p in proved}) / len(rules),
    )  # fmt: skip


def _made_row(task: Task, made: _Made, regions: list[_Region]) -> tuple[object, ...]:
    worst = min(region.same for region in regions)
    return (
        task.name, len(task.spec.rules), _percent(made.certified), made.proved,
        _percent(_at_test_points(task, made)), _percent(worst), made.build, made.size, made.check,
    )  # fmt: skip


def _at_test_points(task: Task, made: _Made) -> float:
    return _same(task.scores(task.test), made.scores(task.test))


def _same(first: FloatArray, second: FloatArray) -> float:
    """Return the share of rows with the same advice."""
    return float((advice(first) == advice(second)).mean())


def _percent(share: float) -> str:
    return f"{100 * share:.3f} %"


# --- agreement inside the regions


@dataclass(frozen=True, eq=False)
class _Region:
    """New points of one rule's region: where the original breaks rules, and what the safe networks answer.

    `violations`: points that break this rule. Shapes (points,): broken (some rule), changed (the corrected advice
    differs), moved (its largest change of a score).
    """

    rule: str
    violations: int
    broken: npt.NDArray[np.bool_]
    changed: npt.NDArray[np.bool_]
    moved: FloatArray
    same: float

    def row(self, network: str) -> tuple[object, ...]:
        return (
            network, self.rule, len(self.broken), self.violations, _percent(self.same),
            int((self.changed & self.broken).sum()), int((self.changed & ~self.broken).sum()),
            _percent(float((self.moved > _MOVED).mean())), float(self.moved.max()),
        )  # fmt: skip


def _compare(task: Task, made: _Made, sizes: _Sizes) -> list[_Region]:
    """Compare advice and scores at new points of each region."""
    rng, judge = np.random.default_rng(1), Judge(task.spec)
    result = []
    for number, rule in enumerate(task.spec.rules):
        X = sample_box(rule_box(task.spec, number), sizes.region_points, rng)
        original, corrected = task.scores(X), made.scores(X)
        found, broken = judge.violations(X, original), np.zeros(len(X), dtype=bool)
        broken[[violation.row for violation in found]] = True
        result.append(
            _Region(
                rule.name,
                sum(violation.rule == rule.name for violation in found),
                broken,
                advice(corrected) != advice(original),
                np.abs(corrected - original).max(axis=1),
                _same(original, corrected),
            )
        )
    return result


def _curve(moved: FloatArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return thresholds, and the share of points whose scores moved by more; where it is positive."""
    shares = [(float(t), float((moved > t).mean())) for t in _THRESHOLDS]
    shown = [(t, share) for t, share in shares if share > 0]
    return tuple(t for t, _ in shown), tuple(share for _, share in shown)


# --- attacks


def _attacks(task: Task, made: _Made, sizes: _Sizes) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for number, rule in enumerate(task.spec.rules):
        before, after = (
            attack_rule(model, task.spec, number, effort=sizes.effort, rng=np.random.default_rng(2))
            for model in (task.model, made.network)
        )
        rows.append((task.name, rule.name, before.tried, before.broken, before.worst, after.broken, after.worst))
    return rows


def _wild(task: Task, made: _Made, sizes: _Sizes) -> tuple[object, ...]:
    borders = attack_borders(made.network, task.spec, effort=sizes.effort, rng=np.random.default_rng(3))
    answers = attack_answers(made.network.head, task.spec, effort=sizes.effort, rng=np.random.default_rng(4))
    return (task.name, *borders, *answers)


# --- cost of an answer


def _cost(task: Task, made: _Made, *, quick: bool) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for batch in (1, 1024):
        x = torch.from_numpy(task.test[:batch])
        with torch.no_grad():
            times = interleaved(
                {"original": partial(task.model, x), "corrected": partial(made.network, x)},
                rounds=5 if quick else 50, budget=2.0,
            )  # fmt: skip
        original, ours = (min(times[name].seconds) * 1e6 for name in ("original", "corrected"))
        rows.append((task.name, batch, original, ours, ours / original))
    return rows


# --- verdicts and tables


def _judge(task: Task, made: _Made, regions: list[_Region], passed: dict[str, bool], *, stand_in: bool) -> None:
    passed[f"{task.name}: every property is proved by the exact checker"] = made.certified == 1.0
    kept = sum(int((region.changed & ~region.broken).sum()) for region in regions)
    passed[f"{task.name}: the same advice wherever the original keeps the properties"] = kept == 0
    if stand_in:  # a random network breaks its rules often, so that agreement cannot be high
        return
    test, worst = _at_test_points(task, made), min(region.same for region in regions)
    wanted = f"same advice at {100 * _WANTED:g} % of the"
    passed[f"{task.name}: {wanted} test points ({_percent(test)})"] = test >= _WANTED
    passed[f"{task.name}: {wanted} points of every region (worst {_percent(worst)})"] = worst >= _WANTED


def _judge_attacks(attacks: list[tuple[object, ...]], wild: list[tuple[object, ...]], passed: dict[str, bool]) -> None:
    tried = sum(int(str(row[2])) for row in attacks)
    passed[f"no violation after correction ({tried:,} points tried inside the regions)"] = not any(
        row[5] for row in attacks
    )
    passed["no violation at borders of regions, nor for any answer tried"] = not any(row[2] or row[4] for row in wild)


def _tables(rows: dict[str, list[tuple[object, ...]]], sizes: _Sizes) -> tuple[Table, ...]:
    return (
        Table(
            "Certified, and how often the advice is the original's",
            ("network", "properties", "certified", "statements proved", "same advice, test points",
             "same advice, worst region", "built and certified (CPU s)", "certificate (bytes)", "check (CPU s)"),
            tuple(rows["made"]),
            f"Advice: the smallest of five scores. To compare: {_PUBLISHED}. The original network with a certified "
            "head behind it; nothing is trained.",
        ),
        Table(
            "New points inside the region of each property",
            ("network", "property", "points", "original breaks it", "same advice",
             "changed where broken", "changed where kept", f"scores moved > {_MOVED:g}", "largest move"),
            tuple(rows["agreement"]),
            "'Changed where broken': the advice differs at points where the original breaks a property, so that "
            "something has to change; 'changed where kept': it differs although it need not.",
        ),
        Table(
            "Attacks inside the regions: original and corrected",
            ("network", "property", "points tried", "violations, original", "worst excess, original",
             "violations, corrected", "worst excess, corrected"),
            tuple(rows["attack"]),
            f"{sizes.effort.random:,} random points, all corners, and {sizes.effort.starts} runs of "
            f"{sizes.effort.steps} steps of gradient ascent per clause, half of them from the worst points "
            "so far. Violations are judged exactly on float32 outputs; the excess is positive where a property is "
            "broken.",
        ),
        Table(
            "Attacks at borders and on the head alone",
            ("network", "border points", "violations", "answers tried", "violations "),
            tuple(rows["wild"]),
            "Points on facets and vertices of regions and one to three ulps beside them; answers instead of what the "
            "network computes: random ones, ties, huge numbers, infinities, NaN.",
        ),
        Table(
            "Cost of an answer, torch, one thread",
            ("network", "batch", "original (us)", "corrected (us)", "ratio"),
            tuple(rows["cost"]),
            "The fastest of up to 50 rounds taken in turns.",
        ),
    )  # fmt: skip
