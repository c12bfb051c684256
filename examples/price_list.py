"""A shop with a price list: sales of thousands of articles, a list of highest prices, and a week that went wrong.

Run `python examples/price_list.py 2000` to write rules.yaml, prices.csv, sales.csv, next-prices.csv and this-week.csv.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from smle import Specification, correct

CHANNELS = ["shop", "online", "partner"]
RULES = """inputs:
  article: {{categories: [{articles}]}}
  demand: {{range: [0, 500], missing: 0}}
  channel: {{categories: [shop, online, partner]}}
outputs: [price]
tables:
  cap: {{key: article, file: prices.csv, column: highest}}
  cost: {{key: article, file: prices.csv, column: cost}}
rules:
  - name: price list
    source: price list of the season
    then: price <= cap[article]
  - name: never below cost
    then: price >= 1.02 * cost[article]
  - name: online is not dearer
    when: channel == online
    then: price <= 2.4 * cost[article]
  - name: careful where demand is unknown
    when: demand is missing
    then: price <= 1.8 * cost[article]
"""


def articles(count: int) -> list[str]:
    """Return the names of articles."""
    return [f"a{i:04d}" for i in range(count)]


def prices(count: int, seed: int = 0) -> pd.DataFrame:
    """Return the list: article, cost, and the highest price (twice to three times the cost, in cents)."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(2, 80, count).round(2)
    highest = (cost * rng.uniform(2, 3, count)).round(2)
    return pd.DataFrame({"article": articles(count), "cost": cost, "highest": highest})


def sales(rows: int, listed: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    """Return past sales: article, its cost, demand (one in twenty is missing), channel, the price that was asked."""
    rng = np.random.default_rng(seed)
    chosen = listed.iloc[rng.integers(0, len(listed), rows)].reset_index(drop=True)
    demand, channel = rng.gamma(2.0, 40.0, rows).clip(0, 500).round(), rng.choice(CHANNELS, rows)
    price = chosen["cost"] * (1.6 + demand / 250) * np.where(channel == "online", 0.93, 1.0) * rng.normal(1, 0.08, rows)
    demand[rng.random(rows) < 0.05] = np.nan
    columns = {"article": chosen["article"], "cost": chosen["cost"], "demand": demand, "channel": channel}
    return pd.DataFrame({**columns, "price": price.round(2)})


def this_week(rows: int, listed: pd.DataFrame) -> pd.DataFrame:
    """Return rows as they come: demand has doubled, and three rows cannot be read."""
    table = sales(rows, listed, seed=2).drop(columns="price")
    table["demand"] = (2 * table["demand"]).clip(0, 500)
    table = table.astype({"cost": object})
    table.loc[3, "article"], table.loc[5, "cost"], table.loc[8, "channel"] = "a-new-one", "12:30", "fax"
    return table


def main(count: int = 2000) -> float:
    """Write the files, and return how often a model behind the rules breaks them: never."""
    listed = prices(count)
    Path("rules.yaml").write_text(RULES.format(articles=", ".join(articles(count))), encoding="utf-8")
    listed.to_csv("prices.csv", index=False)
    sold = sales(3 * count, listed)
    sold.to_csv("sales.csv", index=False)
    listed.assign(highest=(listed["highest"] * 0.95).round(2)).to_csv("next-prices.csv", index=False)
    this_week(count, listed).to_csv("this-week.csv", index=False)

    spec = Specification.from_file("rules.yaml")
    model = correct(lambda table: 3.0 * table["cost"], spec)  # dearer than most of the list allows
    answers, info = model.predict(sold, return_info=True)
    print("Written: rules.yaml, prices.csv, sales.csv, next-prices.csv, this-week.csv")
    moved, first = model.served_["moved"], info["bound"][0][0]
    print(f"A model that asks 3 * cost: {moved} of {len(sold)} prices moved, the first by {first}")
    caps = listed.set_index("article")["highest"].loc[sold["article"]].to_numpy()
    return float((answers > caps).mean())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
