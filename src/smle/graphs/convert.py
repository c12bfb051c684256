"""Fitted estimators to ONNX: scikit-learn and its pipelines, XGBoost, LightGBM. Nothing is pickled.

The graph has one input (rows, 1) for each column that the estimator reads, text or numbers, and one output (rows, m).
Errors of skl2onnx's converters are fixed here; a graph is stored only if it agrees with its estimator.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.errors import ConversionError, DataError, ModelFormatError
from smle.extras import require
from smle.graphs.categories import with_encoded_categories
from smle.graphs.converters import mended_converters, register_boosters, register_networks, unified
from smle.nearest.onnx.writer import Writer
from smle.rules import Specification
from smle.serving.estimator_scores import NumberScores, Scores, scores_of
from smle.serving.fronts import StoredModel, answers_of
from smle.tables import column_names
from smle.tables.frames import MISSING, is_text
from smle_check.onnx.graph import DOUBLE, FLOAT, OPSET

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ANSWERS", "conversions", "stored_form"]

Array = npt.NDArray[Any]
Undo = Callable[[Writer, str], str]
"""Writes nodes that transform a value; returns the name of the result."""
_ALL = "columns"  # one input for all columns
_INSIDE = "estimator/"  # prefix of names that are not columns
ANSWERS = f"{_INSIDE}answers"
_ML_OPSET = 3
_AGREES = 1e-5  # tolerance, relative to the spread of the answers
_REMEDY = (
    "Choose another estimator, or serve this one in Python alone: smle.correct(fitted, spec) takes any model, "
    "but cannot be stored."
)


def stored_form(
    model: Any,
    spec: Specification,
    frame: pd.DataFrame,
    encoded: Array,
    *,
    table: Any = None,
    classes: Sequence[Any] | None = None,
) -> StoredModel:
    """Return a fitted estimator as an ONNX model that agrees with it on all rows of a table, or raise ConversionError.

    Probabilities may differ by 1e-5, numbers by 1e-5 of their spread. `frame` has the rows as from `frame_of`, `table`
    as passed, if it was fitted on those, and `encoded` (n, d) their inputs of the rules. `classes` are the values of a
    choice's classes, if the estimator only numbers them.
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
    """Say how far two sets of answers (n, m) are apart, or return "" if only by rounding."""
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


def conversions(estimator: Any, frame: pd.DataFrame, scores: Scores) -> Iterator[bytes]:
    """Yield ONNX models of a fitted estimator: first those that read float32 numbers, then one that reads float64.

    `frame` has rows with the columns it was fitted on; `scores` maps its predictions to what a head reads. Raises
    ConversionError if there is no converter, or it fails.
    """
    from sklearn.compose import ColumnTransformer

    _require_scores(estimator, scores)
    model, undo = _without_target_transform(_readable(estimator))
    if _has_categories(model) or any(map(_has_categories, np.ravel(getattr(model, "estimators_", [])))):
        model = with_encoded_categories(model, frame)
    parts = list(_parts(model))
    _require_no_categories(parts)
    by_name = any(isinstance(part, ColumnTransformer) for part in parts)
    types = require("skl2onnx.common.data_types", "Storing an estimator")
    for number in (types.FloatTensorType, types.DoubleTensorType):
        kinds = {name: types.StringTensorType if is_text(frame[name]) else number for name in frame.columns}
        inputs = [(name, kind([None, 1])) for name, kind in kinds.items()]
        if len(set(kinds.values())) == 1 and not by_name:
            inputs = [(_ALL, inputs[0][1].__class__([None, len(kinds)]))]  # the model does not know its columns by name
        try:
            double = number is types.DoubleTensorType
            graph = _converted(model, inputs, double, classes=not isinstance(scores, NumberScores))
            yield _finished(graph, list(kinds), scores, undo)
        except ConversionError:
            if number is types.FloatTensorType:
                raise


def _converted(model: Any, inputs: list[tuple[str, Any]], double: bool, *, classes: bool) -> Any:
    skl2onnx = require("skl2onnx", "Storing an estimator")
    register_boosters(double=double)
    if "smle.estimators.networks" in sys.modules:
        register_networks()
    options = {"zipmap": False} if classes else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return skl2onnx.convert_sklearn(
                model,
                initial_types=inputs,
                target_opset={"": OPSET, "ai.onnx.ml": _ML_OPSET},
                options={id(model): options} if options else None,
                custom_conversion_functions=mended_converters(double=double),
            )
        except Exception as error:  # converters raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConversionError(f"{_name(model)} cannot be stored as ONNX: {reason[:300]}. {_REMEDY}") from error


def _finished(model: Any, names: list[str], scores: Scores, undo: Undo) -> bytes:
    """Return a graph with the original column names, without unused inputs, and with one output."""
    onnx = require("onnx", "Storing an estimator")
    graph, extra = model.graph, []
    kinds = [value.type.tensor_type.elem_type for value in graph.input]
    if len(names) > 1 == len(kinds):
        kinds *= len(names)
        extra = [onnx.helper.make_node("Concat", names, [f"{_INSIDE}{graph.input[0].name}"], axis=1)]
        columns = {}
    else:
        columns = {value.name: name for value, name in zip(graph.input, names, strict=True)}
    _rename(graph, lambda name: columns.get(name, f"{_INSIDE}{name}" if name else ""))
    writer = Writer("estimator/scores/")
    last = undo(writer, scores.written(writer, graph))
    writer.last("Cast", [last], ANSWERS, to=FLOAT)
    nodes = [*extra, *graph.node, *writer.nodes]
    graph.initializer.extend(writer.initializers)
    used = {name for node in nodes for name in node.input}
    inputs = [
        onnx.helper.make_tensor_value_info(name, kind, ["N", 1])
        for name, kind in zip(names, kinds, strict=True)
        if name in used
    ]
    made = onnx.helper.make_graph(
        unified(onnx, nodes, inputs, graph.initializer),
        "estimator",
        inputs,
        [onnx.helper.make_tensor_value_info(ANSWERS, FLOAT, ["N", None])],
        list(graph.initializer),
    )
    opsets = [onnx.helper.make_opsetid(entry.domain, entry.version) for entry in model.opset_import]
    result = onnx.helper.make_model(made, opset_imports=opsets, ir_version=9, producer_name="smle")
    return bytes(result.SerializeToString(deterministic=True))


def _rename(graph: Any, name: Callable[[str], str]) -> None:
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = name(value.name)
    for node in graph.node:
        node.input[:], node.output[:] = map(name, list(node.input)), map(name, list(node.output))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, name)


def _name(estimator: Any) -> str:
    steps = getattr(estimator, "steps", None)
    return f"{type(estimator).__name__} of {_name(steps[-1][1])}" if steps else type(estimator).__name__


# --- what is refused, and what is mended


def _parts(estimator: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield an estimator and all estimators inside it."""
    from sklearn.base import BaseEstimator

    seen = set() if seen is None else seen
    if id(estimator) in seen:
        return
    seen.add(id(estimator))
    if isinstance(estimator, BaseEstimator):
        yield estimator
        inside: Any = vars(estimator).values()
    elif isinstance(estimator, dict):
        inside = estimator.values()
    elif isinstance(estimator, list | tuple) or (isinstance(estimator, np.ndarray) and estimator.dtype == object):
        inside = estimator
    else:
        return
    for part in inside:
        yield from _parts(part, seen)


def _require_scores(estimator: Any, scores: Scores) -> None:
    if not isinstance(scores, NumberScores) and not hasattr(estimator, "predict_proba"):
        raise ConversionError(
            f"{_name(estimator)} cannot be stored as ONNX: it has no predict_proba. Wrap it: CalibratedClassifierCV("
            f"{_name(estimator)}()). {_REMEDY}"
        )


def _has_categories(model: Any) -> bool:
    """Return whether a fitted model is HistGradientBoosting with categorical features."""
    mask = getattr(model, "is_categorical_", None)
    return type(model).__name__.startswith("HistGradientBoosting") and mask is not None and bool(np.any(mask))


def _require_no_categories(parts: list[Any]) -> None:
    """Refuse estimators that convert without an error, but wrongly."""
    for part in parts:
        if _has_categories(part):
            raise ConversionError(
                f"{_name(part)} with categorical features cannot be stored as ONNX inside another estimator: its "
                "converter reads categories as numbers. Put an encoder in front of it and pass categorical_features="
                "None: make_pipeline(make_column_transformer((OneHotEncoder(handle_unknown='ignore'), [...]), "
                f"remainder='passthrough'), {_name(part)}(categorical_features=None)). {_REMEDY}"
            )


def _readable(estimator: Any) -> Any:
    """Return an estimator, or a copy, that the converters can read.

    Text imputers learn how missing text reaches a stored model; XGBoost boosters get numbered columns.
    """
    from sklearn.impute import SimpleImputer

    def reads_text(part: Any) -> bool:
        return isinstance(part, SimpleImputer) and getattr(part, "statistics_", np.zeros(0)).dtype == object

    def names_columns(part: Any) -> bool:
        return (
            hasattr(part, "get_booster")
            and part.__sklearn_is_fitted__()
            and part.get_booster().feature_names is not None
        )

    if not any(reads_text(part) or names_columns(part) for part in _parts(estimator)):
        return estimator
    estimator = copy.deepcopy(estimator)
    for part in _parts(estimator):
        if reads_text(part):
            part.missing_values = MISSING
        elif names_columns(part):
            part.get_booster().feature_names = None
    return estimator


def _without_target_transform(estimator: Any) -> tuple[Any, Undo]:
    """Return the estimator inside a target transformer, and how to undo the transform after it."""
    from sklearn.compose import TransformedTargetRegressor

    if not isinstance(estimator, TransformedTargetRegressor):
        return estimator, lambda w, source: source
    undo = _undone(estimator.transformer_)
    if undo is None:
        raise ConversionError(
            f"TransformedTargetRegressor with {_name(estimator.transformer_)} cannot be stored as ONNX. Expected "
            f"StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, or inverse_func of exp, expm1, sqrt or "
            f"square of NumPy. {_REMEDY}"
        )
    return estimator.regressor_, undo


def _undone(transformer: Any) -> Undo | None:
    """Return float64 nodes that undo a transform of targets, or None if unknown."""
    functions: dict[Any, list[tuple[str, float | None]]] = {
        None: [], np.exp: [("Exp", None)], np.expm1: [("Exp", None), ("Add", -1.0)],
        np.sqrt: [("Sqrt", None)], np.square: [("Pow", 2.0)],
    }  # fmt: skip
    steps: list[tuple[str, Any]]
    if hasattr(transformer, "inverse_func"):
        if transformer.inverse_func not in functions:
            return None
        steps = list(functions[transformer.inverse_func])
    elif type(transformer).__name__ in ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"):
        width = transformer.n_features_in_
        at_zero, at_one = transformer.inverse_transform(np.stack([np.zeros(width), np.ones(width)]))
        steps = [("Mul", at_one - at_zero), ("Add", at_zero)]
    else:
        return None

    def undo(w: Writer, source: str) -> str:
        found = w.add("Cast", [source], to=DOUBLE)
        for kind, value in steps:
            found = w.add(kind, [found, *([] if value is None else [w.constant(np.asarray(value, np.float64))])])
        return found

    return undo
