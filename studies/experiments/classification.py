"""Multi-label classification: 5 data sets under pairs of labels that must never be predicted together.

Forbidden are the pairs that occur together no more often than a quantile over all pairs of the data set. Features are
standardized with the training part of a random split (80 to 20).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from smle.errors import DataError
from smle.rules import Specification
from smle.rules.helpers import forbidden_pairs_from_data, mutually_exclusive, rule
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


def _broken(pairs: npt.NDArray[np.int32], X: Array, outputs: Array) -> Flags:
    """Return which rows predict a forbidden pair; outputs are logits."""
    on = outputs >= 0
    return np.asarray((on[:, pairs[:, 0]] & on[:, pairs[:, 1]]).any(axis=1))


# --- dense ARFF files in the style of MULAN: the relation's name ends in `-C k`

_RELATION = re.compile(r"-C\s+(-?\d+)")
_ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+(.*)", re.IGNORECASE)


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
    attributes: list[tuple[str, tuple[str, ...] | None]] = []
    labels, rows, in_data = 0, [], False
    for number, raw in enumerate(path.read_text().splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("%"):
            continue
        if in_data:
            cells = [cell.strip().strip("'\"") for cell in line.split(",")]
            if len(cells) != len(attributes) or "?" in cells:
                raise DataError(f"{path}, line {number}: expected {len(attributes)} known values. Got {len(cells)}.")
            rows.append(cells)
        elif line.lower().startswith("@relation"):
            found = _RELATION.search(line)
            labels = int(found.group(1)) if found else 0
        elif line.lower().startswith("@attribute"):
            attributes.append(_attribute(line, f"{path}, line {number}"))
        elif line.lower().startswith("@data"):
            in_data = True
    if not rows or not 0 < abs(labels) < len(attributes):
        raise DataError(f"{path}: expected rows, and a relation that ends in '-C k' with the number of labels.")
    return _table(attributes, labels, rows, path)


def _attribute(line: str, where: str) -> tuple[str, tuple[str, ...] | None]:
    """Return name and levels; None for numbers."""
    found = _ATTRIBUTE.match(line)
    kind = "" if found is None else found.group(2).strip()
    if found is not None and kind.startswith("{") and kind.endswith("}"):
        return found.group(1).strip("'\""), tuple(level.strip().strip("'\"") for level in kind[1:-1].split(","))
    if found is not None and kind.lower() in ("numeric", "real", "integer"):
        return found.group(1).strip("'\""), None
    raise DataError(f"{where}: expected a numeric attribute or one with levels in braces. Got '{line}'.")


def _table(
    attributes: list[tuple[str, tuple[str, ...] | None]], labels: int, rows: list[list[str]], path: Path
) -> LabelTable:
    where = range(labels) if labels > 0 else range(len(attributes) + labels, len(attributes))
    columns: list[Array] = []
    for position, (name, levels) in enumerate(attributes):
        if position in where:
            continue
        cells = [row[position] for row in rows]
        if levels is None:
            columns.append(np.array(cells, dtype=np.float64))
            continue
        if not set(cells) <= set(levels):
            raise DataError(f"{path}: attribute '{name}' has values that are none of its levels.")
        columns += [np.array([cell == level for cell in cells], dtype=np.float64) for level in levels[1:]]
    truth = np.array([[row[position] for position in where] for row in rows], dtype=np.float64)
    if not np.isin(truth, (0.0, 1.0)).all():
        raise DataError(f"{path}: expected labels of 0 and 1.")
    return LabelTable(np.stack(columns, axis=1), truth)
