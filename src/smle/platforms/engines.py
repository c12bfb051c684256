"""Predicts inside engines that pass tables in parts: Spark, and any reader of Arrow, such as DuckDB.

Every process loads the model and checks its certificate once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from smle.errors import DataError
from smle.extras import require
from smle.platforms.answers import loaded, output_types
from smle.platforms.clusters import RowsPredictor

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict_arrow", "predict_spark"]

_ROWS = 65536  # rows per batch


def predict_spark(
    frame: Any,
    model: str | PathLike[str],
    *,
    out_of_domain: str = "raise",
    bad_rows: str = "raise",
    keep: Sequence[str] = (),
) -> Any:
    """Return a Spark data frame of predictions, lazily: one column per output of the rules, by `mapInPandas`.

    Args:
        frame: A Spark data frame with the column names of the rules.
        model: Model folder or ONNX file, where all workers can read it. It is also loaded here once, to learn the names
            and types of the outputs.
        out_of_domain: As in `predict`.
        bad_rows: `raise` or `set aside`, as for `RowsPredictor`.
        keep: Columns to put in front of the outputs.
    """
    types = require("pyspark.sql.types", "predict_spark")
    rows = RowsPredictor(model, out_of_domain=out_of_domain, bad_rows=bad_rows, keep=keep)
    stored = {"f": types.DoubleType, "i": types.LongType, "u": types.LongType, "b": types.BooleanType}
    _require_columns(keep, frame.columns)
    fields = [frame.schema[name] for name in keep]
    fields += [
        types.StructField(name, stored.get(kind.kind, types.StringType)(), True)
        for name, kind in output_types(loaded(rows.model), bad_rows=bad_rows).items()
    ]
    return frame.mapInPandas(_Parts(rows), types.StructType(fields))


class _Parts:
    """Answers the parts of a partition, one after the other, on a Spark worker."""

    def __init__(self, rows: RowsPredictor) -> None:
        self.rows = rows

    def __call__(self, parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the answers to each part."""
        for part in parts:
            yield self.rows(part)


def predict_arrow(
    batches: Any,
    model: str | PathLike[str],
    *,
    out_of_domain: str = "raise",
    bad_rows: str = "raise",
    keep: Sequence[str] = (),
) -> Any:
    """Return predictions as a `pyarrow.RecordBatchReader`, lazily: one column per output of the rules.

    Args:
        batches: Rows with the column names of the rules: a `pyarrow.RecordBatchReader`, a `pyarrow.Table`, or anything
            that Arrow reads as a stream, such as a relation of DuckDB.
        model: Model folder or ONNX file.
        out_of_domain: As in `predict`.
        bad_rows: `raise` or `set aside`, as for `RowsPredictor`.
        keep: Columns to put in front of the outputs.
    """
    arrow = require("pyarrow", "predict_arrow")
    if isinstance(batches, arrow.Table):
        batches = batches.to_reader(max_chunksize=_ROWS)
    elif not isinstance(batches, arrow.RecordBatchReader):
        batches = arrow.RecordBatchReader.from_stream(batches)
    rows = RowsPredictor(model, out_of_domain=out_of_domain, bad_rows=bad_rows, keep=keep)
    _require_columns(keep, batches.schema.names)
    kinds = output_types(loaded(rows.model), bad_rows=bad_rows)
    fields = [batches.schema.field(name) for name in keep]
    fields += [
        arrow.field(n, arrow.string() if k == np.dtype(object) else arrow.from_numpy_dtype(k)) for n, k in kinds.items()
    ]
    schema = arrow.schema(fields)
    made = (  # whole numbers beside gaps stay exact
        arrow.RecordBatch.from_pandas(rows(part.to_pandas(integer_object_nulls=True)), schema, preserve_index=False)
        for part in batches
    )
    return arrow.RecordBatchReader.from_batches(schema, made)


def _require_columns(keep: Sequence[str], names: Sequence[str]) -> None:
    for name in keep:
        if name not in names:
            raise DataError(f"Cannot keep '{name}': there is no such column.")
