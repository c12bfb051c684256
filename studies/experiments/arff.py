"""Read dense ARFF files of multi-label data in the style of MULAN: the relation's name ends in `-C k`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smle.errors import DataError
from studies.experiments.tasks import Array

_RELATION = re.compile(r"-C\s+(-?\d+)")
_ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+(.*)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Numeric features (rows, d) with their names, and labels (rows, m) of 0 and 1 with theirs."""

    X: Array
    y: Array
    features: tuple[str, ...]
    labels: tuple[str, ...]


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
    names: list[str] = []
    for position, (name, levels) in enumerate(attributes):
        if position in where:
            continue
        cells = [row[position] for row in rows]
        if levels is None:
            columns.append(np.array(cells, dtype=np.float64))
            names.append(name)
            continue
        if not set(cells) <= set(levels):
            raise DataError(f"{path}: attribute '{name}' has values that are none of its levels.")
        for level in levels[1:]:
            columns.append(np.array([cell == level for cell in cells], dtype=np.float64))
            names.append(f"{name}={level}")
    truth = np.array([[row[position] for position in where] for row in rows], dtype=np.float64)
    if not np.isin(truth, (0.0, 1.0)).all():
        raise DataError(f"{path}: expected labels of 0 and 1.")
    return LabelTable(np.stack(columns, axis=1), truth, tuple(names), tuple(attributes[p][0] for p in where))
