"""What safe networks are compared with: rules enforced on the targets, on the predictions, on the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.guarantees import broken, nearest_outputs
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
    """Return the share of rows that break a rule, judged without tolerance; regions are read as the guard reads them.

    A constant that one input is compared with means its nearest float, in the format of the inputs: x = 0.7 in float32
    is not below 0.7. Everything else is the exact value of the floats.
    """
    inputs, outputs = encode_inputs(spec, X), encode_numbers(spec, y)
    if len(inputs) != len(outputs):
        raise DataError(f"Expected as many rows of outputs as of inputs ({len(inputs)}). Got {len(outputs)}.")
    return float(broken(spec, inputs, outputs).any(axis=1).mean()) if len(inputs) else 0.0
