"""Any estimator inside: fitted to the table as it is passed, for its stored form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.metadata_routing import process_routing

from smle.errors import DataError
from smle.tables.frames import is_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fit_inner", "routed_arguments", "title_of"]

Array = npt.NDArray[Any]


def fit_inner(inner: Any, frame: pd.DataFrame, targets: Array, routed: dict[str, Any]) -> tuple[Any, list[Any] | None]:
    """Fit an estimator; return it, and what its classes stand for if they are only numbered.

    Raises:
        DataError: If it reads numbers alone and there is text, or takes one output and there are several.
        Other errors: Whatever the estimator raises.
    """
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
                f"{title_of(last)} reads numbers, and column '{texts[0]}' holds text. Put an encoder in front: "
                f"make_pipeline(make_column_transformer((OneHotEncoder(handle_unknown='ignore'), {texts}), "
                f"remainder='passthrough'), {title_of(last)}())."
            ) from error
        if targets.ndim == 1 or ("1d" not in str(error) and "1D" not in str(error)):
            raise
        name, wrap = title_of(last), "MultiOutputClassifier" if is_classifier(last) else "MultiOutputRegressor"
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


def routed_arguments(model: Any, sample_weight: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return what the estimator of a model is to be fitted with beside data: as requested, or else as passed."""
    from sklearn.utils._metadata_requests import _routing_enabled

    given = params if sample_weight is None else {**params, "sample_weight": sample_weight}
    if _routing_enabled():
        return dict(process_routing(model, "fit", **given).estimator.fit)
    inner, prefix = model.estimator, ""
    while isinstance(inner, Pipeline):  # without routing, pipelines want to be told which step is meant
        name, inner = inner.steps[-1]
        prefix += f"{name}__"
    return {f"{prefix}{name}" if name == "sample_weight" else name: value for name, value in given.items()}


def title_of(estimator: Any) -> str:
    """Return the name of an estimator, of the last step of a pipeline or of what a search or wrapper holds."""
    if isinstance(estimator, Pipeline):
        return title_of(estimator.steps[-1][1])
    if isinstance(estimator, TransformedTargetRegressor) and estimator.regressor is not None:
        return title_of(estimator.regressor)
    inside = getattr(estimator, "estimator", None)
    return type(estimator).__name__ if inside is None else f"{type(estimator).__name__}({title_of(inside)})"
