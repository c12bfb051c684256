"""Single values: which stand for missing ones, which are numbers, which whole numbers a float cannot hold.

The last are refused at every door: a rule may hold for a number and not for the one that it would be rounded to.
Fractions are measurements: they are read as the nearest floats. So is text with an exponent, which is how floats
themselves are written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError

__all__ = [
    "WHOLE_FLOAT32",
    "WHOLE_FLOAT64",
    "as_objects",
    "is_missing",
    "is_number",
    "may_be_rounded",
    "plain_array",
    "require_exact",
]

WHOLE_FLOAT32, WHOLE_FLOAT64 = 2**24, 2**53  # up to here all whole numbers are floats
_WHOLE_TEXT = re.compile(r"([+-]?[\d_]+)(?:\.0*)?")
_INFINITE_TEXT = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)


def plain_array(values: Any) -> Any:
    """Return a masked array with missing values in place of what is masked, in this machine's order of bytes.

    Anything that is no array is returned as it is. numpy would drop the mask, and float32 numbers in another order of
    bytes are not of the type float32: rules would be read in float64.
    """
    if isinstance(values, np.ma.MaskedArray):
        kind: Any = values.dtype if values.dtype.kind == "f" else object
        values = np.where(np.ma.getmaskarray(values), np.asarray(None, dtype=kind), np.asarray(values, dtype=kind))
    if isinstance(values, np.ndarray) and not values.dtype.isnative:
        return values.astype(values.dtype.newbyteorder("="))
    return values


def is_missing(value: Any) -> bool:
    """Whether a value stands for a missing one: None, NaN, or NA of pandas, which does not even compare."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def is_number(value: Any) -> bool:
    """Whether a value can be read as a number, however large."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    except OverflowError:
        return True
    return True


def may_be_rounded(numbers: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_]:
    """Return which floats may stand for another whole number: the large and the infinite ones. Any shape."""
    every = WHOLE_FLOAT32 if numbers.dtype == np.float32 else WHOLE_FLOAT64
    return np.asarray(np.abs(numbers) >= every)


def as_objects(values: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return values of a list or a column as Python objects, in an array of the given shape."""
    result = np.empty(shape, dtype=object)
    for place, value in enumerate(values):
        result[place] = value
    return result


def require_exact(values: Any, numbers: npt.NDArray[np.floating[Any]], names: Sequence[str]) -> None:
    """Refuse whole numbers that were rounded. Shapes: values and numbers (rows, columns), names (columns,).

    Args:
        values: What was given: an array, or nested lists.
        numbers: The floats that it was read as.
        names: What the columns are called in messages.

    Raises:
        DataError: If a whole number in `values` is not the one in `numbers`.
    """
    suspects = may_be_rounded(numbers)
    if not suspects.any():
        return
    array = values if isinstance(values, np.ndarray) else as_objects(values, numbers.shape)
    if array.dtype.kind == "f" and array.dtype.itemsize <= numbers.dtype.itemsize:
        return  # floats are what they are
    kind, bits = ("float32", 24) if numbers.dtype == np.float32 else ("float64", 53)
    for row, column in np.argwhere(suspects):
        value = array[row, column]
        if not _is_exact(value, float(numbers[row, column])):
            text = str(value)
            raise DataError(
                f"{names[column]}: {text if len(text) <= 40 else text[:40] + '...'} cannot be read exactly ({kind} has "
                f"all whole numbers up to 2^{bits}), and a rule may distinguish it from its neighbors. Subtract an "
                "offset or use a larger unit, in the rules too."
            )


def _is_exact(value: Any, number: float) -> bool:
    """Whether a value is a number or, being no whole number, may be read as the nearest one."""
    value = value.item() if isinstance(value, np.integer | np.bool_ | np.ndarray) else value
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(value, str):
        return _is_exact_text(value.strip(), number)
    if isinstance(value, float | np.floating):  # numpy compares in the longer format
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
