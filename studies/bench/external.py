"""Rule sets that we did not write: read, certified, checked, and how near repairs are to the exact optimum.

Everything runs by default settings and without examples. Costs are compared with the optimum of a solver of its own
for a sample of the rows; every row is also answered alone, and compared with what the batch gave.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

import smle
from studies.bench.external_rules import ROWS, Array, RuleSet, read_rule_sets, tolerances
from studies.harness import Table, bench

_JUDGED, _ALONE, _SECONDS = 100, 100, 60.0
"""Rows with an exact optimum, rows asked alone, and what may be spent on each."""
_AT = 1.0 + 1e-6  # of the optimum: prices of labels are rounded to 20 binary digits
_ALLOWED = {"+-1": 1.001}  # ties: many sets cost the same


@bench("Rule sets that we did not write", default_threads=True)
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Run all rule sets; `quick` takes the small ones and few rows."""
    rng = np.random.default_rng(0)
    sets = [*tolerances(rng), *([] if quick else read_rule_sets(rng))]
    made, near = [], []
    for rules in sets:
        seconds, model, asked = _made(rules)
        made.append((rules.name, len(rules.spec.rules), len(rules.spec.targets), *seconds))
        for kind, answers in rules.answers.items():
            asked["answers"] = answers
            row, met = _near(rules, kind, answers, model, 10 if quick else _JUDGED)
            near.append((rules.name, kind, *row))
            for what, ok in met.items():
                passed[f"{rules.name}, {kind}: {what}"] = ok
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        Table(
            "From text to a certificate",
            ("rules", "rules, number", "outputs", "read, s", "correct, s", "check, s"),
            tuple(made),
            f"Peak memory of the whole run: {peak:,.0f} MB.",
        ),
        Table(
            "Repairs",
            (
                "rules", "answers", "rows judged", "at the optimum", "largest ratio", "by the safe answer", "cut short",
                "us a row of 1,000", "ms alone, mean", "ms alone, most", "alone as in the batch",
            ),
            tuple(near),
            f"At the optimum: cost within {_AT - 1:.0e} of it; with logits of 1 and -1 many sets tie.",
        ),
    )  # fmt: skip


def _made(rules: RuleSet) -> tuple[tuple[float, float, float], Any, dict[str, Array]]:
    """Return seconds to read, correct and check; the corrected model, and a place for the answers that it gives."""
    asked: dict[str, Array] = {}
    text = rules.spec.to_yaml()
    start = time.perf_counter()
    spec = smle.Specification.from_yaml(text)
    read = time.perf_counter()
    model = smle.correct(lambda X: asked["answers"][np.asarray(X)[:, 0].astype(int)], spec)
    corrected = time.perf_counter()
    assert model.certificate_ is not None
    model.certificate_.check()
    return (read - start, corrected - read, time.perf_counter() - corrected), model, asked


def _near(
    rules: RuleSet, kind: str, answers: Array, model: Any, judged: int
) -> tuple[tuple[object, ...], dict[str, bool]]:
    """Serve all rows at once and some alone; return the row of the table, and the requirements."""
    X = np.arange(ROWS, dtype=np.float64)[:, None]
    model.predict(X[:2])
    start = time.perf_counter()
    served, info = model.predict(X, return_info=True)
    batch = (time.perf_counter() - start) / ROWS * 1e6
    exact = answers.astype(np.float32).astype(np.float64)
    costs = rules.cost(exact, np.asarray(_columns(served), dtype=np.float64))
    ratios, begun = [], time.perf_counter()
    for i in range(judged):
        least = rules.optimum(exact[i])
        floor = 1e-9 * max(1.0, float(np.abs(exact[i]).max()))
        ratios.append(1.0 if costs[i] <= least + floor else costs[i] / max(least, floor))
        if time.perf_counter() - begun > _SECONDS:
            break
    times, same = [], 0
    begun = time.perf_counter()
    for i in range(_ALONE):
        start = time.perf_counter()
        own = model.predict(X[i : i + 1])
        times.append((time.perf_counter() - start) * 1e3)
        same += bool((np.asarray(_columns(own))[0] == np.asarray(_columns(served))[i]).all())
        if time.perf_counter() - begun > _SECONDS:
            break
    ways = np.asarray(info["served"])
    at, worst = float(np.mean([r <= _AT for r in ratios])), max(ratios)
    row = (
        len(ratios), at, worst, float((ways == "safe").mean()), float((ways == "near").mean()),
        batch, float(np.mean(times)), max(times), f"{same} of {len(times)}",
    )  # fmt: skip
    allowed = _ALLOWED.get(kind, 1.001 if rules.spec.output_kind == "numbers" else _AT)
    return row, {"nearest": worst <= allowed, "alone as in the batch": same == len(times)}


def _columns(served: Any) -> Any:
    """Return what was served as columns: labels as 1 and -1."""
    values = np.asarray(served)
    return np.where(values, 1.0, -1.0) if values.dtype == bool or values.dtype.kind in "iu" else values
