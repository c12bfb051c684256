"""Points and numbers in words: short where that is exact, and marked as rounded where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

__all__ = ["number_json", "number_text", "point_json", "point_text"]


def number_text(value: Fraction) -> str:
    """Return a number as a short decimal; `~` marks one that was rounded."""
    for digits in range(7):
        text = f"{float(value):.{digits}f}"
        if Fraction(text) == value:
            return text.rstrip("0").rstrip(".") if "." in text else text
    return f"~{float(value):.6g}"


def point_text(names: Sequence[str], values: Sequence[Fraction]) -> str:
    """Return a point as `name=value, ...`; of a one-hot group only the category that is on."""
    parts = []
    for name, value in zip(names, values, strict=True):
        if "=" in name:
            if value == 1:
                parts.append(name)
        else:
            parts.append(f"{name}={number_text(value)}")
    return ", ".join(parts)


def number_json(value: Fraction) -> dict[str, object]:
    """Return a number as its nearest float and as exact text."""
    return {"value": float(value), "exact": str(value)}


def point_json(names: Sequence[str], values: Sequence[Fraction]) -> dict[str, object]:
    """Return a point as plain data."""
    return {name: number_json(value) for name, value in zip(names, values, strict=True)}
