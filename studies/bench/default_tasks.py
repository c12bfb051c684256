"""What the ways to train are compared on: tasks of the paper, tables with moving limits, separate parts, small data.

Only training rows are handed over; test rows of the paper's tasks are left alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from smle.rules import Specification
from studies.bench.peer_tasks import load_case
from studies.experiments import classification, data, forecasting, synthetic

__all__ = ["Problem", "load", "names"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Problem:
    """Training rows under rules: X (rows, d), y (rows, m), or (rows,) with the names of options."""

    group: str
    spec: Specification
    X: Array
    y: npt.NDArray[Any]

    @property
    def is_regression(self) -> bool:
        """Whether outputs are numbers."""
        return self.spec.output_kind == "numbers"


def names(*, quick: bool) -> list[str]:
    """Return the names of all problems; those of the paper on real data if SMLE_DATA names their folder."""
    own = list(_OWN)
    if quick:
        return ["synthetic:n2-medium-P3", "hospital", "two ranges", "wine"]
    found = own + [f"synthetic:{item.key}" for item in synthetic.properties()]
    if os.environ.get("SMLE_DATA"):
        found += [f"classification:{key}" for key in classification.task_keys()]
        found += [f"forecasting:{key}" for key in forecasting.task_keys() if key.endswith("0.90")]
    return found


def load(name: str) -> Problem:
    """Return a problem by its name."""
    if name in _OWN:
        return replace(_OWN[name](), group=_GROUPS.get(name, name))
    benchmark, key = name.split(":", 1)
    if benchmark == "synthetic":
        task = synthetic.load(key)
    elif benchmark == "forecasting":
        task = forecasting.load(key, data.series())
    else:
        task = classification.load(key, data.label_table(key.rsplit("-", 1)[0]))
    return Problem(benchmark, task.specification, task.X, task.y)


# --- tables with limits that move with the inputs


def _doses() -> Problem:
    task = load_case("insulin").task
    return Problem("", task.specification, task.X, task.y)


def _hospital(*, breaking: bool = False) -> Problem:
    """Doses per kilogram, at most 4: a moving limit that meets a fixed one. `breaking`: some rows are above both."""
    rng = np.random.default_rng(1)
    weight, age, severity = rng.uniform(2, 250, 4000), rng.uniform(0, 90, 4000), rng.uniform(0, 1, 4000)
    share = (0.2 + 0.6 * severity) * (1 - 0.004 * age) * (1 + 0.2 * np.sin(6 * severity))
    dose = np.minimum(0.05 * weight, 4) * share
    if breaking:
        dose = dose * np.exp(rng.normal(0, 0.4, len(dose)))
    spec = Specification.from_yaml(
        "inputs: {weight: [2, 250], age: [0, 90], severity: [0, 1]}\noutputs: [dose]\nrules:\n"
        "  - {name: per kilogram, then: 0 <= dose <= 0.05 * weight}\n  - {name: at most, then: dose <= 4}\n"
    )
    return Problem("", spec, np.stack([weight, age, severity], axis=1), dose[:, None])


_BANK = """
inputs:
  income: [0, 300000]
  debt: [0, 200000]
  age: [18, 90]
  years: [0, 40]
  score: [300, 850]
outputs: [limit, rate, fee]
rules:
  - {name: affordable, then: 0 <= limit <= 0.35 * income + 500}
  - {name: cap, then: limit <= 60000}
  - {name: in debt, when: debt >= 50000, then: limit <= 0.2 * income + 500}
  - {name: young, when: age <= 25, then: limit <= 8000 + 0.05 * income}
  - {name: weak, when: score <= 550, then: limit <= 5000}
  - {name: usury, then: 0.02 <= rate <= 0.245}
  - {name: good customers, when: score >= 750 and years >= 5, then: rate <= 0.12}
  - {name: risk has a price, then: rate >= 0.3 - 0.0004 * score}
  - {name: fees, then: 0 <= fee <= 40 + 0.0002 * income}
  - {name: seniors, when: age >= 65, then: fee <= 40}
"""


def _bank() -> Problem:
    """Ten overlapping rules on three outputs in units from 1e-2 to 1e4; a part of the rows breaks some."""
    rng = np.random.default_rng(2)
    count = 5000
    income, debt = rng.gamma(3, 20000, count).clip(0, 300000), rng.gamma(1.5, 25000, count).clip(0, 200000)
    age, years, score = rng.uniform(18, 90, count), rng.gamma(2, 5, count).clip(0, 40), rng.uniform(300, 850, count)
    trust = (score - 300) / 550
    limit = 0.45 * income * trust**1.5 * np.exp(-debt / 120000) + rng.normal(0, 1500, count)
    rate = 0.28 - 0.2 * trust - 0.002 * years + rng.normal(0, 0.01, count)
    fee = 20 + 30 * (1 - trust) + 0.00015 * income + rng.normal(0, 3, count)
    X = np.stack([income, debt, age, years, score], axis=1)
    return Problem("", Specification.from_yaml(_BANK), X, np.stack([limit, rate, fee], axis=1))


# --- separate parts


def _ranges(count: int) -> Problem:
    """Answers in two or three separate ranges; half of the rows lie between them."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (3000, 3))
    y = 6 * np.tanh(2 * X[:, 0] + X[:, 1] ** 2 - X[:, 2]) + rng.normal(0, 0.3, len(X))
    then = "y <= -2 or y >= 2" if count == 2 else "y <= -3 or -1 <= y <= 1 or y >= 3"
    spec = Specification.from_yaml(
        f"inputs: {{a: [-1, 1], b: [-1, 1], c: [-1, 1]}}\noutputs: [y]\nrules:\n  - {{name: apart, then: {then}}}\n"
        "  - {name: side, when: a >= 0.5, then: y >= 0}\n"
    )
    return Problem("", spec, X, y[:, None])


# --- small data


def _stated(X: Array, columns: Sequence[str], rest: str) -> Specification:
    """Return rules over columns whose ranges are those of the data, to the next integers."""
    ends = zip(columns, np.floor(X.min(axis=0)), np.ceil(X.max(axis=0)), strict=True)
    return Specification.from_yaml(f"inputs: {{{', '.join(f'{n}: [{low}, {high}]' for n, low, high in ends)}}}\n{rest}")


def _diabetes() -> Problem:
    found = load_diabetes(scaled=False)
    rules = (
        "outputs: [progression]\nrules:\n  - {name: range, then: 25 <= progression <= 346}\n"
        "  - {name: heavy, when: bmi >= 32, then: progression >= 120}\n"
    )
    return Problem("", _stated(found.data, found.feature_names, rules), found.data, found.target[:, None])


def _options(found: Any, rules: str) -> Problem:
    """Return a data set of scikit-learn whose targets are names; its columns are x0, x1, ..."""
    columns = [f"x{k}" for k in range(found.data.shape[1])]
    return Problem("", _stated(found.data, columns, rules), found.data, np.asarray(found.target_names)[found.target])


def _breast_cancer() -> Problem:
    return _options(
        load_breast_cancer(),
        "choices: {finding: [malignant, benign]}\nrules:\n"
        "  - {name: large, when: x0 >= 18, then: finding == malignant}\n"
        "  - {name: large and uneven, when: x0 + 0.1 * x1 >= 19, then: finding == malignant}\n",
    )


def _wine() -> Problem:
    return _options(
        load_wine(),
        "choices: {grower: [class_0, class_1, class_2]}\nrules:\n"
        "  - {name: much proline, when: x12 >= 1000, then: grower != class_2}\n"
        "  - {name: few flavanoids, when: x6 <= 1 and x12 < 1000, then: grower == class_2}\n",
    )


_OWN: dict[str, Callable[[], Problem]] = {
    "doses": _doses,
    "hospital": _hospital,
    "hospital, rows break it": partial(_hospital, breaking=True),
    "bank": _bank,
    "two ranges": partial(_ranges, 2),
    "three ranges": partial(_ranges, 3),
    "diabetes": _diabetes,
    "breast cancer": _breast_cancer,
    "wine": _wine,
}
_GROUPS = dict.fromkeys(("doses", "hospital", "hospital, rows break it", "bank"), "moving limits")
_GROUPS |= dict.fromkeys(("two ranges", "three ranges"), "separate ranges")
_GROUPS |= dict.fromkeys(("diabetes", "breast cancer", "wine"), "small data")
