"""What models answer, as the head of a specification reads it: numbers, log-odds of labels, scores of options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import ConversionError, DataError, ModelFormatError
from smle.export.convert import conversions
from smle.export.stored import StoredModel
from smle.rules import Specification

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["answers_of", "stored_form"]

Array = npt.NDArray[Any]
_AGREES = 1e-5  # of the spread of the answers
_LEAST = 1e-30  # of a probability, whose logarithm is taken


def answers_of(spec: Specification, found: Any, rows: int) -> Array:
    """Return what a model answered, in columns as in `spec.targets`, as float32: (rows, m).

    Raises:
        DataError: If it has another shape, or holds something else than numbers.
    """
    try:
        with np.errstate(over="ignore"):
            answers = np.asarray(found, dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"Expected numbers as answers ({', '.join(spec.targets)}). Got {_example(found)}.") from None
    answers = answers[:, None] if answers.ndim == 1 else answers
    if answers.shape != (rows, len(spec.targets)):
        raise DataError(
            f"Expected answers of shape {(rows, len(spec.targets))}: a column each for {', '.join(spec.targets)}. "
            f"Got {answers.shape}."
        )
    return answers


def _example(found: Any) -> str:
    flat = np.asarray(found, dtype=object).ravel()
    for value in flat.tolist():
        try:
            float(value)
        except (TypeError, ValueError):
            return repr(value)[:40]
        except OverflowError:
            return "a whole number beyond all floats"
    return type(found).__name__


# --- the stored form of an estimator


def stored_form(model: Any, spec: Specification, frame: pd.DataFrame, encoded: Array) -> StoredModel:
    """Return a fitted estimator as an ONNX model that agrees with it on all rows of a table.

    Raises:
        ConversionError: If it cannot be converted, or the result differs by more than 1e-5 of the spread.
        MissingDependencyError: If a converter is not installed.
    """
    wanted = answers_of(spec, model.predict(frame), len(frame)).astype(np.float64)
    differences = []
    for data in conversions(model, frame):
        try:
            stored = StoredModel(data)
            found = answers_of(spec, stored.answers(frame, encoded), len(frame)).astype(np.float64)
        except (ModelFormatError, DataError) as error:
            differences.append(str(error))
            continue
        far = _far(wanted, found)
        if not far:
            return stored
        differences.append(far)
    raise ConversionError(
        f"The stored form of {type(model).__name__} does not agree with it: {differences[0]} Its converter (skl2onnx, "
        "onnxmltools) does not know all that it does, or float32 numbers are too coarse for it. Scale large inputs and "
        "targets, encode categories in front of it, or choose another estimator; smle.correct(fitted, specification) "
        "serves any model in Python, but cannot be stored."
    )


def _far(wanted: Array, found: Array) -> str:
    """Say how far two sets of answers (n, m) are apart, where that is more than rounding."""
    usual = np.where(np.isfinite(wanted), wanted, np.nan)
    with np.errstate(invalid="ignore"):
        spread = np.nan_to_num(np.nanstd(usual, axis=0)) if len(wanted) else np.ones(wanted.shape[1])
        largest = np.nan_to_num(np.nanmax(np.abs(usual), axis=0, initial=0.0))
        apart = np.abs(wanted - found)
        same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    allowed = _AGREES * np.where(spread > 0, spread, 1.0) + 4 * np.spacing(largest.astype(np.float32))
    wrong = ~(same | (apart <= allowed))
    if not wrong.any():
        return ""
    column = int(wrong.sum(axis=0).argmax())
    worst = np.nanmax(np.where(wrong[:, column], apart[:, column], 0.0))
    return (
        f"{int(wrong.any(axis=1).sum())} of {len(wanted)} rows differ, by up to {worst:.3g} where "
        f"{allowed[column]:.3g} is allowed (1e-5 of the spread, and rounding)."
    )
