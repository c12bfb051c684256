"""Estimators of scikit-learn, XGBoost and LightGBM as ONNX: the stored form answers as they do."""

from __future__ import annotations

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    VotingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LassoCV, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVR

from smle import Specification
from smle.errors import ConversionError
from smle.graphs.convert import stored_form
from smle.tables.frames import frame_of

ONE = Specification.from_yaml("inputs: {a: [-1e6, 1e6]}\noutputs: [y]\nrules: []\n")
TWO = Specification.from_yaml("inputs: {a: [-1e6, 1e6]}\noutputs: [y, z]\nrules: []\n")


@pytest.fixture(scope="module")
def table():
    """Text, missing text, missing numbers, truth values, names that ONNX does not like, seconds since 1970."""
    rng = np.random.default_rng(0)
    n = 600
    X = pd.DataFrame({
        "a": rng.normal(size=n) * 1e3, "variable": rng.integers(0, 100, n), "größe (m)": rng.normal(size=n),
        "town": rng.choice(["x", "y", "z", None], n), "gap": rng.choice([1.5, 2.5, np.nan], n),
        "seconds": 1.7e9 + rng.integers(0, 10**6, n), "sure": rng.random(n) < 0.5,
    })  # fmt: skip
    y = 3 * X["a"] + X["variable"] ** 2 + 500 * np.sin(3 * X["größe (m)"]) + 100 * (X["town"] == "x") + 900 * X["sure"]
    return X, np.stack([y, 1e-3 * y + X["größe (m)"]], axis=1)


def encoded(model):
    text = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((text, ["town"]), remainder="passthrough"), model)


def scaled(*models):
    text = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    return make_pipeline(make_column_transformer((text, ["town"]), remainder=numbers), *models)


ESTIMATORS = {
    "ridge": scaled(Ridge()),
    "polynomials": scaled(PolynomialFeatures(2), Ridge()),
    "search": GridSearchCV(scaled(Ridge()), {"ridge__alpha": [0.1, 1.0]}, cv=2),
    "lasso": scaled(LassoCV(cv=2)),
    "hist gradient boosting": encoded(HistGradientBoostingRegressor(max_iter=30)),
    "scaled boosting": scaled(HistGradientBoostingRegressor(max_iter=30, loss="quantile", quantile=0.8)),
    "logarithms": encoded(HistGradientBoostingRegressor(max_iter=30, loss="poisson")),
    "gradient boosting": scaled(GradientBoostingRegressor(n_estimators=20)),
    "forest": encoded(RandomForestRegressor(n_estimators=10, random_state=0)),
    "extra trees": encoded(ExtraTreesRegressor(n_estimators=10, random_state=0)),
    "voting": scaled(VotingRegressor([("a", Ridge()), ("b", RandomForestRegressor(5, random_state=0))])),
    "bagging": scaled(BaggingRegressor(n_estimators=5, random_state=0)),
    "support vectors": scaled(SVR()),
    "neighbors": scaled(KNeighborsRegressor()),
    "perceptron": scaled(MLPRegressor(max_iter=20, random_state=0)),
    "lightgbm": encoded(lightgbm.LGBMRegressor(n_estimators=30, verbose=-1, n_jobs=1)),
    "scaled lightgbm": scaled(lightgbm.LGBMRegressor(n_estimators=30, verbose=-1, n_jobs=1)),
    "xgboost": encoded(xgboost.XGBRegressor(n_estimators=30, n_jobs=1)),
    "scaled xgboost": scaled(xgboost.XGBRegressor(n_estimators=30, n_jobs=1)),
    "scaled targets": TransformedTargetRegressor(
        encoded(HistGradientBoostingRegressor()), transformer=StandardScaler()
    ),
    "logarithms of targets": TransformedTargetRegressor(scaled(Ridge()), func=np.log1p, inverse_func=np.expm1),
}
SEVERAL = {
    "ridge": scaled(Ridge()),
    "forest": encoded(RandomForestRegressor(n_estimators=10, random_state=0)),
    "boosting": encoded(MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=30))),
    "xgboost": encoded(xgboost.XGBRegressor(n_estimators=30, n_jobs=1)),
    "lightgbm": encoded(MultiOutputRegressor(lightgbm.LGBMRegressor(n_estimators=30, verbose=-1, n_jobs=1))),
}


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_stored_form_answers_as_the_estimator(table, name):
    X, y = table
    frame = frame_of(X)
    model = ESTIMATORS[name].fit(frame, np.abs(y[:, 0]))
    stored = stored_form(model, ONE, frame, np.zeros((len(X), 1)))
    answers, own = stored.answers(X.iloc[:50], np.zeros((50, 1)))[:, 0], model.predict(X.iloc[:50])
    assert np.median(np.abs(answers - own)) <= 1e-4 * own.std()  # numbers are not rounded here: some rows may differ
    assert "pickle" not in repr(stored.onnx[:200])


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("name", SEVERAL)
def test_several_outputs(table, name):
    X, y = table
    frame = frame_of(X)
    stored_form(SEVERAL[name].fit(frame, y), TWO, frame, np.zeros((len(X), 1)))


def test_every_row_falls_on_its_side_of_every_threshold():
    """Float32 neighbors, told apart by thresholds between them, which the converters round to one of them."""
    first = np.float32(1.7e9)
    steps = [first]
    for _ in range(40):
        steps.append(np.nextafter(steps[-1], np.float32(np.inf)))
    x = np.tile(np.array(steps, dtype=np.float64), 20)
    X = frame_of(pd.DataFrame({"a": x}))
    y = np.random.default_rng(1).normal(size=41)[np.arange(len(x)) % 41]
    for model in (
        HistGradientBoostingRegressor(max_iter=20, min_samples_leaf=1),
        RandomForestRegressor(5, random_state=0),
        lightgbm.LGBMRegressor(n_estimators=20, min_child_samples=1, verbose=-1, n_jobs=1, min_data_in_bin=1),
    ):
        stored_form(model.fit(X, y), ONE, X, np.zeros((len(X), 1)))


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        (HistGradientBoostingRegressor(max_iter=20), ONE),
        (HistGradientBoostingRegressor(max_iter=20, categorical_features=["town", "variable"]), ONE),
        (MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=20)), TWO),
        (TransformedTargetRegressor(HistGradientBoostingRegressor(max_iter=20), transformer=StandardScaler()), ONE),
    ],
)
def test_categories_of_gradient_boosting(table, model, spec):
    """Categories that are seen, missing and unknown; skl2onnx would read them as numbers."""
    X, y = table
    y = y + 1e4 * np.stack([X["town"] == "y", X["variable"] % 3 == 0], axis=1)
    frame = frame_of(X.astype({"town": "category"}))
    model.fit(frame, y[:, 0] if spec is ONE else y)
    stored = stored_form(model, spec, frame, np.zeros((len(X), 1)))
    other = frame.assign(town=pd.Categorical(["nowhere"] * len(X)), variable=101)
    own = model.predict(other).reshape(len(X), -1)
    assert np.abs(stored.answers(other, np.zeros((len(X), 1))) - own).max() <= 1e-5 * own.std(axis=0).max()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (scaled(KernelRidge()), "KernelRidge cannot be stored as ONNX"),
        (VotingRegressor([("a", HistGradientBoostingRegressor(max_iter=5))]), "inside another estimator"),
        (TransformedTargetRegressor(scaled(Ridge()), func=np.cbrt, inverse_func=lambda v: v**3), "inverse_func of exp"),
        (scaled(Ridge(), ), "gives other answers: 600 of 600 rows differ, by up to"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused_with_the_reason_and_the_remedy(table, model, reason):
    X, y = table
    frame = frame_of(X.astype({"town": "category"}))
    model.fit(frame, y[:, 0])
    if "differ" in reason:
        model = _Drifting(model)
    with pytest.raises(ConversionError, match=reason) as caught:
        stored_form(model, ONE, frame, np.zeros((len(X), 1)))
    assert "smle.correct(fitted, spec" in str(caught.value)


class _Drifting:
    """A model that answers otherwise than what is converted."""

    def __init__(self, model):
        self.__class__ = type("Pipeline", (type(model),), {"predict": lambda self, X: type(model).predict(self, X) + 1})
        self.__dict__.update(model.__dict__)
