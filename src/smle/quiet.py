"""Arithmetic without NumPy's warnings, whatever the caller asks NumPy for: overflow and NaN are part of programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

__all__ = ["quiet"]

_F = TypeVar("_F", bound=Callable[..., Any])


def quiet(function: _F) -> _F:
    """Let a function compute without warnings. It takes half the time of a `with` block, which small answers notice."""
    if int(np.__version__.partition(".")[0]) >= 2:
        return np.errstate(all="ignore")(function)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):  # as a decorator, it is shared by threads
            return function(*args, **options)

    return called  # type: ignore[return-value]
