"""What stands for a missing value."""

from __future__ import annotations

from typing import Any

__all__ = ["is_missing"]


def is_missing(value: Any) -> bool:
    """Whether a value stands for a missing one: None, NaN, or NA of pandas, which does not even compare."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)
