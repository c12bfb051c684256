"""Multi-label classification: 5 data sets under pairs of labels that must never be predicted together.

Forbidden are the pairs that occur together no more often than a quantile over all pairs of the data set. Features are
standardized with the training part of a random split (80 to 20).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from smle.rules import Specification
from smle.rules.helpers import forbidden_pairs_from_data, mutually_exclusive, rule
from studies.experiments.arff import LabelTable
from studies.experiments.tasks import Array, Flags, Task

QUANTILES = ("0.0", "0.3", "0.6")

DATA_SETS = {
    "CHD-49": "CHD-49.arff",
    "Flags": "Flags.arff",
    "Foodtruck": "foodtruck.arff",
    "Water-quality": "Water-quality.arff",
    "Yeast": "Yeast.arff",
}
"""Names of the data sets and of their files."""


def task_keys() -> list[str]:
    """Return the names of the 15 tasks: data set and quantile."""
    return [f"{name}-{quantile}" for name in DATA_SETS for quantile in QUANTILES]


def load(key: str, table: LabelTable, *, standin: bool = False) -> Task:
    """Return a task by its key, for example `Yeast-0.3`, from its data set."""
    quantile = key.rsplit("-", 1)[1]
    pairs = forbidden_pairs_from_data(table.y, float(quantile))
    X, X_test, y, y_test = train_test_split(table.X, table.y, test_size=0.2, random_state=0)
    mean, deviation = X.mean(axis=0), X.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    X, X_test = (X - mean) / deviation, (X_test - mean) / deviation
    size = float(max(np.abs(X).max(), np.abs(X_test).max()))
    spec = Specification.build(
        inputs={f"x{j}": (-size, size) for j in range(X.shape[1])},
        labels=[f"label{j}" for j in range(y.shape[1])],
        rules=[rule("never together", then=mutually_exclusive(pairs))],
    )
    return Task("classification", key, quantile, spec, X, y, X_test, y_test, partial(_broken, pairs), standin=standin)


def _broken(pairs: npt.NDArray[np.int32], X: Array, outputs: Array) -> Flags:
    """Return which rows predict a forbidden pair; outputs are logits."""
    on = outputs >= 0
    return np.asarray((on[:, pairs[:, 0]] & on[:, pairs[:, 1]]).any(axis=1))
