"""Reads numbers the same way everywhere: in columns of tables, arrays, targets, and what a model in front reads.

An integer that a float cannot hold is refused: a rule may hold for it and not for the rounded number. Fractions are
measurements and are read as the nearest floats, and so is text with an exponent, which is how floats are written. Text
is a number only in the digits 0 to 9, with a point and an exponent if need be: Python would also read `1_0` and the
digits of other scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError

__all__ = [
    "WHOLE_FLOAT32",
    "WHOLE_FLOAT64",
    "Fault",
    "advice_on",
    "as_objects",
    "is_missing",
    "is_number",
    "may_be_rounded",
    "plain_array",
    "read_numbers",
    "require_exact",
    "rounded_numbers",
]

FloatArray = npt.NDArray[np.floating[Any]]
WHOLE_FLOAT32, WHOLE_FLOAT64 = 2**24, 2**53  # all integers up to here are floats
_WHOLE_TEXT = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_NUMBER_TEXT = re.compile(
    r"[ \t\r\n]*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)[ \t\r\n]*", re.IGNORECASE
)
_INFINITE_TEXT = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_PLAIN = {float, int, type(None)}


@dataclass(frozen=True, eq=False)
class Fault:
    """What is wrong with some values of a column.

    Attributes:
        column: The name of the column.
        rows: The row numbers, from 0, (k,).
        expected: What a value should be, as in "expected numbers".
        values: The values, (k,), or None if they are missing.
        message: The fault in a sentence or two, with what to do.
    """

    column: str
    rows: npt.NDArray[np.intp]
    expected: str
    values: npt.NDArray[Any] | None
    message: str

    def reasons(self) -> list[str]:
        """Return what is wrong with each of the rows."""
        if self.values is None:
            return [f"'{self.column}' is missing"] * len(self.rows)
        return [f"'{self.column}': expected {self.expected}, got {value!r:.60}" for value in self.values.tolist()]


def plain_array(values: Any) -> Any:
    """Replace masked entries by missing values, and convert to the machine's byte order; keep anything but arrays.

    NumPy would drop the mask, and float32 numbers in another byte order are not of the type float32, so rules would be
    read in float64.
    """
    if isinstance(values, np.ma.MaskedArray):
        kind: Any = values.dtype if values.dtype.kind == "f" else object
        values = np.where(np.ma.getmaskarray(values), np.asarray(None, dtype=kind), np.asarray(values, dtype=kind))
    if isinstance(values, np.ndarray) and not values.dtype.isnative:
        return values.astype(values.dtype.newbyteorder("="))
    return values


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, or pandas' NA, which cannot be compared."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def is_number(value: Any) -> bool:
    """Return whether a value can be read as a number, however large. Booleans cannot."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return _NUMBER_TEXT.fullmatch(value) is not None
    if isinstance(value, bool | np.bool_):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    except OverflowError:
        return True
    return True


def read_numbers(
    column: str, values: npt.NDArray[Any], *, truth: bool = False, exact: bool = True, noun: str = "Input"
) -> tuple[FloatArray, list[Fault]]:
    """Return values (n,) as float32, if they have that type, else float64, and what is wrong with them.

    Missing and wrong values are NaN. Values are in the machine's byte order (`plain_array`). With `truth`, True is read
    as 1 and False as 0. With `exact`, integers that a float cannot hold are wrong; otherwise they are rounded. `noun`
    and `column` name the column in messages.
    """
    named = column, noun
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "f" and size in (4, 8):
        return values, []
    if kind in "iu" or kind == "f" or (kind == "b" and truth):
        numbers: FloatArray = values.astype(np.float64)
        return numbers, rounded_numbers(named, values, numbers) if exact and size >= 8 else []
    if kind in "mMcb":
        advice = " State its range in dates, as [2010-01-01, 2025-01-01]." if kind == "M" else ""
        expected = "numbers" if kind == "b" else "real numbers"
        got = repr(values[0].item()) if kind == "b" and len(values) else f"{values.dtype} values"
        message = f"{noun} '{column}': expected {expected}. Got {got}.{advice or advice_on(kind == 'b' or None)}"
        return np.full(len(values), np.nan), [Fault(column, np.arange(len(values)), expected, values, message)]
    return _read_objects(named, values, truth=truth, exact=exact)


def _read_objects(
    named: tuple[str, str], values: npt.NDArray[Any], *, truth: bool, exact: bool
) -> tuple[FloatArray, list[Fault]]:
    """Read Python objects and text, one by one unless they are plain numbers."""
    column, noun = named
    objects = as_objects(values.tolist(), values.shape)
    strange: list[int] = []
    if not set(map(type, objects)) <= _PLAIN:
        for place, value in enumerate(objects):
            if is_missing(value):
                objects[place] = None
            elif not (is_number(value) or (truth and isinstance(value, bool | np.bool_))):
                strange.append(place)
    faults = []
    if strange:
        example = objects[strange[0]]
        message = f"{noun} '{column}': expected numbers. Got {example!r:.60}.{advice_on(example)}"
        faults.append(_fault(column, strange, objects, "a number", message))
        objects[strange] = None
    try:
        numbers: FloatArray = objects.astype(np.float64)
    except OverflowError:
        large = [place for place, value in enumerate(objects) if value is not None and _overflows(value)]
        message = f"{noun} '{column}': expected numbers. Got a whole number too large for a float."
        faults.append(_fault(column, large, objects, "a smaller number", message))
        objects[large] = None
        numbers = objects.astype(np.float64)
    return numbers, faults + (rounded_numbers(named, objects, numbers) if exact else [])


def _overflows(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return True
    return False


def _fault(column: str, rows: list[int], values: npt.NDArray[Any], expected: str, message: str) -> Fault:
    return Fault(column, np.asarray(rows, dtype=np.intp), expected, values[rows], message)


def advice_on(value: Any) -> str:
    """Return advice about text that looks like a number, starting with a space, or ""."""
    if not isinstance(value, str):
        return " Write 1 and 0." if isinstance(value, bool | np.bool_) else ""
    if re.fullmatch(r"\s*[+-]?[\d.\s]*\d,\d+\s*", value):  # not guessed: 1,234 is ambiguous
        return (
            " Save the table with decimal points, or read it with pandas.read_csv(..., sep=';', "
            "decimal=',') and pass it in Python."
        )
    if re.fullmatch(r"\s*[+-]?[\d_.]+(?:e[+-]?[\d_]+)?\s*", value, re.IGNORECASE):
        return " Write numbers with the digits 0 to 9 and a point."
    return " Write 1 and 0." if value.strip().lower() in ("true", "false") else ""


def may_be_rounded(numbers: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask of the floats that may stand for another integer: large and infinite ones. Any shape."""
    every = WHOLE_FLOAT32 if numbers.dtype == np.float32 else WHOLE_FLOAT64
    return np.asarray(np.abs(numbers) >= every)


def as_objects(values: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return values of a list or a column as Python objects, in an array of the given shape."""
    result = np.empty(shape, dtype=object)
    for place, value in enumerate(values):
        result[place] = value
    return result


def rounded_numbers(named: tuple[str, str], values: npt.NDArray[Any], numbers: FloatArray) -> list[Fault]:
    """Return a fault for integers that were rounded, if any; they become NaN."""
    suspects = np.flatnonzero(may_be_rounded(numbers))
    rows = [row for row in suspects.tolist() if not _is_exact(values[row], float(numbers[row]))]
    if not rows:
        return []
    message = _inexact(f"{named[1]} '{named[0]}'", values[rows[0]], numbers)
    numbers[rows] = np.nan
    return [_fault(named[0], rows, values, "a number that a float holds exactly", message)]


def _inexact(name: str, value: Any, numbers: FloatArray) -> str:
    kind, bits = ("float32", 24) if numbers.dtype == np.float32 else ("float64", 53)
    text = str(value)
    return (
        f"{name}: {text if len(text) <= 40 else text[:40] + '...'} cannot be read exactly ({kind} has "
        f"all whole numbers up to 2^{bits}), and a rule may distinguish it from its neighbors. Subtract an "
        "offset or use a larger unit, in the rules too."
    )


def require_exact(values: Any, numbers: FloatArray, names: Sequence[str]) -> None:
    """Raise DataError if `numbers` (rows, columns) rounded an integer in `values`; `names` are for messages."""
    suspects = may_be_rounded(numbers)
    if not suspects.any():
        return
    array = values if isinstance(values, np.ndarray) else as_objects(values, numbers.shape)
    if array.dtype.kind == "f" and array.dtype.itemsize <= numbers.dtype.itemsize:
        return  # floats are exact
    for row, column in np.argwhere(suspects):
        value = array[row, column]
        if not _is_exact(value, float(numbers[row, column])):
            raise DataError(_inexact(names[column], value, numbers))


def _is_exact(value: Any, number: float) -> bool:
    """Return whether a value equals a number or, unless it is an integer, may be read as the nearest one."""
    value = value.item() if isinstance(value, np.integer | np.bool_ | np.ndarray) else value
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(value, str):
        return _is_exact_text(value.strip(), number)
    if isinstance(value, float | np.floating):  # NumPy compares in the wider format
        return bool(value == number or value != np.rint(value))
    if isinstance(value, Decimal):
        return value == number or (value.is_finite() and value != value.to_integral_value())
    if isinstance(value, Fraction):
        return value == number or value.denominator != 1
    try:
        return int(value) == number
    except (TypeError, ValueError, OverflowError):
        return False


def _is_exact_text(text: str, number: float) -> bool:
    if whole := _WHOLE_TEXT.fullmatch(text):
        try:
            return int(whole[1]) == number
        except ValueError:  # more digits than Python reads
            return False
    return np.isfinite(number) or _INFINITE_TEXT.fullmatch(text) is not None
