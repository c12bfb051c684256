"""What rules cost in accuracy on tables: plain models, the same post-processed, and the same under the rules.

Adult census income has text, categories and missing values: hours per week under eleven rules, and the income class
under four; what is served there goes through folder, ONNX file and report. It is read from the folder that SMLE_DATA
names; without it, and with `quick`, a simulated table stands in. A bank, a hospital and an energy company are the
simulated tables of examples/: gaps, units from 0.001 to a million, noise, drift; the last quarter of the rows is the
test. Other simulated tables have separated ranges, coupled outputs, moving limits, alternatives and labels. Answers are
judged exactly on test rows, and attacked near the borders of the rules.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, Specification, load
from smle.attacks.subjects import AskedTable
from smle.baselines import violation_rate
from smle.estimators.base import without_rules
from smle.estimators.catalog import named_estimator, with_parameters
from smle.export import load_onnx
from smle.nearest.oracle import nearest_outputs
from smle.report import write_report
from smle.tables import encode_inputs
from studies.bench.table_tasks import Task, tasks
from studies.harness import Array, Table, bench, quietly
from tests.support.sampling import Judge, finished, hard_points

NETWORK, BOOSTING = "network", "gradient boosting"


@bench("What rules cost in accuracy")
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Fit all models to all tables; `quick` takes few rows, two estimators and a small network."""
    return (_table(own, quick, passed) for own in tasks(quick))


# --- models


def estimators(spec: Specification, X: pd.DataFrame, quick: bool, seed: int) -> dict[str, Any]:
    """Return estimators for a table, not fitted yet: those that `smle train` knows by name, and boosting alone."""
    made = partial(named_estimator, spec=spec, table=X, seed=seed)
    found = {BOOSTING: made("hist-gradient-boosting"), "linear": made("ridge")}
    if quick:
        return found
    found["random forest"] = with_parameters(made("random-forest"), {"n_estimators": 50})
    found["LightGBM"] = with_parameters(made("lightgbm"), {"n_jobs": 1})
    if len(spec.outputs) == 1:
        found["XGBoost"] = with_parameters(made("xgboost"), {"n_jobs": 1})
        boosting = HistGradientBoostingRegressor if spec.output_kind == "numbers" else HistGradientBoostingClassifier
        found["boosting, its own categories"] = boosting(random_state=seed)
    return found


def network(spec: Specification, quick: bool, seed: int) -> Any:
    """Return our own network under rules."""
    few: dict[str, Any] = {"max_epochs": 5} if quick else {}
    if spec.output_kind == "numbers":
        return SafeRegressor(spec, NetworkRegressor(verbose=False, **few), random_state=seed)
    return SafeClassifier(spec, NetworkClassifier(verbose=False, **few), random_state=seed)


def safe(spec: Specification, inner: Any) -> Any:
    """Return an estimator under rules."""
    return (SafeRegressor if spec.output_kind == "numbers" else SafeClassifier)(spec, estimator=inner)


def _pairs(task: Task, quick: bool) -> dict[str, tuple[Any, Any]]:
    """Return plain models, and the same under the rules; Adult is left to estimators."""
    found = {}
    if task.source == "example" or NETWORK in task.models:
        found[NETWORK] = network(without_rules(task.spec), quick, task.seed), network(task.spec, quick, task.seed)
    for name, inner in estimators(task.spec, task.known.X, quick, task.seed).items():
        if not task.models or name in task.models:
            found[name] = clone(inner), safe(task.spec, inner)
    return found


def _read(name: str, rows: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return a table as a model reads it: with pandas categories where the model handles them itself."""
    if "its own" not in name:
        return rows
    texts = [name for name in known.columns if not pd.api.types.is_numeric_dtype(known[name])]
    return rows.astype({name: pd.CategoricalDtype(sorted(known[name].dropna().unique())) for name in texts})


def _fit(model: Any, task: Task, X: pd.DataFrame, y: pd.DataFrame) -> float:
    """Fit a model; return the seconds."""
    target: Any = y if len(y.columns) > 1 or hasattr(model, "raw_outputs") else y.iloc[:, 0]
    if task.kind == "choice" and not hasattr(model, "raw_outputs"):
        target = target.map({option: i for i, option in enumerate(_options(task.spec))})
    before = time.perf_counter()
    with quietly():
        model.fit(X, target)
    return time.perf_counter() - before


def _options(spec: Specification) -> tuple[str, ...]:
    options: tuple[str, ...] = spec.outputs[0].options  # type: ignore[union-attr]
    return options


def _raw(model: Any, X: pd.DataFrame, kind: str) -> Array:
    """Return answers (rows, m): numbers, logits of labels, or scores of options."""
    if hasattr(model, "raw_outputs"):
        return np.asarray(model.raw_outputs(X), dtype=np.float64)
    if kind == "numbers":
        return np.asarray(model.predict(X), dtype=np.float64).reshape(len(X), -1)
    chances = model.predict_proba(X)
    if kind == "choice":
        return np.log(np.maximum(np.asarray(chances, dtype=np.float64), 1e-30))
    chance = np.stack([np.clip(each[:, 1], 1e-9, 1 - 1e-9) for each in chances], axis=1)
    return np.asarray(np.log(chance / (1 - chance)))


# --- measuring


def _nearest(task: Task, answers: Array, X: pd.DataFrame, y: pd.DataFrame) -> Array:
    """Return the nearest allowed answers: in units of the spread of each number, in probabilities of labels."""
    encoded = encode_inputs(task.spec, X)
    if task.kind == "labels":
        return nearest_outputs(task.spec, encoded, 0.5 + 0.5 * np.tanh(answers / 2)) - 0.5
    scale = y.to_numpy(dtype=np.float64).std(axis=0) if task.kind == "numbers" else None
    return nearest_outputs(task.spec, encoded, answers, scale=scale)


def _score(task: Task, answers: Array, y: pd.DataFrame) -> float:
    truth = y.to_numpy()
    if task.kind == "numbers":
        return float(r2_score(truth.astype(np.float64), answers))
    if task.kind == "choice":
        return float((np.asarray(_options(task.spec))[answers.argmax(axis=1)] == truth[:, 0]).mean())
    return float(((answers >= 0) == (truth.astype(np.float64) > 0)).mean())


def _best(task: Task, quick: bool) -> str:
    """Return which plain model scores best, post-processed, on the last fifth of the training rows."""
    cut, count = len(task.known.X) * 4 // 5, len(task.known.X)
    early, late, scores = task.known.cut(0, cut), task.known.cut(cut, count), {}
    for name, (plain, _) in _pairs(task, quick).items():
        _fit(plain, task, early.X, early.y)
        scores[name] = _score(task, _nearest(task, _raw(plain, late.X, task.kind), late.X, early.y), late.y)
    return max(scores, key=lambda name: scores[name])


def attacked(model: Any, judge: Judge, rows: pd.DataFrame, points: int) -> tuple[int, int]:
    """Return how many answers to inputs near the borders of the rules break one, and how many there were.

    Columns that the rules do not name are those of rows.
    """
    spec, rng, found, tried = model.specification_, np.random.default_rng(3), 0, 0
    for X in hard_points(spec, rng, points, dtype=np.float64):
        asked = AskedTable(spec, rows.sample(frac=1.0, random_state=len(X)))
        table = asked.of(finished(spec, X, np.float64, whole=True))
        found += len(judge.violations(encode_inputs(spec, table), model.raw_outputs(table)))
        tried += len(table)
    return found, tried


def _stored(model: Any, task: Task, V: pd.DataFrame, served: Array) -> tuple[Any, float, bool]:
    """Return the model from its folder, the score of its ONNX file, and whether folder and report say the same."""
    (target,) = task.new.y.columns
    with tempfile.TemporaryDirectory() as place:
        model.save(Path(place) / "model")
        again = load(Path(place) / "model")
        model.to_onnx(Path(place) / "model.onnx")
        file = load_onnx(Path(place) / "model.onnx").predict(V)[target].to_numpy()
        page = write_report(
            Path(place) / "model", V.assign(**{target: task.new.y[target]}), Path(place) / "report.html"
        )
    truth = task.new.y[target].to_numpy()
    score = float(r2_score(truth, file)) if task.kind == "numbers" else float((file == truth).mean())
    return again, score, np.array_equal(again.raw_outputs(V), served) and page.verdict == "proved"


def _table(own: list[Task], quick: bool, passed: dict[str, bool]) -> Table:
    first, points = own[0], 300 if quick else 30_000 if own[0].source == "adult" else 5_000
    found: dict[str, list[list[float]]] = {}
    behind: dict[str, list[float]] = {}
    broken, tried, apart, same, best = 0, 0, 0.0, True, []
    for task in own:
        judge, X, V = Judge(task.spec), task.known.X, task.new.X
        target = _best(task, quick) if task.source == "example" else None
        best += [] if target is None else [target]
        for name, (plain, safe_model) in _pairs(task, quick).items():
            X_, V_ = _read(name, X, X), _read(name, V, X)
            _fit(plain, task, X_, task.known.y)
            seconds, answers = _fit(safe_model, task, X_, task.known.y), _raw(plain, V_, task.kind)
            allowed, served = _nearest(task, answers, V, task.known.y), _raw(safe_model, V_, task.kind)
            scores = [_score(task, part, task.new.y) for part in (answers, allowed, served)]
            deployed, file = safe_model, np.nan
            if task.source == "adult":
                deployed, file, agrees = _stored(safe_model, task, V_, served)
                apart, same = max(apart, abs(scores[2] - file)), same and agrees
            with quietly():  # stored safe answers are common at the borders of rules
                wrong, judged = attacked(deployed, judge, V_, points)
                moved = float((served != safe_model.answer(V_, count=False).answers).any(axis=1).mean())
                replaced = float((np.asarray(safe_model.predict(V_, return_info=True)[1]["served"]) == "safe").mean())
            wrong += len(judge.violations(encode_inputs(task.spec, V), served))
            broken, tried = broken + wrong, tried + judged + len(V)
            rate = violation_rate(task.spec, V, answers)
            found.setdefault(name, []).append([*scores, file, rate, moved, replaced, wrong, seconds])
            behind.setdefault(name, []).append(scores[1] - scores[2])
        if target is not None:
            level = found[target][-1][1]
            for name in (NETWORK, BOOSTING):
                behind.setdefault(f"{name} behind the best", []).append(level - found[name][-1][2])
    for name in (NETWORK, BOOSTING) if first.source == "example" else ():
        gap = max(behind[f"{name} behind the best"])
        what = f"{first.name}: {name} at most .01 behind the best plain model, post-processed ({gap:+.4f})"
        passed[what] = gap <= 0.01
    if first.source != "example":
        gap = max(max(gaps) for gaps in behind.values())
        limit = 2e-3 if NETWORK in found or first.source == "adult" else 1e-3
        passed[f"{first.name}: within {limit:g} of nearest-allowed post-processing ({gap:.1e} behind)"] = gap <= limit
        safest = max(max(row[6] for row in rows) for rows in found.values())
        passed[f"{first.name}: stored safe answers below a tenth of a percent ({safest:.3%})"] = safest < 1e-3
    if first.source == "adult":
        what = f"{first.name}: folder, loaded model and report agree; the ONNX file scores the same to {apart:.0e}"
        passed[what] = same and apart <= 1e-3
    passed[f"{first.name}: no exact violation in {tried:,} answers, near borders of rules too"] = broken == 0
    return Table(
        first.name.capitalize(),
        ("model", f"{_METRICS[first.kind]}, plain", "post-processed", "served", "as ONNX file", "plain breaks a rule",
         "moved", "safe answers", "violations", "seconds to fit"),
        tuple((name, *_line(np.mean(rows, axis=0))) for name, rows in found.items()),
        _note(own, best),
    )  # fmt: skip


_METRICS = {"numbers": "R2", "labels": "share of right labels", "choice": "accuracy"}


def _line(row: Array) -> tuple[object, ...]:
    scores = (f"{score:.4f}" if np.isfinite(score) else "" for score in row[:4])
    return (*scores, f"{row[4]:.1%}", f"{row[5]:.1%}", f"{row[6]:.2%}", int(row[7]), f"{row[8]:.1f}")


def _note(own: list[Task], best: list[str]) -> str:
    first = own[0]
    people = statistics.mean(violation_rate(task.spec, task.new.X, task.new.y) for task in own)
    text = (
        f"{len(first.known.X):,} rows for training, {len(first.new.X):,} for the test; means of {len(own)} seed(s). "
        f"{len(first.spec.rules)} rules; the table breaks one in {people:.1%} of the test rows. Nearest allowed "
        "answers come from a solver in float64."
    )
    return f"{text} Best plain model, chosen on training rows: {', '.join(best)}." if best else text
