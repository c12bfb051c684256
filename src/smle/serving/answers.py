"""What models answer, as the head of a specification reads it: numbers, log-odds of labels, scores of options."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.monitor.corrections import WIDE
from smle.rules import Choice, Number, Specification
from smle.serving.scores import scores_of
from smle_check import Tensor

if TYPE_CHECKING:
    pass

__all__ = ["PythonModel", "answers_of", "decided", "typical"]

Array = npt.NDArray[Any]


def answers_of(spec: Specification, found: Any, rows: int) -> Array:
    """Return what a model answered, in columns as in `spec.targets`, as float32: (rows, m).

    Raises:
        DataError: If it has another shape, or holds something else than numbers.
    """
    try:
        if np.iscomplexobj(found):
            raise TypeError  # numpy would drop a part
        with np.errstate(over="ignore", under="ignore"):
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


def typical(answers: Array) -> tuple[Array, Array]:
    """Return the median and the spread of answers (n, m), (m,) each; those that a head would replace do not count."""
    usable = np.where(np.abs(answers) <= WIDE, answers.astype(np.float64), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns of NaN alone
        return np.nan_to_num(np.nanmedian(usable, axis=0)), np.nan_to_num(np.nanstd(usable, axis=0))


def decided(spec: Specification, served: Array) -> Any:
    """Return what is served as predictions: numbers, labels as 0 or 1, options by name; a table for several kinds."""
    kind = spec.output_kind
    if kind in ("numbers", "labels"):
        result = served if kind == "numbers" else (served >= 0).astype(np.int64)
        return result[:, 0] if result.shape[1] == 1 else result
    columns, start = {}, 0
    for item in spec.outputs:
        width = len(item.options) if isinstance(item, Choice) else 1
        values = served[:, start : start + width]
        if isinstance(item, Choice):
            best = (values if item.pick == "max" else -values).argmax(axis=1)
            columns[item.name] = np.asarray(item.options, dtype=object)[best]
        else:
            columns[item.name] = values[:, 0] if isinstance(item, Number) else (values[:, 0] >= 0).astype(np.int64)
        start += width
    if kind == "choice":
        return next(iter(columns.values()))
    import pandas as pd

    return pd.DataFrame(columns)


def _example(found: Any) -> str:
    try:
        flat = np.asarray(found, dtype=object).ravel().tolist()
    except ValueError:
        return "rows of different lengths"
    for value in flat:
        try:
            float(value)
        except (TypeError, ValueError):
            return repr(value)[:40]
        except OverflowError:
            return "a whole number too large for a float"
    return type(found).__name__


class PythonModel:
    """A model that lives in Python alone: an estimator that has no stored form, or a function of a table.

    Attributes:
        model: What was given.
        unstored: Why it cannot be stored.
    """

    kind = "function"
    onnx = None
    columns = None
    texts = ()

    def __init__(self, model: Any, spec: Specification, unstored: str) -> None:
        self.model, self.unstored, self._spec = model, unstored, spec
        self.tensors: dict[str, Tensor] = {}

    def answers(self, table: Any, encoded: Array) -> Any:
        """Return what it answers to a table."""
        if not hasattr(self.model, "predict"):
            return self.model(table)
        if self._spec.output_kind == "mixed":
            return self.model.predict(table)
        scores = scores_of(self._spec, self.model)
        return scores.answers(scores.predicted(self.model, table))


# --- the stored form of an estimator
