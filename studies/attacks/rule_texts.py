"""Rules of the subjects, and simulated targets for some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Targets = Callable[[Any, np.random.Generator], Any]
"""(inputs, random numbers) -> what a model is trained on."""

BRAKING = """
inputs: {distance: [0, 200], speed: [0, 40], friction: [0.1, 1.0]}
outputs: [brake]
rules:
  - {name: emergency, when: distance <= 10 and speed >= 20, then: brake >= 0.8}
  - {name: tailgating, when: distance <= 0.8 * speed - 4, then: brake >= 0.5}
  - {name: phantom, when: distance >= 150 and speed < 10.1, then: brake <= 0.1}
  - {name: range, then: 0 <= brake <= 1}
"""
OBLIQUE = """
inputs: {a: [-3, 5], b: [-7, 2], c: [0.1, 90]}
outputs: [y, w]
rules:
  - {name: one, when: a - 0.7 * b + 0.3 * c <= 11.7, then: y <= 1 and y - 0.3 * w <= 0.7}
  - {name: two, when: 0.1 * a + 0.7 * b >= -0.9 and c < 45.3, then: y >= 0.1 and w <= 1.3}
  - {name: three, when: a + 1.1 * b + 0.07 * c >= 1.9, then: y + w <= 1.7}
  - {name: four, when: 0.3 * a - 0.2 * b <= 0.7 and a + b >= -6.1, then: w >= -0.9}
"""
DOSE = """
inputs: {weight: [2, 90], age: [0, 99], kidney: [0.1, 1.5]}
outputs: [dose, pause]
rules:
  - {name: by weight, then: 0 <= dose <= 0.5 * weight + 1.3}
  - {name: frail, when: age + 31.7 * kidney >= 81.3, then: dose <= 0.2 * weight + 2.1}
  - {name: weak kidney, when: kidney - 0.013 * age <= 0.3, then: pause >= 8.3 and dose <= 20 + 0.1 * age}
  - {name: pause, then: 4 <= pause <= 48}
"""
LABELS = """
inputs: {p: [0, 1], q: [-1, 1], r: [0, 7]}
labels: [cat, dog, animal, car, night]
rules:
  - {name: kinds, then: (cat implies animal) and (dog implies animal)}
  - {name: not both, then: not (cat and dog)}
  - {name: street, when: p + 0.3 * q >= 0.7, then: not (car and dog) and (car or night)}
  - {name: dark, when: 0.7 * q - 0.1 * r <= -0.33, then: night}
  - {name: bright, when: r > 3.3 and p >= 0.2, then: not (night and car)}
"""
ADVICE = """
inputs: {distance: [0, 60], angle: [-3.1, 3.1], speed: [1, 12]}
choices: {advice: [clear, weak left, left, weak right, right]}
rules:
  - {name: near, when: distance - 1.7 * speed <= 3.3, then: advice != clear}
  - {name: left side, when: 0.3 * angle + 0.01 * distance >= 0.7, then: advice != left}
  - {name: head on, when: distance <= 9.9 and angle <= 0.7 and angle >= -0.7, then: "advice in [left, right]"}
"""
MIXED = """
inputs:
  speed: [0, 40]
  load: [-1, 1]
  road: {categories: [dry, wet, icy]}
  tyre: {categories: [summer, winter]}
outputs: [brake]
labels: [warn, stop]
choices: {advice: [keep, slow, halt], gear: {options: [low, high], pick: min}}
rules:
  - {name: icy, when: road == icy and speed > 10, then: brake >= 0.5 and advice != keep}
  - {name: heavy, when: speed + 3.3 * load >= 20.1, then: warn}
  - {name: never both, then: not (warn and stop)}
  - {name: winter, when: tyre == winter, then: gear == low}
"""
ONE_REGION = """
inputs: {speed: [0, 40], load: [-1, 1], grip: [0.1, 0.9]}
outputs: [brake, light]
rules:
  - {name: fast, when: speed >= 20.1 and load < 0.7 and grip > 0.3, then: brake - 0.3 * light >= 0.5 and light <= 0.7}
"""
DIFFERENCE = """
inputs: {s: [-2, 2], t: [0.1, 3]}
outputs: [p, q]
rules:
  - {name: near, then: p - q <= 1 and q - p <= 1}
  - {name: nearer, when: 0.3 * s + 0.7 * t <= 0.9, then: p - q <= 0.25}
  - {name: apart, when: s - 0.1 * t >= 1.1, then: p - q >= 0.125}
"""
AROUND_ZERO = """
inputs: {a: [-1, 1], b: [-2, 2], c: [-3, 0]}
outputs: [y, w]
rules:
  - {name: below, when: a < 0, then: y <= -0.1}
  - {name: not below, when: a >= 0, then: y >= 0.1}
  - {name: above, when: b > 0 and c < 0, then: w >= 0.3}
  - {name: not above, when: b <= 0, then: w <= 0.2}
"""
"""Regions that meet at exactly 0: what separates them must survive a processor that flushes subnormal numbers."""
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


def ten_limits() -> str:
    """Return limits of three outputs in units from 1e-3 to 1e6."""
    units = (1e-3, 1.0, 1e6)
    lines = ["inputs: {a: [-10, 10], b: [0, 1], c: [1, 500]}", "outputs: [y0, y1, y2]", "rules:"]
    whens = ["", "when: a > 0.3, ", "when: b <= 0.7 and c >= 3, ", "when: a + 3.3 * b - 0.1 * c <= 1.7, "]
    for r in range(10):
        unit, side = units[r % 3], ">=" if r % 2 else "<="
        moving = f" + {0.01 * unit:.6g} * c" if r % 3 == 1 else ""
        at = (-1 if r % 2 else 1) * unit * (5 + r)
        lines.append(f"  - {{name: r{r}, {whens[r % 4]}then: y{r % 3} {side} {at:.6g}{moving}}}")
    return "\n".join(lines) + "\n"


def many_limits() -> str:
    """Return 70 limits on intervals of an input, and a coupled rule."""
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
