"""Checks tables and arrays as estimators take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array
from sklearn.utils.validation import _check_sample_weight

from smle.errors import DataError
from smle.rules import Specification
from smle.tables import Reader, as_table, column_names, plain_array, raw_values, read_numbers

__all__ = ["counting_rows", "named_table", "plain_table", "spread"]

Array = npt.NDArray[np.float64]


def plain_table(X: Any, spec: Specification) -> Any:
    """Return tables with column names unchanged, and anything else as a checked two-dimensional array.

    Raises ValueError if it is sparse, complex, empty or one-dimensional, or has infinities, NaN without a stand-in, or
    integers that would be rounded.
    """
    X = as_table(X)
    if column_names(X) is not None:
        return X
    X = plain_array(X)
    if not (spec.one_hot or spec.dates):
        stands_in = any(item.missing is not None for item in spec.inputs)
        return _numbers(X, "allow-nan" if stands_in else True, spec)
    try:
        array = np.asarray(X, dtype=object)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.ndim != 2:
        raise DataError(
            f"Expected a table: rows with {len(spec.inputs)} input columns each. Got {type(X).__name__} which is none."
        )
    return array


def named_table(X: Any, names: Sequence[str] | None = None, *, owner: str = "") -> Any:
    """Return a table unchanged, or an array as a table with given names, else `x0`, `x1`, ...

    Raises ValueError if an array is sparse, complex, empty or one-dimensional, or has infinities, and DataError if it
    has another number of columns.
    """
    import pandas as pd

    X = as_table(X)
    if column_names(X) is not None:
        if not len(X):
            raise DataError("Expected some rows. Got 0 sample(s).")
        return X
    X = plain_array(X)
    kind = getattr(getattr(X, "dtype", None), "kind", "")
    if kind in "OUS" and kind and any(isinstance(value, str) for value in X.ravel().tolist()):
        array = check_array(X, dtype=object, ensure_all_finite=False)
    else:
        array = _numbers(X, "allow-nan")
    if names is not None and array.shape[1] != len(names):
        raise DataError(f"X has {array.shape[1]} features, but {owner} is expecting {len(names)} features as input.")
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])] if names is None else list(names))


def _numbers(X: Any, finite: Any, spec: Specification | None = None) -> npt.NDArray[Any]:
    """Return an array of numbers; refuse what only NumPy reads as numbers, and what was rounded."""
    checked: npt.NDArray[Any] = check_array(X, dtype=[np.float64, np.float32], ensure_all_finite=finite)
    if id(checked) == id(X):  # floats, not copied
        return checked
    raw = raw_values(X)
    if spec is not None and len(spec.inputs) == raw.shape[1]:
        Reader(spec).read(raw)
    else:
        for place, values in enumerate(raw.T):
            _, faults = read_numbers(str(place), values, truth=True, noun="Column")
            if faults:
                raise DataError(faults[0].message)
    return checked


def counting_rows(X: npt.NDArray[Any], weight: Any) -> tuple[npt.NDArray[np.intp], Array | None]:
    """Return the numbers of the rows with a weight above zero, and their weights, or None without weights.

    Raises ValueError if a weight is negative or their number differs, and DataError if all are zero.
    """
    if weight is None:
        return np.arange(len(X)), None
    weight = _check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)
    rows = np.flatnonzero(weight)
    if not len(rows):
        raise DataError("Expected some sample weights above zero. Got zeros only: there is nothing to learn.")
    return rows, weight[rows]


def spread(values: npt.NDArray[Any]) -> Array:
    """Return the standard deviation of each column, 1 where it is zero."""
    deviation = values.std(axis=0, dtype=np.float64)
    return np.where(deviation > 0, deviation, 1.0)
