"""Multi-step forecasting: 25 series of the M4 competition, 8 values in, 4 out, under a bounded change per step.

Each series is split in time (80 to 20), standardized with the training part and cut into windows; the last input is
subtracted from inputs and outputs of its window. The property `|y_t - y_(t+1)| <= delta` does not see the difference,
and the score is computed after undoing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

from smle.errors import DataError
from smle.rules import Specification
from smle.rules.helpers import bounded_change, rule
from studies.experiments.tasks import TOLERANCE, Task
from studies.harness import Array

FILE = "m4_selected.csv"
INPUTS, OUTPUTS = 8, 4
QUANTILES = ("1.00", "0.95", "0.90")

SERIES = (
    "D4099", "D2047", "D2015", "D449", "D452", "D454", "D2016", "D453", "D4227", "D4226", "M36044", "H174", "H265",
    "H261", "H262", "H263", "H264", "H266", "H274", "H267", "H268", "H269", "H271", "H272", "H256",
)  # fmt: skip
"""The series' names in the competition."""
PERIODS = {"D": "Daily", "H": "Hourly", "M": "Monthly"}
"""By the first letter of a name."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of a series: differenced inputs (rows, 8) and outputs (rows, 4), and the last input (rows, 1)."""

    X: Array
    y: Array
    last: Array


def task_keys() -> list[str]:
    """Return the names of the 75 tasks: period, series and quantile."""
    return [f"{PERIODS[name[0]]}-{name}-{quantile}" for name in SERIES for quantile in QUANTILES]


@lru_cache(maxsize=2)
def read_series(path: Path) -> Mapping[str, Array]:
    """Read a table with columns id, t, value; return the values of each series in order of t.

    Raises:
        DataError: If columns are missing.
    """
    table = pd.read_csv(path)
    missing = {"id", "t", "value"} - set(table.columns)
    if missing:
        raise DataError(f"{path}: expected columns id, t and value. Missing: {', '.join(sorted(missing))}.")
    groups = table.sort_values("t", kind="stable").groupby("id")["value"]
    return {str(name): values.to_numpy(dtype=np.float64) for name, values in groups}


def windows(values: Array) -> Windows:
    """Cut a series into all its windows, each minus its last input."""
    cut = np.lib.stride_tricks.sliding_window_view(values, INPUTS + OUTPUTS)
    last = cut[:, INPUTS - 1 : INPUTS]
    moved = cut - last
    return Windows(moved[:, :INPUTS], moved[:, INPUTS:], last)


def load(key: str, series: Mapping[str, Array]) -> Task:
    """Return a task by its key, for example `Hourly-H174-0.95`.

    Raises:
        DataError: If the series is not there or too short.
    """
    _, name, quantile = key.rsplit("-", 2)
    values = series.get(name)
    if values is None:
        raise DataError(f"Expected series '{name}' in the forecasting data. Got {', '.join(sorted(series)[:5])}, ...")
    if len(values) < 10 * (INPUTS + OUTPUTS):
        raise DataError(f"Series '{name}': expected at least {10 * (INPUTS + OUTPUTS)} values. Got {len(values)}.")
    count = int(0.8 * len(values))
    scaled = (values - values[:count].mean()) / values[:count].std()
    train, test = (windows(part) for part in (scaled[:count], scaled[count:]))
    delta = float(np.quantile(np.abs(np.diff(scaled)), float(quantile)))
    size = float(max(np.abs(train.X).max(), np.abs(test.X).max()))
    outputs = [f"y{j}" for j in range(OUTPUTS)]
    spec = Specification.build(
        inputs={f"x{j}": (-size, size) for j in range(INPUTS)},
        outputs=outputs,
        rules=[rule("bounded change", then=bounded_change(delta, outputs))],
    )
    return Task(
        "forecasting", key, quantile, spec, train.X, train.y, test.X, test.y, partial(_broken, delta),
        last_test=test.last,
    )  # fmt: skip


def _broken(delta: float, X: Array, outputs: Array) -> Array:
    """Return which rows change by more than allowed, and by more than the paper's tolerance."""
    return np.asarray((np.abs(np.diff(outputs, axis=1)) > delta + TOLERANCE).any(axis=1))
