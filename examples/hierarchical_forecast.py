"""Hierarchical forecast: a total, two regions and six sites in whole visitors, which add up exactly.

Shows: equalities, whole numbers, limits on every level; beside it what people do today: bottom-up, OLS and MinT, with
and without clipping, whose float32 sums do not add up. The data are simulated.
Run it: python examples/hierarchical_forecast.py
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

import smle
from smle import Specification
from smle.baselines import violation_rate

Array = npt.NDArray[np.float64]
SITES = ["n1", "n2", "n3", "s1", "s2", "s3"]
NAMES = ["total", "north", "south", *SITES]
SUMS = np.array([[1] * 6, [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], *np.eye(6).tolist()])  # series from sites
RULES = """
inputs:
  week: {range: [1, 53], integer: true}
  beds: {range: [200, 900], integer: true}
outputs: {total: {integer: true}, north: {integer: true}, south: {integer: true},
          n1: {integer: true}, n2: {integer: true}, n3: {integer: true},
          s1: {integer: true}, s2: {integer: true}, s3: {integer: true}}
rules:
  - {name: north, then: north == n1 + n2 + n3}
  - {name: south, then: south == s1 + s2 + s3}
  - {name: books, then: total == north + south}
  - {name: counts, then: n1 >= 0 and n2 >= 0 and n3 >= 0 and s1 >= 0 and s2 >= 0 and s3 >= 0}
  - {name: beds, then: total <= beds}
"""


def visitors(rows: int, *, seed: int = 0) -> tuple[pd.DataFrame, Array, Array]:
    """Simulate weeks: inputs, true series (n, 9), and base forecasts, each made for itself."""
    rng = np.random.default_rng(seed)
    week = rng.integers(1, 54, rows)
    season = 1 + 0.6 * np.sin(2 * np.pi * week / 52)
    sites = rng.poisson(season[:, None] * np.array([60, 25, 3, 80, 12, 1]))
    truth = (sites @ SUMS.T).astype(np.float64)
    base = truth + rng.normal(0, 0.15 * truth.mean(axis=0) + 1, truth.shape)
    return pd.DataFrame({"week": week, "beds": np.maximum(sites.sum(axis=1), 250)}), truth, base


def reconciled(base: Array, weights: Array) -> Array:
    """Return the nearest series that add up, in a metric: OLS with the identity, MinT with error variances."""
    inverse = np.linalg.inv(weights)
    return base @ (SUMS @ np.linalg.solve(SUMS.T @ inverse @ SUMS, SUMS.T @ inverse)).T


def unbalanced(series: Array) -> float:
    """Return the share of rows whose float32 numbers do not add up, in float64."""
    y = series.astype(np.float32).astype(np.float64)
    return float((np.abs(y - y[:, 3:] @ SUMS.T) > 0).any(axis=1).mean())


def main(*, rows: int = 3000) -> float:
    """Compare; return the share of rows that break a rule."""
    X, truth, base = visitors(rows)
    spread = truth.std(axis=0)
    variance = np.diag(((base - truth) ** 2).mean(axis=0))
    mint = reconciled(base, variance)
    methods = {
        "base": base,
        "bottom-up": base[:, 3:] @ SUMS.T,
        "OLS": reconciled(base, np.eye(9)),
        "MinT": mint,
        "MinT, clipped": np.clip(mint[:, 3:], 0, None) @ SUMS.T,
    }
    spec = Specification.from_yaml(RULES)
    for name in ("base", "MinT"):
        values = methods[name]
        model = smle.correct(lambda table, values=values: values[: len(table)], spec, examples=X)
        methods[f"smle behind {name}"] = np.asarray(model.predict(X), dtype=np.float64)
    print(f"{'':>18}  scaled MSE  do not add up  break a rule")
    for name, series in methods.items():
        error = float((((series - truth) / spread) ** 2).mean())
        print(f"{name:>18} {error:11.4f} {unbalanced(series):14.1%} {violation_rate(spec, X, series):13.1%}")
    return violation_rate(spec, X, methods["smle behind MinT"])


if __name__ == "__main__":
    main()
