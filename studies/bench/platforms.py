"""Rows per second on Ray Data and Dask: a certified model against plain ONNX inference of the model inside it.

Both read the same partitions of 20 columns, on a local cluster of two processes, and their answers are summed where
they are. Workers of Dask live on between the rounds, and their processor time is measured; Ray starts its own for every
job, so that loading counts there, and is measured by the clock.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from smle import SafeRegressor, Specification
from smle.platforms import predict_dask, predict_ray
from smle.serving.fronts import session_of
from studies.harness import Table, bench, interleaved, quietly

_COLUMNS = [f"x{i}" for i in range(20)]
_RULES = {"range": "0 <= y <= 2 * x0 + 1", "low": ("x1 <= 0.5", "y <= 2"), "lower": ("x2 + x3 <= 0.3", "y <= 1 + x4")}


@bench("Predicting on clusters", default_threads=True)
def run(quick: bool, passed: dict[str, bool]) -> Iterable[Table]:
    """Measure both engines; `quick` takes few rows."""
    rows, parts = (20_000, 2) if quick else (2_000_000, 16)
    lines: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = _stored(Path(place))
        for engine, measure in (("Dask", _dask), ("Ray Data", _ray)):
            found = measure(folder, rows // parts, parts, 1 if quick else 3)
            plain, safe = (rows / found[name].median for name in ("plain", "safe"))
            ratio = 1 / found["safe"].ratio
            lines.append((engine, f"{rows:,}", f"{plain:,.0f}", f"{safe:,.0f}", f"{ratio:.2f}"))
            passed[f"{engine}: at least 0.7 of the rows per second of plain ONNX inference ({ratio:.2f})"] = (
                ratio >= 0.7
            )
    columns = ("engine", "rows", "plain ONNX, rows/s", "certified, rows/s", "ratio")
    note = (
        "Gradient boosting (100 trees), 20 columns, 3 rules, two processes. Seconds are those of the processor for "
        "Dask, and of the clock for Ray."
    )
    return (Table("Rows per second", columns, tuple(lines), note),)


def rows_of(part: int, count: int) -> pd.DataFrame:
    """Return the rows of one partition."""
    return pd.DataFrame(np.random.default_rng(part).uniform(0, 1, (count, len(_COLUMNS))), columns=_COLUMNS)


def _stored(place: Path) -> Path:
    table = rows_of(0, 5000)
    target = 2 * table["x0"] + table["x1"] ** 2 + 0.3 * table["x2"] * table["x3"]
    spec = Specification.build(inputs=dict.fromkeys(_COLUMNS, (0, 1)), outputs=["y"], rules=_RULES)
    model = SafeRegressor(spec, estimator=HistGradientBoostingRegressor(random_state=0))
    with quietly():
        model.fit(table, target)
    model.save(place / "model")
    return place / "model"


class Plain:
    """Plain inference: columns as float32, one call of onnxruntime; the session is made once per process."""

    sessions: dict[str, Any] = {}  # noqa: RUF012  shared by all in a process on purpose

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the answers as a table."""
        if self.folder not in self.sessions:
            self.sessions[self.folder] = session_of((Path(self.folder) / "model.onnx").read_bytes())
        feed = {name: table[name].to_numpy(dtype=np.float32)[:, None] for name in _COLUMNS}
        answers = self.sessions[self.folder].run(None, feed)[0]
        return pd.DataFrame({"y": np.asarray(answers, dtype=np.float64).reshape(-1)}, index=table.index)


def _dask(folder: Path, count: int, parts: int, rounds: int) -> Any:
    frames, distributed = import_module("dask.dataframe"), import_module("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        frame = frames.from_map(rows_of, range(parts), count=count, meta=rows_of(0, 1)[:0]).persist()
        distributed.wait(frame)
        plain = frame.map_partitions(Plain(str(folder)), meta=pd.DataFrame({"y": [0.0]})[:0])
        contenders: dict[str, Callable[[], object]] = {
            "plain": lambda: plain["y"].sum().compute(),
            "safe": lambda: predict_dask(frame, folder)["y"].sum().compute(),
        }
        found = interleaved(
            contenders, rounds=rounds, budget=300, clock=lambda: sum(client.run(time.process_time).values())
        )
        client.cancel(frame)
        return found


def _ray(folder: Path, count: int, parts: int, rounds: int) -> Any:
    ray = import_module("ray")
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        data = ray.data.from_pandas([rows_of(part, count) for part in range(parts)]).materialize()
        pool = ray.data.ActorPoolStrategy(size=2)
        arguments = {"fn_constructor_args": (str(folder),), "batch_format": "pandas", "batch_size": 65536}
        contenders: dict[str, Callable[[], object]] = {
            "plain": lambda: data.map_batches(Plain, compute=pool, **arguments).sum("y"),
            "safe": lambda: predict_ray(data, folder, workers=2).sum("y"),
        }
        return interleaved(contenders, rounds=rounds, budget=300)
    finally:
        ray.shutdown()
