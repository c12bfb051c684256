"""Basal rates on a pump's grid: steps of 0.05 units an hour, under a limit that moves with the patient.

Shows: steps, and why rounding after the limit breaks it. The data are simulated and the limits are made up. This is not
medical advice.
Run it: python examples/basal_rates.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import smle
from smle import Specification
from smle.baselines import violation_rate

STEP = 0.05
RULES = """
inputs:
  weight: {range: [20, 150], step: 0.1}  # kg
  scheduled: {range: [0, 4], step: 0.05} # units an hour
outputs:
  rate: {step: 0.05}                     # what the pump delivers
rules:
  - {name: never negative, then: rate >= 0}
  - {name: weight, then: rate <= 0.03 * weight}
  - {name: schedule, then: rate <= 3 * scheduled + 0.5}
"""


def main(*, rows: int = 20_000) -> float:
    """Compare with clipping and rounding; return the share of rows that break a rule."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"weight": rng.integers(200, 1501, rows) / 10, "scheduled": rng.integers(0, 81, rows) / 20})
    wanted = rng.uniform(-0.5, 6, rows)  # what a controller asks for
    limit = np.minimum(0.03 * X["weight"], 3 * X["scheduled"] + 0.5)
    rounded = np.round(np.clip(wanted, 0, limit) / STEP) * STEP
    print(f"clip, then round: {(rounded > limit + 1e-9).mean():.1%} of the rates exceed their limit")
    spec = Specification.from_yaml(RULES)
    model = smle.correct(lambda table: wanted[: len(table)], spec)
    steps = model.predict(X, as_steps=True)[:, 0]
    tenths = np.rint(X["weight"] * 10).astype(int)  # the limits in whole numbers: 20 rate <= 0.06 tenths of a kilogram
    twentieths = np.rint(X["scheduled"] * 20).astype(int)
    largest = np.minimum(tenths * 3 // 50, 3 * twentieths + 10)
    nearest = np.clip(np.floor(wanted.astype(np.float32).astype(np.float64) * 20 + 0.5), 0, largest)
    print(
        f"smle: {(steps > largest).mean():.1%} exceed it, {(steps == nearest).mean():.1%} are the nearest allowed step"
    )
    return violation_rate(spec, X, np.asarray(model.predict(X)))


if __name__ == "__main__":
    main()
