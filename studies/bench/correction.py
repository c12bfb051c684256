"""Any model, corrected: which rule sets are accepted, what an answer costs in accuracy, and attacks.

* Random rule sets that are consistent by construction (`random_rules`): accepted, or refused with a reason.
* Hostile answers to the accepted ones, judged in rationals.
* Repaired answers against exhaustive search for the nearest allowed ones.
* Simulated tables with separated ranges, coupled outputs, moving limits, alternatives and labels: the corrected model
  against nearest-allowed post-processing of the same answers, run by run.
* Networks as estimators train them, with limits in units from 1e-3 to 1e6.
"""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor

from smle import NetworkRegressor, SafeRegressor
from smle.certificates.document import Certificate
from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.rules.author import certify_rules
from smle.heads.rules.candidates import Candidates
from smle.heads.table import program_of
from smle.nearest.oracle import nearest_outputs
from smle.rules import Specification, label_columns
from studies.attacks.rule_texts import BANK, DOSES, RAMPS, SHARES, bank, doses, shares
from studies.harness import BenchResult, Table
from tests.support.drawn_rules import alternatives, draw
from tests.support.sampling import Judge, hard_points, uniform_points

__all__ = ["run"]

Array = npt.NDArray[Any]
_SETS = {False: 3000, True: 60}
_POINTS = {False: 400, True: 200}  # attacked answers per rule set and format


def run(quick: bool = False) -> BenchResult:
    """Run all parts; `quick` takes few rule sets and rows."""
    passed: dict[str, bool] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # searches that do not end, answers that move often
        tables = (
            _random(_SETS[quick], _POINTS[quick], passed), _nearness(quick, passed), _accuracy(quick, passed),
            _networks(quick, passed),
        )  # fmt: skip
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
        if "check.scale" not in certificate.tensors:
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


# --- Nearness ----------------------------------------------------------------------------------------------------


def _nearness(quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    count = 20 if quick else 100
    for name, specs in _kinds(quick).items():
        total = np.zeros(4)
        for seed, (spec, scale) in enumerate(specs):
            total += nearness(spec, scale, count, seed)
        repaired, same, safe, excess = total
        rows.append((name, len(specs), int(repaired), same / repaired, excess / repaired, safe / repaired))
        passed[f"{name}: the stored safe answer serves less than a tenth of a percent"] = bool(safe <= 1e-3 * repaired)
        passed[f"{name}: 98 % of repairs are as near as can be"] = bool(same >= 0.98 * repaired)
    return Table(
        "Repaired answers against exhaustive search for the nearest allowed ones",
        ("rules", "sets", "rows repaired", "as near", "farther on average (relative)", "safe answer served"),
        tuple(rows),
        "Distances in outputs divided by their units; for labels the log-likelihood that is given up.",
    )


def _kinds(quick: bool) -> dict[str, list[tuple[Specification, Array]]]:
    rng, sets = np.random.default_rng(0), 3 if quick else 12
    drawn: list[tuple[Specification, Array]] = []
    seed = 0
    while len(drawn) < (4 if quick else 200):
        rules = draw(seed)
        seed += 1
        try:
            spec = rules.spec
        except RuleError:
            continue
        if any(len(clause.literals) > 1 or len(clause.literals[0].outputs) > 1 for clause in _clauses(spec)):
            drawn.append((spec, rules.units))
    names = [f"a{i}" for i in range(14)]
    pairs = [f"not ({names[i]} and {names[j]})" for i in range(14) for j in range(i)]
    return {
        "random rule sets, units 1e-3 to 1e6": drawn,
        "21 to 40 alternatives over 10 outputs": [(_several(rng), np.ones(10)) for _ in range(sets)],
        "14 labels, 55 exclusions": [_label_rules(14, rng.permutation(pairs)[:55].tolist())],
        "14 labels, a chain of implications": [_label_rules(14, [f"a{i} implies a{i + 1}" for i in range(13)])],
        "40 labels, a tree": [_label_rules(40, [f"a{i} implies a{(i - 1) // 2}" for i in range(1, 40)])],
        "20 labels, exactly one of each five": [
            _label_rules(20, [f"exactly_one({', '.join(f'a{5 * g + i}' for i in range(5))})" for g in range(4)])
        ],
    }


def _several(rng: np.random.Generator) -> Specification:
    return alternatives("inputs: {x: [0, 1]}\n", rng.normal(0, 1, 10), (21, 41), rng)


def _clauses(spec: Specification) -> list[Any]:
    return [clause for rule in spec.rules for clause in rule.requirement.clauses]


def _label_rules(count: int, rules: list[str]) -> tuple[Specification, Array]:
    listed = "".join(f"  - {{name: r{i}, then: '{then}'}}\n" for i, then in enumerate(rules))
    text = f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(f'a{i}' for i in range(count))}]\nrules:\n{listed}"
    return Specification.from_yaml(text), np.ones(count)


def nearness(spec: Specification, scale: Array, rows: int, seed: int) -> Array:
    """Return how many rows were repaired, how many as near as can be, how many by the safe answer; excess distance."""
    rng = np.random.default_rng(seed)
    X = np.stack([rng.uniform(float(a), float(b), rows) for a, b in zip(spec.lower, spec.upper, strict=True)], axis=1)
    t = (rng.normal(0, 2, (rows, len(scale))) * scale).astype(np.float32)
    y, by = Candidates(certify_rules(spec, scale=scale)).explained(X, t)
    wide, moved = t.astype(np.float64), by > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # searches that do not end
        if label_columns(spec).all():
            best = nearest_outputs(spec, X[moved], 1 / (1 + np.exp(-wide[moved]))) > 0

            def lost(on: Array) -> Array:
                return np.asarray(np.where(on != (t[moved] >= 0), np.abs(wide[moved]), 0.0).sum(axis=1))

            found, least, rounding = lost(y[moved] >= 0), lost(best), np.full(moved.sum(), 1e-3)
        else:
            nearest = nearest_outputs(spec, X[moved], wide[moved], scale=scale)
            found, least = (np.sqrt((((v - wide[moved]) / scale) ** 2).sum(axis=1)) for v in (y[moved], nearest))
            rounding = 1e-6 * np.abs(wide[moved] / scale).sum(axis=1)
    same = found <= 1.0001 * least + rounding
    excess = np.where(same, 0.0, (found - least) / np.maximum(least, 1e-9))
    return np.array([moved.sum(), same.sum(), (by == 2).sum(), excess.sum()])


# --- Accuracy ----------------------------------------------------------------------------------------------------

Score = Callable[[Array], float]
Targets = Callable[[Array, np.random.Generator], Array]
_INPUTS = "inputs: {a: [0, 6], b: [-1, 1], c: [0, 1]}\n"
_RANGES = f"""{_INPUTS}outputs: [y]
rules:
  - {{name: gap, then: y <= -3 or y >= -1}}
  - {{name: other, then: y <= 1 or y >= 3}}
"""
_LABELS = (
    "l0 implies l1", "l1 implies l2", "l3 implies l1", "exactly_one(l4, l5, l6)", "exactly_one(l7, l8, l9)",
    "not (l4 and l7)", "l10 implies (l5 or l8)", "not (l11 and l0)",
)  # fmt: skip


def _ramps(X: Array, rng: np.random.Generator) -> Array:
    last, hour = X.T
    steps = 30 * np.sin(hour[:, None] / 4 + np.arange(3)) + 15 * rng.normal(size=(len(X), 3))
    return np.asarray(last[:, None] + np.cumsum(steps, axis=1))


def _wave(X: Array, rng: np.random.Generator) -> Array:
    return np.asarray((6 * np.sin(X[:, 0]) + 2 * X[:, 1] + 0.5 * rng.normal(size=len(X)))[:, None])


def _tasks() -> Mapping[str, tuple[Specification, Targets]]:
    """Return rules, and how targets come from inputs and noise."""
    rng = np.random.default_rng(0)
    hidden, mixture = rng.normal(size=10), rng.normal(size=(3, 10))

    def around(X: Array, rng: np.random.Generator) -> Array:
        return np.asarray(hidden + 1.2 * np.sin(X @ mixture) + 0.3 * rng.normal(size=(len(X), 10)))

    stated = {"bank": (BANK, bank), "doses": (DOSES, doses), "ramps on three steps": (RAMPS, _ramps)}
    stated |= {"shares": (SHARES, shares), "three separated ranges": (_RANGES, _wave)}
    tasks: dict[str, tuple[Specification, Targets]] = {
        name: (Specification.from_yaml(rules), targets) for name, (rules, targets) in stated.items()
    }
    return tasks | {"24 alternatives over 10 outputs": (alternatives(_INPUTS, hidden, (24, 25), rng), around)}


def _accuracy(quick: bool, passed: dict[str, bool]) -> Table:
    n = 100 if quick else 2000
    rows = [line for name, task in _tasks().items() for line in _numbers(name, *task, n)] + [_labels(n)]
    behind = max(float(row[3]) - float(row[4]) for row in rows)
    safe, wrong = max(float(row[6]) for row in rows), sum(int(row[7]) for row in rows)
    passed[f"within .001 of nearest-allowed post-processing everywhere (worst {behind:.1e} behind)"] = behind <= 1e-3
    passed[f"stored safe answers below a tenth of a percent (most {safe:.3%})"] = safe < 1e-3
    passed["no exact violation on test rows"] = wrong == 0
    return Table(
        "Accuracy against nearest-allowed post-processing of the same answers",
        ("rules", "model", "plain", "post-processed", "corrected", "moved", "safe answers", "exact violations"),
        tuple((*row[:2], *(f"{v:.6f}" for v in row[2:5]), f"{row[5]:.1%}", f"{row[6]:.2%}", row[7]) for row in rows),
        f"R2, or accuracy of labels, on {n:,} simulated test rows; as many for training.",
    )


def _numbers(name: str, spec: Specification, targets: Targets, n: int) -> Iterator[tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    X = uniform_points(spec, rng, 2 * n, dtype=np.float64)
    Y = targets(X, rng)
    scale = Y[:n].std(axis=0)
    certificate = certify_rules(spec, default=np.median(Y[:n], axis=0), scale=scale)
    for title, model in (("boosting", HistGradientBoostingRegressor(max_iter=80)), ("ridge", Ridge())):
        answers = MultiOutputRegressor(model).fit(X[:n], Y[:n]).predict(X[n:]).astype(np.float32)
        post = nearest_outputs(spec, X[n:], answers, scale=scale)
        yield name, title, *_compared(spec, certificate, X[n:], answers, post, partial(r2_score, Y[n:]))


def _labels(n: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    rules = "".join(f"  - {{name: r{i}, then: '{rule}'}}\n" for i, rule in enumerate(_LABELS))
    spec = Specification.from_yaml(f"{_INPUTS}labels: [{', '.join(f'l{i}' for i in range(12))}]\nrules:\n{rules}")
    X = uniform_points(spec, rng, 2 * n, dtype=np.float64)
    odds = 2 * np.sin(X @ rng.normal(size=(3, 12))) + rng.normal(size=(2 * n, 12))
    Y = nearest_outputs(spec, X, 1 / (1 + np.exp(-odds))) > 0
    fitted = MultiOutputClassifier(LogisticRegression()).fit(X[:n], Y[:n])
    chance = np.clip(np.stack([part[:, 1] for part in fitted.predict_proba(X[n:])], axis=1), 1e-6, 1 - 1e-6)
    answers = np.log(chance / (1 - chance)).astype(np.float32)
    likely = nearest_outputs(spec, X[n:], 1 / (1 + np.exp(-answers.astype(np.float64)))) - 0.5

    def accuracy(found: Array) -> float:
        return float(((found >= 0) == Y[n:]).mean())

    compared = _compared(spec, certify_rules(spec), X[n:], answers, likely, accuracy)
    return ("12 labels, implications, two exactly-one groups", "logistic", *compared)


def _compared(
    spec: Specification, certificate: Certificate, X: Array, answers: Array, post: Array, score: Score
) -> tuple[Any, ...]:
    """Return the scores of the answers, moved to the nearest allowed ones, and served; shares moved and replaced."""
    program: Any = program_of(certificate)
    served, by = program.explained(X, answers) if hasattr(program, "explained") else (program(X, answers), np.zeros(1))
    moved, wrong = float((served != answers).any(axis=1).mean()), len(Judge(spec).violations(X, served))
    return (*map(score, (answers, post, served)), moved, float((by == 2).mean()), wrong)


# --- Networks ----------------------------------------------------------------------------------------------------


def _mixed(unit: float) -> str:
    """Return moving, fixed and regional limits in a unit."""
    return (
        f"inputs: {{w: [2, 250], age: [0, 100], k: [0.1, 1.5]}}\noutputs: [y]\nrules:\n"
        f"  - {{name: by weight, then: 0 <= y <= {0.05 * unit:.6g} * w}}\n"
        f"  - {{name: cap, then: y <= {4 * unit:.6g}}}\n"
        f"  - {{name: old, when: age >= 70, then: y <= {2.5 * unit:.6g}}}\n"
        f"  - {{name: frail, when: age + 31.7 * k >= 81.3, then: y <= {0.02 * unit:.6g} * w + {unit:.6g}}}\n"
        f"  - {{name: least, when: w > 100 and k < 1, then: y >= {0.5 * unit:.6g}}}\n"
    )


def _networks(quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    n, options = 400 if quick else 3000, dict[str, Any](max_epochs=5) if quick else {}
    for unit in (1e-3, 1.0, 1e6):
        spec, rng = Specification.from_yaml(_mixed(unit)), np.random.default_rng(0)
        X = uniform_points(spec, rng, 2 * n, dtype=np.float64)
        w, age, k = X.T
        wave = 0.8 + 0.3 * np.sin(age / 15) + 0.2 * k  # often presses against the limits
        y = unit * (np.minimum(0.045 * w, 4.2) * wave + 0.1 * rng.normal(size=len(X)))
        model: Any = SafeRegressor(spec, NetworkRegressor(verbose=False, **options), random_state=0, compare=False).fit(
            X[:n], y[:n]
        )
        served, own = model.predict(X[n:]), model.own_answers(X[n:]).reshape(n, -1)
        clipped = nearest_outputs(spec, X[n:], own)[:, 0]
        scores = [float(r2_score(y[n:], part)) for part in (own[:, 0], clipped, served)]
        wrong = len(Judge(spec).violations(X[n:], np.asarray(served, dtype=np.float32)[:, None]))
        rows.append((f"{unit:g}", *(f"{score:.6f}" for score in scores), wrong))
        gap = scores[1] - scores[2]
        passed[f"limits in units of {unit:g}: within .002 of the network with a clip ({gap:.1e} behind)"] = gap <= 2e-3
        passed[f"limits in units of {unit:g}: no exact violation"] = wrong == 0
    return Table(
        "Moving, fixed and regional limits that overlap, a network by default",
        ("unit of the output", "R2 of the network", "R2 with a clip behind it", "R2 served", "exact violations"),
        tuple(rows),
        f"{n:,} simulated rows for training, as many for the test. The clip is exact post-processing.",
    )
