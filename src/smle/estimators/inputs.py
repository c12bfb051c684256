"""Tables and arrays as estimators take them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array

from smle.errors import DataError
from smle.rules import NumericInput, Specification
from smle.tables import Reader, as_table, column_names, plain_array, raw_values, read_numbers

__all__ = ["observed_inputs", "plain_table", "spread"]

Array = npt.NDArray[np.float64]


def plain_table(X: Any, spec: Specification | None) -> Any:
    """Return tables with column names as they are, and anything else as a checked two-dimensional array.

    Raises:
        ValueError: If it is sparse, complex, empty, one-dimensional, or has infinities, NaN without a stand-in, or
            whole numbers that would be rounded.
    """
    X = as_table(X)
    if column_names(X) is not None:
        return X
    X = plain_array(X)
    if spec is None or not (spec.one_hot or spec.dates):
        stands_in = spec is not None and any(item.missing is not None for item in spec.inputs)
        checked = check_array(X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan" if stands_in else True)
        if checked is not X:
            _require_numbers(raw_values(X), spec)
        return checked
    try:
        array = np.asarray(X, dtype=object)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.ndim != 2:
        raise DataError(
            f"Expected a table: rows with {len(spec.inputs)} input columns each. Got {type(X).__name__} which is none."
        )
    return array


def _require_numbers(raw: npt.NDArray[Any], spec: Specification | None) -> None:
    """Raise DataError for what numpy reads as numbers and tables do not, and for whole numbers that were rounded."""
    if spec is not None and len(spec.inputs) == raw.shape[1]:
        Reader(spec).read(raw)
        return
    for place, values in enumerate(raw.T):
        _, faults = read_numbers(str(place), values, truth=True, noun="Column")
        if faults:
            raise DataError(faults[0].message)


def observed_inputs(X: Any) -> tuple[NumericInput, ...]:
    """Return inputs named and ranged as in a table of numbers, for models without rules."""
    names = column_names(X)
    array = check_array(X, dtype=np.float64)
    names = [f"x{i}" for i in range(array.shape[1])] if names is None else names
    inputs = []
    for i, name in enumerate(names):
        low, high = float(array[:, i].min()), float(array[:, i].max())
        inputs.append(NumericInput(name, Fraction(low), Fraction(high) if high > low else Fraction(low) + 1))
    return tuple(inputs)


def spread(values: npt.NDArray[Any]) -> Array:
    """Return the standard deviation of each column, 1 where it is zero."""
    deviation = values.std(axis=0, dtype=np.float64)
    return np.where(deviation > 0, deviation, 1.0)
