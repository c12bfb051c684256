"""Any estimator inside: fitted to the table as it is passed, stored as ONNX, served behind a certified head."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.metadata_routing import process_routing

from smle.corrected import ServedModel, program_of, stored_form
from smle.errors import DataError
from smle.heads import certify_head
from smle.tables.frames import frame_of, is_text

if TYPE_CHECKING:
    from smle.estimators.base import SafeEstimator

__all__ = ["fit_inner"]

Array = npt.NDArray[Any]


def fit_inner(model: SafeEstimator, X: Any, y: Any, sample_weight: Any, params: dict[str, Any]) -> None:
    """Fit a copy of `model.estimator`; set everything that fitting sets. A failure may leave it in parts.

    Raises:
        ConversionError: If the fitted estimator cannot be stored, or the stored form does not agree with it.
        Other errors: As of `SafeEstimator.fit`, and whatever the estimator raises.
    """
    _require_no_training(model)
    rows = model._read_rows(X, y)
    spec = rows.spec
    certificate = None
    if spec.rules:  # first: rules that cannot be proved are better known before an hour of training
        default, scale = rows.task.default(rows.targets)
        certificate = certify_head(spec, default=default, scale=scale)
        program_of(certificate)
    frame = frame_of(rows.table, spec)
    routed = _routed(model, sample_weight, params)
    started = time.monotonic()
    inner, classes = _fitted(model, frame, rows.task.for_estimator(rows.targets), routed)
    seconds = time.monotonic() - started
    stored = model._finished(stored_form(inner, spec, frame, rows.encoded, classes=classes), rows, None)
    model.estimator_ = inner
    architecture = {"backbone": "onnx", "estimator": _title(inner), "columns": list(stored.columns or ())}
    served = ServedModel(stored, spec, certificate)
    history = {"seconds": round(seconds, 3)}
    model._serve(served, rows, frame, list(frame.columns), architecture=architecture, seed=None, history=history)


_OF_NETWORKS = {
    "loss": "the loss of the estimator", "quantile": "the quantile of the estimator",
    "class_weight": "class_weight of the estimator", "calibrate": "CalibratedClassifierCV around the estimator",
    "weight_decay": "the regularization of the estimator", "warm_start": "warm_start of the estimator",
    "device": "the device of the estimator", "callbacks": "the callbacks of the estimator",
}  # fmt: skip


def _require_no_training(model: SafeEstimator) -> None:
    """Raise ValueError if something is asked for that only networks can do."""
    usual = type(model)().get_params(deep=False)
    for name, instead in _OF_NETWORKS.items():
        if name in usual and getattr(model, name) != usual[name]:
            raise ValueError(
                f"Expected {name} to be {usual[name]!r} with an estimator: it says how networks are trained. Got "
                f"{getattr(model, name)!r}. Set {instead} instead."
            )


def _fitted(model: SafeEstimator, frame: Any, targets: Array, routed: dict[str, Any]) -> tuple[Any, list[Any] | None]:
    """Return a fitted copy of the estimator, and what its classes stand for if they are only numbered."""
    inner = model._inner_estimator()
    last = inner.steps[-1][1] if isinstance(inner, Pipeline) else inner
    classes = None
    if type(last).__name__ in ("XGBClassifier", "XGBRFClassifier") and targets.ndim == 1:  # it wants 0, 1, 2, ...
        values, targets = np.unique(targets, return_inverse=True)
        classes = values.tolist()
    if _scales(last):
        inner = TransformedTargetRegressor(inner, transformer=StandardScaler())
    try:
        return inner.fit(frame, targets, **routed), classes
    except ValueError as error:
        texts = [name for name in frame.columns if is_text(frame[name])]
        if "could not convert string to float" in str(error) and texts:
            raise DataError(
                f"{_title(last)} reads numbers, and column '{texts[0]}' holds text. Put an encoder in front: "
                f"make_pipeline(make_column_transformer((OneHotEncoder(handle_unknown='ignore'), {texts}), "
                f"remainder='passthrough'), {_title(last)}())."
            ) from error
        if targets.ndim == 1 or ("1d" not in str(error) and "1D" not in str(error)):
            raise
        name, wrap = _title(last), "MultiOutputClassifier" if is_classifier(last) else "MultiOutputRegressor"
        raise DataError(
            f"{name} takes one output alone. Wrap it: {wrap}({name}()) fits one for each output."
        ) from error


def _scales(estimator: Any) -> bool:
    """Whether an estimator adds float32 numbers to a mean, and learns the same from targets in units of their spread.

    XGBoost does: of targets near 1e6 it loses the digits that its stored form keeps, and the other way round.
    """
    if type(estimator).__name__ not in ("XGBRegressor", "XGBRFRegressor"):
        return False
    params = estimator.get_params()
    given = [params.get(name) for name in ("gamma", "reg_alpha", "base_score", "eval_metric", "early_stopping_rounds")]
    return params.get("objective") in (None, "reg:squarederror") and not any(given)


def _routed(model: SafeEstimator, sample_weight: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return what the inner estimator is to be fitted with beside data: as requested, or else as passed."""
    from sklearn.utils._metadata_requests import _routing_enabled

    given = params if sample_weight is None else {**params, "sample_weight": sample_weight}
    if _routing_enabled():
        return dict(process_routing(model, "fit", **given).estimator.fit)
    estimator, prefix = model.estimator, ""
    while isinstance(estimator, Pipeline):  # without routing, pipelines want to be told which step is meant
        name, estimator = estimator.steps[-1]
        prefix += f"{name}__"
    return {f"{prefix}{name}" if name == "sample_weight" else name: value for name, value in given.items()}


def _title(estimator: Any) -> str:
    """Return the name of an estimator, of the last step of a pipeline or of what a search or wrapper holds."""
    if isinstance(estimator, Pipeline):
        return _title(estimator.steps[-1][1])
    if isinstance(estimator, TransformedTargetRegressor) and estimator.regressor is not None:
        return _title(estimator.regressor)
    inside = getattr(estimator, "estimator", None)
    return type(estimator).__name__ if inside is None else f"{type(estimator).__name__}({_title(inside)})"
