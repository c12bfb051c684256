"""What makes a gauge accurate: one choice changed at a time, on some of the paper's synthetic tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smle.errors import NotCertifiedError
from smle.estimators import SafeRegressor
from smle.guarantees.answers.nearest import nearest_outputs
from smle.guarantees.regions.cells import Cells
from smle.rules import Specification
from studies.bench.harness import BenchResult, Table
from studies.experiments.synthetic import load
from studies.experiments.tasks import Task

__all__ = ["run"]

Array = npt.NDArray[np.float64]

_TASKS = ("n2-hard-P6", "n4-hard-P3", "n4-medium-P4", "n8-easy-P6", "n8-medium-P5", "n8-hard-P4")


class _DeepestCenter(SafeRegressor):
    """A regressor whose centers lie as deep as possible in what the rules allow, wherever the data are."""

    def _preferred(self, spec: Specification, cells: Cells, X: npt.NDArray[Any], targets: Array) -> Array:
        return np.full((len(cells), targets.shape[1]), np.nan)


_VARIANTS: Mapping[str, tuple[type[SafeRegressor], dict[str, Any]]] = {
    "as it comes": (SafeRegressor, {}),
    "targets as they are": (SafeRegressor, {"enforce_targets": False}),
    "deepest center": (_DeepestCenter, {}),
    "no refit": (SafeRegressor, {"refit_heads": False}),
    "embedding of 16": (SafeRegressor, {"embedding": 16}),
    "affine bounds": (SafeRegressor, {"bounds": "affine"}),
    "learning rate 0.001": (SafeRegressor, {"learning_rate": 1e-3}),
    "no schedule": (SafeRegressor, {"schedule": None}),
    "exact projection": (SafeRegressor, {"enforcement": "exact"}),
    "pdcg": (SafeRegressor, {"enforcement": "pdcg"}),
}


def run(quick: bool = False) -> BenchResult:
    """Train every variant on every task; `quick` takes two of each and few epochs."""
    variants, keys = list(_VARIANTS), list(_TASKS)
    if quick:
        variants, keys = variants[:2], keys[:1]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tasks = {key: load(key) for key in keys}
        rows = [(name, *_row(name, tasks, quick=quick)) for name in variants]
    finally:
        torch.set_num_threads(threads)
    table = Table(
        "Gap to the oracle's R2",
        ("variant", *keys, "mean", "largest", "CPU seconds"),
        tuple(rows),
        "R2 of the oracle (the allowed outputs nearest to the truth) minus R2 of the safe network, on test data, one "
        "seed. Each variant differs from `SafeRegressor(enforcement='gauge')` in one choice, and every network is "
        "certified; mean and largest are over the tasks where it could be.",
    )
    return BenchResult("gauge", "The gauge: what makes it accurate", (table,), quick=quick)


def _row(name: str, tasks: Mapping[str, Task], *, quick: bool) -> tuple[object, ...]:
    kind, changed = _VARIANTS[name]
    options: dict[str, Any] = {"enforcement": "gauge", **changed, **({"max_epochs": 5} if quick else {})}
    started = time.process_time()
    cells: list[object] = []
    gaps: list[float] = []
    for task in tasks.values():
        spec = task.specification
        model = kind(spec, random_state=0, verbose=False, **options)
        try:
            model.fit(task.X, task.y)
        except NotCertifiedError:
            cells.append("no proof")
            continue
        oracle = task.score(nearest_outputs(spec, task.X_test, task.y_test))
        gaps.append(oracle - task.score(np.asarray(model.predict(task.X_test))))
        cells.append(f"{gaps[-1]:.4f}")
    mean, largest = (f"{value:.4f}" if gaps else "" for value in (np.mean(gaps or [0]), max(gaps, default=0.0)))
    return (*cells, mean, largest, time.process_time() - started)
