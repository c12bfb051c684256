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
from typing import Any

import numpy as np

from studies.bench.box_attacks import ATTACKS, Opponent
from studies.bench.soundness_attacks import Attack, Attacker, Batch
from studies.bench.soundness_subjects import makers
from studies.bench.soundness_unsafe import UNSAFE
from studies.harness import BenchResult, Table, one_thread
from tests.support.runtimes import Runtime, installed_runtime, prepare
from tests.support.sampling import Judge, Judgment

__all__ = ["Ledger", "attack_all", "campaign", "run"]

_POINTS = {False: 100_000_000, True: 150_000}
_LEAST = 1000  # points of a head in a round
_QUICK = (
    "oblique",
    "dose, affine",
    "oblique, at the limit",
    "mixed, affine",
    "one region",
    "dose, network",
    "difference of large numbers",
    "around zero",
    "oblique, crossing",
)
_NOTE = (
    "Each evaluated point is a row that went through the deployed head and was judged against every rule that is "
    "active there: in float64 with an error bound, in rationals where that leaves it open. The margin is exact: how "
    "far, in the units of the rule's left-hand side, the worst clause of the worst point is from being broken. Margins "
    "of 0 are allowed answers on a border that is not strict. {minutes:.0f} minutes of one processor."
)
_ATTACKS_NOTE = (
    "Embeddings and answers are chosen by the attacker, as if the model in front of the head were; inputs are float32 "
    "and float64 in turn. Points are drawn at random, vertices and corners again and again. Seconds include making the "
    "points and judging them."
)
_WAYS_NOTE = (
    "The same head as deployed, in onnxruntime at each of its levels of optimization, and the format's program written "
    "down again in NumPy with other orders of summation, with and without (exactly emulated) fused multiply-add."
)
_RUNTIMES_NOTE = (
    "Each in an environment and in processes of its own; with `session.set_denormal_as_zero` and without; batches of "
    "1, 2, 3, 33 rows and more. Backbones of a box that return two rows, one, none, 64, one more or one less than they "
    "are given, another number of axes, or rows and columns swapped: refusing is right, and an answer with another "
    "number of rows than the inputs counts as a violation."
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

    @property
    def points(self) -> int:
        """All points so far."""
        return sum(tally.points for tally in self.models.values())

    def note(self, model: str, attack: str, batch: Batch, judgment: Judgment, seconds: float) -> None:
        """Add a judged batch everywhere; write down how to repeat a violation."""
        for tallies, name in ((self.models, model), (self.attacks, attack), (self.ways, batch.way)):
            tallies.setdefault(name, Tally()).add(len(batch.X), judgment, seconds)
        for i in judgment.rows[: max(0, 10 - len(self.reproducers))]:
            numbers = [" ".join(float(v).hex() for v in part[i]) for part in (batch.X, batch.Z, batch.Y)]
            self.reproducers.append((model, attack, batch.way, batch.X.dtype.name, *numbers))


def run(quick: bool = False) -> BenchResult:
    """Run all attacks on boxes; `quick` takes nine models, the installed onnxruntime and few points."""
    with one_thread():
        subjects = [make() for name, make in makers(quick=quick).items() if not quick or name in _QUICK]
        return campaign(
            "soundness", subjects, Opponent, ATTACKS, {name: batches(quick) for name, batches in UNSAFE.items()},
            points=_POINTS[quick], quick=quick,
        )  # fmt: skip


def campaign(
    name: str,
    subjects: Sequence[Any],
    attacker: type[Attacker],
    attacks: Mapping[str, tuple[Attack[Any], float]],
    unsafe: Mapping[str, Iterable[tuple[Judge, Batch]]],
    *,
    points: int,
    quick: bool,
) -> BenchResult:
    """Attack all subjects until so many points are evaluated, then models that are not safe.

    Args:
        name: Of the bench.
        subjects: Certified models with `name`, `kind`, `spec` and `certificate`.
        attacker: What chooses inputs, and what models compute.
        attacks: Name -> attack, and its share of the points.
        unsafe: Name -> batches of a model that is not safe, with their judge.
        points: How many.
        quick: Whether the installed onnxruntime will do.
    """
    start, ledger, seed = time.process_time(), Ledger(), 0
    runtimes, missing = ([installed_runtime()], {}) if quick else prepare()
    while (left := points - ledger.points) > 0:  # some attacks run short
        for subject in subjects:
            share = max(_LEAST, math.ceil(left / len(subjects)))
            attack_all(attacker, attacks, subject, share, ledger, seed=seed, runtimes=runtimes)
            seed += 1
    tries = {kind: found_in(batches) for kind, batches in unsafe.items()}
    violations = sum(tally.violations for tally in ledger.models.values())
    crashes = sum(runtime.told["crashed"] for runtime in runtimes)
    passed = {
        f"no violation of a certified model in {ledger.points:,} evaluated points": violations == 0,
        f"no accepted file takes a runtime down ({crashes:,} calls did)": crashes == 0,
        **{f"violations are found in: {kind} ({t.violations:,})": t.violations > 0 for kind, (t, _) in tries.items()},
        f"at least {points:,} points": ledger.points >= points,
    }
    rows: list[tuple[object, ...]] = [
        (s.name, s.kind, (t := ledger.models[s.name]).points, t.violations, t.smallest) for s in subjects
    ]
    rows.append(("all", "", ledger.points, violations, ""))
    note = _NOTE.format(minutes=(time.process_time() - start) / 60)
    tables = [
        Table("Certified models", ("model", "head", "points", "violations", "smallest margin"), tuple(rows), note),
        *_attack_tables(ledger),
        _runtimes_table(runtimes, missing),
        _unsafe_table(tries),
    ]
    if ledger.reproducers:
        columns = ("model", "attack", "way", "format", "x", "embedding", "output")
        tables.append(Table("VIOLATIONS", columns, tuple(ledger.reproducers), "The first ones found, in hexadecimal."))
    title = f"Soundness: attacks on {'boxes' if name == 'soundness' else 'heads of rules'}"
    return BenchResult(name, title, tuple(tables), passed, quick)


def attack_all(
    attacker: type[Attacker],
    attacks: Mapping[str, tuple[Attack[Any], float]],
    subject: Any,
    points: int,
    ledger: Ledger,
    *,
    seed: int = 0,
    runtimes: Sequence[Runtime] = (),
) -> None:
    """Run every attack on a model, with its share of the points."""
    judge = Judge(subject.spec)
    for name, (attack, share) in attacks.items():
        opponent = attacker(subject, np.random.default_rng([seed, len(name)]), runtimes)
        before = time.perf_counter()
        for batch in attack(opponent, math.ceil(points * share)):
            judgment = judge.judge(batch.at, batch.Y)
            after = time.perf_counter()
            ledger.note(subject.name, name, batch, judgment, after - before)
            before = after


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


def _attack_tables(ledger: Ledger) -> tuple[Table, Table]:
    """Return what was found by attack, and by way to compute."""

    def rows(tallies: dict[str, Tally]) -> tuple[tuple[object, ...], ...]:
        return tuple((name, t.points, t.violations, t.smallest, t.seconds) for name, t in tallies.items())

    columns = ("points", "violations", "smallest margin", "seconds")
    return (
        Table("Attacks", ("attack", *columns), rows(ledger.attacks), _ATTACKS_NOTE),
        Table("Ways to compute", ("way", *columns), rows(ledger.ways), _WAYS_NOTE),
    )


def _runtimes_table(runtimes: Sequence[Runtime], missing: Mapping[str, str]) -> Table:
    """Return what each version of onnxruntime did with its calls."""
    kinds = ("answered", "refused", "crashed")
    rows: list[tuple[object, ...]] = [(r.version, *(r.told[kind] for kind in kinds)) for r in runtimes]
    rows += [(f"{version}: not installed ({reason})", 0, 0, 0) for version, reason in missing.items()]
    columns = ("version", *(f"calls {kind}" for kind in kinds))
    return Table("Versions of onnxruntime", columns, tuple(rows), _RUNTIMES_NOTE)


def _unsafe_table(tries: Mapping[str, tuple[Tally, str]]) -> Table:
    rows = tuple((name, t.points, f"found: {t.violations:,}", t.smallest, text) for name, (t, text) in tries.items())
    return Table(
        "The same harness on models that are not safe",
        ("model", "points", "violations", "smallest margin", "for example"),
        rows,
        "A negative margin is how far a rule was broken.",
    )
