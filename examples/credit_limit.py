"""Credit limit: never above half the income, nothing to speak of after arrears, and a report for the auditor.

Shows: categories, a model folder with its assurance report, ONNX with its certificate beside it.
Run it: python examples/credit_limit.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from smle import SafeRegressor, Specification
from smle.baselines import violation_rate
from smle.export import check_onnx
from smle.report import write_report

RULES = """
inputs:
  income: [0, 12000]                  # a month
  arrears: {range: [0, 12], integer: true}
  years as customer: [0, 50]
  work: {categories: [employed, self-employed, none]}
outputs: [limit]
rules:
  - name: half the income
    then: limit <= 0.5 * income + 100
  - name: arrears
    when: arrears >= 3
    then: limit <= 100
  - name: no work, small limit
    when: work == none
    then: limit <= 1000
  - name: not negative
    then: limit >= 0
"""


def customers(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Simulate limits that clerks granted, some of them too generous."""
    rng = np.random.default_rng(seed)
    work = rng.choice(["employed", "self-employed", "none"], rows, p=[0.7, 0.2, 0.1])
    income = np.where(work == "none", rng.gamma(2, 300, rows), rng.gamma(6, 500, rows)).clip(0, 12000)
    arrears, years = rng.poisson(0.7, rows).clip(0, 12), rng.gamma(2, 4, rows).clip(0, 50)
    limit = 0.35 * income + 30 * years - 500 * arrears + rng.normal(0, 150, rows)
    columns = {"income": income.round(2), "arrears": arrears, "years as customer": years.round(1), "work": work}
    return pd.DataFrame({**columns, "limit": limit.clip(0).round(2)})


def main(*, rows: int = 5000, max_epochs: int = 200, folder: str = "credit-limit") -> float:
    """Train, store, report, export; return the share of rows that break a rule."""
    spec = Specification.from_yaml(RULES)
    table = customers(rows)
    inputs, limit = table.drop(columns="limit"), table["limit"]
    model = SafeRegressor(spec, max_epochs=max_epochs, random_state=0).fit(inputs, limit)
    print(f"R2 {model.score(inputs, limit):.4f}")
    print(f"Clerks broke a rule in {violation_rate(spec, inputs, limit):.1%} of cases")

    place = Path(folder)
    model.save(place / "model")
    write_report(place / "model", data=table, path=place / "report.html")
    model.to_onnx(place / "model.onnx")
    check_onnx(place / "model.onnx")  # the standard library would do: no torch, no onnxruntime
    print(f"Look at {place / 'report.html'}; check again: smle verify {place / 'model'}")
    return violation_rate(spec, inputs, model.predict(inputs))


if __name__ == "__main__":
    main()
