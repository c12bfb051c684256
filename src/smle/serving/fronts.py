"""Models in front of a head, and their answers: numbers, log-odds of labels, scores of options.

Models stored as ONNX run on tables by column name, with onnxruntime and without torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import tensors_of
from smle.errors import DataError, ModelFormatError
from smle.extras import require
from smle.monitor.corrections import WIDE
from smle.rules import Choice, Number, Specification
from smle.serving.estimator_scores import scores_of
from smle.serving.perceptron import Perceptron
from smle.storage import ModelRecord
from smle.tables import ReadTable, column_names
from smle.tables.any_table import require_names
from smle.tables.frames import as_texts, examined_numbers
from smle.tables.further import FurtherColumns
from smle.tables.values import Fault
from smle_check import Tensor

__all__ = [
    "NUMBERS",
    "TEXT",
    "Front",
    "PythonModel",
    "StoredModel",
    "answers_of",
    "columns_of",
    "decided",
    "front_of",
    "is_table",
    "require_tables",
    "runtime_errors",
    "session_of",
    "typical",
]

Array = npt.NDArray[Any]
_CHUNK = 65536  # rows per call, so that memory stays flat
NUMBERS = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}  # fmt: skip
TEXT = "tensor(string)"
_TRAINED_ON = "what the model was trained on (more than the rules name)"


def answers_of(spec: Specification, found: Any, rows: int) -> Array:
    """Return a model's answers as float32 columns (rows, m), as in `spec.targets`.

    Raises DataError if they have another shape, or are not numbers.
    """
    try:
        if np.iscomplexobj(found):
            raise TypeError  # NumPy would drop the imaginary part
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
    """Return median and spread (m,) of answers (n, m), ignoring those that a head would replace."""
    usable = np.where(np.abs(answers) <= WIDE, answers.astype(np.float64), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns with only NaN
        return np.nan_to_num(np.nanmedian(usable, axis=0)), np.nan_to_num(np.nanstd(usable, axis=0))


def decided(spec: Specification, served: Array) -> Any:
    """Return served answers as predictions: numbers, labels as 0 or 1, options by name; a table for several kinds."""
    kind = spec.output_kind
    if kind in ("numbers", "labels"):
        result = served if kind == "numbers" else (served >= 0).astype(np.int64)
        return result[:, 0] if result.shape[1] == 1 else result
    columns = {}
    for item, place in spec.output_slices:
        values = served[:, place]
        if isinstance(item, Choice):
            best = (values if item.pick == "max" else -values).argmax(axis=1)
            columns[item.name] = np.asarray(item.options, dtype=object)[best]
        else:
            columns[item.name] = values[:, 0] if isinstance(item, Number) else (values[:, 0] >= 0).astype(np.int64)
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
    """A model that exists only in Python: an estimator without a stored form, or a function of a table.

    Attributes:
        model: The estimator or function.
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
        """Return its answers to a table."""
        if not hasattr(self.model, "predict"):
            return self.model(table)
        if self._spec.output_kind == "mixed":
            return self.model.predict(table)
        scores = scores_of(self._spec, self.model)
        return scores.answers(scores.predicted(self.model, table))

    def faults(self, table: Any) -> list[Fault]:
        """Return []: the model alone knows what it can read."""
        return []


class StoredModel:
    """An ONNX model of a table. It reads columns by name or, with one wide input, the inputs of the rules.

    Attributes:
        onnx: Its bytes.
        columns: The columns it reads by name, or None for the inputs of the rules.
        texts: Columns that it reads as text.

    Raises:
        ModelFormatError: If onnxruntime cannot load it, or its inputs are not columns of a table.
        MissingDependencyError: If onnxruntime is not installed.
    """

    kind = "estimator"

    def __init__(self, data: bytes) -> None:
        self.onnx: bytes | None = data
        self.tensors: dict[str, Tensor] = {}
        self._session = session_of(data)
        inputs = self._session.get_inputs()
        strange = [item for item in inputs if item.type != TEXT and item.type not in NUMBERS]
        if strange or not inputs:
            listed = ", ".join(f"{item.name}: {item.type}" for item in strange) or "none"
            raise ModelFormatError(f"Expected an ONNX model whose inputs are numbers or text. Got {listed}.")
        self.kinds = {item.name: item.type for item in inputs}
        self.outputs = tuple(item.name for item in self._session.get_outputs())
        require_tables([(item.name, item.shape) for item in inputs])
        wide = len(inputs) == 1 and inputs[0].shape[1] != 1
        self.columns = None if wide and inputs[0].type != TEXT else tuple(self.kinds)
        self.texts = tuple(name for name, kind in self.kinds.items() if kind == TEXT)

    def __getstate__(self) -> dict[str, Any]:
        return {"onnx": self.onnx}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["onnx"])  # type: ignore[misc]

    def require_width(self, spec: Specification) -> None:
        """Raise ModelFormatError if it has one wide input with another number of columns than the rules."""
        width = self._session.get_inputs()[0].shape[1]
        if self.columns is None and isinstance(width, int) and width != len(spec.columns):
            raise ModelFormatError(
                f"Expected an ONNX model that reads the {len(spec.columns)} columns of the rules "
                f"({', '.join(spec.columns)}). Got one that reads {width}."
            )

    def answers(self, table: Any, encoded: Array) -> Array:
        """Return its answers to a table, (rows, m); `encoded` holds the inputs of the rules (rows, d).

        Raises DataError if a column differs from training, and ModelFormatError if the model fails.
        """
        if self.columns is None:
            ((name, kind),) = self.kinds.items()
            with np.errstate(over="ignore"):
                feed: dict[str, Array] = {name: encoded.astype(NUMBERS[kind])}
        else:
            feed = columns_of(table, self.kinds)
        if len(encoded) <= _CHUNK:
            return self._run(feed)
        starts = range(0, len(encoded), _CHUNK)
        return np.concatenate(
            [self._run({name: column[i : i + _CHUNK] for name, column in feed.items()}) for i in starts]
        )

    def faults(self, table: Any) -> list[Fault]:
        """Return what is wrong with the number columns it reads from a table, by row."""
        return [] if self.columns is None else faults_in(table, self.kinds)

    def named(self, names: Sequence[str], table: Any) -> dict[str, Array]:
        """Return some of its outputs by name, for a table with the columns of all its inputs.

        Raises DataError if a column does not fit, and ModelFormatError if the model fails.
        """
        with runtime_errors():
            found = self._session.run(list(names), columns_of(table, self.kinds))
        return dict(zip(names, map(np.asarray, found), strict=True))

    def _run(self, feed: dict[str, Array]) -> Array:
        try:
            with runtime_errors():
                answers = np.asarray(self._session.run(None, feed)[0])
        except ModelFormatError as error:
            if "Unknown Category" not in str(error):
                raise
            raise DataError(
                f"A column of text ({', '.join(self.texts)}) holds a value that did not occur in training, and the "
                "model refuses it. Fit the model with OneHotEncoder(handle_unknown='ignore')."
            ) from error
        rows = len(next(iter(feed.values())))
        return answers[:, None] if answers.shape == (rows,) else answers


Front = Perceptron | StoredModel | PythonModel
"""A model in front of a head: a stored network or ONNX model, or something that exists only in Python.

Each has `answers(table, encoded)`, and `faults(table)`, which tells what is wrong with its own columns, by row. `kind`
is `network`, `estimator` or `function`. A model folder stores its `tensors` (`backbone.*` of model.safetensors) and
`onnx` (the bytes of model.onnx). The model reads the `columns` of the table by name, `texts` among them as text; a
network reads them besides the inputs of the rules. With None as `columns`, it reads only these inputs.
"""


def front_of(record: ModelRecord) -> Front:
    """Load the model in front from a record. Raises ModelFormatError if the record has none."""
    if record.onnx is not None:
        return StoredModel(record.onnx)
    architecture = record.description.get("architecture")
    if isinstance(architecture, dict) and architecture.get("backbone") == "onnx":
        raise ModelFormatError("The model folder has no model.onnx.")
    return Perceptron(
        tensors_of(record.weights) if record.certificate is None else record.certificate.tensors,
        None if record.further is None else FurtherColumns.from_json(record.further),
    )


def is_table(inputs: Sequence[tuple[str, Sequence[Any]]]) -> bool:
    """Return whether inputs (name, shape) are columns of any number of rows, or one wide input.

    Sizes that are not fixed are None or names.
    """
    return all(
        len(shape) == 2
        and not (isinstance(shape[0], int) and shape[0] > 0)
        and (len(inputs) == 1 or shape[1] in (1, None) or isinstance(shape[1], str))
        for _, shape in inputs
    )


def require_tables(inputs: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """Raise ModelFormatError unless inputs (name, shape) are columns of any number of rows, or one wide input."""
    if not is_table(inputs):
        listed = ", ".join(f"'{name}' of shape [{', '.join(map(str, shape))}]" for name, shape in inputs)
        raise ModelFormatError(
            f"Expected an ONNX model of tables: one input (rows, columns), or an input (rows, 1) for each column, and "
            f"any number of rows. Got {listed}. Export it anew with rows as a free first dimension and its columns as "
            "the second, or correct a function that calls it: smle.correct(lambda table: ..., spec)."
        )


def columns_of(table: Any, kinds: Mapping[str, str]) -> dict[str, Array]:
    """Return columns of a table (rows, 1) in the types that a graph reads. Raises DataError if one does not fit."""
    rows = table if isinstance(table, ReadTable) else ReadTable(table)
    if rows.columns is None:
        raise DataError(f"Expected a table with the columns {', '.join(kinds)}. Got {type(table).__name__}.")
    require_names(rows.columns, list(kinds), _TRAINED_ON)
    feed = {}
    for name, kind in kinds.items():
        values = as_texts(rows[name]) if kind == TEXT else rows.numbers(name, NUMBERS[kind])
        feed[name] = values[:, None]
    return feed


def faults_in(table: Any, kinds: Mapping[str, str]) -> list[Fault]:
    """Return what is wrong with the numbers that a graph reads from a table, column by column.

    Raises DataError if a column is missing.
    """
    require_names(column_names(table) or [], list(kinds), _TRAINED_ON)
    read = (examined_numbers(name, table[name], NUMBERS[kind]) for name, kind in kinds.items() if kind != TEXT)
    return [fault for _, faults in read for fault in faults]


def session_of(data: bytes) -> Any:
    """Return a session of onnxruntime that runs these bytes. Raises ModelFormatError if it cannot load them."""
    runtime = require("onnxruntime", "Predicting with an ONNX file")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors are raised anyway
    with runtime_errors():
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@contextmanager
def runtime_errors() -> Iterator[None]:
    """Turn onnxruntime's errors, which share no class, into a one-line ModelFormatError."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise ModelFormatError(f"onnxruntime cannot run this file: {' '.join(str(error).split())}") from error
