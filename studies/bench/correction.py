"""Any model, corrected: which rule sets are accepted, what an answer costs in accuracy, and attacks.

* Random rule sets that are consistent by construction (`random_rules`): accepted, or refused with a reason.
* Hostile answers to the accepted ones, judged in rationals.
* Simulated tables with separated ranges, coupled outputs and capped moving limits: the corrected model against
  nearest-allowed post-processing of the same answers, run by run.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.multioutput import MultiOutputRegressor

from smle.certificates.rules import certify_rules
from smle.corrected import program_of
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.guarantees import nearest_outputs
from smle.rules import Specification
from studies.bench.harness import BenchResult, Table
from studies.bench.random_rules import draw
from studies.bench.sampling import Judge, hard_points

__all__ = ["run"]

Array = npt.NDArray[Any]
_SETS = {False: 3000, True: 60}
_POINTS = {False: 400, True: 200}  # attacked answers per rule set and format


def run(quick: bool = False) -> BenchResult:
    """Run all parts; `quick` takes few rule sets and rows."""
    passed: dict[str, bool] = {}
    tables = (_random(_SETS[quick], _POINTS[quick], passed), _tables(400 if quick else 4000, passed))
    return BenchResult("correction", "Any model, corrected", tables, passed=passed, quick=quick)


# --- Random rule sets --------------------------------------------------------------------------------------------


def _random(wanted: int, points: int, passed: dict[str, bool]) -> Table:
    kinds: Counter[str] = Counter()
    served: Counter[int] = Counter()
    refusals: list[str] = []
    slowest, attacked, violations, seed, unexplained = 0.0, 0, 0, 0, 0
    while sum(kinds.values()) < wanted:
        rules = draw(seed)
        seed += 1
        try:
            spec = rules.spec
        except RuleError:  # a rule that is always true: the language refuses it
            continue
        start = time.perf_counter()
        try:
            certificate = certify_rules(spec, scale=rules.units)
        except (ContradictionError, NotCertifiedError) as reason:
            kinds["refused"] += 1
            unexplained += re.search(r"x\d=", str(reason)) is None
            refusals.append(f"{seed - 1}: {reason}")
            continue
        slowest = max(slowest, time.perf_counter() - start)
        if "check.range" not in certificate.tensors:
            kinds["limits alone"] += 1
        else:
            moves = np.frombuffer(certificate.tensors["safe.slope"].data, "<f4").any()
            one = "one affine safe answer" if moves else "one constant safe answer"
            kinds[one if certificate.tensors["safe.offset"].shape[0] == 1 else "several safe answers"] += 1
        program: Any = program_of(certificate)
        judge, rng = Judge(spec), np.random.default_rng(seed)
        for kind in (np.float32, np.float64):
            X = np.concatenate(list(hard_points(spec, rng, points, dtype=kind)))
            answers = _hostile(spec, rules.units, len(X), rng)
            if hasattr(program, "explained"):
                y, by = program.explained(X, answers)
                served.update(Counter(by.tolist()))
            else:
                y = program(X, answers)
            attacked += len(X)
            violations += len(judge.violations(X, y))
    refused = kinds["refused"] / wanted
    passed[f"at most 1 % of {wanted:,} consistent rule sets refused ({refused:.2%})"] = refused <= 0.01
    passed["every refusal names an input"] = unexplained == 0
    passed[f"no exact violation in {attacked:,} hostile answers"] = violations == 0
    checked = max(sum(served.values()), 1)
    rows = [(kind, count, f"{count / wanted:.1%}") for kind, count in sorted(kinds.items())]
    note = (
        f"2 to 12 rules, 1 to 4 outputs in units from 1e-3 to 1e6, 1 to 5 inputs; limits, coupled rows and bands, "
        f"constant and moving, alternatives, conditions on one input and on two, strict and not. A hidden answer obeys "
        f"them with a gap: affine on each part of a tree of cuts, with jumps and oblique edges. Slowest set-up "
        f"{slowest:.2f} s. "
        f"Of {checked:,} checked hostile answers {served[0] / checked:.1%} were kept, {served[1] / checked:.1%} "
        f"repaired, {served[2] / checked:.2%} replaced by the stored safe answer. Exact violations: {violations} in "
        f"{attacked:,}.{''.join(f' Refused {text}' for text in refusals)}"
    )
    return Table("Random rule sets", ("served by", "sets", "share"), tuple(rows), note)


def _hostile(spec: Specification, units: Array, rows: int, rng: np.random.Generator) -> Array:
    answers = rng.normal(size=(rows, len(spec.targets))) * units * 10.0 ** rng.integers(-3, 4, (rows, 1))
    odd = np.asarray(rng.random(answers.shape) < 0.05)
    answers[odd] = rng.choice([np.nan, np.inf, -np.inf, 3e38, 0.0, 1e-40, -1e-42], int(odd.sum()))
    with np.errstate(over="ignore"):
        return answers.astype(np.float32)


# --- Accuracy ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """Rules, and how targets come from inputs (as columns) and noise."""

    rules: str
    targets: Any


def _dose(x: Array, rng: np.random.Generator) -> Any:
    weight, age = x.T
    return (np.minimum(0.04 * weight, 3.6) * (0.8 + 0.2 * np.sin(age / 15)) + 0.1 * rng.normal(size=len(x)))[:, None]


def _bank(x: Array, rng: np.random.Generator) -> Any:
    income, age, debt = x.T
    limit = 0.3 * income * (1 + 0.3 * rng.normal(size=len(x))) - 0.2 * debt
    rate = 13 - income / 60_000 + 4 * rng.normal(size=len(x)) + (age < 30)
    return np.stack([limit, rate], axis=1)


def _ranges(x: Array, rng: np.random.Generator) -> Any:
    return (6 * np.sin(x[:, 0]) + 2 * x[:, 1] + 0.5 * rng.normal(size=len(x)))[:, None]


def _ramps(x: Array, rng: np.random.Generator) -> Any:
    last, hour = x.T
    steps = 30 * np.sin(hour[:, None] / 4 + np.arange(3)) + 15 * rng.normal(size=(len(x), 3))
    return last[:, None] + np.cumsum(steps, axis=1)


def _shares(x: Array, rng: np.random.Generator) -> Any:
    raw = np.stack([0.5 + 0.4 * np.sin(x[:, 0]), 0.3 + 0.3 * x[:, 1], 0.2 + 0.1 * x[:, 0]], axis=1)
    return raw + 0.1 * rng.normal(size=raw.shape)


_TASKS = {
    "dose, per kilogram and capped": _Task(
        "inputs: {weight: [2, 250], age: [0, 100]}\noutputs: [dose]\nrules:\n"
        "  - {name: proportional, then: 0 <= dose <= 0.05 * weight}\n  - {name: cap, then: dose <= 4}\n",
        _dose,
    ),
    "bank, nine rules": _Task(
        "inputs: {income: [0, 200000], age: [18, 90], debt: [0, 50000]}\noutputs: [limit, rate]\nrules:\n"
        "  - {name: affordable, then: 0 <= limit <= 0.35 * income}\n  - {name: cap, then: limit <= 60000}\n"
        "  - {name: young, when: age < 21, then: limit <= 2000}\n"
        "  - {name: indebted, when: debt > 20000, then: limit <= 0.2 * income}\n"
        "  - {name: usury, then: 5 <= rate <= 24.5}\n  - {name: gap, then: rate <= 12 or rate >= 14}\n"
        "  - {name: old, when: age >= 75, then: limit <= 10000 and rate <= 20}\n"
        "  - {name: both, then: 0.0001 * limit + rate <= 22}\n"
        "  - {name: rich, when: income >= 150000, then: rate <= 12}\n",
        _bank,
    ),
    "two separated ranges": _Task(
        "inputs: {a: [0, 6], b: [-1, 1]}\noutputs: [y]\nrules:\n  - {name: gap, then: y <= -2 or y >= 2}\n", _ranges
    ),
    "three separated ranges": _Task(
        "inputs: {a: [0, 6], b: [-1, 1]}\noutputs: [y]\nrules:\n"
        "  - {name: gap, then: y <= -3 or y >= -1}\n  - {name: other, then: y <= 1 or y >= 3}\n",
        _ranges,
    ),
    "ramps on three steps": _Task(
        "inputs: {last: [0, 1000], hour: [0, 24]}\noutputs: [a, b, c]\nrules:\n"
        "  - {name: r1, then: -30 <= a - last <= 30}\n  - {name: r2, then: -30 <= b - a <= 30}\n"
        "  - {name: r3, then: -30 <= c - b <= 30}\n",
        _ramps,
    ),
    "shares": _Task(
        "inputs: {a: [0, 6], b: [-1, 1]}\noutputs: [p, q, r]\nrules:\n"
        "  - {name: positive, then: p >= 0 and q >= 0 and r >= 0}\n  - {name: whole, then: 0.95 <= p + q + r <= 1}\n"
        "  - {name: either, when: b >= 0, then: p >= 0.3 or q >= 0.5}\n",
        _shares,
    ),
}


def _tables(rows: int, passed: dict[str, bool]) -> Table:
    lines: list[tuple[object, ...]] = []
    worst, most_safe, violations = 0.0, 0.0, 0
    for name, task in _TASKS.items():
        spec = Specification.from_yaml(task.rules)
        rng = np.random.default_rng(0)
        low, high = (np.array([float(v) for v in side]) for side in (spec.lower, spec.upper))
        X = rng.uniform(low, high, (2 * rows, len(low)))
        Y = task.targets(X, rng)
        train, test = slice(0, rows), slice(rows, None)
        scale = Y[train].std(axis=0)
        program: Any = program_of(certify_rules(spec, default=np.median(Y[train], axis=0), scale=scale))
        for title, model in (("boosting", HistGradientBoostingRegressor(max_iter=80)), ("ridge", Ridge())):
            fitted = MultiOutputRegressor(model).fit(X[train], Y[train])
            answers = fitted.predict(X[test]).astype(np.float32)
            served, post = program(X[test], answers), nearest_outputs(spec, X[test], answers, scale=scale)
            counts = program.served if hasattr(program, "served") else None
            safe = counts.safe / (counts.kept + counts.repaired + counts.safe) if counts is not None else 0.0
            scores = [r2_score(Y[test], p) for p in (answers, post, served)]
            violations += len(Judge(spec).violations(X[test], served))
            worst, most_safe = max(worst, scores[1] - scores[2]), max(most_safe, safe)
            moved = float((served != answers).any(axis=1).mean())
            lines.append((name, title, *(f"{s:.6f}" for s in scores), f"{moved:.1%}", f"{safe:.3%}"))
    passed[f"within .001 of nearest-allowed post-processing everywhere (worst {worst:.1e} behind)"] = worst <= 1e-3
    passed[f"stored safe answers below a tenth of a percent (most {most_safe:.3%})"] = most_safe < 1e-3
    passed["no exact violation on test rows"] = violations == 0
    columns = ("rules", "model", "R2 plain", "R2 post-processed", "R2 corrected", "moved", "safe answers")
    note = f"{rows:,} rows for training, as many for the test. Simulated tables."
    return Table("Accuracy against nearest-allowed post-processing of the same answers", columns, tuple(lines), note)
