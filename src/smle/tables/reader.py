"""Turns tables into numbers, as the rules read them. A model has one `Reader`, which reads every column once."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from fractions import Fraction
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Categorical, NumericInput, Specification
from smle.tables.any_table import as_table, column_names, normal, raw_values, require_names
from smle.tables.days import days_of, read_days
from smle.tables.frames import as_numbers
from smle.tables.outputs import option_of
from smle.tables.values import WHOLE_FLOAT32, Fault, is_missing, read_numbers, require_exact
from smle_check.floats import BINARY32, BINARY64, nearest

__all__ = ["ReadTable", "Reader", "encode_columns", "encode_inputs", "table_digest"]

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]
_FORMATS = {np.float32: BINARY32, np.float64: BINARY64}

_SHOWN = 8  # categories in a message
_SNAPPED = 1e-6  # of a step: tolerance for a computed multiple, such as 0.1 + 0.2


class ReadTable:
    """Rows of a table. `rows[name]` is a column of raw values (n,); dates are days.

    Attributes:
        table: The table, as pandas or polars if its columns have names.
        columns: Their names, or None for an array of the inputs.
        encoded: The inputs of the rules (n, d), in the order of `spec.columns`, with stand-ins for missing values.
        is_encoded: Whether `encoded` exists.
        is_examined: Whether it was read from the table itself.
        missing: The rows in which an input is missing (n,), by name; inputs that are never missing are left out.
        faults: What is wrong with rows, column by column; empty after `Reader.read`.
        known: Columns that were read, by name.
    """

    def __init__(self, table: Any, dates: Collection[str] = ()) -> None:
        self.table, self.columns, self._dates = table, column_names(table), dates
        self.encoded: FloatArray = np.empty((0, 0))
        self.is_encoded = self.is_examined = False
        self.missing: dict[str, Mask] = {}
        self.faults: tuple[Fault, ...] = ()
        self._labels = {} if self.columns is None else dict(zip(self.columns, table.columns, strict=True))
        self._raw: dict[str, Array] = {}
        self.known: dict[str, ReadColumn] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> Array:
        if name in self.known:
            return self.known[name].raw
        if name not in self._raw:
            column = self.column(name)
            self._raw[name] = days_of(name, column) if name in self._dates else raw_values(column)
        return self._raw[name]

    def column(self, name: str) -> Any:
        """Return a column as it is in the table."""
        return self.table[self._labels[name]]

    def numbers(self, name: str, kind: Any) -> Array:
        """Return a column as numbers for a model, NaN where missing. Raises DataError for anything else."""
        known = self.known.get(name)
        if known is None or known.part.ndim != 1 or known.faults or np.dtype(kind).kind != "f":
            return as_numbers(name, self[name], kind)
        with np.errstate(over="ignore"):
            return known.part.astype(kind)


class Reader:
    """Reads tables for one set of rules.

    Columns of a table are matched by name, ignoring further ones; those of an array by position. float32 columns stay
    float32 beside categories and integers that float32 can hold; everything else becomes float64.
    """

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self._names = [item.name for item in spec.inputs]
        self._dates = frozenset(item.name for item in spec.inputs if item.dates)
        self._ends = [spec.ends(kind) for kind in (np.float64, np.float32)]
        self._readers: list[_NumberReader | _CategoryReader] = [
            _CategoryReader(item, place) if isinstance(item, Categorical) else _NumberReader(item, place.start)
            for item, place in spec.input_slices
        ]
        self._stepped = [  # whole numbers, and multiples of a step
            (number, reader)
            for number, reader in enumerate(self._readers)
            if isinstance(reader, _NumberReader) and (reader.item.integer or reader.item.step is not None)
        ]

    def opened(self, table: Any, encoded: FloatArray | None = None) -> ReadTable:
        """Open a table without reading it, or take one that is open; `encoded` inputs may be given."""
        rows = table if isinstance(table, ReadTable) else ReadTable(as_table(table), self._dates)
        if encoded is not None:
            rows.encoded, rows.is_encoded = encoded, True
        return rows

    def moved(self, rows: ReadTable, encoded: FloatArray) -> ReadTable:
        """Return rows at other inputs (n, d); further columns of the table stay."""
        import pandas as pd

        columns = {name: rows[name] for name in rows.columns or ()}
        for item, place in self.spec.input_slices:
            part = encoded[:, place]
            if isinstance(item, Categorical):
                columns[item.name] = np.asarray(item.categories, dtype=object)[part.argmax(axis=1)]
            else:
                columns[item.name] = part[:, 0]
        for item, _, flag in self.spec.flagged:
            gone = encoded[:, flag] == 1
            if gone.any():
                nothing: Any = np.nan if isinstance(item, NumericInput) else None
                columns[item.name] = np.where(gone, nothing, columns[item.name])
        return self.opened(ReadTable(pd.DataFrame(columns)), encoded)

    def read(self, table: Any) -> ReadTable:
        """Read the rows of a table.

        Raises DataError if columns or values are missing, values are not numbers, categories are unknown, or an integer
        would be rounded.
        """
        if isinstance(table, ReadTable) and table.is_encoded:
            return table
        rows = self.examine(table)
        if rows.faults:
            raise DataError(rows.faults[0].message)
        return rows

    def examine(self, table: Any) -> ReadTable:
        """Read the rows of a table and collect what is wrong with them; wrong values are NaN in `encoded`.

        Raises DataError if columns are missing, or an array has another shape.
        """
        rows = self.opened(table)
        read = [reader.read(column) for reader, column in zip(self._readers, self._columns(rows), strict=True)]
        if rows.columns is not None:  # not needed for an array
            rows.known = dict(zip(self._names, read, strict=True))
        self._put_together(rows, read)
        return rows

    def is_inside(self, rows: ReadTable) -> bool:
        """Return whether all rows lie in the domain."""
        lower, upper = self._ends[rows.encoded.dtype == np.float32]
        return bool(((lower <= rows.encoded) & (rows.encoded <= upper)).all())

    def missing_counts(self, table: Any) -> dict[str, int]:
        """Count the rows in which each input with a stand-in is missing."""
        filled = [item.name for item in self.spec.inputs if item.missing is not None]
        if not filled:
            return {}
        given = table.table if isinstance(table, ReadTable) else table
        wide = len(self.spec.columns) > len(self._names) or bool(self.spec.one_hot)
        encoded = wide and getattr(given, "shape", (0,))[1:] == (len(self.spec.columns),)
        if encoded and column_names(given) is None:  # encoded rows already have stand-ins
            flags = self.spec.flag_columns
            return {
                name: int(np.sum(np.asarray(given)[:, flags[name]] == 1)) if name in flags else 0 for name in filled
            }
        missing = (table if isinstance(table, ReadTable) and table.is_examined else self.examine(given)).missing
        return {name: int(missing[name].sum()) if name in missing else 0 for name in filled}

    def read_encoded(self, array: Any) -> FloatArray:
        """Read an array of inputs as networks read them: (..., d), in the order of `spec.columns`.

        Raises DataError as `read` does, and if it has other columns or categories are not one-hot.
        """
        rows = self.examine_encoded(array)
        if rows.faults:
            raise DataError(rows.faults[0].message)
        return rows.encoded.reshape(rows.table.shape)

    def examine_encoded(self, array: Any) -> ReadTable:
        """Read as `read_encoded` does, but return flat rows with what is wrong. Raises DataError for other columns."""
        width = len(self.spec.columns)
        try:
            values = raw_values(array)
        except ValueError:
            raise DataError(f"Expected features of shape (rows, {width}). Got rows of different lengths.") from None
        if values.ndim < 2 or values.shape[-1] != width:
            raise DataError(
                f"Expected features of shape (rows, {width}), the columns {', '.join(self.spec.columns)}. "
                f"Got {values.shape}."
            )
        rows, flat = ReadTable(values), values.reshape(-1, width)
        self._put_together(rows, [reader.read_encoded(flat[:, reader.place]) for reader in self._readers])
        rows.faults = (*rows.faults, *self._take_flags(rows, flat))
        return rows

    def _take_flags(self, rows: ReadTable, given: Array) -> Iterator[Fault]:
        """Copy the columns that flag missing values; yield a fault where a flagged input lacks its stand-in."""
        for item, place, flag in self.spec.flagged:
            name = self.spec.columns[flag]
            numbers, faults = read_numbers(name, given[:, flag], truth=True)
            yield from faults
            if item.name in rows.missing:  # a missing value of the input itself also counts
                numbers = np.where(rows.missing[item.name], 1, numbers)
            strange = np.flatnonzero((numbers != 0) & (numbers != 1))
            if len(strange):
                message = f"Input '{name}': expected 0 or 1. Got {given[strange[0], flag]} in row {strange[0] + 1}."
                yield Fault(name, strange, "0 or 1", given[strange, flag], message)
            stand_in = self._stand_in(item, rows.encoded.dtype.type)
            other = np.flatnonzero((numbers == 1) & (rows.encoded[:, place] != stand_in).any(axis=1))
            if len(other):
                message = (
                    f"Input '{item.name}': expected its stand-in {item.missing} where '{name}' is 1. Got "
                    f"{rows.encoded[other[0], place].tolist()} in row {other[0] + 1}."
                )
                yield Fault(item.name, other, "its stand-in", rows.encoded[other, place.start], message)
            rows.encoded[:, flag] = numbers

    def _stand_in(self, item: NumericInput | Categorical, kind: Any) -> FloatArray:
        """Return the values of an input's columns where it is missing."""
        rows = np.full((1, len(self.spec.columns)), np.nan, dtype=kind)
        reader = self._readers[self._names.index(item.name)]
        reader.fill(rows, {}, [])
        return np.atleast_1d(rows[0, reader.place])

    def _columns(self, rows: ReadTable) -> list[Any]:
        names = self._names
        if rows.columns is not None:
            require_names(rows.columns, names, "the inputs of the rules")
            return list(map(rows.column, names))
        array = raw_values(rows.table)
        if array.ndim != 2 or array.shape[1] != len(names):
            raise DataError(
                f"Expected a table with {len(names)} input columns ({', '.join(names)}). "
                f"Got an array of shape {array.shape}."
            )
        return list(array.T)

    def _put_together(self, rows: ReadTable, read: list[ReadColumn]) -> None:
        """Write all columns into one array, with stand-ins for missing values."""
        encoded = np.empty((len(read[0].part), len(self.spec.columns)), dtype=_common_format(read))
        for reader, found in zip(self._readers, read, strict=True):
            encoded[:, reader.place] = found.part
        stated = len(self.spec.columns) - len(self.spec.flags)
        gaps, missing, faults = bool(np.isnan(encoded[:, :stated]).any()), dict[str, Mask](), list[Fault]()
        if gaps:
            for reader, found in zip(self._readers, read, strict=True):
                reader.fill(encoded, missing, found.faults)
        for number, reader in self._stepped:
            reader.look_for_fractions(encoded, read[number].faults)
            reader.read_steps(encoded, read[number].part, read[number].faults)
        for found in read:
            faults += found.faults
        for name, flag in self.spec.flag_columns.items():
            encoded[:, flag] = missing.get(name, False)
        rows.encoded, rows.missing, rows.faults = encoded, missing, tuple(faults)
        rows.is_encoded = rows.is_examined = True


def encode_inputs(spec: Specification, table: Any) -> FloatArray:
    """Return the input columns of a table (rows, d) in the order of `spec.columns`; raises as `Reader.read` does."""
    return Reader(spec).read(table).encoded


def encode_columns(spec: Specification, X: Any) -> FloatArray:
    """Return encoded inputs (..., d) of a table by column name, or of an array that holds `spec.columns`.

    Raises:
        DataError: As `Reader.read` and `Reader.read_encoded`.
    """
    table, reader = as_table(X), Reader(spec)
    return reader.read_encoded(table) if column_names(table) is None else reader.read(table).encoded


def table_digest(*arrays: Array) -> str:
    """Return a digest of encoded data, for provenance."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class ReadColumn(NamedTuple):
    """A column: raw values (n,), floats (n,) or (n, k) with NaN for gaps and faults, and what is wrong."""

    raw: Array
    part: FloatArray
    faults: list[Fault]


def _common_format(read: list[ReadColumn]) -> type[np.floating[Any]]:
    """Return the format for all columns: a float32 column stays exact next to integers."""
    raws, parts, _ = zip(*read, strict=True)
    formats = set(map(attrgetter("dtype"), parts))
    if formats == {np.dtype(np.float32)}:
        return np.float32
    if np.dtype(np.float32) not in set(map(attrgetter("dtype"), raws)):
        return np.float64
    doubles = [found for found in read if found.part.dtype != np.float32]
    fits = all(found.raw.dtype.kind in "iub" and (np.abs(found.part) <= WHOLE_FLOAT32).all() for found in doubles)
    return np.float32 if fits else np.float64


def _multiples(numbers: FloatArray, step: Fraction) -> FloatArray:
    """Round to the nearest multiples of a step, in the same format; NaN and infinities stay."""
    wide = numbers.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.rint(wide * step.denominator / step.numerator) * step.numerator / step.denominator
        return np.where(np.isfinite(found), found, wide).astype(numbers.dtype)


class _NumberReader:
    """Reads one column of numbers or dates."""

    def __init__(self, item: NumericInput, place: int) -> None:
        self.item, self.name, self.place = item, item.name, place
        self._is_flag = item.lower >= 0 and item.upper <= 1  # True can only mean 1

    def read(self, column: Any) -> ReadColumn:
        """Return the column as floats."""
        if self.item.dates:
            days, faults = read_days(self.name, column)
            return ReadColumn(days, days, faults)
        values = raw_values(column)
        return ReadColumn(values, *read_numbers(self.name, values, truth=self._is_flag))

    read_encoded = read

    def fill(self, encoded: FloatArray, missing: dict[str, Mask], faults: list[Fault]) -> None:
        """Put the stand-in for missing values where there are gaps."""
        gone = _gone(np.isnan(encoded[:, self.place]), faults)
        if not gone.any():
            return
        missing[self.name] = gone
        if self.item.missing is None:
            faults.append(_gaps(self.name, gone, (
                f" Fill them, drop the rows, or state a stand-in in the rules file ({self.name}: "
                "{range: ..., missing: VALUE})."
            )))  # fmt: skip
            return
        encoded[gone, self.place] = float(nearest(self.item.missing, _FORMATS[encoded.dtype.type]))
        stand_in, used = np.array([[self.item.missing]], dtype=object), encoded[gone, self.place][:1, None]
        require_exact(stand_in, used, [f"Input '{self.name}', stand-in for missing values"])

    def read_steps(self, encoded: FloatArray, part: FloatArray, faults: list[Fault]) -> None:
        """Write multiples of the step, in the format of the table; add a fault if numbers lie between."""
        step = self.item.step
        if step is None:
            return
        near = float(step) * _SNAPPED if part.dtype == np.float64 else 0.0
        off = np.isfinite(part) & (np.abs(part - _multiples(part, step)).astype(np.float64) > near)
        rows = np.flatnonzero(off)
        if len(rows):
            message = f"Input '{self.name}': expected multiples of {float(step):g}. Got {part[rows[0]]:.9g}."
            faults.append(Fault(self.name, rows, f"a multiple of {float(step):g}", part[rows], message))
        given = ~np.isnan(part)  # a stand-in is a multiple, already rounded
        encoded[given, self.place] = _multiples(encoded[given, self.place], step)

    def look_for_fractions(self, encoded: FloatArray, faults: list[Fault]) -> None:
        """Add a fault if whole numbers are expected and some are not."""
        if not self.item.integer:
            return
        numbers = encoded[:, self.place]
        rows = np.flatnonzero(np.isfinite(numbers) & (numbers != np.rint(numbers)))
        if len(rows):
            message = f"Input '{self.name}': expected whole numbers. Got {numbers[rows[0]]:g}."
            faults.append(Fault(self.name, rows, "a whole number", numbers[rows], message))
            numbers[rows] = np.nan


class _CategoryReader:
    """Reads one column of categories as 0/1 columns."""

    def __init__(self, item: Categorical, place: slice) -> None:
        self.item, self.name, self.place = item, item.name, place
        self._codes = {category: i for i, category in enumerate(item.categories)}
        width = len(item.categories)
        self._rows = np.eye(width + 1, width, dtype=np.float32)
        self._rows[width] = np.nan  # for missing and unknown values

    def read(self, column: Any) -> ReadColumn:
        """Return the column as 0/1 columns."""
        values, codes, last = raw_values(column), self._codes, len(self._codes)
        strange: list[int] = []
        places = []
        for row, value in enumerate(values.tolist()):
            code = codes.get(value) if isinstance(value, str) else None
            if code is None and not is_missing(value):
                code = codes.get(option_of(value, codes))  # pandas turns integers with gaps into floats
                if code is None:
                    strange.append(row)
            places.append(last if code is None else code)
        faults = [self._unknown(values, strange)] if strange else []
        return ReadColumn(values, self._rows[np.array(places, dtype=np.intp)], faults)

    def read_encoded(self, columns: Array) -> ReadColumn:
        """Return 0/1 columns that are already encoded: one 1 among zeros."""
        read = [read_numbers(self.name, values, truth=True) for values in columns.T]
        numbers: FloatArray = np.stack([part for part, _ in read], axis=1)
        faults = list(chain.from_iterable(faults for _, faults in read))
        zeros_and_one = ((numbers == 0) | (numbers == 1)).all(axis=1) & (numbers.sum(axis=1) == 1)
        rows = np.flatnonzero(~zeros_and_one & ~np.isnan(numbers).any(axis=1))
        if len(rows):
            message = (
                f"Input '{self.name}': expected one 1 among zeros in its columns ({', '.join(self._codes)}). Got "
                f"{columns[rows[0]].tolist()} in row {rows[0] + 1}."
            )
            faults.append(Fault(self.name, rows, "one 1 among zeros", columns[rows], message))
        return ReadColumn(columns[:, 0], numbers.astype(np.float32), faults)

    def _unknown(self, values: Array, rows: list[int]) -> Fault:
        first, hint = option_of(values[rows[0]], self._codes), ""
        if normal(first) in map(normal, self._codes):
            hint = " It is one of them in another Unicode form: normalize the column (pandas: .str.normalize('NFC'))."
        listed = ", ".join(list(self._codes)[: _SHOWN if len(self._codes) > 2 * _SHOWN else None])
        if len(self._codes) > 2 * _SHOWN:
            listed += f", ... ({len(self._codes):,} in all)"
        message = (
            f"Input '{self.name}': unknown category {first!r} in {len(rows)} rows. Expected one of {listed}.{hint}"
        )
        return Fault(self.name, np.array(rows, dtype=np.intp), f"one of {listed}", values[rows], message)

    def fill(self, encoded: FloatArray, missing: dict[str, Mask], faults: list[Fault]) -> None:
        """Put the stand-in for missing values where there are gaps."""
        gaps = np.asarray(np.isnan(encoded[:, self.place]).any(axis=1))
        gone = _gone(gaps, faults)
        if not gone.any():
            return
        missing[self.name] = gone
        if self.item.missing is None:
            faults.append(_gaps(self.name, gone, " Fill them."))
        else:
            encoded[gone, self.place] = self._rows[self._codes[self.item.missing]]


def _gone(gaps: Mask, faults: list[Fault]) -> Mask:
    """Return the gaps that are missing values rather than wrong ones."""
    for fault in faults:
        gaps[fault.rows] = False
    return gaps


def _gaps(name: str, gone: Mask, remedy: str) -> Fault:
    rows = np.flatnonzero(gone)
    message = f"Input '{name}': {len(rows)} of {len(gone)} values are missing.{remedy}"
    return Fault(name, rows, "a value", None, message)
