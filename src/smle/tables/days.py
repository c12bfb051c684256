"""Columns of dates as days since 1970-01-01. Times of day and time zones are refused, since rules are about days."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError, RuleError
from smle.rules import NumericInput, Specification, day_of
from smle.tables.any_table import raw_values
from smle.tables.values import Fault, is_missing

__all__ = ["days_of", "read_days", "with_days"]

Array = npt.NDArray[np.float64]
_WHOLE_DAYS = "a date without a time of day"


def read_days(name: str, column: Any) -> tuple[Array, list[Fault]]:
    """Return a column of dates as days (rows,), NaN where a value is missing or wrong, and what is wrong.

    Dates are datetimes at midnight, date objects, or texts such as 2020-01-31. Numbers stay as they are.
    """
    zone = getattr(getattr(column, "dtype", None), "time_zone", None)  # polars would convert values to UTC
    values = raw_values(column)
    every = np.arange(len(values))
    if zone is not None:
        return np.full(len(values), np.nan), [Fault(name, every, _WHOLE_DAYS, values, _zoned(name, zone))]
    if values.dtype.kind in "biuf":
        return values.astype(np.float64), []
    if values.dtype.kind == "M":
        days, known = values.astype("datetime64[D]"), ~np.isnat(values)
        late = np.flatnonzero(known & (days != values))
        found = np.where(known, days.astype(np.int64).astype(np.float64), np.nan)
        if not len(late):
            return found, []
        found[late] = np.nan
        return found, [Fault(name, late, _WHOLE_DAYS, values[late], _timed(name, str(values[late[0]])))]
    read: dict[Any, float] = {}
    found, wrong, message = np.full(len(values), np.nan), [], ""
    for place, value in enumerate(values.tolist()):
        try:
            found[place] = _day(name, value, read)
        except DataError as error:
            wrong.append(place)
            message = message or str(error)
    if not wrong:
        return found, []
    return found, [Fault(name, np.asarray(wrong), "a date such as 2020-01-31", values[wrong], message)]


def days_of(name: str, column: Any) -> Array:
    """Return a column of dates as days (rows,), NaN where missing. Raises DataError for anything but dates."""
    days, faults = read_days(name, column)
    if faults:
        raise DataError(faults[0].message)
    return days


def _day(name: str, value: Any, known: dict[Any, float]) -> float:
    if is_missing(value):
        return np.nan
    if isinstance(value, str) and value in known:  # dates repeat, and parsing takes time
        return known[value]
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            raise DataError(_zoned(name, value.tzinfo))
        if value.time() != datetime.min.time():
            raise DataError(_timed(name, str(value)))
        value = value.date()
    elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, str):
        value = value.removesuffix(" 00:00:00").removesuffix("T00:00:00")
    elif not isinstance(value, date):
        raise DataError(f"Input '{name}': expected dates such as 2020-01-31. Got {value!r:.60}.")
    try:
        days = float(day_of(value))
    except RuleError:
        raise DataError(
            f"Input '{name}': expected dates such as 2020-01-31 (year, month, day). Got {str(value)[:40]!r}."
        ) from None
    if isinstance(value, str):
        known[value] = days
    return days


def _zoned(name: str, zone: object) -> str:
    return (
        f"Input '{name}': expected dates without a time zone. Got times in {zone}; which day it is "
        "depends on the place. Turn them into dates of one place first (pandas: .dt.tz_localize(None).dt.normalize())."
    )


def _timed(name: str, value: str) -> str:
    return (
        f"Input '{name}': expected whole days. Got {value}, with a time of day. Cut it off first (pandas: "
        ".dt.normalize())."
    )


def with_days(spec: Specification, table: Any, names: Sequence[str] | None) -> Any:
    """Return a table with its dates as numbers of days, for models that read numbers.

    `names` are the column names as text, or None for an array, which is returned unchanged.
    """
    dated = [item.name for item in spec.inputs if isinstance(item, NumericInput) and item.dates]
    if not dated or names is None:
        return table
    labels = dict(zip(names, table.columns, strict=True))
    days = {labels[name]: days_of(name, table[labels[name]]) for name in dated if name in labels}
    if hasattr(table, "with_columns"):  # polars
        return table.with_columns(**days)
    table = table.copy(deep=False)
    for label, values in days.items():
        table[label] = values
    return table
