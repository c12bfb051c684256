"""Arrays of encoded inputs: a column for each number, and one of 0 and 1 for each category."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Categorical, Specification
from smle.tables.encode import FloatArray, column_names, common_format, encode_inputs, read_numbers, read_values

__all__ = ["encode_columns"]


def encode_columns(spec: Specification, X: Any) -> FloatArray:
    """Return encoded inputs (..., d): those of a table by the names of its columns, those of an array by their places.

    The columns of an array (..., d) are `spec.columns`; each is read as `encode_inputs` reads the column of a table.

    Raises:
        DataError: If there are not the columns of the rules, values are missing or no numbers, a whole number would be
            rounded, or categories are not one 1 among zeros.
    """
    if column_names(X) is not None:
        return encode_inputs(spec, X)
    width = len(spec.columns)
    try:
        array = read_values(X)
    except ValueError:
        raise DataError(f"Expected features of shape (rows, {width}). Got rows of different lengths.") from None
    if array.ndim < 2 or array.shape[-1] != width:
        raise DataError(
            f"Expected features of shape (rows, {width}), the columns {', '.join(spec.columns)}. Got {array.shape}."
        )
    rows = array.reshape(-1, width)
    raw: list[npt.NDArray[Any]] = []
    parts: list[FloatArray] = []
    start = 0
    for item in spec.inputs:
        count = len(item.categories) if isinstance(item, Categorical) else 1
        own = rows[:, start : start + count]
        raw.append(own[:, 0])
        parts.append(
            _indicators(item, own) if isinstance(item, Categorical) else read_numbers(item, own[:, 0])[:, None]
        )
        start += count
    return np.concatenate(parts, axis=1, dtype=common_format(raw, parts)).reshape(array.shape)


def _indicators(item: Categorical, values: npt.NDArray[Any]) -> FloatArray:
    """Return the columns of a category (rows, categories) if each row has one 1 among zeros, or is missing."""
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"Input '{item.name}': expected a column of 0 and 1 for each category.") from None
    missing = np.isnan(numbers).any(axis=1)
    if missing.any() and item.missing is not None:
        numbers[missing] = np.equal(item.categories, item.missing)
    wrong = np.flatnonzero(~(((numbers == 0) | (numbers == 1)).all(axis=1) & (numbers.sum(axis=1) == 1)))
    if len(wrong):
        raise DataError(
            f"Input '{item.name}': expected one 1 among zeros in its columns ({', '.join(item.categories)}). Got "
            f"{values[wrong[0]].tolist()} in row {wrong[0] + 1}."
        )
    return numbers.astype(np.float32)
