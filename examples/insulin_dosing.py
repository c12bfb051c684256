"""Insulin dosing: limits that depend on the patient's weight and on the insulin that is still active.

Shows: limits that move with the inputs, which rules are active for a row, the printed certificate.
The data are simulated and the limits are made up. This is not medical advice.
Run it: python examples/insulin_dosing.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from smle import NetworkRegressor, SafeRegressor, Specification
from smle.baselines import violation_rate

RULES = """
inputs:
  glucose: [40, 400]       # mg/dl
  carbohydrates: [0, 150]  # g, of the meal
  weight: [40, 150]        # kg
  active insulin: [0, 7]   # units
outputs: [dose]            # units
rules:
  - name: weight limit
    then: dose <= 0.2 * weight - `active insulin`
  - name: low glucose
    when: glucose <= 80
    then: dose <= 0.5
  - name: never negative
    then: dose >= 0
  - name: high glucose is treated
    when: glucose >= 300 and `active insulin` <= 1
    then: dose >= 2
"""


def patients(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Simulate doses by a common formula, with the scatter of real prescriptions."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "glucose": rng.uniform(40, 400, rows).round(),
            "carbohydrates": rng.uniform(0, 150, rows).round(),
            "weight": rng.uniform(40, 150, rows).round(1),
            "active insulin": rng.exponential(1.5, rows).clip(0, 7).round(1),
        }
    )
    factor = 1700 / (0.55 * table["weight"])  # mg/dl that a unit lowers
    correction = (table["glucose"] - 110) / factor
    dose = correction + table["carbohydrates"] / 12 - table["active insulin"] + rng.normal(0, 0.7, rows)
    return table.assign(dose=dose.clip(lower=-1).round(2))


def main(*, rows: int = 5000, max_epochs: int = 200) -> float:
    """Train and look at single patients; return the share of rows that break a rule."""
    spec = Specification.from_yaml(RULES)
    table = patients(rows)
    inputs = table.drop(columns="dose")
    model = SafeRegressor(spec, NetworkRegressor(max_epochs=max_epochs), random_state=0).fit(inputs, table["dose"])
    print(f"R2 {model.score(inputs, table['dose']):.4f}")
    print(f"The data break a rule in {violation_rate(spec, inputs, table['dose']):.1%} of rows")

    some = pd.DataFrame(
        {
            "glucose": [65, 350, 180],
            "carbohydrates": [60, 100, 40],
            "weight": [70, 55, 90],
            "active insulin": [2, 0.5, 6],
        }
    )
    doses, info = model.predict(some, return_info=True)
    for dose, rules in zip(doses, info["active_rules"], strict=True):
        print(f"dose {dose:5.2f}  under: {', '.join(rules)}")
    print(model.certificate_)  # what is proved, and how each rule is enforced
    return violation_rate(spec, inputs, model.predict(inputs))


if __name__ == "__main__":
    main()
