"""The demo: a simulated data set of braking, rules for it, and a plain and a safe network."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from smle.estimators import SafeRegressor, compare_models, without_rules
from smle.report import write_report
from smle.rules import Specification

__all__ = ["BRAKING_RULES", "braking_data", "run_demo"]

BRAKING_RULES = """\
inputs:
  distance: [0, 200]      # metres to the obstacle
  speed: [0, 40]          # metres per second
  friction: [0.1, 1.0]    # of the road
outputs: [brake]          # 0 nothing, 1 full
constants: {near: 10}
rules:
  - name: emergency braking
    when: distance <= near and speed >= 20
    then: brake >= 0.8
  - name: tailgating
    when: distance <= 0.8 * speed - 4
    then: brake >= 0.5
  - name: no phantom braking
    when: distance >= 150 and speed <= 10
    then: brake <= 0.1
  - name: physical range
    then: 0 <= brake <= 1
"""


def braking_data(rows: int = 6000, *, seed: int = 0) -> pd.DataFrame:
    """Simulate drivers: the brake needed to stop, a late reaction, noise, and a few who do not look."""
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0, 40, rows)
    near = rng.random(rows) < 0.4
    distance = np.where(near, rng.uniform(0, 30, rows), rng.uniform(0, 200, rows))
    friction = rng.uniform(0.1, 1.0, rows)
    reaction = 0.4 * speed
    needed = speed**2 / (2 * 9.81 * friction * np.maximum(distance - reaction, 1.0))
    brake = np.tanh(needed) + rng.normal(0, 0.06, rows)
    brake = np.where(rng.random(rows) < 0.02, rng.uniform(0, 0.4, rows), brake)
    columns = {"distance": distance.round(2), "speed": speed.round(2), "friction": friction.round(3)}
    return pd.DataFrame({**columns, "brake": brake.clip(-0.1, 1.1).round(4)})


def run_demo(folder: str | PathLike[str], *, seed: int = 0) -> SafeRegressor:
    """Simulate data, train a plain and a certified network, and write data, rules, model and report to the folder.

    Returns the certified model; its `description_["scores"]` compares both networks on held-out rows.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    data = braking_data(seed=seed)
    data.to_csv(place / "braking.csv", index=False)
    (place / "braking.yaml").write_text(BRAKING_RULES, encoding="utf-8")
    spec = Specification.from_yaml(BRAKING_RULES)
    train, test = train_test_split(data, test_size=0.25, random_state=seed)
    X, y, X_test = train[list(spec.columns)], train["brake"], test[list(spec.columns)]
    plain = SafeRegressor(without_rules(spec), random_state=seed).fit(X, y)
    safe = SafeRegressor(spec, random_state=seed).fit(X, y)
    safe.set_scores(compare_models(safe, X_test, test["brake"], plain=plain))
    safe.save(place / "model", overwrite=True)
    write_report(place / "model", test, place / "report.html", plain=plain, name="Braking demo")
    return safe
