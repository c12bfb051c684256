"""An invoice in cents: net, value-added tax and total that a model reads off a scan, made to agree.

Shows: cents, a tax that is right to half a cent, a total that is the sum. Beside it: rounding each number.
The data are simulated.
Run it: python examples/invoice.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import smle
from smle import Specification
from smle.baselines import violation_rate

RULES = """
inputs:
  pages: {range: [1, 20], integer: true}
outputs: {net: {step: 0.01}, vat: {step: 0.01}, total: {step: 0.01}}
rules:
  - {name: amounts, then: 0 <= net <= 100000}
  - {name: tax, then: abs(vat - 0.19 * net) <= 0.005}
  - {name: total, then: total == net + vat}
"""


def main(*, rows: int = 5000) -> float:
    """Correct readings; return the share of rows that break a rule."""
    rng = np.random.default_rng(0)
    net = np.round(rng.lognormal(6, 1.5, rows).clip(1, 90_000), 2)
    vat = np.round(0.19 * net, 2)
    true = np.stack([net, vat, np.round(net + vat, 2)], axis=1)
    read = true + rng.normal(0, 0.02, true.shape)
    X = pd.DataFrame({"pages": rng.integers(1, 21, rows)})
    spec = Specification.from_yaml(RULES)
    model = smle.correct(lambda table: read[: len(table)], spec, examples=X)
    rounded = np.rint(read * 100).astype(int)
    cents = model.predict(X, as_steps=True)
    for name, found in (("each number rounded", rounded), ("smle", cents)):
        adds_up = (found[:, 2] == found[:, 0] + found[:, 1]).mean()
        taxed = (np.abs(100 * found[:, 1] - 19 * found[:, 0]) <= 50).mean()
        print(f"{name}: {adds_up:.1%} add up, {taxed:.1%} have the right tax, "
              f"off by {np.abs(found - np.rint(true * 100)).mean():.2f} cents")  # fmt: skip
    return violation_rate(spec, X, np.asarray(model.predict(X)))


if __name__ == "__main__":
    main()
