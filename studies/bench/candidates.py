"""Checked candidates: what an answer costs, and how near proposals are to the nearest allowed answer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.errors import RuleError
from smle.heads.rules.author import certify_rules
from smle.heads.rules.candidates import Candidates
from smle.nearest.oracle import nearest_outputs
from smle.rules import Specification, label_columns
from studies.harness import BenchResult, Table, interleaved, keep_memory, one_thread
from tests.support.drawn_rules import alternatives, draw

__all__ = ["run"]

Array = npt.NDArray[Any]
_INPUTS = "inputs: {x0: [0, 1], x1: [0, 1], x2: [0, 1]}\n"
_COUPLED = {
    "three rows, two outputs": (
        "outputs: [p, q]\nrules:\n  - {name: a, when: x0 >= 0.5, then: p >= 0 and q >= 0 and p + q <= 1}\n",
        {1: (1.2, 0.0, 4.6), 8: (1.7, 4.2, 4.6), 64: (1.9, 3.1, 3.8), 1024: (1.4, 1.6, 2.8), 8192: (1.2, 1.3, 2.0)},
    ),
    "ten literals, four outputs, two parts": (
        "outputs: [a, b, c, d]\nrules:\n"
        "  - {name: r1, then: a + b <= 1 and b + c <= 1 and c + d <= 1 and a - d <= 1}\n"
        "  - {name: r2, when: x1 >= 0.1, then: a >= 0 and b >= 0 and c >= -1 and d >= -1}\n"
        "  - {name: r3, when: x0 >= 0.1, then: a + 2 * c <= 0.2 or b - d >= 0.5}\n",
        {1: (1.3, 0.0, 9.8), 8: (2.3, 8.2, 11), 64: (2.3, 6.5, 19), 1024: (1.6, 4.3, 26), 8192: (1.6, 4.0, 27)},
    ),
}
"""Rules, and ratios that a first trial reached (rows repaired: none, a tenth, all)."""


def run(quick: bool = False) -> BenchResult:
    """Measure cost and nearness; `quick` takes few sizes and rows."""
    keep_memory()
    passed: dict[str, bool] = {}
    with one_thread():
        tables = (_cost(quick, passed), _nearness(quick, passed))
    return BenchResult("candidates", "Checked candidates: cost and nearness", tables, passed=passed, quick=quick)


# --- cost ------------------------------------------------------------------------------------------------------------


def _cost(quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    sizes = (1, 8, 64) if quick else (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    for name, (rules, tried) in _COUPLED.items():
        spec = Specification.from_yaml(_INPUTS + rules)
        measured = [_ratios(spec, size, quick) for size in sizes]
        for share, place in (("no rows", 0), ("a tenth", 1), ("all", 2)):
            rows.append((name, share, *(f"{own[place]:.2f}" if own[place] else "-" for own in measured)))
        solver = [f"{_solver_ratio(spec, size):.0f}" if size <= 64 else "-" for size in sizes]
        rows.append((name, "all, by a QP solver", *solver))
        for size, own in zip(sizes, measured, strict=True):
            if size in tried:
                better = sum(got <= 1.1 * least for got, least in zip(own, tried[size], strict=True))
                passed[f"{name}, batch {size:,}: {better} of 3 shares at most 1.1 times what was tried"] = better == 3
    return Table(
        "A 3-64-64-64-m network in torch, with and without checked candidates behind it",
        ("rules", "rows repaired", *(f"{size:,}" for size in sizes)),
        tuple(rows),
        "Ratio of both to the network alone by batch size; one thread; the least processor time of "
        "rounds taken in turns.",
    )


def _network(outputs: int) -> Callable[[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for width in ((3, 64), (64, 64), (64, 64)):
        layers += [torch.nn.Linear(*width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, outputs)).eval()


def _answers(spec: Specification, program: Candidates, size: int) -> tuple[Array, Array, Array]:
    """Return inputs where all rules are on, answers that obey and answers that do not."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.6, 1, (40 * size + 400, 3)).astype(np.float32)
    t = rng.normal(0, 1.5, (len(X), len(spec.targets))).astype(np.float32)
    by = program.explained(X, t)[1]
    return X[:size], np.resize(t[by == 0], (size, t.shape[1])), np.resize(t[by == 1], (size, t.shape[1]))


def _ratios(spec: Specification, size: int, quick: bool) -> list[float]:
    program, network = Candidates(certify_rules(spec, scale=np.ones(len(spec.targets)))), _network(len(spec.targets))
    X, kept, moved = _answers(spec, program, size)
    features = torch.from_numpy(X)

    def both(repaired: int) -> Callable[[], object]:
        answers = kept.copy()
        places = np.random.default_rng(1).permutation(size)[:repaired]
        answers[places] = moved[places]

        def answered() -> object:
            network(features).numpy()
            return program(X, answers)

        return answered

    counts = {"none": 0, "tenth": round(size / 10), "all": size}
    with torch.no_grad():
        contenders = {"model": lambda: network(features).numpy()} | {name: both(k) for name, k in counts.items()}
        times = interleaved(contenders, rounds=20 if quick else 200, budget=6.0, clock=time.thread_time)
    base = min(times["model"].seconds)
    return [min(times[name].seconds) / base if name != "tenth" or k else 0.0 for name, k in counts.items()]


def _solver_ratio(spec: Specification, size: int) -> float:
    """Return the same where the QP solver of post-processing finds the nearest answers."""
    program, network = Candidates(certify_rules(spec, scale=np.ones(len(spec.targets)))), _network(len(spec.targets))
    X, _, moved = _answers(spec, program, size)
    features, wide = torch.from_numpy(X), moved.astype(np.float64)

    def solved() -> object:
        network(features).numpy()
        return nearest_outputs(spec, X, wide)

    with torch.no_grad():
        contenders = {"model": lambda: network(features).numpy(), "solver": solved}
        times = interleaved(contenders, rounds=5, budget=4.0, clock=time.thread_time)
    return min(times["solver"].seconds) / min(times["model"].seconds)


# --- nearness --------------------------------------------------------------------------------------------------------


def _nearness(quick: bool, passed: dict[str, bool]) -> Table:
    rows: list[tuple[object, ...]] = []
    count = 20 if quick else 100
    for name, specs in _kinds(quick).items():
        total = np.zeros(4)
        for seed, (spec, scale) in enumerate(specs):
            total += _compared(spec, scale, count, seed)
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
        "14 labels, 55 exclusions": [_labels(14, rng.permutation(pairs)[:55].tolist())],
        "14 labels, a chain of implications": [_labels(14, [f"a{i} implies a{i + 1}" for i in range(13)])],
        "40 labels, a tree": [_labels(40, [f"a{i} implies a{(i - 1) // 2}" for i in range(1, 40)])],
        "20 labels, exactly one of each five": [
            _labels(20, [f"exactly_one({', '.join(f'a{5 * g + i}' for i in range(5))})" for g in range(4)])
        ],
    }


def _several(rng: np.random.Generator) -> Specification:
    return alternatives("inputs: {x: [0, 1]}\n", rng.normal(0, 1, 10), (21, 41), rng)


def _clauses(spec: Specification) -> list[Any]:
    return [clause for rule in spec.rules for clause in rule.requirement.clauses]


def _labels(count: int, rules: list[str]) -> tuple[Specification, Array]:
    listed = "".join(f"  - {{name: r{i}, then: '{then}'}}\n" for i, then in enumerate(rules))
    text = f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(f'a{i}' for i in range(count))}]\nrules:\n{listed}"
    return Specification.from_yaml(text), np.ones(count)


def _compared(spec: Specification, scale: Array, rows: int, seed: int) -> Array:
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
