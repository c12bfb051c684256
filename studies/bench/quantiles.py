"""Quantiles of one number: LightGBM as it is and sorted, against models whose quantiles obey limits and never cross."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_pinball_loss
from sklearn.model_selection import train_test_split

from smle import NetworkRegressor, SafeQuantileRegressor, Specification
from smle.baselines import violation_rate
from smle.estimators.quantiles import at_quantile, quantile_rules
from studies.attacks.subjects import RULES
from studies.harness import Array, Table, bench, quietly

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@bench("Quantiles that never cross")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Run both tables over several splits; `quick` takes one split, few trees and a small network."""
    return (_measured(*task, quick, passed) for task in (_diabetes(), _demand(400 if quick else 2000)))


def _diabetes() -> tuple[str, Specification, pd.DataFrame, Array]:
    table = load_diabetes(as_frame=True, scaled=False).frame
    spec = Specification.from_yaml(RULES["diabetes"])
    return "diabetes", spec, table.drop(columns="target"), table["target"].to_numpy()


def _demand(rows: int) -> tuple[str, Specification, pd.DataFrame, Array]:
    """Simulate a demand whose noise grows with the cold, cut off by what the line carries."""
    rng = np.random.default_rng(0)
    temperature, capacity = rng.uniform(-10, 35, rows), rng.uniform(20, 120, rows)
    wind = rng.uniform(0, 1, rows)
    mean = 40 + 1.5 * np.abs(temperature - 18) + 10 * wind
    demand = mean + (3 + 0.8 * np.maximum(18 - temperature, 0)) * rng.standard_t(5, rows)
    demand = np.clip(demand, 0, np.where(temperature >= 30, np.minimum(capacity, 60), capacity))
    table = pd.DataFrame({"temperature": temperature, "capacity": capacity, "wind": wind})
    return "simulated demand", Specification.from_yaml(RULES["demand"]), table, demand


def _models(spec: Specification, quick: bool, seed: int) -> dict[str, Callable[[Any, Any, Any], Array]]:
    boosting = lightgbm.LGBMRegressor(n_estimators=20 if quick else 100, random_state=seed, n_jobs=1, verbose=-1)
    network: dict[str, Any] = {"max_epochs": 10, "hidden_layer_sizes": (16,)} if quick else {}

    def plain(X: Any, y: Any, new: Any) -> Array:
        return np.stack([at_quantile(boosting, level).fit(X, y).predict(new) for level in LEVELS], axis=1)

    def ordered(X: Any, y: Any, new: Any) -> Array:
        return np.sort(plain(X, y, new), axis=1)

    def safe(X: Any, y: Any, new: Any) -> Array:
        model = SafeQuantileRegressor(spec, quantiles=LEVELS, estimator=boosting)
        return np.asarray(model.fit(X, y).predict(new))

    def trained(X: Any, y: Any, new: Any) -> Array:
        named = [item.name for item in spec.inputs]
        model = SafeQuantileRegressor(
            spec, NetworkRegressor(verbose=False, **network), quantiles=LEVELS, random_state=seed
        )
        return np.asarray(model.fit(X[named], y).predict(new[named]))

    return {"LightGBM": plain, "LightGBM, sorted": ordered, "LightGBM, safe": safe, "network, safe": trained}


def _measured(name: str, spec: Specification, X: pd.DataFrame, y: Array, quick: bool, passed: dict[str, bool]) -> Table:
    rules = quantile_rules(spec, LEVELS)
    found: dict[str, list[tuple[float, ...]]] = {}
    seeds = 1 if quick else 5
    for seed in range(seeds):
        known, new, y_known, y_new = train_test_split(X, y, test_size=0.25, random_state=seed)
        for kind, answer in _models(spec, quick, seed).items():
            with quietly():
                answers = answer(known, y_known, new)
            loss = np.mean([mean_pinball_loss(y_new, answers[:, k], alpha=q) for k, q in enumerate(LEVELS)])
            crossed = (np.diff(answers) < 0).any(axis=1).mean()
            rounding = 1e-5 * np.abs(y_new)  # many outcomes lie at the moving limit; answers are served inside of it
            covered = ((answers[:, 0] <= y_new + rounding) & (y_new - rounding <= answers[:, -1])).mean()
            broken = violation_rate(rules, new, answers)
            found.setdefault(kind, []).append((float(loss), float(crossed), broken, float(covered)))
    means = {kind: np.mean(rows, axis=0) for kind, rows in found.items()}
    safe = [means[kind] for kind in ("LightGBM, safe", "network, safe")]
    passed[f"{name}: no quantiles cross and no rule is broken, on any test row"] = all(
        row[1] == row[2] == 0 for kind in ("LightGBM, safe", "network, safe") for row in found[kind]
    )
    passed[f"{name}: pinball loss of LightGBM behind the head not above that of sorted LightGBM (0.1 %)"] = bool(
        safe[0][0] <= 1.001 * means["LightGBM, sorted"][0]
    )
    lines = tuple(
        (kind, f"{row[0]:.4g}", f"{row[1]:.1%}", f"{row[2]:.1%}", f"{row[3]:.1%}") for kind, row in means.items()
    )
    columns = ("model", "mean pinball loss", "rows that cross", "rows that break a rule", "within the outer two")
    listed = ", ".join(f"{level:g}" for level in LEVELS)
    note = (
        f"{len(X):,} rows, a quarter for the test; {seeds} split{'s' if seeds > 1 else ''}. Quantiles {listed}. "
        f"{len(spec.rules)} rules about the number."
    )
    return Table(name.capitalize(), columns, lines, note)
