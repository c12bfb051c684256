"""Tables that accuracy is measured on: Adult census income, three industries of examples/, and simulated ones."""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smle import Specification
from smle.nearest.oracle import nearest_outputs
from studies.attacks.subjects import RULES, Targets, bank, doses, shares
from studies.harness import Array
from tests.support.drawn_rules import alternatives
from tests.support.sampling import uniform_points

EXAMPLES = Path(__file__).parents[2] / "examples"
SIMULATIONS = {"bank": "customers", "hospital": "patients", "energy": "plan"}


@dataclass(frozen=True, eq=False)
class Rows:
    """A part of a table: what models read, and what they should answer (rows, m)."""

    X: pd.DataFrame
    y: pd.DataFrame

    def cut(self, start: int, stop: int) -> Rows:
        """Return some of the rows."""
        return Rows(self.X[start:stop], self.y[start:stop])


@dataclass(frozen=True, eq=False)
class Task:
    """Rules, rows to train on and rows to be judged by.

    * `source`: adult, example or simulated. `seed`: of models and table.
    * `models`: which models are compared; none: all estimators.
    """

    name: str
    source: str
    spec: Specification
    known: Rows
    new: Rows
    seed: int = 0
    models: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What is answered: numbers, labels or one choice."""
        return self.spec.output_kind


def tasks(quick: bool) -> Iterator[list[Task]]:
    """Yield all tables, each as one task per seed; `quick` takes few rows."""
    train, test = adult(quick)
    for name in ("hours", "income"):
        spec = Specification.from_yaml(RULES[name])
        yield [Task(f"{name} (Adult)", "adult", spec, rows_of(spec, train), rows_of(spec, test))]
    count, seeds = (600, 1) if quick else (4000, 3)
    for name in SIMULATIONS:
        spec, simulate = Specification.from_file(EXAMPLES / f"{name}.yaml"), getattr(example(name), SIMULATIONS[name])
        found = []
        for seed in range(seeds):
            rows = rows_of(spec, simulate(count, seed=seed))
            known, new = rows.cut(0, count * 3 // 4), rows.cut(count * 3 // 4, count)
            found.append(Task(name, "example", spec, known, new, seed))
        yield found
    yield from ([task] for task in simulated(100 if quick else 2000, 400 if quick else 3000))


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


# --- Adult

_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race",
    "sex", "capital_gain", "capital_loss", "hours", "native_country", "income",
)  # fmt: skip
_CLASSES = ("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay")


def adult(quick: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows to train on and rows to be judged by; simulated ones without the data, and if `quick`."""
    place = Path(os.environ.get("SMLE_DATA", "")) / "relations"
    if quick or not (place / "adult.data.gz").is_file():
        table = _simulated_adult(1200)
        return table.iloc[:800], table.iloc[800:]
    return _read(place / "adult.data.gz"), _read(place / "adult.test.gz")


def _read(path: Path) -> pd.DataFrame:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        table = pd.read_csv(file, names=list(_COLUMNS), skipinitialspace=True, na_values="?", comment="|")
    table = table.dropna(subset=["hours"]).astype({"age": int, "education_num": int, "hours": float})
    return table.assign(income=table["income"].str.strip("."), capital_gain=table["capital_gain"].astype(float))


def _simulated_adult(rows: int) -> pd.DataFrame:
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
        "age": age, "workclass": text(*_CLASSES), "fnlwgt": rng.integers(10000, 900000, rows),
        "education": text("HS", "BA", "MA"), "education_num": learned, "marital_status": text("single", "married"),
        "occupation": text("sales", "craft", "clerk"), "relationship": text("none", "wife", "husband"),
        "race": text("a", "b"), "sex": rng.choice(["Male", "Female"], rows), "capital_gain": gain,
        "capital_loss": rng.integers(0, 1000, rows), "hours": hours, "native_country": text("x", "y"),
        "income": np.where(rich, ">50K", "<=50K"),
    })  # fmt: skip


# --- simulated

_INPUTS = "inputs: {a: [0, 6], b: [-1, 1], c: [0, 1]}\n"
_LABELS = (
    "l0 implies l1", "l1 implies l2", "l3 implies l1", "exactly_one(l4, l5, l6)", "exactly_one(l7, l8, l9)",
    "not (l4 and l7)", "l10 implies (l5 or l8)", "not (l11 and l0)",
)  # fmt: skip


def _ramps(X: Array, rng: np.random.Generator) -> Array:
    last, hour = X.T
    steps = 30 * np.sin(hour[:, None] / 4 + np.arange(3)) + 15 * rng.normal(size=(len(X), 3))
    return np.asarray(last[:, None] + np.cumsum(steps, axis=1))


def _mixed(X: Array, rng: np.random.Generator, *, unit: float) -> Array:
    w, age, k = X.T
    wave = 0.8 + 0.3 * np.sin(age / 15) + 0.2 * k  # often presses against the limits
    return np.asarray(unit * (np.minimum(0.045 * w, 4.2) * wave + 0.1 * rng.normal(size=len(X)))[:, None])


def simulated(rows: int, more: int) -> Iterator[Task]:
    """Yield separated ranges, coupled outputs, moving limits, alternatives, labels, and limits in units up to 1e6."""
    rng = np.random.default_rng(0)
    hidden, mixture = rng.normal(size=10), rng.normal(size=(3, 10))

    def around(X: Array, rng: np.random.Generator) -> Array:
        return np.asarray(hidden + 1.2 * np.sin(X @ mixture) + 0.3 * rng.normal(size=(len(X), 10)))

    stated: dict[str, tuple[Specification, Targets]] = {
        f"simulated: {name}": (Specification.from_yaml(text), targets)
        for name, text, targets in (
            ("credit", RULES["bank"], bank),
            ("doses", RULES["doses"], doses),
            ("shares", RULES["shares"], shares),
            ("ramps on three steps", RULES["ramps"], _ramps),
            (
                "three separated ranges",
                RULES["separated ranges"],
                lambda X, rng: (6 * np.sin(X[:, 0]) + 2 * X[:, 1] + 0.5 * rng.normal(size=len(X)))[:, None],
            ),
        )
    }
    stated["simulated: 24 alternatives over 10 outputs"] = alternatives(_INPUTS, hidden, (24, 25), rng), around
    labels = Specification.build(
        inputs={"a": (0, 6), "b": (-1, 1), "c": (0, 1)}, labels=[f"l{i}" for i in range(12)],
        rules={f"r{i}": rule for i, rule in enumerate(_LABELS)},
    )  # fmt: skip

    def allowed(X: Array, rng: np.random.Generator) -> Array:
        odds = 2 * np.sin(X @ rng.normal(size=(3, 12))) + rng.normal(size=(len(X), 12))
        return np.asarray(nearest_outputs(labels, X, 1 / (1 + np.exp(-odds))) > 0).astype(int)

    stated["simulated: 12 labels, implications, two exactly-one groups"] = labels, allowed
    for name, (spec, targets) in stated.items():
        yield _simulated_task(name, spec, targets, rows, ("gradient boosting", "linear"))
    for unit in (1e-3, 1.0, 1e6):
        stretched = partial(lambda unit, number: f"{float(number[1]) * unit:.6g}", unit)
        spec = Specification.from_yaml(re.sub(r"([\d.]+)u\b", stretched, RULES["limits in units"]))
        yield _simulated_task(
            f"simulated: limits in units of {unit:g}", spec, partial(_mixed, unit=unit), more, ("network",)
        )


def _simulated_task(name: str, spec: Specification, targets: Targets, rows: int, models: tuple[str, ...]) -> Task:
    rng = np.random.default_rng(0)
    X = uniform_points(spec, rng, 2 * rows, dtype=np.float64)
    table = Rows(
        pd.DataFrame(X, columns=list(spec.columns)),
        pd.DataFrame(targets(X, rng), columns=[item.name for item in spec.outputs]),
    )
    return Task(name, "simulated", spec, table.cut(0, rows), table.cut(rows, 2 * rows), models=models)
