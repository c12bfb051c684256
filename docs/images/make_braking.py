"""Draw docs/images/braking.png: plain and safe models along a line through a region with little and bad data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.ensemble import HistGradientBoostingRegressor

from smle import SafeRegressor, Specification
from smle.demo import BRAKING_RULES, braking_data
from smle.estimators import without_rules

SPEED, FRICTION = 24.0, 0.7


def main() -> None:
    """Fit both kinds, with and without rules, and draw them at one speed."""
    spec = Specification.from_yaml(BRAKING_RULES)
    data = braking_data(rows=1500, seed=1)
    rare = (data["distance"] <= 14) & (data["speed"] >= 18)
    few = data[rare].iloc[::6].copy()
    few["brake"] = np.random.default_rng(0).uniform(0.1, 0.6, len(few))  # the only ones seen there did not look
    data = pd.concat([data[~rare], few])
    boosting = HistGradientBoostingRegressor(max_leaf_nodes=8, max_iter=60, random_state=0)
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, "gradient boosting", data, boosting, SafeRegressor(spec, estimator=boosting))
    _draw(
        right, "network", data, SafeRegressor(without_rules(spec), random_state=0), SafeRegressor(spec, random_state=0)
    )
    left.set(title="Bring your model", ylabel="brake")
    right.set(title="Train a network")
    figure.savefig(Path(__file__).with_name("braking.png"), dpi=150)


def _draw(axes: Axes, name: str, data: pd.DataFrame, plain: Any, safe: Any) -> None:
    columns = ["distance", "speed", "friction"]
    line = pd.DataFrame({"distance": np.linspace(0, 60, 601), "speed": SPEED, "friction": FRICTION})
    axes.fill_between([0, 10], 0, 0.8, color="#c0392b", alpha=0.15, lw=0, label="forbidden by the rules")
    axes.fill_between([10, 0.8 * SPEED - 4], 0, 0.5, color="#c0392b", alpha=0.15, lw=0)
    axes.axhspan(1, 1.15, color="#c0392b", alpha=0.15, lw=0)
    near = data[(data["speed"] - SPEED).abs() <= 2.5]
    axes.plot(near["distance"], near["brake"], ".", color="#888", ms=5, label="data at similar speed")
    for model, title, style, color in ((plain, "plain", "--", "#555"), (safe, "safe", "-", "#00695c")):
        answers = model.fit(data[columns], data["brake"]).predict(line)
        axes.plot(line["distance"], answers, style, color=color, lw=2, label=f"{title} {name}")
    axes.set(xlim=(0, 60), ylim=(0, 1.15), xlabel=f"distance in metres (speed {SPEED:g} m/s)")
    axes.legend(loc="lower right", frameon=True, fontsize=8)


if __name__ == "__main__":
    main()
