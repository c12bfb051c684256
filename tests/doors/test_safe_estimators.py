"""SafeRegressor around any estimator: fitted, stored, searched, served in the stored form, never breaking a rule."""

from __future__ import annotations

import pickle

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import xgboost
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from smle import SafeRegressor, Specification, load
from smle.errors import CertificateError, ContradictionError, ConversionError, DataError
from smle.nearest.oracle import nearest_outputs
from smle.rules.membership import broken
from smle.tables import encode_inputs
from support.rules_cases import BANK, DOSE


def pipeline(model):
    text = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((text, ["job", "town"]), remainder=SimpleImputer()), model)


INNER = {
    "boosting": pipeline(MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=20))),
    "ridge": pipeline(Ridge()),
    "forest": pipeline(RandomForestRegressor(10, random_state=0)),
    "xgboost": pipeline(xgboost.XGBRegressor(n_estimators=20, n_jobs=1)),
    "lightgbm": pipeline(MultiOutputRegressor(lightgbm.LGBMRegressor(n_estimators=20, verbose=-1, n_jobs=1))),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("name", INNER)
def test_the_stored_form_is_served_and_obeys(bank, name, tmp_path):
    X, y = bank
    spec = Specification.from_yaml(BANK)
    model = SafeRegressor(spec, estimator=INNER[name]).fit(X, y)
    answers = model.predict(X)
    encoded, plain = encode_inputs(spec, X), model.estimator_.predict(X.assign(job=X["job"].astype(object)))
    assert broken(spec, encoded, plain).any()
    assert not broken(spec, encoded, answers).any()
    allowed = nearest_outputs(spec, encoded, plain.astype(np.float64))
    assert (np.median(np.abs(answers - allowed), axis=0) <= 1e-6 * np.abs(allowed).max(axis=0)).all()
    model.save(tmp_path / "model")
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "certificate.json", "model.json", "model.onnx", "model.safetensors", "rules.yaml",
    ]  # fmt: skip
    loaded = load(tmp_path / "model")
    assert np.array_equal(loaded.predict(X), answers)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), answers)
    assert np.array_equal(loaded.predict(_as_polars(X)), answers)
    assert len(loaded.certificate_.check()) == 8
    assert model.description_["training"]["head"]["ways"]["moved"] > 0


def _as_polars(X):
    return pl.DataFrame({c: [None if pd.isna(v) else v for v in X[c]] for c in X.columns})


def test_searches_scores_and_clones(doses):
    X, y = doses
    model = SafeRegressor(DOSE, estimator=HistGradientBoostingRegressor(max_iter=20))
    search = GridSearchCV(model, {"estimator__learning_rate": [0.05, 0.2]}, cv=2).fit(X, y)
    assert isinstance(search.best_estimator_.estimator_, HistGradientBoostingRegressor)
    assert search.best_estimator_.estimator_.learning_rate == search.best_params_["estimator__learning_rate"]
    assert clone(search.best_estimator_).get_params()["estimator__max_iter"] == 20
    assert not hasattr(clone(search.best_estimator_), "estimator_")
    assert (cross_val_score(model, X, y, cv=2) > 0.3).all()
    assert search.predict(X).shape == (400,)
    assert not hasattr(model.estimator, "n_iter_")  # the given one is not fitted


def test_arrays_are_taken_by_position(doses):
    X, y = doses
    model = SafeRegressor(DOSE, estimator=Ridge()).fit(X.to_numpy(), y.to_numpy())
    named = SafeRegressor(DOSE, estimator=Ridge()).fit(X, y)
    assert np.array_equal(model.predict(X.to_numpy()), named.predict(X))
    assert not hasattr(model, "feature_names_in_")
    assert list(named.feature_names_in_) == ["weight", "age"]


def test_the_outputs_in_the_table_are_no_inputs(doses):
    """`fit(data, data["dose"])` must not learn the dose from itself."""
    X, y = doses
    model = SafeRegressor(DOSE, estimator=Ridge()).fit(X.assign(dose=y), y)
    assert list(model.feature_names_in_) == ["weight", "age"]
    assert np.array_equal(model.predict(X), SafeRegressor(DOSE, estimator=Ridge()).fit(X, y).predict(X))


@pytest.mark.parametrize("inner", [Ridge(), make_pipeline(SimpleImputer(), Ridge())])
def test_sample_weights_reach_the_estimator(doses, inner):
    X, y = doses
    weight = np.where(X["age"] < 50, 1.0, 0.0)
    weighted = SafeRegressor(DOSE, estimator=inner).fit(X, y, sample_weight=weight)
    some = SafeRegressor(DOSE, estimator=inner).fit(X[weight > 0], y[weight > 0])
    assert np.allclose(weighted.predict(X), some.predict(X), atol=1e-5)


def test_metadata_is_routed(doses):
    X, y = doses
    weight = np.where(X["age"] < 50, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError):
            SafeRegressor(DOSE, estimator=Ridge()).fit(X, y, sample_weight=weight)
        asking = Ridge().set_fit_request(sample_weight=True)
        weighted = SafeRegressor(DOSE, estimator=asking).fit(X, y, sample_weight=weight)
        search = GridSearchCV(
            SafeRegressor(DOSE, estimator=asking).set_score_request(sample_weight=False),
            {"estimator__alpha": [1.0]},
            cv=2,
        ).fit(X, y, sample_weight=weight)
    some = SafeRegressor(DOSE, estimator=Ridge()).fit(X[weight > 0], y[weight > 0])
    assert np.allclose(weighted.predict(X), some.predict(X), atol=1e-5)
    assert np.allclose(search.predict(X), some.predict(X), atol=1e-5)


def test_large_targets_keep_their_digits(doses):
    """XGBoost adds float32 numbers to a mean: near 1e6 it would lose what it learned."""
    X, y = doses
    rules = DOSE.replace("0 <= dose <= 0.05 * weight and dose <= 4", "dose <= 2000000")
    rules = rules.replace("dose <= 2}", "dose >= 0}")
    inner = xgboost.XGBRegressor(n_estimators=30, n_jobs=1)
    model = SafeRegressor(rules, estimator=inner).fit(X, y + 1e6)
    small = SafeRegressor(DOSE, estimator=inner).fit(X, y).estimator_.predict(X)
    assert np.abs(model.predict(X) - 1e6 - small).max() < 0.1  # what float32 holds there
    assert np.abs(clone(inner).fit(X, y + 1e6).predict(X) - 1e6 - small).max() > 0.2  # every tree is rounded


def test_a_model_that_answers_nan_is_replaced_counted_and_warned_of(doses, monkeypatch):
    X, y = doses
    model = SafeRegressor(DOSE, estimator=LinearRegression()).fit(X, y)
    late = X.assign(weight=200.0, age=90.0).head(3)
    monkeypatch.setattr(model.deployed_.front, "answers", lambda X, encoded: np.array([np.nan, 1.0, np.inf]))
    with pytest.warns(UserWarning, match="2 of 3 answers of the model are NaN"):
        answers = model.predict(late)
    assert ((answers >= 0) & (answers <= 2)).all()
    assert model.served_ == {"kept": 1, "moved": 0, "near": 0, "replaced": 2, "safe": 0, "set aside": 0}


class _Unable(Ridge):
    """No converter knows it."""

    def predict(self, X):
        return super().predict(X) ** 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"estimator": _Unable()}, ConversionError, "_Unable"),
        ({"spec": DOSE.replace("weight", "mass")}, DataError, r"Missing: 'mass'"),
        ({"spec": DOSE + "  - {name: much, when: age >= 90, then: dose >= 3}\n"}, ContradictionError, "much"),
        ({"spec": DOSE.replace("[2, 250]", "[2, 20]")}, DataError, "training rows lie outside the domain"),
    ],
)  # fmt: skip
def test_clear_errors_that_leave_the_model_as_it_was(doses, change, error, message):
    X, y = doses
    model = SafeRegressor(DOSE, estimator=Ridge()).fit(X, y)
    before = model.predict(X)
    specification = model.spec
    with pytest.raises(error, match=message):
        model.set_params(**change).fit(X, y)
    assert np.array_equal(model.set_params(spec=specification).predict(X), before)


def test_errors_of_tables_are_clear(bank, doses, tmp_path):
    X, y = doses
    model = SafeRegressor(DOSE, estimator=Ridge())
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(DataError, match=r"Column 'since': expected numbers or text. Got datetime64"):
        model.fit(X.assign(since=pd.Timestamp("2026-01-01")), y)
    with pytest.raises(DataError, match="Column 'far': 400 numbers are beyond float32"):
        model.fit(X.assign(far=1e300), y)
    with pytest.raises(DataError, match=r"LGBMRegressor takes one output alone\. Wrap it: MultiOutputRegressor"):
        SafeRegressor(BANK, estimator=pipeline(lightgbm.LGBMRegressor(n_jobs=1))).fit(*bank)
    with pytest.raises(DataError, match=r"HistGradientBoostingRegressor reads numbers, and column 'town' holds text"):
        SafeRegressor(DOSE, estimator=HistGradientBoostingRegressor()).fit(X.assign(town="x"), y)
    towns = X.assign(town=np.where(X["age"] > 50, "x", "y"))
    strict = make_pipeline(make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough"), Ridge())
    with pytest.raises(DataError, match=r"text \(town\) holds a value that did not occur in training"):
        SafeRegressor(DOSE, estimator=strict).fit(towns, y).predict(towns.assign(town="z"))
    model.fit(X.assign(extra=1.0), y)
    assert model.predict(X.assign(extra=1.0).head(0)).shape == (0,)
    with pytest.raises(DataError, match="Missing: 'extra'"):
        model.predict(X)
    with pytest.raises(DataError, match=r"Column 'extra': expected numbers, as in training\. Got 'much'"):
        model.predict(X.assign(extra="much"))
    model.save(tmp_path / "model")
    (tmp_path / "model" / "model.onnx").unlink()
    with pytest.raises(CertificateError, match="onnx"):
        load(tmp_path / "model")
