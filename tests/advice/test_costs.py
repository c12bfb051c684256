"""What rules cost on data, rule by rule, and targets that look like other units."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from smle import NetworkRegressor, SafeRegressor, Specification, diagnose
from smle.errors import AccuracyWarning, DataError

RULES = Specification.from_yaml(
    """
inputs:
  income: [0, 1000]
  work: {categories: [employed, none]}
outputs: [card, rate]
labels: [approved]
rules:
  - {name: cap, then: 0 <= card <= 300}
  - {name: no work, when: work == none, then: card <= 100 and not approved}
  - {name: usury, then: rate <= 50}
"""
)


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    n = 400
    return pd.DataFrame(
        {
            "income": rng.uniform(0, 1000, n),
            "work": rng.choice(["employed", "none"], n, p=[0.8, 0.2]),
            "card": rng.uniform(0, 400, n),
            "rate": rng.uniform(5, 45, n),
            "approved": rng.integers(0, 2, n),
        }
    )


def test_each_rule_is_charged_with_what_it_alone_moves(table: pd.DataFrame) -> None:
    found = diagnose(RULES, table, table).data
    assert found is not None
    assert found.costs is not None
    card, none = table["card"], table["work"] == "none"
    spread = ((card - card.mean()) ** 2).sum()
    cap, work, usury = found.costs
    assert cap.lost == {"card": pytest.approx(((card - card.clip(0, 300)) ** 2).sum() / spread)}
    assert cap.broken == (card > 300).sum()
    np.testing.assert_allclose(cap.moves["card"], (300 - card)[card > 300])
    over = none & (card > 100)
    assert work.lost["card"] == pytest.approx(((card - 100)[over] ** 2).sum() / spread)
    assert work.lost["approved"] == pytest.approx((none & (table["approved"] == 1)).mean())
    assert work.rows == none.sum()
    assert usury.lost == usury.moves == {}
    text = diagnose(RULES, table, table).table()
    assert text.index("'no work':") < text.index("'cap':")  # the dearest first
    assert "'usury'" not in text.split("What each rule costs")[1]


def test_it_is_said_where_most_of_a_cost_is(table: pd.DataFrame) -> None:
    high = table["income"] > 900
    table["card"] = np.where(high, 390.0, 50.0 + table["income"] / 100)
    table["work"] = "employed"
    found = diagnose(RULES, table, table).data
    assert found is not None
    assert found.costs is not None
    assert found.costs[0].where.startswith("100% of it where income is ")
    spread_out = table.assign(card=np.where(np.arange(400) % 7 == 0, 390.0, 50.0))
    again = diagnose(RULES, spread_out, spread_out).data
    assert again is not None
    assert again.costs is not None
    assert again.costs[0].where == ""


def test_targets_in_the_units_of_the_rules_raise_no_doubt(table: pd.DataFrame) -> None:
    assert not [f for f in diagnose(RULES, table, table).findings if f.kind == "other units"]


CHANGES = {
    "looks scaled": lambda y: (y - y.mean()) / y.std(),
    "0.3 % of what the rules allow": lambda y: y / 400,
    "lie far beyond the limits on it": lambda y: y * 1000 + 1,
    "1e+30 in row 8": lambda y: y.where(y.index != 7, 1e30),
}


@pytest.mark.parametrize("said", CHANGES)
def test_targets_that_look_like_other_units_are_named(table: pd.DataFrame, said: str) -> None:
    table["card"] = CHANGES[said](table["card"])
    texts = [f.text for f in diagnose(RULES, table, table).findings if f.kind == "other units"]
    assert len(texts) == 1
    assert texts[0].startswith("Target 'card'")
    assert said in texts[0]


NUMBERS = """
inputs: {x: [0, 1]}
outputs: [y]
rules:
  - {name: range, then: 100 <= y <= 500}
"""


def test_fit_names_units_too() -> None:
    x = np.linspace(0, 1, 60)[:, None]
    y = 200 + 100 * x[:, 0]
    model = SafeRegressor(Specification.from_yaml(NUMBERS), NetworkRegressor(max_epochs=1), compare=False)
    with pytest.warns(AccuracyWarning, match=r"looks scaled \(mean -?0.00, standard deviation 1.00\)"):
        model.fit(x, (y - y.mean()) / y.std())
    y[30] = 1e30
    with pytest.raises(DataError, match=r"is 1e\+30 in row 31"):
        model.fit(x, y)
