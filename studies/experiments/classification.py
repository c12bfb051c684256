"""Multi-label classification: 5 data sets under pairs of labels that must never be predicted together.

Forbidden are the pairs that occur together no more often than a quantile over all pairs of the data set. Features are
standardized with the training part of a random split (80 to 20).
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.io import arff
from sklearn.model_selection import train_test_split

from smle.errors import DataError
from smle.rules import Specification
from smle.rules.helpers import forbidden_pairs_from_data, mutually_exclusive, rule
from studies.experiments.tasks import Task
from studies.harness import Array

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


def load(key: str, table: LabelTable) -> Task:
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
    return Task("classification", key, quantile, spec, X, y, X_test, y_test, partial(_broken, pairs))


def _broken(pairs: Array, X: Array, outputs: Array) -> Array:
    """Return which rows predict a forbidden pair; outputs are logits."""
    on = outputs >= 0
    return np.asarray((on[:, pairs[:, 0]] & on[:, pairs[:, 1]]).any(axis=1))


# --- ARFF files in the style of MULAN: the relation's name ends in `-C k`

_RELATION = re.compile(r"^@relation.*-C\s+(-?\d+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Numeric features (rows, d), and labels (rows, m) of 0 and 1."""

    X: Array
    y: Array


def read_arff(path: Path) -> LabelTable:
    """Read a file; nominal features become 0/1 columns, one for each level but the first.

    `-C k` with k > 0: the first k attributes are the labels; k < 0: the last.

    Raises:
        DataError: If the file is no such table.
    """
    text = path.read_text()
    try:
        rows, attributes = arff.loadarff(io.StringIO(text))
        number = int(_RELATION.findall(text)[0])
    except (OSError, ValueError, IndexError, NotImplementedError) as error:
        raise DataError(
            f"{path}: expected ARFF with '-C' and a number of labels behind the relation. {error}"
        ) from None
    names = attributes.names()
    labels = names[:number] if number > 0 else names[number:]
    columns: list[Array] = []
    for name in (name for name in names if name not in labels):
        kind, levels = attributes[name]
        of_levels = [(rows[name] == level.encode()).astype(float) for level in (levels or ())[1:]]
        columns += [rows[name]] if kind == "numeric" else of_levels
    X, y = (np.stack(part, axis=1) for part in (columns, [rows[name].astype(float) for name in labels]))
    if pd.DataFrame(rows).isin([b"?", np.nan]).any(axis=None) or not np.isin(y, (0.0, 1.0)).all():
        raise DataError(f"{path}: expected known values, and labels of 0 and 1.")
    return LabelTable(X, y)
