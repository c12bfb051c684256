"""Makes estimators by name, with the preprocessing that a table needs, and tries which suits the table best."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from smle.errors import SmleError
from smle.extras import require
from smle.rules import Specification
from smle.tables.frames import frame_of, is_text

if TYPE_CHECKING:
    import pandas as pd

    from smle.estimators.base import SafeEstimator

__all__ = ["AUTO", "NAMES", "Tried", "named_estimator", "tried_models", "with_parameters"]

AUTO = "auto"
NAMES = (
    "network", "smle", AUTO, "hist-gradient-boosting", "random-forest", "extra-trees", "ridge", "xgboost", "lightgbm",
)  # fmt: skip
_TRIED = ("hist-gradient-boosting", "random-forest", "ridge", "network")
_CATEGORIES = 100  # most values of a text column; one with more is likely an identifier


def named_estimator(name: str, spec: Specification, table: Any, *, seed: int = 0) -> Any:
    """Return a pipeline for all columns of a table but the outputs, ending in an estimator by name.

    `name` is one of `NAMES` but `network`, `smle` and `auto`. Text is one-hot encoded; text columns with more than 100
    values, and columns without a value, are left out. Missing numbers stay missing for boosting and forests, and become
    the median for ridge.
    """
    outputs = [item.name for item in spec.outputs]
    frame = frame_of(table, spec)
    numbers, texts = _columns(frame)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()) if name == "ridge" else "passthrough"
    in_front = [("text", OneHotEncoder(handle_unknown="ignore", sparse_output=False), texts), ("n", scaled, numbers)]
    regression = spec.output_kind == "numbers"
    model = _made(name, regression, seed)
    if len(outputs) > 1 and not (regression and name == "ridge"):  # a forest would mix outputs of different units
        model = (MultiOutputRegressor if regression else MultiOutputClassifier)(model)
    return make_pipeline(ColumnTransformer([part for part in in_front if part[2]]), model)


def with_parameters(pipeline: Any, values: Mapping[str, Any]) -> Any:
    """Set parameters of a pipeline's last estimator, and return the pipeline. Raises ValueError for an unknown one."""
    last = pipeline[-1]
    (last.estimator if isinstance(last, MultiOutputRegressor | MultiOutputClassifier) else last).set_params(**values)
    return pipeline


def _columns(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the usable columns with numbers, and those with text."""
    used = [name for name in frame.columns if not frame[name].isna().all()]
    texts = [name for name in used if is_text(frame[name])]
    return [name for name in used if name not in texts], [n for n in texts if frame[n].nunique() <= _CATEGORIES]


def _made(name: str, regression: bool, seed: int) -> Any:
    if name in ("xgboost", "lightgbm"):
        package, kind = require(name, f"--estimator {name}"), "XGB" if name == "xgboost" else "LGBM"
        quiet = {"verbose": -1} if name == "lightgbm" else {}
        return getattr(package, f"{kind}{'Regressor' if regression else 'Classifier'}")(random_state=seed, **quiet)
    if name == "ridge":
        return RidgeCV(alphas=np.logspace(-3, 3, 13)) if regression else LogisticRegression(max_iter=1000)
    forest = {"n_estimators": 200, "min_samples_leaf": 2, "n_jobs": 1}
    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "hist-gradient-boosting": (
            HistGradientBoostingRegressor, HistGradientBoostingClassifier, {"categorical_features": None},
        ),
        "random-forest": (RandomForestRegressor, RandomForestClassifier, forest),
        "extra-trees": (ExtraTreesRegressor, ExtraTreesClassifier, forest),
    }  # fmt: skip
    regressor, classifier, given = kinds[name]
    return (regressor if regression else classifier)(random_state=seed, **given)


class Tried(NamedTuple):
    """A model with its mean score on held-out rows, or the reason why it has none."""

    name: str
    score: float
    reason: str = ""


def tried_models(make: Callable[[str], SafeEstimator], X: pd.DataFrame, y: Any, *, seed: int = 0) -> list[Tried]:
    """Score a few models in three-fold cross-validation, by the R2 or accuracy of their answers; the best comes first.

    `make` returns an unfitted model for a name. X and y are tables of the same rows.
    """
    result = []
    folds = list(KFold(3, shuffle=True, random_state=seed).split(X))
    for name in _TRIED:
        scores = []
        try:
            for kept, held in folds:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = make(name).fit(X.iloc[kept], y.iloc[kept])
                    scores.append(model.score(X.iloc[held], y.iloc[held]))
        except (SmleError, ValueError) as error:
            result.append(Tried(name, -np.inf, " ".join(str(error).split())))
        else:
            result.append(Tried(name, float(np.mean(scores))))
    return sorted(result, key=lambda tried: -tried.score)
