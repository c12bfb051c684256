"""Synthetic regression: estimate (sum_j x_j)^k for k in K under random linear properties `Q x <= q => R y <= r`.

Data and properties are those of the paper: 9 tasks (n inputs, powers K), 6 properties each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Specification
from smle.rules.helpers import linear

__all__ = ["POWERS", "SyntheticData", "SyntheticTask", "read_tasks", "synthetic_data"]

Array = npt.NDArray[np.float64]

POWERS = {"easy": (1, 2), "medium": (3, 4), "hard": (1, 2, 3, 4)}


@dataclass(frozen=True, eq=False)
class SyntheticData:
    """Inputs in [-1, 1]^n, targets standardized with the training part; interpolation and extrapolation apart."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    interpolation: tuple[Array, Array]
    extrapolation: tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class SyntheticTask:
    """One property of one task."""

    inputs: int
    task: str
    name: str
    Q: Array
    q: Array
    R: Array
    r: Array
    oracle_r2: float

    @property
    def key(self) -> str:
        """A short name, unique among the 54."""
        return f"n{self.inputs}-{self.task}-{self.name}"

    def specification(self) -> Specification:
        """Return the property as rules over x0.., y0..; the domain is the box |x_j| <= 2 of the paper."""
        names = [f"x{j}" for j in range(self.inputs)]
        outputs = [f"y{j}" for j in range(self.R.shape[1])]
        # The rows |x_j| <= 2 are the domain itself.
        inside = (np.abs(self.Q) > 0).sum(axis=1) > 1
        rule = linear(self.Q[inside], self.q[inside], self.R, self.r, inputs=names, outputs=outputs, name=self.name)
        return Specification.build(inputs=dict.fromkeys(names, (-2, 2)), outputs=outputs, rules=[rule])


def synthetic_data(n: int, powers: tuple[int, ...]) -> SyntheticData:
    """Draw the paper's data, bit for bit."""
    state = np.random.RandomState(0)
    X = state.uniform(-1, 1, (5000, n))
    X_test = state.uniform(-1, 1, (1000, n))
    raw, raw_test = (np.stack([part.sum(axis=1) ** k for k in powers], axis=1) for part in (X, X_test))
    mean, deviation = raw.mean(axis=0), raw.std(axis=0)
    y, y_test = (raw - mean) / deviation, (raw_test - mean) / deviation

    def parts(x: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        size = np.abs(x)
        return (size < 0.1 ** (1 / n)).all(axis=1), (size > 0.9 ** (1 / n)).any(axis=1)

    (inner, outer), (inner_test, outer_test) = parts(X), parts(X_test)
    keep, keep_test = ~(inner | outer), ~(inner_test | outer_test)
    everything, truth = np.concatenate([X, X_test]), np.concatenate([y, y_test])
    inner_all, outer_all = np.concatenate([inner, inner_test]), np.concatenate([outer, outer_test])
    return SyntheticData(
        X[keep],
        y[keep],
        X_test[keep_test],
        y_test[keep_test],
        (everything[inner_all], truth[inner_all]),
        (everything[outer_all], truth[outer_all]),
    )


def read_tasks(folder: str | Path) -> list[SyntheticTask]:
    """Read the 54 properties from `synthetic/properties.json` in a data folder.

    Raises:
        DataError: If the file is missing.
    """
    path = Path(folder) / "synthetic" / "properties.json"
    if not path.is_file():
        raise DataError(f"Expected the properties in '{path}'. Point --data-dir or SMLE_DATA to the data.")
    tasks = []
    for entry in json.loads(path.read_text()):
        Q, q, R, r = (np.array(entry[key]) for key in ("Q", "q", "R", "r"))
        name, oracle = entry["property"], entry["oracle_r2"]
        tasks.append(SyntheticTask(entry["inputs"], entry["task"], name, Q, q, R, r, oracle))
    return tasks
