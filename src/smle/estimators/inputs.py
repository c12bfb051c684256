"""Tables and arrays as estimators take them."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array

from smle.rules import NumericInput, Specification
from smle.tables import column_names, in_domain, require_in_domain

__all__ = ["apply_domain_policy", "observed_inputs", "plain_table", "spread"]

Array = npt.NDArray[np.float64]


def plain_table(X: Any, *, categorical: bool) -> Any:
    """Return tables with column names as they are, and anything else as a checked two-dimensional array.

    Raises:
        ValueError: If it is sparse, complex, empty, one-dimensional, or has NaN or infinities.
    """
    if column_names(X) is not None:
        return X
    if categorical:
        return np.asarray(X, dtype=object)
    return check_array(X, dtype=[np.float64, np.float32])


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


def apply_domain_policy(spec: Specification, encoded: npt.NDArray[Any], policy: str) -> None:
    """Raise or warn about rows outside the domain, as the policy asks.

    Raises:
        DataError: If rows lie outside and the policy is `raise`.
        ValueError: If the policy is unknown.
    """
    if policy not in ("raise", "warn", "clip"):
        raise ValueError(f"Expected out_of_domain to be 'raise', 'warn' or 'clip'. Got {policy!r}.")
    if not spec.rules:
        return
    if policy == "raise":
        require_in_domain(spec, encoded, "rows")
    elif policy == "warn":
        outside = int((~in_domain(spec, encoded).all(axis=1)).sum())
        if outside:
            warnings.warn(f"{outside} of {len(encoded)} rows lie outside the domain of the rules.", stacklevel=4)
