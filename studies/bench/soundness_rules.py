"""Soundness of heads of rules: corrected models and rule sets that attacks are tried on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.multioutput import MultiOutputRegressor

from studies.bench.rules_attacks import ATTACKS, RulesAttacker, Subject, corrected, stated, unsafe
from studies.bench.soundness import campaign
from studies.bench.soundness_subjects import ADVICE, AROUND_ZERO, LABELS, MIXED, OBLIQUE
from studies.harness import BenchResult
from tests.support.drawn_rules import draw

__all__ = ["BANK", "DOSES", "RAMPS", "SHARES", "bank", "doses", "run", "shares", "subjects"]

_POINTS = {False: 10_000_000, True: 60_000}
_QUICK = ("bank, boosting", "shares, ridge", "ten mixed limits", "sums with tables", "labels", "random 3")
BANK = """
inputs: {income: [0, 200000], age: [18, 90], debt: [0, 50000]}
outputs: [limit, rate]
rules:
  - {name: affordable, then: 0 <= limit <= 0.35 * income}
  - {name: cap, then: limit <= 60000}
  - {name: young, when: age < 21, then: limit <= 2000}
  - {name: indebted, when: debt > 20000, then: limit <= 0.2 * income}
  - {name: usury, then: 5 <= rate <= 24.5}
  - {name: gap, then: rate <= 12 or rate >= 14}
  - {name: both, then: 0.0001 * limit + rate <= 22}
  - {name: rich, when: income - 1.3 * debt >= 150000, then: rate <= 12}
"""
LIMITS = "".join(
    line + "\n" for line in BANK.splitlines() if not line.startswith(("  - {name: gap", "  - {name: both"))
)
SHARES = """
inputs: {a: [0, 6], b: [-1, 1]}
outputs: [p, q, r]
rules:
  - {name: positive, then: p >= 0 and q >= 0 and r >= 0}
  - {name: whole, then: 0.95 <= p + q + r <= 1}
  - {name: either, when: b >= 0, then: p >= 0.3 or q >= 0.5}
"""
DOSES = """
inputs: {weight: [2, 250], age: [0, 100], kidney: [0.1, 1.5]}
outputs: [dose, pause]
rules:
  - {name: by weight, then: 0 <= dose <= 0.05 * weight}
  - {name: cap, then: dose <= 4}
  - {name: frail, when: age + 31.7 * kidney >= 81.3, then: dose <= 0.02 * weight + 0.1}
  - {name: pause, then: 4 <= pause <= 48}
  - {name: rest, when: kidney < 0.3, then: pause >= 4 + 0.1 * age}
"""
RAMPS = """
inputs: {last: [0, 1000], hour: [0, 24]}
outputs: [a, b, c]
rules:
  - {name: r1, then: -30 <= a - last <= 30}
  - {name: r2, then: -30 <= b - a <= 30}
  - {name: r3, when: hour >= 6.5, then: -30 < c - b < 30}
  - {name: night, when: hour < 6.5, then: c <= 0.5 * a + 0.1 * last + 100}
"""
RANGES = """
inputs: {x: [-3, 3], z: [0.001, 1000]}
outputs: [u, v]
rules:
  - {name: three, then: "u <= -1 or 0.3 <= u <= 0.31 or u >= 2 + 0.1 * x"}
  - {name: two, when: x + 0.01 * z < 5, then: v <= 0 or v >= 0.001 * z + 1}
  - {name: tied, then: u - v <= 7 or v > 3}
"""
TOUCHING = """
inputs: {x: [0, 1000]}
outputs: [p, q]
rules:
  - {name: a, then: p >= 0 and q >= 0 and p + q <= 0.35 * x}
"""


LISTED = """
inputs: {article: {categories: [a, b, c, d]}, weight: [0, 100], region: {categories: [north, south]}}
outputs: [price, cost]
tables:
  cap: {key: article, values: {a: 1, b: 0.3, c: 0.001, d: 1000000000000000}}
  low: {key: article, values: {a: -1, b: 0.1, c: 0, d: 7}}
  fee: {key: region, values: {north: 0.7, south: 0}}
rules:
"""
TABLES = (
    LISTED
    + """
  - {name: list, then: "low[article] <= price <= cap[article]"}
  - {name: either, then: "cost <= cap[article] or cost >= 20.1 + price"}
  - {name: strict, when: weight < 30.3, then: "cost > low[article] or price < 0.1"}
"""
)
LOOKED_UP = (
    LISTED
    + """
  - {name: sum, then: "price <= cap[article] + fee[region] + 0.1 * weight"}
  - {name: least, then: "price >= low[article] - 0.3 * weight - 1"}
  - {name: share, then: "0.3 * price + cost <= 0.7 * cap[article] + fee[region] + 0.1 * weight or cost >= price"}
"""
)


def _ten() -> str:
    units = (1e-3, 1.0, 1e6)
    lines = ["inputs: {a: [-10, 10], b: [0, 1], c: [1, 500]}", "outputs: [y0, y1, y2]", "rules:"]
    whens = ["", "when: a > 0.3, ", "when: b <= 0.7 and c >= 3, ", "when: a + 3.3 * b - 0.1 * c <= 1.7, "]
    for r in range(10):
        unit, side = units[r % 3], ">=" if r % 2 else "<="
        moving = f" + {0.01 * unit:.6g} * c" if r % 3 == 1 else ""
        at = (-1 if r % 2 else 1) * unit * (5 + r)
        lines.append(f"  - {{name: r{r}, {whens[r % 4]}then: y{r % 3} {side} {at:.6g}{moving}}}")
    return "\n".join(lines) + "\n"


def _many() -> str:
    rng, lines = np.random.default_rng(0), ["inputs: {a: [0, 100], b: [-1, 1]}", "outputs: [y, w]", "rules:"]
    for r in range(70):
        at = rng.uniform(0, 95)
        lines.append(
            f"  - {{name: r{r}, when: {at:.4f} <= a < {at + 4:.4f}, then: y <= {10 + r % 7}.1 and w >= -3.{r}}}"
        )
    return "\n".join([*lines, "  - {name: tied, when: a + 30 * b >= 20.2, then: y - w <= 9.9}"]) + "\n"


def bank(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules BANK."""
    income, _, debt = X.T
    limit = 0.3 * income * (1 + 0.3 * rng.normal(size=len(X))) - 0.2 * debt
    return np.stack([limit, 13 - income / 60_000 + 4 * rng.normal(size=len(X))], axis=1)


def shares(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules SHARES."""
    raw = np.stack([0.5 + 0.4 * np.sin(X[:, 0]), 0.3 + 0.3 * X[:, 1], 0.2 + 0.1 * X[:, 0]], axis=1)
    return raw + 0.1 * rng.normal(size=raw.shape)


def doses(X: Any, rng: np.random.Generator) -> Any:
    """Return simulated targets for the rules DOSES."""
    weight, age, kidney = X.T
    dose = 0.045 * weight * (0.8 + 0.2 * np.sin(age / 15)) + 0.1 * rng.normal(size=len(X))
    return np.stack([dose, 20 / kidney + rng.normal(size=len(X))], axis=1)


def _random(seed: int) -> Subject:
    rules = draw(seed)
    return stated(f"random {seed}", rules.text, rules.units)


def subjects() -> dict[str, Callable[[], Subject]]:
    """Return the models by name, each as a function that makes it."""
    boosting = MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=40))
    made: dict[str, Callable[[], Subject]] = {
        "bank, boosting": lambda: corrected("bank, boosting", BANK, boosting, bank, rows=3000),
        "doses, boosting": lambda: corrected("doses, boosting", DOSES, boosting, doses, rows=3000),
        "bank, ridge": lambda: corrected("bank, ridge", BANK, Ridge(), bank, rows=3000),
        "shares, ridge": lambda: corrected("shares, ridge", SHARES, Ridge(), shares, rows=3000),
    }
    texts = {
        "ramps": RAMPS, "ranges": RANGES, "touching": TOUCHING, "ten mixed limits": _ten(), "many limits": _many(),
        "tables": TABLES, "sums with tables": LOOKED_UP,
        "oblique": OBLIQUE, "labels": LABELS, "choice": ADVICE, "mixed": MIXED, "around zero": AROUND_ZERO,
    }  # fmt: skip
    made |= {name: partial(stated, name, text) for name, text in texts.items()}
    return made | {f"random {seed}": partial(_random, seed) for seed in (3, 5, 8, 13, 21, 34)}


def run(quick: bool = False) -> BenchResult:
    """Run all attacks on heads of rules; `quick` takes six heads, the installed onnxruntime and few points."""
    made = [make() for name, make in subjects().items() if not quick or name in _QUICK]
    attempts = unsafe(stated("ramps", RAMPS), stated("limits", LIMITS), 20_000 if quick else 300_000)
    return campaign("soundness_rules", made, RulesAttacker, ATTACKS, attempts, points=_POINTS[quick], quick=quick)
