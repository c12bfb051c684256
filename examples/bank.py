"""A bank: a card limit, an overdraft and a rate by gradient boosting, behind ten rules, with a report for the auditor.

Shows: your own model, rules in a file (bank.yaml), categories and missing values, limits that move and are capped,
outputs that share a budget, alternatives, a model folder, ONNX.
Run it: python examples/bank.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from smle import SafeRegressor, Specification, load
from smle.baselines import violation_rate
from smle.export import check_onnx
from smle.report import write_report

RULES = Path(__file__).with_name("bank.yaml")
ANSWERS = ["card", "overdraft", "rate"]


def customers(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Simulate what clerks granted: sometimes too much, and a little more from year to year."""
    rng = np.random.default_rng(seed)
    work = rng.choice(["employed", "self-employed", "none", None], rows, p=[0.65, 0.2, 0.1, 0.05])
    income = np.where(work == "none", rng.gamma(2, 4000, rows), rng.gamma(5, 8000, rows)).clip(0, 1e6)
    debt, age = rng.gamma(1, 9000, rows).clip(0, 5e5), rng.integers(18, 91, rows)
    arrears = np.where(rng.random(rows) < 0.1, np.nan, rng.poisson(0.6, rows).clip(0, 12))
    branch = rng.choice(["north", "south", "online"], rows)
    late = np.nan_to_num(arrears, nan=0.5)
    young, idle, indebted = age < 21, (work != "employed") & (work != "self-employed"), debt >= 0.5 * income
    generous = np.where(branch == "online", 1.1, 1.0) * np.linspace(1, 1.1, rows) * rng.lognormal(0, 0.15, rows)
    card = (
        (0.25 * income - 0.1 * debt)
        * np.where(idle | young, 0.1, 1)
        * np.where(indebted, 0.4, 1)
        * (late < 3)
        * generous
    )
    overdraft = 0.08 * income * np.where(young, 0.1, 1) * (late < 3) * generous
    overdraft = np.where(overdraft < 100, 0, overdraft)
    rate = 7 + 1.5 * late + 4 * indebted - (work == "employed") + rng.normal(0, 0.7, rows)
    rate = np.where(rate > 12.5, rate + 1.5, rate).clip(5)
    known = {"income": income.round(2), "debt": debt.round(2), "age": age, "arrears": arrears, "work": work}
    granted = {"card": card.clip(0).round(), "overdraft": overdraft.round(), "rate": rate.round(2)}
    return pd.DataFrame({**known, "branch": branch, **granted})


def main(*, rows: int = 5000, max_iter: int = 100, folder: str = "bank") -> dict[str, float]:
    """Fit, store, report, export; return the shares of rows that break a rule, plain and safe."""
    spec = Specification.from_file(RULES)
    table = customers(rows)
    inputs, granted = table.drop(columns=ANSWERS), table[ANSWERS]
    half = rows // 2
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["work", "branch"]), remainder="passthrough"
    )
    boosting = MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=max_iter, random_state=0))
    pipeline = make_pipeline(encoder, boosting)

    model = SafeRegressor(spec, estimator=pipeline).fit(inputs[:half], granted[:half])
    plain = pipeline.fit(inputs[:half], granted[:half])
    new = inputs[half:]
    broken = {
        "clerks": violation_rate(spec, new, granted[half:]),
        "plain": violation_rate(spec, new, plain.predict(new)),
        "safe": violation_rate(spec, new, model.predict(new)),
    }
    for who, share in broken.items():
        print(f"{who} broke a rule in {share:.1%} of cases")
    print(f"R2 plain {plain.score(new, granted[half:]):.4f}, safe {model.score(new, granted[half:]):.4f}")

    place = Path(folder)
    model.save(place / "model")
    assert np.array_equal(load(place / "model").predict(new), model.predict(new))
    write_report(place / "model", data=table, path=place / "report.html")
    model.to_onnx(place / "model.onnx")
    check_onnx(place / "model.onnx")  # `smle-check` does the same without smle
    print(f"Read {place / 'report.html'}. Check again: smle verify {place / 'model'}")
    return broken


if __name__ == "__main__":
    main()
