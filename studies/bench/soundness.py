"""Soundness: attacks on certified models, judged exactly, and on models that are not safe, where they must succeed.

An evaluated point is one row (x, z) that went through one way of running a head and was judged against every rule that
is active there: screened in float64 with an error bound, in rationals where that leaves it open.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch

from studies.bench.harness import BenchResult, Plot, Table
from studies.bench.runtimes import Runtime, installed_runtime, prepare
from studies.bench.sampling import Judge, Judgment
from studies.bench.soundness_attacks import ATTACKS, Batch, Opponent
from studies.bench.soundness_subjects import Subject, makers
from studies.bench.soundness_unsafe import UNSAFE

__all__ = ["run"]

_POINTS = {False: 100_000_000, True: 150_000}
_QUICK = (
    "oblique",
    "dose, affine",
    "oblique, at the limit",
    "mixed, affine",
    "one region",
    "dose, network",
    "difference of large numbers",
    "around zero",
)
_MINUTES = 30
_ATTACKS_NOTE = (
    "Embeddings are chosen by the attacker, as if the backbone were; inputs are float32 and float64 in turn. Points "
    "are drawn at random, vertices and corners again and again. Seconds include making the points and judging them."
)
_WAYS_NOTE = (
    "The same head in torch, in onnxruntime at each of its levels of optimization, and in NumPy with other orders of "
    "summation, with and without (exactly emulated) fused multiply-add."
)
_RUNTIMES_NOTE = (
    "Each in an environment and in processes of its own; with `session.set_denormal_as_zero` and without; batches of "
    "1, 2, 3, 33 rows and more. Backbones that return two rows, one, none, 64, one more or one less than they are "
    "given, another number of axes, or rows and columns swapped: refusing is right, and an answer with another number "
    "of rows than the inputs counts as a violation."
)


@dataclass
class Tally:
    """Points, violations, smallest exact margin and seconds, added up."""

    points: int = 0
    violations: int = 0
    margin: Fraction | None = None
    seconds: float = 0.0

    def add(self, points: int, judgment: Judgment, seconds: float) -> None:
        """Add a batch."""
        self.points += points
        self.violations += len(judgment.rows)
        self.seconds += seconds
        if judgment.margin is not None and (self.margin is None or judgment.margin < self.margin):
            self.margin = judgment.margin

    @property
    def smallest(self) -> float | str:
        """The margin as a number to print."""
        return "no rule was active" if self.margin is None else float(self.margin)


@dataclass
class Ledger:
    """What was found, by model, by attack and by way of computing; violations of certified models in full."""

    models: dict[str, Tally] = field(default_factory=dict)
    attacks: dict[str, Tally] = field(default_factory=dict)
    ways: dict[str, Tally] = field(default_factory=dict)
    reproducers: list[tuple[object, ...]] = field(default_factory=list)
    curves: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)

    def note(self, model: str, attack: str, batch: Batch, judgment: Judgment, seconds: float) -> None:
        """Add a judged batch everywhere; write down how to repeat a violation."""
        for tallies, name in ((self.models, model), (self.attacks, attack), (self.ways, batch.way)):
            tallies.setdefault(name, Tally()).add(len(batch.X), judgment, seconds)
        for i in judgment.rows[: max(0, 10 - len(self.reproducers))]:
            numbers = [" ".join(float(v).hex() for v in part[i]) for part in (batch.X, batch.Z, batch.Y)]
            self.reproducers.append((model, attack, batch.way, batch.X.dtype.name, *numbers))

    def mark(self, model: str) -> None:
        """Put a point on the model's curve."""
        tally = self.models[model]
        if tally.margin is not None and tally.margin > 0:
            x, y = self.curves.get(model, ((), ()))
            self.curves[model] = (*x, float(tally.points)), (*y, float(tally.margin))


def run(quick: bool = False) -> BenchResult:
    """Run all attacks; `quick` takes eight models, the installed onnxruntime and few points."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.perf_counter(), time.process_time()
    try:
        subjects = [make() for name, make in makers(quick=quick).items() if not quick or name in _QUICK]
        ledger = Ledger()
        runtimes, missing = ([installed_runtime()], {}) if quick else prepare()
        for number, subject in enumerate(subjects):
            attack_all(
                subject, math.ceil(1.02 * _POINTS[quick] / len(subjects)), ledger, seed=number, runtimes=runtimes
            )
        unsafe = [(name, *found_in(batches(quick))) for name, batches in UNSAFE.items()]
    finally:
        torch.set_num_threads(threads)
    clock, minutes = (time.perf_counter() - start[0]) / 60, (time.process_time() - start[1]) / 60
    total = Tally(sum(t.points for t in ledger.models.values()), sum(t.violations for t in ledger.models.values()))
    passed = {f"no violation of a certified model in {total.points:,} evaluated points": total.violations == 0}
    crashes = sum(runtime.told["crashed"] for runtime in runtimes)
    passed[f"no accepted file takes a runtime down ({crashes:,} calls did)"] = crashes == 0
    passed |= {f"violations are found in: {name} ({t.violations:,})": t.violations > 0 for name, t, _ in unsafe}
    if not quick:
        passed[f"at least {_POINTS[False]:,} points"] = total.points >= _POINTS[False]
        passed[f"within {_MINUTES} minutes of one processor ({minutes:.1f}; {clock:.1f} on the clock)"] = (
            minutes <= _MINUTES
        )
    plots = tuple(_plot(origin, subjects, ledger) for origin in ("trained", "by hand"))
    tables = [
        _models(subjects, ledger), *attack_tables(ledger, _ATTACKS_NOTE, _WAYS_NOTE),
        runtimes_table(runtimes, missing, _RUNTIMES_NOTE), _unsafe_table(unsafe),
    ]  # fmt: skip
    if ledger.reproducers:
        tables.append(_reproducers(ledger))
    return BenchResult("soundness", "Soundness: attacks that find nothing", tuple(tables), plots, passed, quick)


def attack_all(
    subject: Subject, points: int, ledger: Ledger, *, seed: int = 0, runtimes: Sequence[Runtime] = ()
) -> None:
    """Run every attack on a model, with its share of the points."""
    judge = Judge(subject.spec)
    for name, (attack, share) in ATTACKS.items():
        opponent = Opponent(subject, np.random.default_rng([seed, len(name)]), runtimes)
        before = time.perf_counter()
        for batch in attack(opponent, math.ceil(points * share)):
            judgment = judge.judge(batch.at, batch.Y)
            after = time.perf_counter()
            ledger.note(subject.name, name, batch, judgment, after - before)
            before = after
        ledger.mark(subject.name)


def found_in(batches: Iterable[tuple[Judge, Batch]]) -> tuple[Tally, str]:
    """Judge what an unsafe model answers; return the tally and one example."""
    tally, example = Tally(), ""
    for judge, batch in batches:
        judgment = judge.judge(batch.at, batch.Y)
        tally.add(len(batch.X), judgment, 0.0)
        if judgment.broken and not example:
            rule, rows = next(iter(judgment.broken.items()))
            x = ", ".join(f"{v:.9g}" for v in batch.X[rows[0]])
            y = ", ".join(f"{v:.9g}" for v in batch.Y[rows[0]])
            example = f"rule '{judge.spec.rules[rule].name}' at ({x}): ({y})"
    return tally, example


def _plot(origin: str, subjects: list[Subject], ledger: Ledger) -> Plot:
    names = [subject.name for subject in subjects if subject.origin == origin and subject.name in ledger.curves]
    curves = {name: ledger.curves[name] for name in names}
    title = {"trained": "Attacks on trained models", "by hand": "Attacks on models made by hand"}[origin]
    return Plot(title, "points so far", "smallest exact margin", curves)


def _models(subjects: list[Subject], ledger: Ledger) -> Table:
    rows: list[tuple[object, ...]] = []
    for subject in subjects:
        tally, spec = ledger.models[subject.name], subject.spec
        oblique = sum(not row.is_comparison for row in subject.cells.rows)
        size = f"{len(spec.rules)} / {oblique} / {len(subject.cells)}"
        rows.append((subject.name, subject.origin, subject.kind, size, tally.points, tally.violations, tally.smallest))
    tallies = list(ledger.models.values())
    total = [sum(getattr(tally, name) for tally in tallies) for name in ("points", "violations")]
    rows.append(("all", "", "", "", *total, float(min(t.margin for t in tallies if t.margin is not None))))
    return Table(
        "Certified models",
        ("model", "made", "bounds, gate", "rules / oblique rows / cells", "points", "violations", "smallest margin"),
        tuple(rows),
        "Each evaluated point is a row that went through the deployed head and was judged against every rule that is "
        "active there: in float64 with an error bound, in rationals where that leaves it open. The margin is exact: "
        "how far, in the units of the rule's left-hand side, the worst clause of the worst point is from being broken.",
    )


def attack_tables(ledger: Ledger, about_attacks: str, about_ways: str) -> tuple[Table, Table]:
    """Return what was found by attack, and by way to compute."""

    def rows(tallies: dict[str, Tally]) -> tuple[tuple[object, ...], ...]:
        return tuple((name, t.points, t.violations, t.smallest, t.seconds) for name, t in tallies.items())

    columns = ("points", "violations", "smallest margin", "seconds")
    return (
        Table("Attacks", ("attack", *columns), rows(ledger.attacks), about_attacks),
        Table("Ways to compute", ("way", *columns), rows(ledger.ways), about_ways),
    )


def runtimes_table(runtimes: Sequence[Runtime], missing: Mapping[str, str], about: str) -> Table:
    """Return what each version of onnxruntime did with its calls."""
    kinds = ("answered", "refused", "crashed")
    rows: list[tuple[object, ...]] = [(r.version, *(r.told[kind] for kind in kinds)) for r in runtimes]
    rows += [(f"{version}: not installed ({reason})", 0, 0, 0) for version, reason in missing.items()]
    return Table("Versions of onnxruntime", ("version", *(f"calls {kind}" for kind in kinds)), tuple(rows), about)


def _unsafe_table(found: list[tuple[str, Tally, str]]) -> Table:
    rows = tuple((name, t.points, f"found: {t.violations:,}", t.smallest, example) for name, t, example in found)
    return Table(
        "The same harness on models that are not safe",
        ("model", "points", "violations", "smallest margin", "for example"),
        rows,
        "A negative margin is how far a rule was broken.",
    )


def _reproducers(ledger: Ledger) -> Table:
    columns = ("model", "attack", "way", "format", "x", "embedding", "output")
    return Table("VIOLATIONS", columns, tuple(ledger.reproducers), "The first ones found, in hexadecimal.")
