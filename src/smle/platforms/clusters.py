"""Predicts for more rows than one machine holds, on Ray Data or Dask.

Every worker loads the model and checks its certificate once. Columns are read by name; an error says which rows it is
about.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from smle.errors import DataError
from smle.extras import require
from smle.platforms.answers import answer_table, loaded, place_of
from smle.tables import require_bad_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RowsPredictor", "predict_dask", "predict_ray"]

_ROWS = 65536  # rows per batch
_SHOWN = 3  # columns of a row that an error shows


class RowsPredictor:
    """Answers tables with a certified model, which each worker loads on its first call.

    Args:
        model: Model folder, or an exported ONNX file, where all workers can read it.
        out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`.
        bad_rows: What to do with unreadable rows: `raise`, or `set aside`: their outputs are NaN or None, and a column
            `set_aside` has the reason, or None for readable rows. Labels are then floats.
        keep: Columns of the table to put in front of the outputs.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        out_of_domain: str = "raise",
        bad_rows: str = "raise",
        keep: Sequence[str] = (),
    ) -> None:
        if out_of_domain not in ("raise", "warn", "clip"):
            raise ValueError(f"Expected out_of_domain to be raise, warn or clip. Got {out_of_domain!r}.")
        require_bad_rows(bad_rows)
        self.model = place_of(model)
        self.out_of_domain, self.bad_rows = out_of_domain, bad_rows
        self.keep = tuple(keep)

    def __call__(self, table: pd.DataFrame, partition: int | None = None) -> pd.DataFrame:
        """Return the kept columns and one column per output.

        Raises:
            DataError: If the rows do not fit the rules; the message names the partition, or its first row.
            CertificateError: If the checker rejects the certificate of the model.
        """
        model = loaded(self.model)
        try:
            missing = [name for name in self.keep if name not in table.columns]
            if missing:
                raise DataError(f"Cannot keep '{missing[0]}': there is no such column.")
            answers = answer_table(model, table, out_of_domain=self.out_of_domain, bad_rows=self.bad_rows)
            both = [name for name in self.keep if name in answers.columns]
            if both:
                raise DataError(f"Cannot keep '{both[0]}': the predictions have a column of that name. Rename it.")
        except DataError as error:
            raise DataError(f"{_place(table, partition)}: {error}") from None
        return table[list(self.keep)].join(answers) if self.keep else answers


def _place(table: pd.DataFrame, partition: int | None) -> str:
    """Name the rows in an error: Dask numbers its partitions, a Ray batch is named by its first row."""
    if partition is not None:
        return f"Partition {partition} ({len(table)} rows)"
    first = ", ".join(f"{name}={value!r}" for name, value in table.iloc[:1, :_SHOWN].to_dict("records")[0].items())
    return f"Batch of {len(table)} rows that begins with {first}"


def predict_ray(
    dataset: Any,
    model: str | PathLike[str],
    *,
    out_of_domain: str = "raise",
    bad_rows: str = "raise",
    keep: Sequence[str] = (),
    workers: int | None = None,
    batch_size: int = _ROWS,
    **options: Any,
) -> Any:
    """Return a Ray dataset of predictions, lazily: one column per output of the rules.

    Args:
        dataset: A `ray.data.Dataset` with the column names of the rules.
        model: Model folder or ONNX file, where all workers can read it.
        out_of_domain: As in `predict`.
        bad_rows: `raise` or `set aside`, as for `RowsPredictor`.
        keep: Columns to put in front of the outputs.
        workers: Processes that hold the model; by default one per core of the cluster except one, for reading and
            writing. Ray hangs if workers take all cores.
        batch_size: Rows per call.
        options: Further arguments of `map_batches`, such as `num_cpus`.
    """
    cores = int(require("ray", "predict_ray").cluster_resources().get("CPU", 1))
    pool = require("ray.data", "predict_ray").ActorPoolStrategy(size=workers or max(1, cores - 1))
    return dataset.map_batches(
        _RayPredictor,
        fn_constructor_args=(place_of(model),),
        fn_constructor_kwargs={"out_of_domain": out_of_domain, "bad_rows": bad_rows, "keep": tuple(keep)},
        batch_format="pandas",
        batch_size=batch_size,
        compute=pool,
        **options,
    )


class _RayPredictor(RowsPredictor):
    """Loads the model when the worker starts, so that a rejected certificate stops the job at once."""

    def __init__(self, model: str, **arguments: Any) -> None:
        super().__init__(model, **arguments)
        loaded(self.model)


def predict_dask(
    frame: Any,
    model: str | PathLike[str],
    *,
    out_of_domain: str = "raise",
    bad_rows: str = "raise",
    keep: Sequence[str] = (),
) -> Any:
    """Return a Dask data frame of predictions, lazily: one column per output of the rules, partition by partition.

    Args:
        frame: A Dask data frame with the column names of the rules.
        model: Model folder or ONNX file, where all workers can read it. It is also loaded here once, to learn the names
            and types of the outputs.
        out_of_domain: As in `predict`.
        bad_rows: `raise` or `set aside`, as for `RowsPredictor`.
        keep: Columns to put in front of the outputs.
    """
    rows = RowsPredictor(model, out_of_domain=out_of_domain, bad_rows=bad_rows, keep=keep)
    meta = rows(frame._meta)
    return frame.map_partitions(_partition, rows, meta=meta, enforce_metadata=False)


def _partition(table: pd.DataFrame, rows: RowsPredictor, partition_info: Any = None) -> pd.DataFrame:
    return rows(table, None if partition_info is None else partition_info["number"])
