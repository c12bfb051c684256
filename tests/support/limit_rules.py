"""Rules that limit single outputs, everyday ones and random ones, and answers of hostile models."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import hypothesis.strategies as st
import numpy as np

from smle.rules import Specification

INPUTS = """
inputs:
  w: [2, 250]
  a: [-1, 100]
  income: [0, 1000000]
  kind: {categories: [x, y, z]}
outputs: [dose, limit]
rules:
"""
EVERYDAY = {
    "proportional and capped": "  - {name: p, then: 0 <= dose <= 0.05 * w}\n  - {name: c, then: dose <= 4}\n",
    "bank": (
        "  - {name: p, then: 0 <= limit <= 0.35 * income}\n  - {name: c, then: limit <= 60000}\n"
        "  - {name: young, when: a < 21, then: limit <= 2000}\n"
        "  - {name: kinds, when: kind == x and income < 12000, then: limit <= 500}\n"
        "  - {name: other, when: kind == y, then: limit <= 0.2 * income + 100}\n"
    ),
    "oblique": (
        "  - {name: p, when: a + w <= 100, then: dose <= a - 3 * w + 700}\n"
        "  - {name: c, when: w - a >= 30, then: dose >= 0}\n  - {name: d, when: w - 2 * a > 30, then: dose < 9.3}\n"
    ),
    "strict and complementary": (
        "  - {name: low, when: a < 0, then: dose < -0.1}\n  - {name: high, when: a >= 0, then: dose > 0.1}\n"
        "  - {name: band, then: -1e3 <= limit <= 1e-3 * w}\n"
    ),
    "meets at a corner": "  - {name: p, when: a >= w, then: dose <= a - w}\n  - {name: q, then: dose >= 0}\n",
    "both sides move": "  - {name: p, then: 0.1 * w <= dose <= 0.35 * w}\n  - {name: r, then: limit >= 2 * a - w}\n",
}


@cache
def spec_of(rules: str) -> Specification:
    return Specification.from_yaml(INPUTS + rules)


def answers_for(spec, X, rng, sizes=(-3, 7)):
    """Answers of a hostile model: anything from NaN to the borders of the limits, in sizes of so many digits."""
    Y = rng.normal(size=(len(X), len(spec.targets))) * 10.0 ** rng.integers(*sizes, size=(len(X), 1))
    odd = rng.random(Y.shape) < 0.1
    Y[odd] = rng.choice([np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0, -0.0, 1e-40, -1e-42], odd.sum())
    return Y.astype(np.float32)


def at_a_border(spec, X):
    """Whether a condition on several inputs is so close to its border that the gate may see it otherwise."""
    near = np.zeros(len(X), dtype=bool)
    for row in {row for rule in spec.rules for region in rule.regions for row in region.rows}:
        if not row.is_comparison:
            value = sum(float(v) * X[:, k].astype(np.float64) for k, v in row.coefficients)
            near |= np.abs(value - float(row.bound)) < 1e-11
    return near


numbers = st.integers(-40, 40).map(lambda v: Fraction(v, 8))


@st.composite
def limit_rules(draw):
    """A few limits on one output, constant or moving, on overlapping regions, in units from 1e-3 to 1e6."""
    unit = Fraction(10) ** draw(st.integers(-3, 6))
    rules = []
    for i in range(draw(st.integers(1, 6))):
        conditions = []
        for _ in range(draw(st.integers(0, 2))):
            if draw(st.booleans()):
                column, sign = draw(st.sampled_from(["w", "a"])), draw(st.sampled_from(["<", "<=", ">", ">="]))
                conditions.append(f"{column} {sign} {float(draw(numbers) * 10)}")
            else:
                first, second, bound = (float(draw(numbers)) for _ in range(3))
                conditions.append(f"{first or 1} * w + {second} * a <= {bound}")
        side = draw(st.sampled_from(["<", "<=", ">", ">="]))
        base = Fraction(20 if "<" in side else -20) * unit + draw(numbers) * unit
        slope = draw(st.sampled_from(["", "w", "a"]))
        moving = f" + {float(draw(numbers) * unit / 250)} * {slope}" if slope else ""
        when = f"when: {' and '.join(conditions)}, " if conditions else ""
        rules.append(f"  - {{name: r{i}, {when}then: dose {side} {float(base)}{moving}}}\n")
    return "".join(rules)
