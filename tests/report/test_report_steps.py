"""The page of a model with steps says what outputs stand for, what is computed, and how far float sums may be off."""

import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import smle
from smle.report import write_report
from smle.rules import Specification

RULES = """
inputs:
  demand: {range: [0, 18], integer: true}
  weight: {range: [0, 4], step: 0.1}
outputs: {north: {integer: true}, south: {integer: true}, net: {step: 0.01}, total: {step: 0.01}, a: {}, b: {}}
rules:
  - {name: stock, then: 0 <= north <= 10 and 0 <= south <= 9 and 0 <= net <= 50}
  - {name: all of it, then: north + south == demand}
  - {name: total, then: total == net + 2.5}
  - {name: one, then: a + b == 1 and a >= 0 and b >= 0}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"demand": rng.integers(0, 19, 60), "weight": np.round(rng.uniform(0, 4, 60), 1)})
    y = pd.DataFrame({"north": X.demand // 2, "south": X.demand - X.demand // 2, "net": (X.weight * 9).round(2)})
    y = y.assign(total=y.net + 2.5, a=0.25, b=0.75)
    model = smle.SafeRegressor(Specification.from_yaml(RULES), LinearRegression()).fit(X, y)
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(model, path=path)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8")))


def test_outputs_are_listed_with_their_steps(page):
    table = page[page.index("Outputs in steps Rules hold") :]
    assert "north 1 0 to 10 the number itself" in table
    assert "south 1 0 to 9 the number itself demand - north" in table
    assert "net 0.01 0 to 50 the nearest to it" in table
    assert re.search(r"total 0.01 2.5 to 52.5 the nearest to it net \+ 2.5", table)
    assert "(chosen) 0 to 1 the number itself" in table
    assert "-a + 1" in table
    assert "in steps of 0.1" in table


def test_float_sums_of_each_rule_have_a_bound(page):
    spec = Specification.from_yaml(RULES)
    literal = spec.rules[2].requirement.clauses[0].literals[0]
    most = spec.grid.bound_on_sums(literal) * abs(literal.scale)
    shown = Fraction(re.search(r"sums of its floats: off by at most (\S+)", page)[1])
    assert most <= shown <= most * Fraction(12, 10)
    assert page.count("sums of its floats are exact") == 2
    rng = np.random.default_rng(1)
    k = rng.integers(0, 5001, 2000)
    net, total = ((v / 100).astype(np.float32).astype(np.float64) for v in (k, k + 250))
    assert np.abs(total - net - 2.5).max() <= most
