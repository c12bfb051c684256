"""Any model, corrected: which rule sets are accepted, and how near repaired answers are.

* Random rule sets that are consistent by construction (`drawn_rules`): accepted, or refused with a reason.
* Hostile answers to the accepted ones, judged in rationals.
* Repaired answers against exhaustive search for the nearest allowed ones.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from smle.errors import ContradictionError, NotCertifiedError, RuleError
from smle.heads.rules.checked_candidates import Candidates
from smle.heads.rules.rules_author import certify_rules
from smle.heads.table import program_of
from smle.nearest.oracle import nearest_outputs
from smle.rules import Specification, label_columns
from studies.harness import Array, Table, bench, quietly
from tests.support.drawn_rules import alternatives, draw
from tests.support.sampling import Judge, hard_points

_SETS = {False: 3000, True: 60}
_POINTS = {False: 400, True: 200}  # attacked answers per rule set and format


@bench("Any model, corrected")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Run all parts; `quick` takes few rule sets and rows."""
    with quietly():  # searches that do not end, answers that move often
        return _random(_SETS[quick], _POINTS[quick], passed), _nearness(quick, passed)


# --- Random rule sets --------------------------------------------------------------------------------------------


def _random(wanted: int, points: int, passed: dict[str, bool]) -> Table:
    kinds: Counter[str] = Counter()
    served: Counter[int] = Counter()
    refusals: list[str] = []
    slowest, attacked, violations, unexplained = 0.0, 0, 0, 0
    for seed, spec, units in itertools.islice(_drawn(), wanted):
        start = time.perf_counter()
        try:
            certificate = certify_rules(spec, scale=units)
        except (ContradictionError, NotCertifiedError) as reason:
            kinds["refused"] += 1
            unexplained += re.search(r"x\d=", str(reason)) is None
            refusals.append(f"{seed}: {reason}")
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
            answers = _hostile(spec, units, len(X), rng)
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


def _drawn() -> Iterator[tuple[int, Specification, Array]]:
    """Yield rule sets with their seeds, and the units of their outputs."""
    for seed in itertools.count():
        rules = draw(seed)
        with contextlib.suppress(RuleError):  # a rule that is always true: the language refuses it
            yield seed, rules.spec, rules.units


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
    coupled = ((spec, units) for _, spec, units in _drawn() if _is_coupled(spec))
    drawn = list(itertools.islice(coupled, 4 if quick else 200))
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


def _is_coupled(spec: Specification) -> bool:
    clauses = [clause for rule in spec.rules for clause in rule.requirement.clauses]
    return any(len(clause.literals) > 1 or len(clause.literals[0].outputs) > 1 for clause in clauses)


def _label_rules(count: int, rules: list[str]) -> tuple[Specification, Array]:
    named = {f"r{i}": then for i, then in enumerate(rules)}
    labels = [f"a{i}" for i in range(count)]
    return Specification.build(inputs={"x": (0, 1)}, labels=labels, rules=named), np.ones(count)


def nearness(spec: Specification, scale: Array, rows: int, seed: int) -> Array:
    """Return how many rows were repaired, how many as near as can be, how many by the safe answer; excess distance."""
    rng = np.random.default_rng(seed)
    X = np.stack([rng.uniform(float(a), float(b), rows) for a, b in zip(spec.lower, spec.upper, strict=True)], axis=1)
    t = (rng.normal(0, 2, (rows, len(scale))) * scale).astype(np.float32)
    y, by = Candidates(certify_rules(spec, scale=scale)).explained(X, t)
    wide, moved = t.astype(np.float64), by > 0
    with quietly():  # searches that do not end
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
