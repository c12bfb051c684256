"""Estimators inside, on a public table with text, categories and missing values, under overlapping rules.

Adult census income: hours per week under eleven rules, and the income class under four. Each estimator is fitted plain
and inside; the plain answers are moved to the nearest allowed ones. What is served goes through folder, ONNX file and
report, is judged exactly on the test rows, and attacked near the borders of the rules. The table is read from the
folder that SMLE_DATA names; without it, and with `quick`, a simulated one stands in.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pandas as pd
import xgboost
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from smle import SafeClassifier, SafeRegressor, Specification, load
from smle.attacks.subjects import AskedTable as AttackTable
from smle.export import load_onnx
from smle.nearest.oracle import nearest_outputs
from smle.report import write_report
from smle.tables import encode_inputs
from studies.harness import BenchResult, Table
from tests.support.sampling import Judge, finished, hard_points

__all__ = ["attacked", "run"]

Array = npt.NDArray[Any]
_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race",
    "sex", "capital_gain", "capital_loss", "hours", "native_country", "income",
)  # fmt: skip
_CLASSES = (
    "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
    "Never-worked",
)  # fmt: skip
_INPUTS = f"""
inputs:
  age: {{range: [17, 90], integer: true}}
  education_num: {{range: [1, 16], integer: true}}
  capital_gain: [0, 100000]
  workclass: {{categories: [{", ".join(_CLASSES)}], missing: Private}}
  sex: {{categories: [Male, Female]}}
"""
HOURS = f"""{_INPUTS}outputs: [hours]
rules:
  - {{name: a week, then: 1 <= hours <= 60}}
  - {{name: minors, when: age < 18, then: hours <= 20}}
  - {{name: young, when: age < 22, then: hours <= 2 * age - 10}}
  - {{name: pension, when: age >= 70, then: hours <= 32}}
  - {{name: very old, when: age > 78, then: hours <= 96 - 0.9 * age}}
  - {{name: federal, when: workclass == "Federal-gov", then: hours <= 44}}
  - {{name: owners, when: workclass == "Self-emp-inc" and 25 <= age < 70, then: hours >= 45}}
  - {{name: learned, when: education_num >= 14 and 30 <= age <= 65, then: hours >= 38 + 0.05 * age}}
  - {{name: prime age, when: 25 <= age <= 60, then: hours >= 30 + 0.1 * age}}
  - {{name: rich, when: capital_gain >= 10000 and 25 <= age < 70, then: hours >= 36}}
  - {{name: not more than, then: hours <= 34 + 0.5 * age}}
"""
INCOME = f"""{_INPUTS}choices: {{income: ["<=50K", ">50K"]}}
rules:
  - {{name: minors, when: age < 21, then: income == "<=50K"}}
  - {{name: gains, when: capital_gain >= 15000 and age >= 21, then: income == ">50K"}}
  - {{name: unpaid, when: workclass == "Without-pay" and capital_gain < 15000, then: income == "<=50K"}}
  - {{name: school, when: education_num <= 4 and capital_gain <= 7000, then: income == "<=50K"}}
"""


def run(quick: bool = False) -> BenchResult:
    """Run both tasks; `quick` takes a small simulated table and two estimators."""
    train, test, source = _rows(quick)
    passed: dict[str, bool] = {}
    tables = tuple(_task(rules, train, test, quick, passed) for rules in (HOURS, INCOME))
    note = f"{source}: {len(train):,} rows for training, {len(test):,} for the test, text in 8 columns."
    tables = (Table(tables[0].title, tables[0].columns, tables[0].rows, f"{note} {tables[0].note}"), tables[1])
    return BenchResult("estimators", "Estimators inside, on a public table", tables, passed=passed, quick=quick)


# --- the table


def _rows(quick: bool) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    place = Path(os.environ.get("SMLE_DATA", "")) / "relations"
    if quick or not (place / "adult.data.gz").is_file():
        table = _simulated(1200)
        return table.iloc[:800], table.iloc[800:], "Simulated stand-in for Adult"
    return _read(place / "adult.data.gz"), _read(place / "adult.test.gz"), "Adult census income (UCI)"


def _read(path: Path) -> pd.DataFrame:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        table = pd.read_csv(file, names=list(_COLUMNS), skipinitialspace=True, na_values="?", comment="|")
    table = table.dropna(subset=["hours"]).astype({"age": int, "education_num": int, "hours": float})
    return table.assign(income=table["income"].str.strip("."), capital_gain=table["capital_gain"].astype(float))


def _simulated(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)

    def text(*values: str) -> Array:
        found = rng.choice(values, rows).astype(object)
        found[rng.random(rows) < 0.05] = None
        return found

    age, learned = rng.integers(17, 91, rows), rng.integers(1, 17, rows)
    gain = np.where(rng.random(rows) < 0.1, rng.integers(1000, 30000, rows), 0).astype(float)
    hours = (40 - 0.02 * (age - 42) ** 2 + rng.normal(0, 8, rows)).clip(1, 99).round()
    rich = learned + 0.1 * age + gain / 2000 + rng.normal(0, 3, rows) > 17
    return pd.DataFrame({
        "age": age, "workclass": text(*_CLASSES[:7]), "fnlwgt": rng.integers(10000, 900000, rows),
        "education": text("HS", "BA", "MA"), "education_num": learned, "marital_status": text("single", "married"),
        "occupation": text("sales", "craft", "clerk"), "relationship": text("none", "wife", "husband"),
        "race": text("a", "b"), "sex": rng.choice(["Male", "Female"], rows), "capital_gain": gain,
        "capital_loss": rng.integers(0, 1000, rows), "hours": hours, "native_country": text("x", "y"),
        "income": np.where(rich, ">50K", "<=50K"),
    })  # fmt: skip


# --- estimators


def _estimators(train: pd.DataFrame, numbers: bool, quick: bool) -> Iterator[tuple[str, Any]]:
    texts = [name for name in train.columns if not pd.api.types.is_numeric_dtype(train[name])]
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    coded = make_column_transformer((words, texts), remainder="passthrough")
    filled = make_pipeline(SimpleImputer(strategy="most_frequent"), words)
    scaled = make_column_transformer((filled, texts), remainder=make_pipeline(SimpleImputer(), StandardScaler()))
    forest = {"n_estimators": 50, "min_samples_leaf": 5, "random_state": 0}
    boosting = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
    yield "gradient boosting", make_pipeline(coded, boosting(random_state=0))
    yield (
        "ridge" if numbers else "logistic regression",
        make_pipeline(scaled, Ridge() if numbers else LogisticRegression(max_iter=500)),
    )
    if quick:
        return
    yield "boosting, its own categories", boosting(random_state=0)
    yield (
        "random forest",
        make_pipeline(coded, (RandomForestRegressor if numbers else RandomForestClassifier)(**forest)),
    )
    yield "XGBoost", make_pipeline(coded, (xgboost.XGBRegressor if numbers else xgboost.XGBClassifier)(n_jobs=1))
    yield (
        "LightGBM",
        make_pipeline(coded, (lightgbm.LGBMRegressor if numbers else lightgbm.LGBMClassifier)(n_jobs=1, verbose=-1)),
    )


def _task(rules: str, train: pd.DataFrame, test: pd.DataFrame, quick: bool, passed: dict[str, bool]) -> Table:
    spec = Specification.from_yaml(rules)
    (target,), numbers = (item.name for item in spec.outputs), spec.output_kind == "numbers"
    X, V = (rows.drop(columns=target) for rows in (train, test))
    y, truth = train[target], test[target].to_numpy()
    judge, encoded, points = Judge(spec), encode_inputs(spec, V), 300 if quick else 30_000
    lines: list[tuple[object, ...]] = []
    behind, apart, broken, points_tried, verdicts = 0.0, 0.0, 0, 0, []
    for name, inner in _estimators(X, numbers, quick):
        own = "its own" in name
        X_, V_ = (_categories(rows, X) if own else rows for rows in (X, V))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = (SafeRegressor if numbers else SafeClassifier)(spec, estimator=inner).fit(X_, y)
            plain = _plain(clone(inner), X_, y, V_, numbers)
        served = model.raw_outputs(V_)
        nearest = nearest_outputs(spec, encoded, plain)
        with tempfile.TemporaryDirectory() as place:
            model.save(Path(place) / "model")
            again = load(Path(place) / "model")
            same = np.array_equal(again.raw_outputs(V_), served)
            model.to_onnx(Path(place) / "model.onnx")
            file = load_onnx(Path(place) / "model.onnx").predict(V_)[target].to_numpy()
            page = write_report(Path(place) / "model", V_.assign(**{target: truth}), Path(place) / "report.html")
            verdicts.append(same and page.verdict == "proved")
        scores = [_score(answers, truth, spec) for answers in (plain, nearest, served)]
        from_file = float(r2_score(truth, file)) if numbers else float((file == truth).mean())
        wrong, tried = attacked(again, judge, V_, points)
        found = wrong + len(judge.violations(encoded, served))
        broken, points_tried = broken + found, points_tried + tried
        behind, apart = max(behind, scores[1] - scores[2]), max(apart, abs(scores[2] - from_file))
        moved = float((served != model.answer(V_, count=False).answers).any(axis=1).mean())
        lines.append((name, *(f"{score:.5f}" for score in (*scores, from_file)), f"{moved:.1%}", found))
    what = "hours" if numbers else "income"
    passed[f"{what}: within .002 of the plain model with nearest-allowed post-processing ({behind:.1e})"] = (
        behind <= 2e-3
    )
    passed[f"{what}: folder, loaded model and report agree; the ONNX file scores the same to {apart:.0e}"] = (
        all(verdicts) and apart <= 1e-3
    )
    passed[f"{what}: no exact violation on test rows and at {points_tried:,} attacked points"] = broken == 0
    metric = "R2" if numbers else "accuracy"
    columns = ("estimator", f"{metric} plain", "post-processed", "served", "as ONNX file", "moved", "violations")
    return Table(f"{what.capitalize()}, {len(spec.rules)} rules", columns, tuple(lines), "")


def _categories(rows: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    texts = [name for name in known.columns if not pd.api.types.is_numeric_dtype(known[name])]
    kinds = {name: pd.CategoricalDtype(sorted(known[name].dropna().unique())) for name in texts}
    return rows.astype(kinds)


def _plain(model: Any, X: pd.DataFrame, y: Any, V: pd.DataFrame, numbers: bool) -> Array:
    """Return the answers of an estimator without rules (n, m): numbers, or scores of the options."""
    if numbers:
        return np.asarray(model.fit(X, y).predict(V), dtype=np.float64)[:, None]
    values, coded = np.unique(y, return_inverse=True)
    chances = model.fit(X, coded).predict_proba(V)
    order = [int(np.flatnonzero(values == option)[0]) for option in ("<=50K", ">50K")]
    return np.log(np.maximum(np.asarray(chances, dtype=np.float64)[:, order], 1e-30))


def _score(answers: Array, truth: Array, spec: Specification) -> float:
    if spec.output_kind == "numbers":
        return float(r2_score(truth, answers[:, 0]))
    options = np.asarray(spec.outputs[0].options)  # type: ignore[union-attr]
    return float((options[answers.argmax(axis=1)] == truth).mean())


def attacked(model: Any, judge: Judge, rows: pd.DataFrame, points: int) -> tuple[int, int]:
    """Return how many answers to inputs near the borders of the rules break one, and how many there were.

    Columns that the rules do not name are those of rows.
    """
    spec, rng, found, tried = model.specification_, np.random.default_rng(3), 0, 0
    for X in hard_points(spec, rng, points, dtype=np.float64):
        table = AttackTable(spec, rows.sample(frac=1.0, random_state=len(X))).of(
            finished(spec, X, np.float64, whole=True)
        )
        found += len(judge.violations(encode_inputs(spec, table), model.raw_outputs(table)))
        tried += len(table)
    return found, tried
