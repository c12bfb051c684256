"""Pieces to warehouses: whole pieces that add up to the demand, within what each warehouse has.

Shows: an equality with an input, whole numbers, a condition. Beside it: scaling and rounding. The data are simulated.
Run it: python examples/warehouses.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import smle
from smle import Specification
from smle.baselines import violation_rate

CAPS = np.array([60, 50, 40, 30, 25, 15])
RULES = """
inputs:
  demand: {range: [0, 180], integer: true}
  strike: {range: [0, 1], integer: true}
outputs: {w1: {integer: true}, w2: {integer: true}, w3: {integer: true},
          w4: {integer: true}, w5: {integer: true}, w6: {integer: true}}
rules:
  - {name: all of it, then: w1 + w2 + w3 + w4 + w5 + w6 == demand}
  - {name: large, then: 0 <= w1 <= 60 and 0 <= w2 <= 50 and 0 <= w3 <= 40}
  - {name: small, then: 0 <= w4 <= 30 and 0 <= w5 <= 25 and 0 <= w6 <= 15}
  - {name: strike, when: strike == 1, then: w1 <= 40}
"""


def main(*, rows: int = 5000) -> float:
    """Correct a plan; return the share of rows that break a rule."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"demand": rng.integers(0, 181, rows), "strike": rng.integers(0, 2, rows)})
    plan = X["demand"].to_numpy()[:, None] * rng.dirichlet(CAPS / 12, rows)
    scaled = np.rint(plan)
    right = (scaled.sum(axis=1) == X["demand"]) & (scaled <= CAPS).all(axis=1)
    print(f"rounded: {right.mean():.1%} of the plans can be carried out")
    spec = Specification.from_yaml(RULES)
    model = smle.correct(lambda table: plan[: len(table)], spec, examples=X)
    pieces = model.predict(X, as_steps=True)
    print(f"smle: {(pieces.sum(axis=1) == X['demand']).mean():.1%} add up; served {model.served_}")
    return violation_rate(spec, X, np.asarray(model.predict(X)))


if __name__ == "__main__":
    main()
