"""Wraps any model for a search: a fitted estimator, a function, a torch module, an ONNX file."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError, ModelFormatError
from smle.graphs.rows import model_of_rows
from smle.rules import Categorical, NumericInput, Specification
from smle.serving.estimator_scores import scores_of
from smle.serving.fronts import StoredModel
from smle.tables import column_names, encode_inputs, in_domain, outputs_of

__all__ = ["AskedTable", "subject_of"]

FloatArray = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]


class AskedTable:
    """The tables that a model reads, made from encoded inputs, with the further columns of an example table.

    Stand-in values are passed as missing. Tables are pandas tables, or arrays if the examples are one.
    """

    def __init__(self, spec: Specification, examples: Any = None, *, plain: bool = False) -> None:
        self.spec, self.plain = spec, plain or (examples is not None and column_names(examples) is None)
        self.examples: Any = None  # show what else the model reads
        if examples is not None and not self.plain:
            outputs = {item.name for item in spec.outputs}
            table = examples if hasattr(examples, "iloc") else examples.to_pandas()
            self.examples = table[[label for label in table.columns if str(label) not in outputs]]

    def columns(self, X: FloatArray) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs (n,) by name: numbers, categories as text, None or NaN where missing."""
        result: dict[str, npt.NDArray[Any]] = {}
        for item, place in self.spec.input_slices:
            flag = self.spec.flag_columns.get(item.name)
            gone = np.zeros(len(X), dtype=bool)
            if flag is not None:  # the flag says what is missing
                gone = X[:, flag] == 1
            elif item.stand_in:
                gone = (X[:, place] == np.array(item.stand_in, dtype=np.float64)).all(axis=1)
            if isinstance(item, Categorical):
                names = np.array(item.categories, dtype=object)[X[:, place].argmax(axis=1)]
                names[gone] = None
                result[item.name] = names
            else:
                result[item.name] = _numbers(item, X[:, place.start], gone)
        return result

    def of(self, X: FloatArray) -> Any:
        """Return a table of these inputs."""
        import pandas as pd

        columns = self.columns(X)
        if self.plain:
            texts = any(values.dtype == object for values in columns.values())
            return np.stack([values.astype(object if texts else X.dtype) for values in columns.values()], axis=1)
        if self.examples is None or not len(self.examples):
            return pd.DataFrame(columns)
        rows = self.examples.iloc[np.arange(len(X)) % len(self.examples)].reset_index(drop=True)
        labels = {str(label): label for label in rows.columns}
        for name, values in columns.items():
            label = labels.get(name, name)
            kind = rows[label].dtype if label in rows else None
            series = pd.Series(values, index=rows.index)
            if isinstance(kind, pd.CategoricalDtype) or (kind is not None and values.dtype == object):
                series = series.astype(kind)
            rows[label] = series
        return rows

    def row(self, x: FloatArray) -> dict[str, Any]:
        """Return one encoded input (d,) by name, with None where the value is missing."""
        values = {name: column[0] for name, column in self.columns(x[None]).items()}
        return {name: _plain(value) for name, value in values.items()}


def _numbers(item: NumericInput, values: FloatArray, missing: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    if item.integer and not missing.any():
        return values.astype(np.int64)
    return np.where(missing, values.dtype.type(np.nan), values)


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value != value:
        return None
    return value


class _Tables:
    """A model that reads tables of numbers in a float format."""

    def __init__(
        self, table: AskedTable, answer: Callable[[Any, FloatArray], Any], dtype: type[np.floating[Any]] = np.float64
    ) -> None:
        self.table, self._answer, self.dtype = table, answer, dtype

    def ask(self, X: FloatArray) -> tuple[FloatArray, Doubles]:
        table = self.table.of(X.astype(self.dtype))
        read = encode_inputs(self.table.spec, table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = self._answer(table, read)
            except (KeyError, ValueError) as error:
                if self.table.examples is not None:
                    raise
                raise DataError(
                    f"The model cannot answer a table of the rules' inputs alone: {error} If it reads other columns, "
                    "pass examples=TABLE."
                ) from error
        return read, outputs_of(self.table.spec, found, len(read))

    def pull(self, X: FloatArray, weights: Doubles) -> Doubles | None:
        return None


def subject_of(model: Any, spec: Specification, examples: Any = None) -> Any:
    """Wrap a model for a search. Raises TypeError for an unknown kind, ModelFormatError for a bad ONNX file."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from smle.networks.asked import AskedModule

        return AskedModule(model, spec)
    table = AskedTable(spec, examples)
    if isinstance(model, str | os.PathLike):
        return _Tables(table, _of_file(Path(model), spec), np.float32)  # a file reads numbers as float32
    if isinstance(model, type) or not (hasattr(model, "predict") or callable(model)):
        raise TypeError(
            "Expected a fitted model with a method `predict`, a function of a table, a torch module, or the path of an "
            f"ONNX file. Got {f'the class {model.__name__}' if isinstance(model, type) else type(model).__name__}."
        )
    if hasattr(model, "raw_outputs"):  # a model of smle: attack what it serves
        return _Tables(table, lambda rows, _: model.raw_outputs(rows))
    if not hasattr(model, "predict"):
        return _Tables(table, lambda rows, _: model(rows))
    if examples is None and hasattr(model, "n_features_in_") and not hasattr(model, "feature_names_in_"):
        table = AskedTable(spec, plain=True)  # it was fitted to arrays
    if spec.output_kind in ("labels", "choice") and (
        hasattr(model, "predict_proba") or hasattr(model, "decision_function")
    ):
        scores = scores_of(spec, model)
        return _Tables(table, lambda rows, _: scores.answers(scores.predicted(model, rows)))
    return _Tables(table, lambda rows, _: model.predict(rows))


def _of_file(path: Path, spec: Specification) -> Callable[[Any, FloatArray], Any]:
    if path.is_dir():
        raise ModelFormatError(f"'{path}' is a folder. Load the model in it: smle.attack(smle.load('{path}')).")
    try:
        stored = StoredModel(model_of_rows(path.read_bytes(), spec.columns))
    except OSError as error:
        raise ModelFormatError(f"Cannot read '{path}': {error.strerror}. Expected an ONNX file.") from None
    names = [item.name for item in spec.outputs]
    if not set(names) <= set(stored.outputs):
        return stored.answers

    def exported(table: Any, _: FloatArray) -> Any:
        import pandas as pd

        texts = {item.name: table[item.name].fillna("") for item in spec.inputs if item.name in stored.texts}
        found = stored.named(names, table.assign(**texts))
        return pd.DataFrame({name: values[:, 0] for name, values in found.items()})

    return exported


def usable(spec: Specification, examples: Any) -> FloatArray | None:
    """Return the examples that lie in the domain, encoded (n, d)."""
    if examples is None:
        return None
    try:
        encoded = encode_inputs(spec, examples)
    except DataError as error:
        raise DataError(f"The examples do not fit the rules. {error}") from None
    kept: FloatArray = encoded[in_domain(spec, encoded).all(axis=1)]
    return kept
