"""Tables as models of other libraries read them: all columns, text and missing values included.

A stored model reads numbers as float32. The model is therefore fitted to numbers rounded to float32, so that its stored
form falls on the same side of every threshold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Specification
from smle.tables.any_table import as_table, column_names, raw_values, require_distinct
from smle.tables.days import with_days
from smle.tables.values import WHOLE_FLOAT32, Fault, is_missing, is_number, read_numbers

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MISSING", "as_numbers", "as_texts", "examined_numbers", "frame_of", "is_text"]

MISSING = "nan"  # a missing text, for a stored model, which only knows text


def frame_of(table: Any, spec: Specification | None = None) -> pd.DataFrame:
    """Return a pandas table with all columns: numbers as float32 holds them, dates as days, missing texts as NaN.

    The rules say which columns an array has, which are dates, and which are outputs; outputs are left out, since no
    model may learn from them. Raises DataError if names repeat, an array has another number of columns, or a column
    holds neither numbers nor text.
    """
    import pandas as pd

    table = as_table(table)
    known = column_names(table)
    without = frozenset() if spec is None else {item.name for item in spec.outputs}
    table = table if spec is None or not spec.dates else with_days(spec, table, known)
    if known is None:
        array, names = np.asarray(table), [] if spec is None else [item.name for item in spec.inputs]
        if array.ndim != 2 or array.shape[1] != len(names):
            raise DataError(
                f"Expected a table, or an array with the {len(names)} input columns ({', '.join(names)}). "
                f"Got an array of shape {array.shape}."
            )
        return pd.DataFrame({name: _column(name, pd.Series(array[:, i])) for i, name in enumerate(names)})
    require_distinct(known)
    columns = {}
    for label, name in zip(table.columns, known, strict=True):
        if name not in without:
            values = table[label]
            series = values if isinstance(values, pd.Series) else pd.Series(np.asarray(values))
            columns[name] = _column(name, series)
    return pd.DataFrame(columns, index=table.index if isinstance(table, pd.DataFrame) else None)


def is_text(series: pd.Series[Any]) -> bool:
    """Return whether a column of `frame_of` holds text, including categories that are text."""
    import pandas as pd

    kind = series.dtype
    if isinstance(kind, pd.CategoricalDtype):
        return not pd.api.types.is_numeric_dtype(kind.categories.dtype)
    return not pd.api.types.is_numeric_dtype(kind)


def as_numbers(name: str, values: Any, kind: Any, *, finite: bool = False) -> npt.NDArray[Any]:
    """Return a column as numbers for a model, NaN where missing; raise DataError for what `examined_numbers` finds."""
    numbers, faults = examined_numbers(name, values, kind, finite=finite)
    if faults:
        raise DataError(faults[0].message)
    with np.errstate(over="ignore"):
        return numbers.astype(kind)


def examined_numbers(
    name: str, values: Any, kind: Any, *, finite: bool = False
) -> tuple[npt.NDArray[Any], list[Fault]]:
    """Return a column as numbers for a model, and what is wrong with it; with `finite`, infinities are wrong, too."""
    numbers, faults = read_numbers(name, raw_values(values), truth=True, exact=False, noun="Column")
    faults = [
        replace(fault, message=fault.message.replace("expected numbers.", "expected numbers, as in training.", 1))
        for fault in faults
    ]
    if np.dtype(kind).kind in "iub":
        gaps = ~np.isfinite(numbers)
        for fault in faults:
            gaps[fault.rows] = False
        rows = np.flatnonzero(gaps)
        if len(rows):
            message = f"Column '{name}': {len(rows)} values are missing. Fill them."
            faults.append(Fault(name, rows, "a value", None, message))
    rows = np.flatnonzero(np.isinf(numbers)) if finite else np.arange(0)
    if len(rows):
        message = f"Column '{name}': expected finite numbers. Got infinity in {len(rows)} of {len(numbers)} rows."
        faults.append(Fault(name, rows, "a finite number", numbers[rows], message))
    return numbers, faults


def as_texts(values: Any) -> npt.NDArray[Any]:
    """Return a column as text for a stored model: missing values as `MISSING`, whole floats as integers."""
    return np.array([_text(v) for v in raw_values(values).tolist()], dtype=object)


def _text(value: Any) -> str:
    if is_missing(value):
        return MISSING
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _column(name: str, series: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column as integers, floats, booleans, categories or text. Raises DataError for anything else."""
    import pandas as pd

    kind = series.dtype
    if isinstance(kind, pd.CategoricalDtype):
        return series
    if pd.api.types.is_bool_dtype(kind) and isinstance(kind, np.dtype):
        return series
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind):
        return _rounded(name, series, series.to_numpy(dtype=np.float64, na_value=np.nan))
    if not (pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind)):
        raise DataError(
            f"Column '{name}': expected numbers or text. Got {kind}. Turn it into numbers (of days, of seconds), or "
            "drop it."
        )
    if isinstance(kind, pd.StringDtype) and kind.na_value is np.nan:
        return series
    values = [np.nan if is_missing(v) else v for v in series.to_list()]
    if (
        any(isinstance(v, str) for v in values)
        or not values
        or not all(isinstance(v, bool) or is_number(v) for v in values)
    ):
        strange = next((v for v in values if isinstance(v, dict | list | tuple | set | bytes | complex)), None)
        if strange is not None:
            raise DataError(f"Column '{name}': expected numbers or text. Got {type(strange).__name__}.")
        return pd.Series([v if is_missing(v) else str(v) for v in values], index=series.index, dtype=object)
    try:
        return _rounded(name, series, np.array(values, dtype=np.float64))
    except OverflowError:
        raise DataError(f"Column '{name}': expected numbers. Got a whole number too large for a float.") from None


def _rounded(name: str, series: pd.Series[Any], numbers: npt.NDArray[np.float64]) -> pd.Series[Any]:
    """Round numbers to float32, keeping their type if that changes nothing."""
    import pandas as pd

    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iu" and (np.abs(numbers) <= WHOLE_FLOAT32).all():
        return series
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float32).astype(np.float64)
    lost = int((np.isinf(rounded) & np.isfinite(numbers)).sum())
    if lost:
        raise DataError(f"Column '{name}': {lost} numbers are beyond float32. Use a larger unit.")
    return pd.Series(rounded, index=series.index)
