"""Three industries: a bank, a hospital, an energy company, each with a simulated table and ten rules or more.

The tables are those of examples/: categories, gaps, units from 0.001 to a million, noise, drift. The last quarter of
the rows is the test. A network and gradient boosting under the rules are compared with the best plain model whose
answers are moved to the nearest allowed ones; which is the best is decided on the last rows of the training part.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.metrics import r2_score
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from threadpoolctl import threadpool_limits

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, Specification
from smle.baselines import violation_rate
from smle.estimators.base import without_rules
from smle.nearest.oracle import nearest_outputs
from smle.tables import encode_inputs
from studies.bench.estimators import attacked
from studies.harness import BenchResult, Table
from tests.support.sampling import Judge

__all__ = ["BOOSTING", "EXAMPLES", "NETWORK", "SIMULATIONS", "Rows", "example", "rows_of", "run", "safe_models"]

Array = npt.NDArray[Any]
EXAMPLES = Path(__file__).parents[2] / "examples"
SIMULATIONS = {"bank": "customers", "hospital": "patients", "energy": "plan"}
NETWORK, BOOSTING = "network", "gradient boosting"


@dataclass(frozen=True, eq=False)
class Rows:
    """A part of a table: what models read, and what they should answer (rows, m)."""

    X: pd.DataFrame
    y: pd.DataFrame

    def cut(self, start: int, stop: int) -> Rows:
        """Return some of the rows."""
        return Rows(self.X[start:stop], self.y[start:stop])


def run(quick: bool = False) -> BenchResult:
    """Run all three over several seeds; `quick` takes one seed, few rows and a small network."""
    passed: dict[str, bool] = {}
    with threadpool_limits(1):  # gradient boosting of small tables waits for its threads most of the time
        tables = tuple(_industry(name, quick, passed) for name in SIMULATIONS)
    return BenchResult("industries", "Three industries", tables, passed=passed, quick=quick)


def _industry(name: str, quick: bool, passed: dict[str, bool]) -> Table:
    spec = Specification.from_file(EXAMPLES / f"{name}.yaml")
    simulate = getattr(example(name), SIMULATIONS[name])
    count, seeds, points = (600, 1, 300) if quick else (4000, 3, 5_000)
    found: dict[str, list[tuple[float, float, float]]] = {}
    gaps: dict[str, list[float]] = {NETWORK: [], BOOSTING: []}
    broken, tried, people, best = 0, 0, [], []
    for seed in range(seeds):
        rows = rows_of(spec, simulate(count, seed=seed))
        known, new = rows.cut(0, count * 3 // 4), rows.cut(count * 3 // 4, count)
        people.append(violation_rate(spec, new.X, new.y))
        plain = _plain_models(spec, known.X, quick, seed)
        chosen = _best(spec, plain, known)
        best.append(chosen)
        for kind, model in plain.items():
            answers = _fitted_answers(model, known, new)
            found.setdefault(f"{kind}, plain", []).append(_measured(spec, answers[0], new, answers[1]))
            allowed = _nearest(spec, answers[0], known, new)
            found.setdefault(f"{kind}, post-processed", []).append(_measured(spec, allowed, new, answers[1]))
        target = found[f"{chosen}, post-processed"][-1][0]
        for kind, model in safe_models(spec, known.X, quick, seed).items():
            answers = _fitted_answers(model, known, new)
            result = _measured(spec, answers[0], new, answers[1])
            found.setdefault(f"{kind}, safe", []).append(result)
            gaps[kind].append(target - result[0])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # stored safe answers are common at the borders of rules
                wrong, judged = attacked(model, Judge(spec), new.X, points)
            broken += wrong + len(Judge(spec).violations(encode_inputs(spec, new.X), answers[0]))
            tried += judged + len(new.X)
    for kind, behind in gaps.items():
        passed[f"{name}: {kind} at most .01 behind the best plain model, post-processed ({max(behind):+.4f})"] = (
            max(behind) <= 0.01
        )
    passed[f"{name}: no exact violation in {tried:,} answers of safe models, near borders of rules too"] = broken == 0
    metric = "R2" if spec.output_kind == "numbers" else "share of right labels"
    lines = tuple(
        (kind, f"{_mean(results, 0):.4f}", f"{_mean(results, 1):.1%}", f"{_mean(results, 2):.1f}")
        for kind, results in found.items()
    )
    note = (
        f"{count:,} rows, the last quarter for the test; means of {seeds} seeds. {len(spec.rules)} rules; people "
        f"break one in {statistics.mean(people):.1%} of the test rows. Best plain model, chosen on training rows: "
        f"{', '.join(best)}. Nearest allowed answers come from a solver in float64: what they still break, they break "
        "by a rounding."
    )
    return Table(name.capitalize(), ("model", metric, "rows that break a rule", "seconds to fit"), lines, note)


def _mean(results: list[tuple[float, float, float]], i: int) -> float:
    return statistics.mean(result[i] for result in results)


def example(name: str) -> Any:
    """Return the module of an example."""
    found = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    if found is None or found.loader is None:
        raise FileNotFoundError(f"Expected examples/{name}.py. Run this in a clone of the repository.")
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def rows_of(spec: Specification, table: pd.DataFrame) -> Rows:
    """Return a table as what models read, and what they should answer."""
    names = [item.name for item in spec.outputs]
    return Rows(table.drop(columns=names), table[names])


# --- models


def _estimators(spec: Specification, X: pd.DataFrame, quick: bool, seed: int) -> dict[str, Any]:
    texts = [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    coded = make_column_transformer((words, texts), remainder="passthrough")
    numbers = spec.output_kind == "numbers"
    many = MultiOutputRegressor if numbers else MultiOutputClassifier
    boosting = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
    found = {BOOSTING: make_pipeline(coded, many(boosting(random_state=seed)))}
    if not quick:
        light = lightgbm.LGBMRegressor if numbers else lightgbm.LGBMClassifier
        forest = RandomForestRegressor if numbers else RandomForestClassifier
        found["LightGBM"] = make_pipeline(coded, many(light(n_jobs=1, verbose=-1, random_state=seed)))
        found["random forest"] = make_pipeline(coded, forest(50, min_samples_leaf=3, random_state=seed))
    return found


def _network(spec: Specification, quick: bool, seed: int) -> Any:
    few: dict[str, Any] = {"max_epochs": 5} if quick else {}
    if spec.output_kind == "numbers":
        return SafeRegressor(spec, NetworkRegressor(verbose=False, **few), random_state=seed)
    return SafeClassifier(spec, NetworkClassifier(verbose=False, **few), random_state=seed)


def _plain_models(spec: Specification, X: pd.DataFrame, quick: bool, seed: int) -> dict[str, Any]:
    return {NETWORK: _network(without_rules(spec), quick, seed), **_estimators(spec, X, quick, seed)}


def safe_models(spec: Specification, X: pd.DataFrame, quick: bool, seed: int) -> dict[str, Any]:
    """Return a network and gradient boosting under the rules, not fitted yet."""
    inside = _estimators(spec, X, quick, seed)[BOOSTING]
    kind = SafeRegressor if spec.output_kind == "numbers" else SafeClassifier
    return {NETWORK: _network(spec, quick, seed), BOOSTING: kind(spec, estimator=inside)}


def _fitted_answers(model: Any, known: Rows, new: Rows) -> tuple[Array, float]:
    """Return raw answers (rows, m) to new rows, and the seconds that fitting took."""
    before = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(known.X, known.y)
    seconds = time.perf_counter() - before
    return _raw(model, new.X), seconds


def _raw(model: Any, X: pd.DataFrame) -> Array:
    if hasattr(model, "raw_outputs"):
        return np.asarray(model.raw_outputs(X), dtype=np.float64)
    if not hasattr(model, "predict_proba"):
        return np.asarray(model.predict(X), dtype=np.float64)
    chance = np.stack([np.clip(each[:, 1], 1e-9, 1 - 1e-9) for each in model.predict_proba(X)], axis=1)
    return np.asarray(np.log(chance / (1 - chance)))


# --- measuring


def _best(spec: Specification, models: dict[str, Any], known: Rows) -> str:
    """Return which plain model scores best, post-processed, on the last fifth of the training rows."""
    cut = len(known.X) * 4 // 5
    early, late = known.cut(0, cut), known.cut(cut, len(known.X))
    scores = {}
    for kind, model in models.items():
        answers, seconds = _fitted_answers(model, early, late)
        scores[kind] = _measured(spec, _nearest(spec, answers, early, late), late, seconds)[0]
    return max(scores, key=lambda kind: scores[kind])


def _nearest(spec: Specification, answers: Array, known: Rows, new: Rows) -> Array:
    """Return the nearest allowed answers: in units of the spread of each number, or in probabilities of labels."""
    encoded = encode_inputs(spec, new.X)
    if spec.output_kind == "numbers":
        return nearest_outputs(spec, encoded, answers, scale=known.y.to_numpy(dtype=np.float64).std(axis=0))
    return nearest_outputs(spec, encoded, 0.5 + 0.5 * np.tanh(answers / 2)) - 0.5


def _measured(spec: Specification, answers: Array, new: Rows, seconds: float) -> tuple[float, float, float]:
    """Return the score, the share of rows that break a rule, and the seconds of fitting."""
    truth = new.y.to_numpy(dtype=np.float64)
    if spec.output_kind == "numbers":
        score = float(r2_score(truth, answers))
    else:
        score = float(((answers >= 0) == (truth > 0)).mean())
    return score, violation_rate(spec, new.X, answers), seconds
