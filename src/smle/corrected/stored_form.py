"""The stored form of a fitted estimator: an ONNX model that agrees with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import ConversionError, DataError, ModelFormatError
from smle.graphs.convert import conversions
from smle.rules import Specification
from smle.serving.fronts import StoredModel, answers_of
from smle.serving.scores import NumberScores, scores_of
from smle.tables import column_names

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["stored_form"]

Array = npt.NDArray[Any]


_AGREES = 1e-5  # of the spread of the answers


def stored_form(
    model: Any,
    spec: Specification,
    frame: pd.DataFrame,
    encoded: Array,
    *,
    table: Any = None,
    classes: Sequence[Any] | None = None,
) -> StoredModel:
    """Return a fitted estimator as an ONNX model that agrees with it on all rows of a table.

    Probabilities may differ by 1e-5, numbers by 1e-5 of their spread.

    Args:
        model: The estimator.
        spec: The rules.
        frame: Rows as of `frame_of`, to which it was fitted.
        table: The same rows as they are passed, if it was fitted to those.
        encoded: The inputs of the rules in these rows (n, d).
        classes: For a choice what the classes of the estimator stand for, where they are only numbered.

    Raises:
        ConversionError: If it cannot be converted, or the result differs by more than 1e-5 of the spread.
        MissingDependencyError: If a converter is not installed.
    """
    scores = scores_of(spec, model, classes)
    table = frame if table is None else table
    wanted = answers_of(spec, scores.predicted(model, table), len(frame)).astype(np.float64)
    differences = []
    for data in conversions(model, frame, scores):
        try:
            stored = StoredModel(data)
            rows = table if column_names(table) is not None else frame
            found = answers_of(spec, stored.answers(rows, encoded), len(frame)).astype(np.float64)
        except (ModelFormatError, DataError) as error:
            differences.append(str(error))
            continue
        far = _far(wanted, scores.undone(found), numbers=isinstance(scores, NumberScores))
        if not far:
            return stored
        differences.append(far)
    raise ConversionError(
        f"The ONNX form of {type(model).__name__} gives other answers: {differences[0]} Its converter (skl2onnx, "
        "onnxmltools) does not support all of it, or float32 is too coarse for it. Scale large inputs and targets, "
        "encode categories in front of it, or choose another estimator. smle.correct(fitted, spec) serves any model, "
        "but only in Python: it cannot be stored."
    )


def _far(wanted: Array, found: Array, *, numbers: bool) -> str:
    """Say how far two sets of answers (n, m) are apart, where that is more than rounding."""
    usual = np.where(np.isfinite(wanted), wanted, np.nan)
    with np.errstate(invalid="ignore"):
        spread = np.nan_to_num(np.nanstd(usual, axis=0)) if len(wanted) else np.ones(wanted.shape[1])
        largest = np.nan_to_num(np.nanmax(np.abs(usual), axis=0, initial=0.0))
        apart = np.abs(wanted - found)
        same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    unit = np.where((spread > 0) & numbers, spread, 1.0)
    allowed = _AGREES * unit + 4 * np.spacing(largest.astype(np.float32))
    wrong = ~(same | (apart <= allowed))
    if not wrong.any():
        return ""
    column = int(wrong.sum(axis=0).argmax())
    worst = np.nanmax(np.where(wrong[:, column], apart[:, column], 0.0))
    return (
        f"{int(wrong.any(axis=1).sum())} of {len(wanted)} rows differ, by up to {worst:.3g} where "
        f"{allowed[column]:.3g} is allowed (1e-5 of the spread, and rounding)."
    )
