"""ACAS Xu: networks that provably obey their properties, and how often they give the original's advice.

Two ways to the safe network: a corrector around the original (`smle.correct`), and training under the gauge
from the original's weights (`acasxu_distill`). Networks, properties and points are read from the folder that SMLE_DATA
names; `quick` uses a small generated network instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from smle.assurance import DeployedNetwork, certify
from smle.nn.corrector import corrected
from smle.nn.network import SafeNetwork
from studies.bench.acasxu_attack import Effort, attack_borders, attack_embedding, attack_rule, corners
from studies.bench.acasxu_data import FloatArray, Task, advice, read_tasks, rule_box, sample_box, stand_in
from studies.bench.acasxu_distill import distill
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
    training_points: int = 3000
    epochs: int = 40
    effort: Effort = field(default_factory=Effort)


_QUICK = _Sizes(
    region_points=2000, training_points=300, epochs=2, effort=Effort(random=1000, starts=32, steps=10, borders=2000)
)


@dataclass(frozen=True, eq=False)
class _Made:
    """A safe network with what it cost (processor seconds, one thread) and what the exact checker says about it."""

    way: str
    network: DeployedNetwork
    build: float
    certify: float
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
            ways = _make(task, sizes)
            regions = _compare(task, ways, sizes)
            rows["agreement"] += [region.row(task.name) for region in regions]
            curves[task.name] = _curve(np.concatenate([region.moved for region in regions]))
            rows["made"] += [_made_row(task, made, regions) for made in ways]
            rows["attack"] += _attacks(task, ways[0], sizes)
            rows["wild"] += [_wild(task, made, sizes) for made in ways]
            rows["cost"] += _cost(task, ways[0], quick=quick)
            _judge(task, ways, regions, passed, stand_in=quick)
    finally:
        torch.set_num_threads(threads)
    _judge_attacks(rows["attack"], rows["wild"], passed)
    plot = Plot("Scores in the regions, corrected against original", "change of a score", "share of points", curves)
    return BenchResult(
        "acasxu", "ACAS Xu: provably safe networks that keep the advice", _tables(rows, sizes), (plot,), passed=passed,
        quick=quick,
    )  # fmt: skip


# --- making and certifying


def _make(task: Task, sizes: _Sizes) -> list[_Made]:
    rng = np.random.default_rng(0)
    boxes = [rule_box(task.spec, rule) for rule in range(len(task.spec.rules))]
    inside = [sample_box(box, sizes.training_points, rng) for box in boxes]
    X = np.concatenate([task.train, *inside, *(corners(box) for box in boxes)])
    return [
        _certified("corrector", partial(corrected, task.model, task.spec, X)),
        _certified("trained", partial(distill, task, X, epochs=sizes.epochs)),
    ]


def _certified(way: str, make: Callable[[], SafeNetwork]) -> _Made:
    start = time.process_time()
    network = make()
    built = time.process_time()
    certificate = certify(network)
    issued = time.process_time()
    proved = certificate.check()
    checked = time.process_time()
    rules = {rule.name for rule in network.spec.rules}
    return _Made(
        way, DeployedNetwork.of(network), built - start, issued - built, checked - issued,
        len(certificate.text) + len(certificate.block), len(proved), len(rules & {p.rule for p in proved}) / len(rules),
    )  # fmt: skip


def _made_row(task: Task, made: _Made, regions: list[_Region]) -> tuple[object, ...]:
    worst = min(region.same[made.way] for region in regions)
    return (
        task.name, made.way, len(task.spec.rules), _percent(made.certified), made.proved,
        _percent(_at_test_points(task, made)), _percent(worst), made.build, made.certify, made.size, made.check,
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

    `violations`: points that break this rule. Shapes (points,): broken (some rule), changed (the corrector's advice
    differs), moved (its largest change of a score).
    """

    rule: str
    violations: int
    broken: npt.NDArray[np.bool_]
    changed: npt.NDArray[np.bool_]
    moved: FloatArray
    same: dict[str, float]

    def row(self, network: str) -> tuple[object, ...]:
        return (
            network, self.rule, len(self.broken), self.violations, *map(_percent, self.same.values()),
            int((self.changed & self.broken).sum()), int((self.changed & ~self.broken).sum()),
            _percent(float((self.moved > _MOVED).mean())), float(self.moved.max()),
        )  # fmt: skip


def _compare(task: Task, ways: list[_Made], sizes: _Sizes) -> list[_Region]:
    """Compare advice and scores at new points of each region."""
    rng, judge = np.random.default_rng(1), Judge(task.spec)
    result = []
    for number, rule in enumerate(task.spec.rules):
        X = sample_box(rule_box(task.spec, number), sizes.region_points, rng)
        original, answers = task.scores(X), {made.way: made.scores(X) for made in ways}
        found, broken = judge.violations(X, original), np.zeros(len(X), dtype=bool)
        broken[[violation.row for violation in found]] = True
        corrected = answers[ways[0].way]
        result.append(
            _Region(
                rule.name,
                sum(violation.rule == rule.name for violation in found),
                broken,
                advice(corrected) != advice(original),
                np.abs(corrected - original).max(axis=1),
                {way: _same(original, y) for way, y in answers.items()},
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
    embeddings = attack_embedding(made.network.head, task.spec, effort=sizes.effort, rng=np.random.default_rng(4))
    return (task.name, made.way, *borders, *embeddings)


# --- cost of an answer


def _cost(task: Task, made: _Made, *, quick: bool) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for batch in (1, 1024):
        x = torch.from_numpy(task.test[:batch])
        with torch.no_grad():
            times = interleaved(
                {"original": partial(task.model, x), "corrector": partial(made.network, x)},
                rounds=5 if quick else 50, budget=2.0,
            )  # fmt: skip
        original, ours = (min(times[name].seconds) * 1e6 for name in ("original", "corrector"))
        rows.append((task.name, batch, original, ours, ours / original))
    return rows


# --- verdicts and tables


def _judge(
    task: Task, ways: list[_Made], regions: list[_Region], passed: dict[str, bool], *, stand_in: bool
) -> None:  # fmt: skip
    for made in ways:
        passed[f"{task.name}, {made.way}: every property is proved by the exact checker"] = made.certified == 1.0
    if stand_in:  # a random network breaks its rules often, so that agreement cannot be high
        return
    made = ways[0]
    test, worst = _at_test_points(task, made), min(region.same[made.way] for region in regions)
    wanted = f"same advice at {100 * _WANTED:g} % of the"
    passed[f"{task.name}, {made.way}: {wanted} test points ({_percent(test)})"] = test >= _WANTED
    passed[f"{task.name}, {made.way}: {wanted} points of every region (worst {_percent(worst)})"] = worst >= _WANTED


def _judge_attacks(attacks: list[tuple[object, ...]], wild: list[tuple[object, ...]], passed: dict[str, bool]) -> None:
    tried = sum(int(str(row[2])) for row in attacks)
    passed[f"no violation after correction ({tried:,} points tried inside the regions)"] = not any(
        row[5] for row in attacks
    )
    passed["no violation at borders of regions, nor for any embedding tried"] = not any(
        row[3] or row[5] for row in wild
    )


def _tables(rows: dict[str, list[tuple[object, ...]]], sizes: _Sizes) -> tuple[Table, ...]:
    return (
        Table(
            "Certified, and how often the advice is the original's",
            ("network", "way", "properties", "certified", "statements proved", "same advice, test points",
             "same advice, worst region", "built or trained (CPU s)", "certify (CPU s)",
             "certificate (bytes)", "check (CPU s)"),
            tuple(rows["made"]),
            f"Advice: the smallest of five scores. To compare: {_PUBLISHED}. Corrector: the original network, its "
            "scores clipped in coordinates in which the properties are bounds; one linear program per property picks "
            "the weights of its alternatives. Trained: the original's layers under new heads, all of it trained under "
            f"the gauge on the original's scores, {sizes.epochs} epochs.",
        ),
        Table(
            "New points inside the region of each property",
            ("network", "property", "points", "original breaks it", "same advice, corrector", "same advice, trained",
             "changed where broken", "changed where kept", f"scores moved > {_MOVED:g}", "largest move"),
            tuple(rows["agreement"]),
            "The last four columns are the corrector's. 'Changed where broken': the advice differs at points where "
            "the original breaks a property, so that something has to change; 'changed where kept': it differs "
            "although it need not.",
        ),
        Table(
            "Attacks inside the regions: original and corrected",
            ("network", "property", "points tried", "violations, original", "worst excess, original",
             "violations, corrector", "worst excess, corrector"),
            tuple(rows["attack"]),
            f"{sizes.effort.random:,} random points, all corners, and {sizes.effort.starts} runs of "
            f"{sizes.effort.steps} steps of gradient ascent per clause, half of them from the worst points "
            "so far. Violations are judged exactly on float32 outputs; the excess is positive where a property is "
            "broken.",
        ),
        Table(
            "Attacks at borders and on the head alone",
            ("network", "way", "border points", "violations", "embeddings tried", "violations "),
            tuple(rows["wild"]),
            "Points on facets and vertices of regions and one to three ulps beside them; embeddings instead of what "
            "the network computes: corners of the box, the worst one for each literal, huge numbers, infinities, NaN.",
        ),
        Table(
            "Cost of an answer, torch, one thread",
            ("network", "batch", "original (us)", "corrector (us)", "ratio"),
            tuple(rows["cost"]),
            "The fastest of up to 50 rounds taken in turns.",
        ),
    )  # fmt: skip
