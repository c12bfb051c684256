"""Columns of dates to days from 1970-01-01. Times of day and time zones are refused: rules are about days."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError, RuleError
from smle.rules import NumericInput, Specification, day_of
from smle.tables.values import is_missing

__all__ = ["days_of", "with_days"]

Array = npt.NDArray[np.float64]


def days_of(item: NumericInput, column: Any) -> Array:
    """Return a column of dates as days (rows,); NaN where a value is missing, numbers as they are.

    Dates are datetimes at midnight, date objects, or texts such as 2020-01-31.

    Raises:
        DataError: If a value is no date, or has a time of day or a time zone.
    """
    zone = getattr(getattr(column, "dtype", None), "time_zone", None)  # polars; its values would come in UTC
    if zone is not None:
        raise _zoned(item, zone)
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind == "M":
        days = values.astype("datetime64[D]")
        late = ~np.isnat(values) & (days != values)
        if late.any():
            raise _timed(item, str(values[late][0]))
        return np.where(np.isnat(days), np.nan, days.astype(np.int64).astype(np.float64))
    known: dict[Any, float] = {}
    return np.array([_day(item, value, known) for value in values.tolist()], dtype=np.float64)


def _day(item: NumericInput, value: Any, known: dict[Any, float]) -> float:
    if is_missing(value):
        return np.nan
    if isinstance(value, str) and value in known:  # dates repeat, and texts take time to read
        return known[value]
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            raise _zoned(item, value.tzinfo)
        if value.time() != datetime.min.time():
            raise _timed(item, str(value))
        value = value.date()
    elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, str):
        value = value.removesuffix(" 00:00:00").removesuffix("T00:00:00")
    elif not isinstance(value, date):
        raise DataError(f"Input '{item.name}': expected dates such as 2020-01-31. Got {value!r:.60}.")
    try:
        days = float(day_of(value))
    except RuleError:
        raise DataError(
            f"Input '{item.name}': expected dates such as 2020-01-31 (year, month, day). Got {str(value)[:40]!r}."
        ) from None
    if isinstance(value, str):
        known[value] = days
    return days


def _zoned(item: NumericInput, zone: object) -> DataError:
    return DataError(
        f"Input '{item.name}': expected dates without a time zone. Got times in {zone}; which day it is "
        "depends on the place. Turn them into dates of one place first (pandas: .dt.tz_localize(None).dt.normalize())."
    )


def _timed(item: NumericInput, value: str) -> DataError:
    return DataError(
        f"Input '{item.name}': expected whole days. Got {value}, with a time of day. Cut it off first (pandas: "
        ".dt.normalize())."
    )


def with_days(spec: Specification, table: Any, names: Sequence[str] | None) -> Any:
    """Return a table whose dates are numbers of days, for models that read numbers; others as they are.

    Args:
        spec: The rules, which say what is a date.
        table: A pandas or polars table, or an array.
        names: Its column names as text; None for an array, which is returned as it is.
    """
    dated = [item for item in spec.inputs if isinstance(item, NumericInput) and item.dates]
    if not dated or names is None:
        return table
    labels = dict(zip(names, table.columns, strict=True))
    days = {labels[item.name]: days_of(item, table[labels[item.name]]) for item in dated if item.name in labels}
    if hasattr(table, "with_columns"):  # polars
        return table.with_columns(**days)
    table = table.copy(deep=False)
    for label, values in days.items():
        table[label] = values
    return table
