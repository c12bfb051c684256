"""Soundness: attacks on certified heads of all kinds, judged exactly, and on heads that are not safe.

An evaluated point is one row (x, z) that went through one way of running a head and was judged against every rule that
is active there: screened in float64 with an error bound, in rationals where that leaves it open; heads of whole numbers
in whole numbers, a tenth of the points in Fractions throughout. A job is one head in one turn; finished jobs are kept,
and a run goes on where one stopped.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import smle_check
from smle.heads.box.box_program import Box
from smle.heads.table import certify_head
from smle.nn import SafeNetwork
from smle.rules import Specification
from smle_check.heads.clips import limits_of
from studies.attacks.doors import DOORS, Passes, in_modes
from studies.attacks.points import (
    POINTS,
    Attacker,
    Attention,
    Batch,
    BoxAttacker,
    GridAttacker,
    RulesAttacker,
    Shaped,
    attacker_of,
    batch_of,
    chunks,
)
from studies.attacks.subjects import RULES, Subject, boxes, data_for, drawn_grid, rule_heads, stated
from studies.experiments.runner import solve_all
from studies.harness import Array, BenchResult, Table, quietly
from tests.support.grid_rules import FAMILIES
from tests.support.runtimes import Runtime, installed_runtime, prepare
from tests.support.sampling import Judge, Judgment
from tests.support.written_again import BoxAgain, RulesAgain

Rows = list[dict[str, Any]]
_POINTS = {"box": 100_000_000, "rules": 12_000_000, "grid": 3_000_000, "shapes": 20_000_000, "unsafe": 3_000_000}
_QUICK_POINTS = {"box": 150_000, "rules": 60_000, "grid": 20_000, "shapes": 80_000, "unsafe": 180_000}
_JOB = {"box": 5_000_000, "rules": 1_000_000, "grid": 30_000, "shapes": 1_000_000, "unsafe": 1_000_000}
"""Points of a job at most; those of whole numbers are few, since each job draws its rules anew."""
_QUICK = (
    "oblique", "dose, affine", "oblique, at the limit", "mixed, affine", "one region", "dose, network",
    "difference of large numbers", "around zero", "oblique, crossing", "rules: bank, boosting", "rules: shares, ridge",
    "rules: ten mixed limits", "rules: sums with tables", "rules: labels", "rules: random 3", "whole numbers: demand",
    "whole numbers: coupled",
)  # fmt: skip
_SHAPES = ("sequences", "graphs")
_NOTE = (
    "Each evaluated point is a row that went through the deployed head and was judged against every rule that is "
    "active there: in float64 with an error bound, in rationals where that leaves it open; whole numbers of steps in "
    "whole numbers, a tenth of them in Fractions. The margin is exact: how far, in the units of the rule's left-hand "
    "side, the worst clause of the worst point is from being broken. Margins of 0 are allowed answers on a border that "
    "is not strict. {minutes:.0f} minutes of one processor."
)
_ATTACKS_NOTE = (
    "Embeddings and answers are chosen by the attacker, as if the model in front of the head were; inputs are float32 "
    "and float64 in turn. Points are drawn at random, vertices and corners again and again. Seconds include making the "
    "points and judging them."
)
_WAYS_NOTE = (
    "The same head as deployed, in every mode of torch, in onnxruntime at each of its levels of optimization, and the "
    "format's program written down again in NumPy with other orders of summation, with and without (exactly emulated) "
    "fused multiply-add."
)
_RUNTIMES_NOTE = (
    "Each in an environment and in processes of its own; with `session.set_denormal_as_zero` and without; batches of "
    "1, 2, 3, 33 rows and more. Backbones of a box that return two rows, one, none, 64, one more or one less than they "
    "are given, another number of axes, or rows and columns swapped: refusing is right, and an answer with another "
    "number of rows than the inputs counts as a violation."
)


# --- heads that are not safe, each for one reason, so that the campaign shows that it can fail

Found = Iterator[tuple[Any, Batch]]
"""Batches, each with its judge."""


def _plain(spec: Specification) -> Callable[[Array], Array]:
    """Return a network trained on the task without any rule."""
    network = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(24,), max_iter=200, random_state=0))
    with quietly():
        network.fit(*data_for(spec, 500))
    return lambda X: np.asarray(network.predict(X), dtype=np.float32).reshape(len(X), -1)


def _box() -> BoxAttacker:
    return BoxAttacker(boxes(quick=True)["oblique, at the limit"](), np.random.default_rng(0))


def _without_rules(count: int) -> Found:
    """Serve the plain network's answers."""
    attacker = _box()
    X = attacker.facets(count, np.float32)
    Y = _plain(attacker.spec)(X)
    yield attacker.subject.judge, Batch(X, X, Y, Y, "torch")


def _gate_without_slack(count: int) -> Found:
    """Serve certified heads that compare oblique rows in plain float32: Q x <= q."""
    attacker = _box()
    subject, program = attacker.subject, BoxAgain(attacker.subject.certificate, slack=False)
    assert subject.model is not None
    for dtype in (np.float32, np.float64):
        X = attacker.borders(count // 2, dtype)
        Z = subject.model(X) * 10
        yield subject.judge, Batch(X, X, Z, program(X, Z), "NumPy")


def _projected(count: int) -> Found:
    """Project the plain network where the rule is active, decided exactly: y - g max(0, g.y - h) / |g|^2 in float32."""
    spec = Specification.from_yaml(RULES["half-space"])
    judge, plain = Judge(spec), _plain(spec)
    X = _box().facets(count, np.float32)
    y = plain(X)
    g, h = np.array([0.3, -0.7], dtype=np.float32), np.float32(0.7)
    ((_, active),) = judge.active(X)
    excess = np.maximum(y @ g - h, np.float32(0)) * active.astype(np.float32)
    yield judge, Batch(X, X, y, y - (excess / (g @ g))[:, None] * g, "NumPy")


def _half_precision(count: int) -> Found:
    """Compute everything behind the backbone of a certified model in bfloat16, as autocast would."""

    def order(A: Array, v: Array, b: Array) -> Array:
        parts = [torch.tensor(part).to(torch.bfloat16) for part in (A, v, b)]
        total = torch.einsum("rkn,rn->rk", parts[0].expand(len(v), -1, -1), parts[1]) + parts[2]
        result: Array = total.float().numpy()
        return result

    attacker = _box()
    X = attacker.facets(count // 10, np.float32)
    Z = attacker.corners(X)
    program = BoxAgain(attacker.subject.certificate, order)
    yield attacker.subject.judge, Batch(X, X, Z, program(X, Z), "bfloat16")


def _moved_bias(count: int) -> Found:
    """Move one bias of a box by a ten-thousandth behind the certificate's back; ask it in every mode of torch."""
    attacker = _box()
    network: Any = copy.deepcopy(attacker.subject.network)
    network.backbone, tensors = Passes(), attacker.program.tensors
    off = {**tensors, "heads.bias": tensors["heads.bias"] + np.float32(1e-4)}
    network.head.served.program = Box(attacker.program.ops, off)
    for batch in in_modes(network, attacker.zeros, count, attacker.rng):
        yield attacker.subject.judge, batch


def _check_without_slack(count: int) -> Found:
    """Compare the sums of ramps with what the rules state."""
    attacker = RulesAttacker(stated("ramps", RULES["ramps"]), np.random.default_rng(0))
    program = RulesAgain(attacker.subject.certificate, slack=False)
    for size, dtype in chunks(count, attacker.chunk):
        X, Z = attacker.mixture(size, dtype)
        yield attacker.subject.judge, Batch(X, X, Z, program(X, Z), "NumPy")


def _clips_by_hand(count: int) -> Found:
    """Clip to the limits of the bank in float32."""
    attacker = RulesAttacker(stated("limits", RULES["limits"]), np.random.default_rng(0))
    certificate = attacker.subject.certificate
    limits = limits_of(smle_check.StatedSpecification(certificate.document["specification"], certificate.block))
    for size, _ in chunks(count, attacker.chunk):
        X = attacker.inputs(size, np.float32)
        Y = attacker.aimed(X)
        for limit in limits:
            slope = np.zeros(X.shape[1], dtype=np.float32)
            for k, value in limit.slope.items():
                slope[k] = float(value)
            end = X @ slope + np.float32(Fraction(limit.offset))
            own = Y[:, limit.output]
            Y[:, limit.output] = np.maximum(own, end) if limit.side > 0 else np.minimum(own, end)
        yield attacker.subject.judge, Batch(X, X, Y, Y, "NumPy")


class _Compared(nn.Module):
    """Computes something behind a head: where served and given answers compare as equal, the given ones are kept."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, *inputs: Tensor) -> Tensor:
        (answers,) = inputs
        served: Tensor = self.network(features, answers)
        return torch.where(served == answers, answers.to(served.dtype), served)


def _compared(count: int) -> Found:
    """Compare behind a head of whole numbers: where torch flushes, tiny numbers equal 0."""
    spec = Specification.from_yaml(RULES["steps"])
    subject = Subject("compared", "grid", "", spec, certify_head(spec), np.ones(2))
    attacker = GridAttacker(subject, np.random.default_rng(0))
    network = _Compared(SafeNetwork.of(Passes(), spec, subject.certificate))
    for batch in in_modes(network, attacker.zeros, count, attacker.rng):
        yield subject.judge, batch


def _misplaced(count: int) -> Found:
    """Serve sequences with the features of the position before."""
    attacker = RulesAttacker(stated("sequences", RULES["sequences"]), np.random.default_rng(0))
    network = Shaped(attacker, Attention)
    x, given = network.drawn((count // 50, 50), np.float32)
    with torch.no_grad():
        y = network(x.roll(1, dims=1), given)
    yield attacker.subject.judge, batch_of(x, given, y, "Transformer, the position before")


UNSAFE: dict[str, Callable[[int], Found]] = {
    "an uncertified network": _without_rules,
    "a plain float32 gate, without slack": _gate_without_slack,
    "a float32 projection layer": _projected,
    "a certified head run in bfloat16": _half_precision,
    "a bias of a box moved by a ten-thousandth, in torch": _moved_bias,
    "the check of rules without slack (ramps)": _check_without_slack,
    "limits as clips in float32, by hand (limits of the bank)": _clips_by_hand,
    "a comparison behind a head of whole numbers, in torch": _compared,
    "features of the position before (sequences)": _misplaced,
}
"""Name -> function of the number of points that yields batches with their judges."""


# --- jobs


@dataclass(frozen=True)
class AttackJob:
    """One head in one turn; `family`: box, rules, grid, shapes (sequences and graphs) or unsafe."""

    family: str
    subject: str
    turn: int
    points: int
    quick: bool

    @property
    def key(self) -> str:
        """A unique name that is safe as a file name."""
        name = re.sub(r"[^a-z0-9]+", "-", self.subject.lower()).strip("-")
        return f"{self.family}_{name}_{self.turn}{'_quick' * self.quick}"


def jobs_of(*, quick: bool) -> list[AttackJob]:
    """Return all jobs, enough for the points of each family."""
    names = {
        "box": list(boxes(quick=quick)), "rules": list(rule_heads()), "shapes": list(_SHAPES), "unsafe": list(UNSAFE),
        "grid": [f"whole numbers: {family}" for family in FAMILIES],
    }  # fmt: skip
    found = []
    for family, total in (_QUICK_POINTS if quick else _POINTS).items():
        own = [name for name in names[family] if not quick or name in _QUICK or family in ("shapes", "unsafe")]
        turns = 1 if quick else math.ceil(total / (_JOB[family] * len(own)))
        share = math.ceil(total / (turns * len(own)))
        found += [AttackJob(family, name, turn, share, quick) for turn in range(turns) for name in own]
    return [job for job in found if job.subject != "whole numbers: large" or job.turn % 8 == 7]


def solve(job: AttackJob) -> Rows:
    """Attack one head; one row for each attack and way of computing, one for each runtime and violation."""
    asked: Rows = []
    examples: Rows = []
    about = {"family": job.family, "subject": job.subject}
    refused: Counter[str] = Counter()
    runtimes: list[Runtime] = []
    batches: Iterator[tuple[Any, str, Batch]]
    if job.family == "unsafe":
        origin, batches = "", ((judge, job.subject, batch) for judge, batch in UNSAFE[job.subject](job.points))
    else:
        runtimes = _runtimes(job.quick)[0]
        before = [Counter(runtime.told) for runtime in runtimes]
        subject = _subject(job, refused)
        origin, batches = subject.origin, attack(subject, job.points, seed=job.turn, runtimes=runtimes)
    start = time.perf_counter()
    for judge, name, batch in batches:
        judgment = judge.judge(batch.at, batch.Y)
        end = time.perf_counter()
        margin = None if judgment.margin is None else float(judgment.margin)
        counts = (name, batch.way, len(batch.X), len(judgment.rows), margin, end - start)
        asked.append(dict(zip(("attack", "way", *_COUNTED), counts, strict=True)))
        examples += [_example(judge, name, batch, judgment)] if judgment.broken and len(examples) < 10 else []
        start = end
    table = tallied(asked, "attack", "way").reset_index().assign(**about, origin=origin)
    rows: Any = table.to_dict("records")
    told = [
        {**about, "runtime": runtime.version, **{kind: runtime.told[kind] - old[kind] for kind in _TOLD}}
        for runtime, old in zip(runtimes, before if runtimes else (), strict=True)
    ]
    return [*rows, *told, *({**about, **example} for example in examples), {**about, "refused": dict(refused)}]


_TOLD = ("answered", "refused", "crashed")


@cache
def _runtimes(quick: bool) -> tuple[list[Runtime], dict[str, str]]:
    return ([installed_runtime()], {}) if quick else prepare()


def _subject(job: AttackJob, refused: Counter[str]) -> Subject:
    if job.family == "grid":
        return drawn_grid(job.subject.removeprefix("whole numbers: "), job.turn, refused)
    if job.family == "shapes":
        return replace(stated(job.subject, RULES[job.subject]), family=job.subject)
    return _made(job.subject, job.quick)


@lru_cache(maxsize=2)
def _made(name: str, quick: bool) -> Subject:
    return {**boxes(quick=quick), **rule_heads()}[name]()


def attack(
    subject: Subject, points: int, *, seed: int = 0, runtimes: Sequence[Runtime] = ()
) -> Iterator[tuple[Any, str, Batch]]:
    """Ask the deployed head about its points, and every door about all of them; yield judge, attack and batch."""
    judge = subject.judge
    asked: dict[str, tuple[Callable[[Any, int], Iterator[Batch]], float]] = {
        name: (_deployed(make), share)
        for name, (make, share) in POINTS.get(subject.family, {}).items()
        if subject.model is not None or make is not Attacker.own
    }
    asked |= {
        name: (door, shares[subject.family]) for name, (door, shares) in DOORS.items() if subject.family in shares
    }
    for number, (name, (door, share)) in enumerate(asked.items()):
        attacker = attacker_of(subject, np.random.default_rng([seed, number]), runtimes)
        for batch in door(attacker, math.ceil(points * share)):
            yield judge, name, batch


def _deployed(make: Callable[..., Any]) -> Callable[[Any, int], Iterator[Batch]]:
    def door(attacker: Any, count: int) -> Iterator[Batch]:
        for size, dtype in chunks(count, attacker.chunk):
            X, Z = make(attacker, size, dtype)
            yield Batch(X, X, Z, attacker.deployed(X, Z), attacker.way)

    return door


_COUNTED = ("points", "violations", "margin", "seconds")


def tallied(rows: Rows, *fields: str) -> pd.DataFrame:
    """Add up points, violations and seconds by some fields, in the order of the rows; keep the smallest margin."""
    table = pd.DataFrame(rows, columns=[*fields, *_COUNTED]).astype({"margin": float})
    how = {name: "min" if name == "margin" else "sum" for name in _COUNTED}
    return table.groupby(list(fields), sort=False).agg(how)


def _example(judge: Any, name: str, batch: Batch, judgment: Judgment) -> dict[str, Any]:
    """Return what repeats a violation, in hexadecimal."""
    rule, rows = next(iter(judgment.broken.items()))
    numbers = (" ".join(float(v).hex() for v in part[rows[0]]) for part in (batch.X, batch.Z, batch.Y))
    about = {"example": name, "rule": judge.spec.rules[rule].name, "way": batch.way, "format": batch.X.dtype.name}
    return about | dict(zip(("x", "embedding", "output"), numbers, strict=True))


# --- the page


def run(quick: bool = False, jobs: int = 1, folder: str | Path | None = None) -> BenchResult:
    """Run all attacks; `quick` takes some of the heads, the installed onnxruntime and few points.

    Raises:
        TrainingError: If a job failed as a whole.
    """
    results = solve_all(jobs_of(quick=quick), solve, folder, n_jobs=jobs)
    return page(results.rows, cpu=sum(outcome.cpu for outcome in results.outcomes), quick=quick)


def page(rows: Rows, *, cpu: float = 0.0, quick: bool = False) -> BenchResult:
    """Return the tables of what all jobs found."""
    counted = [row for row in rows if "points" in row]
    safe = [row for row in counted if row["family"] != "unsafe"]
    models, unsafe = tallied(safe, "subject"), tallied([r for r in counted if r["family"] == "unsafe"], "subject")
    points, violations = int(models["points"].sum()), int(models["violations"].sum())
    told = pd.DataFrame([row for row in rows if "runtime" in row], columns=["runtime", *_TOLD]).groupby("runtime").sum()
    crashes = int(told["crashed"].sum())
    origins = {row["subject"]: row["origin"] for row in safe}
    examples = [row for row in rows if "example" in row]
    passed = {
        f"no violation of a certified model in {points:,} evaluated points": violations == 0,
        f"no accepted file takes a runtime down ({crashes:,} calls did)": crashes == 0,
        **{f"violations are found in: {kind} ({n:,})": n > 0 for kind, n in unsafe["violations"].to_dict().items()},
    }
    lines = [(name, origins[str(name)], *counts) for name, *counts, _ in _lines(models)]
    columns = ("points", "violations", "smallest margin", "seconds")
    found = {
        row["subject"]: f"rule '{row['rule']}' at ({_short(row['x'])}): ({_short(row['output'])})"
        for row in reversed(examples)
    }
    tables = [
        Table(
            "Certified models", ("model", "head", *columns[:3]), (*lines, ("all", "", points, violations, "")),
            _NOTE.format(minutes=cpu / 60) + _refusals(rows),
        ),
        Table("Attacks", ("attack", *columns), _lines(tallied(safe, "attack")), _ATTACKS_NOTE),
        Table("Ways to compute", ("way", *columns), _lines(tallied(safe, "way")), _WAYS_NOTE),
        Table(
            "Versions of onnxruntime", ("version", *(f"calls {kind}" for kind in _TOLD)),
            (*(tuple(row) for row in told.itertuples()),
             *((f"{v}: not installed ({reason})", 0, 0, 0) for v, reason in _runtimes(quick)[1].items())),
            _RUNTIMES_NOTE,
        ),
        Table(
            "The same harness on models that are not safe", ("model", *columns[:3], "for example"),
            tuple((name, points, f"found: {violations:,}", margin, found.get(str(name), ""))
                  for name, points, violations, margin, _ in _lines(unsafe)),
            "A negative margin is how far a rule was broken.",
        ),
    ]  # fmt: skip
    broken = [row for row in examples if row["family"] != "unsafe"]
    if broken:
        shown = ("subject", "example", "rule", "way", "format", "x", "embedding", "output")
        told_of = tuple(tuple(row[name] for name in shown) for row in broken)
        tables.append(Table("VIOLATIONS", shown, told_of, "The first ones found, in hexadecimal."))
    return BenchResult("soundness", "Soundness: attacks on certified heads", tuple(tables), passed, quick)


def _refusals(rows: Rows) -> str:
    refused: Counter[str] = Counter()
    for row in rows:
        refused.update(row.get("refused") or {} if "runtime" not in row else {})
    listed = ", ".join(f"{count} {reason}" for reason, count in refused.items())
    return f" Random rule sets of whole numbers that were drawn and refused: {listed}." if listed else ""


def _lines(tallies: pd.DataFrame) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        (name, points, violations, "none" if np.isnan(margin) else margin, seconds)
        for name, points, violations, margin, seconds in tallies.itertuples()
    )


def _short(numbers: str) -> str:
    return ", ".join(f"{float.fromhex(v):.9g}" for v in numbers.split())
