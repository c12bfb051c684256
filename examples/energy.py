"""An energy company: turbine, battery and imports for the next quarter of an hour, behind fourteen rules.

Shows: a network and your own model under the same rules (energy.yaml), outputs that share a limit, "off or above the
minimum", limits that move with the state of the plant, units from mHz to a million cubic metres, years with drift.
Run it: python examples/energy.py
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

from smle import NetworkRegressor, SafeRegressor, Specification
from smle.baselines import violation_rate

RULES = Path(__file__).with_name("energy.yaml")
ANSWERS = ["turbine", "battery", "imports"]


def plan(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Simulate three years of operators' decisions, in order of time. The load grows, and the cavern empties."""
    rng = np.random.default_rng(seed)
    drift = np.linspace(0, 1, rows)
    hour = rng.uniform(0, 24, rows)
    day = rng.choice(["working", "weekend", "holiday"], rows, p=[0.68, 0.28, 0.04])
    temperature = 11 - 13 * np.cos(6 * np.pi * drift) + 5 * np.sin(2 * np.pi * (hour - 9) / 24) + rng.normal(0, 4, rows)
    load = 620 + 180 * np.sin(2 * np.pi * (hour - 8) / 24) + 9 * np.abs(temperature - 17) + 120 * drift
    load = (load * np.where(day == "working", 1, 0.82) + rng.normal(0, 35, rows)).clip(150, 1500)
    renewable = rng.gamma(1.6, 160, rows).clip(0, 900)
    gap = load - renewable
    price = (55 + 0.11 * (gap - 300) + rng.normal(0, 18, rows) + 900 * (rng.random(rows) < 0.004)).clip(-500, 4000)
    stored, deviation = rng.uniform(0, 200, rows), rng.normal(0, 0.03, rows).clip(-0.2, 0.2)
    gas = (9e5 - 7e5 * drift + rng.normal(0, 6e4, rows)).clip(2e4, 1e6)
    line = rng.choice(["normal", "maintenance", "fault"], rows, p=[0.9, 0.08, 0.02])
    free = (420 - 0.2 * load + rng.normal(0, 60, rows)).clip(0, 600)

    turbine = (0.62 * gap + 0.5 * (price - 55) + rng.normal(0, 12, rows)).clip(0, 430)
    turbine = np.where(turbine < 90, 0, turbine) * np.clip(gas / 2.4e5, 0, 1) * (1 - 0.01 * (temperature - 30).clip(0))
    battery = (0.45 * (price - 60) - 600 * deviation + rng.normal(0, 6, rows)).clip(-60, 60)
    battery = battery.clip(4 * stored - 790, 4 * stored)
    imports = (gap - turbine - battery + rng.normal(0, 10, rows)).clip(0, 1.02 * free)
    imports = imports * pd.Series(line).map({"normal": 1, "maintenance": 0.45, "fault": 0.01}).to_numpy()
    missing = rng.random((2, rows)) < [[0.06], [0.03]]
    return pd.DataFrame(
        {
            "load": load.round(1), "renewable": renewable.round(1),
            "temperature": np.where(missing[0], np.nan, temperature.clip(-30, 45).round(1)),
            "price": price.round(2), "stored": stored.round(1),
            "deviation": np.where(missing[1], np.nan, deviation.round(3)),
            "gas": gas.round(), "free line": free.round(1), "line": line, "day": day,
            "turbine": turbine.round(1), "battery": battery.round(1), "imports": imports.round(1),
        }
    )  # fmt: skip


def boosting(max_iter: int) -> object:
    """Return gradient boosting for the table as it is: text is turned into columns, missing values stay missing."""
    words = make_column_transformer((OneHotEncoder(sparse_output=False), ["line", "day"]), remainder="passthrough")
    return make_pipeline(words, MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=max_iter, random_state=0)))


def main(*, rows: int = 6000, max_epochs: int = 200, max_iter: int = 100) -> dict[str, float]:
    """Fit both; return the shares of later rows on which a rule is broken."""
    spec, table = Specification.from_file(RULES), plan(rows)
    inputs, truth = table.drop(columns=ANSWERS), table[ANSWERS]
    known = rows * 3 // 4
    X, y, new, later = inputs[:known], truth[:known], inputs[known:], truth[known:]
    broken = {"operators": violation_rate(spec, new, later)}
    models = {
        "network": SafeRegressor(spec, NetworkRegressor(max_epochs=max_epochs), random_state=0),
        "gradient boosting": SafeRegressor(spec, estimator=boosting(max_iter)),
    }
    for name, model in models.items():
        model.fit(X, y)
        model.certificate_.check()
        print(f"{name}: R2 {model.score(new, later):.4f}")
        broken[name] = violation_rate(spec, new, model.predict(new))
    for who, share in broken.items():
        print(f"{who} broke a rule in {share:.1%} of cases")
    return broken | {"safe": max(broken[name] for name in models)}


if __name__ == "__main__":
    main()
