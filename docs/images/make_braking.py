"""Draw docs/images/braking.png: a plain and a safe network along a line through a region with little and bad data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from smle import SafeRegressor, Specification
from smle.demo import BRAKING_RULES, braking_data
from smle.estimators import without_rules

SPEED, FRICTION = 24.0, 0.7


def main() -> None:
    """Train both and draw them at one speed."""
    spec = Specification.from_yaml(BRAKING_RULES)
    data = braking_data(rows=1500, seed=1)
    rare = (data["distance"] <= 14) & (data["speed"] >= 18)
    few = data[rare].iloc[::6].copy()
    few["brake"] = np.random.default_rng(0).uniform(0.1, 0.6, len(few))  # the only ones seen there did not look
    data = pd.concat([data[~rare], few])
    inputs = list(spec.columns)
    line = pd.DataFrame({"distance": np.linspace(0, 60, 601), "speed": SPEED, "friction": FRICTION})[inputs]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.fill_between([0, 10], 0, 0.8, color="#c0392b", alpha=0.15, lw=0, label="forbidden by the rules")
    axes.fill_between([10, 0.8 * SPEED - 4], 0, 0.5, color="#c0392b", alpha=0.15, lw=0)
    axes.axhspan(1, 1.15, color="#c0392b", alpha=0.15, lw=0)
    near = data[(data["speed"] - SPEED).abs() <= 2.5]
    axes.plot(near["distance"], near["brake"], ".", color="#888", ms=5, label="data at similar speed")
    for rules, name, style in ((without_rules(spec), "plain network", "--"), (spec, "safe network", "-")):
        model = SafeRegressor(rules, random_state=0).fit(data[inputs], data["brake"])
        color = "#00695c" if rules is spec else "#555"
        axes.plot(line["distance"], model.predict(line), style, color=color, lw=2, label=name)
    axes.set(xlim=(0, 60), ylim=(0, 1.15), xlabel=f"distance in metres (speed {SPEED:g} m/s)", ylabel="brake")
    axes.legend(loc="lower right", frameon=True)
    figure.savefig(Path(__file__).with_name("braking.png"), dpi=150)


if __name__ == "__main__":
    main()
