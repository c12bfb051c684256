"""The domain of the rules: which rows lie inside, and what to do about the others."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Specification

__all__ = ["POLICIES", "apply_domain_policy", "in_domain", "require_in_domain"]

FloatArray = npt.NDArray[np.floating[Any]]
POLICIES = ("raise", "warn", "clip")
"""What to do about rows outside the domain."""
_LISTED = 5  # row numbers in a warning
_REMEDY = "Drop these rows, or pass out_of_domain='warn' (or 'clip') to clamp them."


def in_domain(spec: Specification, X: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask (rows, d) of the encoded inputs that lie in the domain, whose ends are read in their format."""
    lower, upper = spec.ends(X.dtype)
    return (lower <= X) & (upper >= X)


def require_in_domain(
    spec: Specification,
    X: FloatArray,
    what: str,
    *,
    numbers: npt.NDArray[np.intp] | None = None,
    remedy: str = "Widen the input ranges in the rules file, or drop these rows.",
) -> None:
    """Raise DataError with counts per column if rows lie outside the domain.

    `numbers` (rows,) are the row numbers in the table, from 0, if they differ.
    """
    inside = in_domain(spec, X)
    if inside.all():
        return
    outside = (~inside).sum(axis=0)
    parts = []
    for i in np.flatnonzero(outside):
        values = X[~inside[:, i], i]
        low, high, found = (spec.value_text(int(i), v) for v in (spec.lower[i], spec.upper[i], values[0]))
        row = int(np.argmin(inside[:, i]))
        parts.append(
            f"'{spec.columns[i]}' {outside[i]} rows outside [{low}, {high}] "
            f"(first {found} in row {1 + int(row if numbers is None else numbers[row])})"
        )
    raise DataError(
        f"{(~inside.all(axis=1)).sum()} of {len(X)} {what} lie outside the domain of the rules: {'; '.join(parts)}. "
        f"{remedy}"
    )


def apply_domain_policy(
    spec: Specification,
    encoded: FloatArray,
    policy: str,
    *,
    numbers: npt.NDArray[np.intp] | None = None,
    stacklevel: int = 4,
) -> None:
    """Raise DataError or warn about rows outside the domain, as `policy` says; `numbers` as in `require_in_domain`."""
    if policy not in POLICIES:
        raise ValueError(f"Expected out_of_domain to be 'raise', 'warn' or 'clip'. Got {policy!r}.")
    if not spec.rules:
        return
    if policy == "raise":
        require_in_domain(spec, encoded, "rows", numbers=numbers, remedy=_REMEDY)
    elif policy == "warn":
        outside = np.flatnonzero(~in_domain(spec, encoded).all(axis=1))
        if len(outside):
            outside = outside if numbers is None else numbers[outside]
            listed = ", ".join(map(str, (outside[:_LISTED] + 1).tolist())) + (", ..." if len(outside) > _LISTED else "")
            warnings.warn(
                f"{len(outside)} of {len(encoded)} rows lie outside the domain of the rules (rows {listed}). They were "
                "clamped; the rules hold at the clamped input.",
                stacklevel=stacklevel,
            )
