"""Loans, week by week: tables for the monitor's false alarms and its power."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from smle import Specification
from smle.monitor import Usage, column_edges, compare
from smle.rules.membership import active
from smle.tables import encode_inputs

LOANS = Specification.from_yaml(
    """
inputs:
  income: [1, 10_000_000]
  debt: [0, 10_000_000]
  age: {range: [18, 100], integer: true}
  score: {range: [0, 1000], missing: 500}
  region: {categories: [north, south, east, west, abroad, unknown]}
  products: {range: [0, 9], integer: true}
outputs: [limit]
rules:
  - {name: affordable, then: limit / income <= 0.5}
  - {name: indebted, when: debt / income >= 0.4, then: limit <= 5000}
  - {name: young, when: age < 21, then: limit <= 2000}
  - {name: abroad, when: region == abroad, then: limit <= 10_000}
  - {name: weak score, when: score < 400, then: limit <= 3000}
"""
)


_REGIONS = ["north", "south", "east", "west", "abroad", "unknown"]


def loans(random: np.random.Generator, rows: int = 3000, *, income: float = 1.0, abroad: float = 0.05) -> pd.DataFrame:
    """Return a table of loans; incomes and the share of one category can be changed."""
    earned = random.lognormal(10.5, 0.5, rows)
    shares = [0.395 - abroad, 0.25, 0.2, 0.15, abroad, 0.005]
    table = pd.DataFrame(
        {
            "income": earned * income,
            "debt": earned * random.gamma(1.2, 0.15, rows),
            "age": np.clip(random.normal(42, 14, rows), 18, 95).astype(int),
            "score": np.clip(random.normal(600, 120, rows), 0, 1000),
            "region": random.choice(_REGIONS, rows, p=shares),
            "products": random.poisson(1.5, rows).clip(0, 9),
        }
    )
    return table.mask(
        pd.DataFrame({"score": random.random(rows) < 0.08}).reindex(columns=table.columns, fill_value=False)
    )


def counted(table: pd.DataFrame, edges: Any = None) -> Usage:
    """Return the counts of a table, which no model is needed for."""
    encoded = encode_inputs(LOANS, table)
    on = np.stack([active(rule, encoded) for rule in LOANS.rules], axis=1)
    edges = column_edges(LOANS, encoded) if edges is None else edges
    missing = {"score": int(table["score"].isna().sum())}
    inside = np.ones(encoded.shape, dtype=bool)
    return Usage.count(LOANS, encoded, edges, active=on, inside=inside, missing=missing)


def alarms(pages: int, rate: float, *, seed: int = 0, **changed: Any) -> list[list[str]]:
    """Return what is called changed on each page: a training table and a later one, both drawn anew."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(pages):
        training = counted(loans(random))
        now = counted(loans(random, **changed), training.edges)
        found.append([c.name for c in compare(training, now, LOANS, tolerance=0, false_alarms=rate).moved])
    return found
