"""What safe networks are compared with: rules enforced on the targets, on the predictions, on the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smle.exact import exact
from smle.guarantees.nearest import nearest_outputs
from smle.rules import Specification
from smle.tables import encode_inputs, encode_numbers

__all__ = ["oracle", "postprocess", "preprocess", "violation_rate"]

Array = npt.NDArray[np.float64]


def preprocess(spec: Specification, X: Any, y: Any) -> Array:
    """Return the nearest allowed training targets (rows, m)."""
    return nearest_outputs(spec, encode_inputs(spec, X), encode_numbers(spec, y))


def postprocess(spec: Specification, X: Any, predictions: Any) -> Array:
    """Return the nearest allowed predictions (rows, m): one optimization per prediction at inference time."""
    return nearest_outputs(spec, encode_inputs(spec, X), encode_numbers(spec, predictions))


def oracle(spec: Specification, X: Any, y: Any) -> Array:
    """Return the nearest allowed true outputs (rows, m): the best that any model which obeys can do."""
    return nearest_outputs(spec, encode_inputs(spec, X), encode_numbers(spec, y))


def violation_rate(spec: Specification, X: Any, y: Any) -> float:
    """Return the share of rows that break a rule, judged in exact arithmetic without tolerance."""
    inputs, outputs = encode_inputs(spec, X), encode_numbers(spec, y)
    broken = 0
    for x, row in zip(inputs.tolist(), outputs.tolist(), strict=True):
        broken += bool(spec.violated([exact(v) for v in x], [exact(v) for v in row]))
    return broken / max(len(inputs), 1)
