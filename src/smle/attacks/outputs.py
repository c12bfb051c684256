"""Output columns as a user reads them: numbers, labels as True or False, options by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules import Choice, Number, Specification

__all__ = ["decisions"]

Doubles = npt.NDArray[np.float64]


def decisions(spec: Specification, y: Doubles, used: tuple[int, ...]) -> dict[str, Any]:
    """Return the outputs that have one of the columns `used`, as a user reads them."""
    result: dict[str, Any] = {}
    start = 0
    for item in spec.outputs:
        width = len(item.options) if isinstance(item, Choice) else 1
        values = y[start : start + width]
        if any(start <= column < start + width for column in used):
            if isinstance(item, Choice):
                best = values.max() if item.pick == "max" else values.min()
                result[item.name] = " = ".join(o for o, v in zip(item.options, values, strict=True) if v == best)
            else:
                result[item.name] = float(values[0]) if isinstance(item, Number) else bool(values[0] >= 0)
        start += width
    return result
