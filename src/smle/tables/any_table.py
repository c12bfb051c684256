"""Turns anything that holds rows into a table: pandas, polars, Arrow, lazy frames, dicts, lists of dicts, arrays.

narwhals reads all but pandas and polars, which are faster without it: through narwhals, one row took 57 us and each
column 38 us more, where pandas alone takes 12 us a column.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.tables.values import as_objects, may_be_rounded, plain_array

__all__ = [
    "as_table",
    "column_names",
    "column_of",
    "normal",
    "raw_values",
    "require_columns",
    "require_distinct",
    "require_names",
    "rows_at",
]

_KNOWN = ("pandas", "polars", "numpy", "builtins")


def as_table(rows: Any) -> Any:
    """Return rows as a pandas or polars table if their columns have names, and anything else unchanged.

    A dict of columns becomes a pandas table, and so does a list of dicts, with missing values for missing keys. Tables
    of Arrow and of libraries that narwhals knows are converted, too; lazy ones are collected.
    """
    if isinstance(rows, Mapping) and not hasattr(rows, "shape"):  # some sparse arrays are mappings
        return _frame(rows)
    if isinstance(rows, list | tuple):
        if not (len(rows) and all(isinstance(row, Mapping) for row in rows)):
            return rows
        names = dict.fromkeys(name for row in rows for name in row)
        return _frame({name: [row.get(name) for row in rows] for name in names})
    home = type(rows).__module__.partition(".")[0]
    if home in _KNOWN and type(rows).__name__ != "LazyFrame":
        return rows
    if home == "pyarrow":  # narwhals does not know record batches
        return rows.to_pandas(integer_object_nulls=True) if hasattr(rows, "column_names") else rows
    import narwhals

    frame: Any = narwhals.from_native(rows, pass_through=True)
    if isinstance(frame, narwhals.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, narwhals.DataFrame):
        return rows
    native = frame.to_native()
    return native if type(native).__module__.partition(".")[0] in _KNOWN else as_table(frame.to_arrow())


def _frame(columns: Mapping[Any, Any]) -> Any:
    import pandas as pd

    labels = [values.index for values in columns.values() if isinstance(values, pd.Series)]
    if not all(own.equals(labels[0]) for own in labels):
        raise DataError(
            "Expected a dict of columns whose rows are in one order. Got pandas columns with different indexes, by "
            "which pandas would sort and fill rows. Pass their values (column.to_numpy()), or a DataFrame."
        )
    made = {}
    for name, values in columns.items():
        listed = isinstance(values, list | tuple)
        kinds = set(map(type, values)) if listed else set()
        # pandas would round integers that are large, or next to gaps or fractions, and turn booleans into numbers.
        plain = not listed or (len(kinds) == 1 and kinds <= {float, bool, str})
        plain = plain or (kinds == {int} and all(-(2**63) <= value < 2**63 for value in values))
        made[name] = values if plain else as_objects(values, (len(values),))
    try:
        return pd.DataFrame(made)
    except OverflowError:  # raised by some versions of pandas only
        raise DataError(
            "Expected numbers that floats hold. Got a whole number that is too large for a float."
        ) from None
    except ValueError as error:
        if made and all(map(np.isscalar, made.values())):
            raise DataError("Expected a dict of columns. Got one row as a dict. Pass a list with it: [row].") from None
        raise DataError(
            "Expected a dict of columns that are equally long, or a list with a dict for each row. Got a dict that is "
            f"not a table ({error})."
        ) from None


def column_names(table: Any) -> list[str] | None:
    """Return the column names of a table from `as_table`, or None for plain arrays."""
    columns = None if type(table).__name__ == "LazyFrame" else getattr(table, "columns", None)
    return None if columns is None else list(map(str, columns))


def column_of(table: Any, name: str) -> Any:
    """Return a column of a table by its name as text (pandas also allows numbers as names)."""
    return table[{str(label): label for label in table.columns}[name]]


def raw_values(column: Any) -> npt.NDArray[Any]:
    """Return values as an array; of objects, if NumPy would turn large integers into floats.

    NumPy does so for lists that also hold fractions, and for integer columns with missing values.
    """
    kind = getattr(column, "dtype", None)
    if isinstance(column, np.ndarray):
        return np.asarray(plain_array(column))
    read = getattr(column, "to_numpy", None)
    array: npt.NDArray[Any] = plain_array(np.asarray(column) if read is None else read())
    if isinstance(kind, np.dtype) or array.dtype != np.float64 or not may_be_rounded(array).any():
        return array
    return as_objects(column, array.shape)


def rows_at(table: Any, places: npt.NDArray[np.intp]) -> Any:
    """Return rows of a table from `as_table`, by number from 0.

    In pandas, columns of objects get the type that fits the remaining rows.
    """
    if hasattr(table, "iloc"):
        return table.iloc[places].infer_objects()
    return [table[place] for place in places] if isinstance(table, list | tuple) else table[places]


def require_distinct(names: list[str], *, where: str = "The table") -> None:
    """Raise DataError if columns share a name."""
    if len(set(names)) == len(names):
        return
    listed = ", ".join(f"'{name}'" for name in sorted({name for name in names if names.count(name) > 1}))
    raise DataError(f"{where} has several columns named {listed}. Rename or drop all but one.")


def require_columns(table: Any, wanted: list[str], what: str = "the inputs and outputs of the rules") -> None:
    """Raise DataError if a table lacks columns, or repeats one; `what` says whose columns they are."""
    require_names(column_names(table) or [], wanted, what)


def require_names(names: list[str], wanted: list[str], what: str) -> None:
    """Raise DataError if wanted names are missing or repeated; `what` says whose columns they are."""
    if len(set(names)) == len(names) and set(names).issuperset(wanted):
        return
    require_distinct([name for name in names if name in wanted])
    missing = [name for name in wanted if name not in names]
    if not missing:
        return
    hints = []
    for name in missing:
        if any(normal(name) == normal(other) for other in names):
            hints.append(
                f"'{name}', which is there in another Unicode form (rename the columns by "
                "unicodedata.normalize('NFC', name), and the input in the rules)"
            )
            continue
        close = difflib.get_close_matches(name, names, n=1)
        hints.append(f"'{name}'" + (f" (did you mean '{close[0]}'?)" if close else ""))
    raise DataError(
        f"Expected {what} as columns. Missing: {', '.join(hints)}. "
        f"The table has: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."
    )


def normal(name: str) -> str:
    """Return a name in the Unicode form used for comparisons."""
    return unicodedata.normalize("NFC", name)
