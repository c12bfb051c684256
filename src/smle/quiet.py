"""Silences NumPy's floating-point warnings, whatever the caller's settings: programs compute infinities and NaN."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

__all__ = ["quiet"]

_F = TypeVar("_F", bound=Callable[..., Any])


def quiet(function: _F) -> _F:
    """Make a function compute without warnings, in half the time of a `with` block, which counts for small answers."""
    if int(np.__version__.partition(".")[0]) >= 2:
        return np.errstate(all="ignore")(function)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):  # as a decorator, it is shared by threads
            return function(*args, **options)

    return called  # type: ignore[return-value]
