"""SafeClassifier around any classifier: labels and choices are read off what the certified head serves."""

from __future__ import annotations

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from smle import NetworkClassifier, SafeClassifier, Specification, load
from smle.errors import ConversionError, DataError
from smle.export import load_onnx
from smle.rules.membership import broken
from smle.tables import encode_inputs
from smle.tables.frames import frame_of

TREAT = """
inputs: {fever: [34, 43], age: {range: [0, 110], integer: true}}
choices: {treatment: [wait, pills, clinic, surgery]}
rules:
  - {name: high fever, when: fever >= 40, then: treatment != wait}
  - {name: children, when: age < 12, then: treatment != surgery}
  - {name: old and hot, when: age > 80 and fever > 39, then: treatment == clinic}
"""
TAGS = """
inputs: {length: [0, 10], loud: [0, 1]}
labels: [news, sports, ads, adult]
rules:
  - {name: apart, never_together: [[news, ads], [sports, adult]]}
  - {name: implies, then: sports implies news}
  - {name: quiet, when: loud < 0.2, then: not adult}
"""


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(0)
    n = 400
    X = pd.DataFrame({
        "fever": rng.uniform(36, 42, n).round(1), "age": rng.integers(0, 100, n),
        "ward": rng.choice(["a", "b", None], n),
    })  # fmt: skip
    score = 0.6 * (X["fever"] - 37) + 0.01 * X["age"] + 0.4 * (X["ward"] == "a") + rng.normal(0, 0.5, n)
    return X, pd.Series(np.array(["wait", "pills", "clinic", "surgery"])[np.digitize(score, [0.8, 2, 2.8])])


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(1)
    X = pd.DataFrame({"length": rng.uniform(0, 10, 400), "loud": rng.uniform(0, 1, 400)})
    y = np.stack([
        X["length"] > 4, X["length"] > 6, X["loud"] > 0.5, X["loud"] > 0.7
    ], axis=1) ^ (rng.random((400, 4)) < 0.05)  # fmt: skip
    return X, pd.DataFrame(y.astype(int), columns=["news", "sports", "ads", "adult"])


def encoded(model):
    text = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((text, ["ward"]), remainder="passthrough"), model)


NETWORK = NetworkClassifier(hidden_layer_sizes=(16,), max_epochs=60, random_state=0)
ESTIMATORS = {
    "patients": {
        "boosting": encoded(HistGradientBoostingClassifier(max_iter=20)),
        "logistic": encoded(make_pipeline(StandardScaler(), LogisticRegression())),
        "forest": encoded(RandomForestClassifier(10, random_state=0)),
        "xgboost": encoded(xgboost.XGBClassifier(n_estimators=10, n_jobs=1)),
        "lightgbm": encoded(lightgbm.LGBMClassifier(n_estimators=10, n_jobs=1, verbose=-1)),
        "calibrated": encoded(CalibratedClassifierCV(LinearSVC())),
        "network": NETWORK,
    },
    "texts": {
        "boosting": MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=20)),
        "logistic": make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression())),
        "forest": RandomForestClassifier(10, random_state=0),
        "perceptron": make_pipeline(StandardScaler(), MLPClassifier(max_iter=30, random_state=0)),
        "network": NETWORK,
    },
}
RULES = {"patients": (TREAT, 0.55), "texts": (TAGS, 0.75)}  # and the least accuracy


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(("table", "name"), [(table, name) for table, names in ESTIMATORS.items() for name in names])
def test_answers_obey_and_agree_with_the_estimator_where_they_may(request, table, name, tmp_path):
    (X, y), (rules, least) = request.getfixturevalue(table), RULES[table]
    spec = Specification.from_yaml(rules)
    model = SafeClassifier(spec, estimator=ESTIMATORS[table][name], compare=False).fit(X, y)
    answers, found = model.predict(X), encode_inputs(spec, X)
    assert not broken(spec, found, model.raw_outputs(X)).any()
    own = model.estimator_.predict(frame_of(X, spec))  # missing text is NaN, as in fit; in pandas 2 it may be None
    own = np.array(sorted(y.unique()))[own] if name == "xgboost" else np.asarray(own)
    allowed = ~broken(spec, found, _scores(spec, own)).any(axis=1)
    assert 0 < allowed.sum() < len(X)
    assert (answers == own).reshape(len(X), -1)[allowed].all(axis=1).mean() > 0.99
    assert (answers == y.to_numpy()).mean() > least
    if table == "patients":
        chances = model.predict_proba(X)
        assert np.allclose(chances.sum(axis=1), 1.0, atol=1e-5)
        assert (model.classes_[chances.argmax(axis=1)] == answers).all()
    else:
        assert np.array_equal(model.decision_function(X) >= 0, answers == 1)
    model.save(tmp_path / "model")
    assert (load(tmp_path / "model").predict(X) == answers).all()
    model.to_onnx(tmp_path / "model.onnx")
    graph = load_onnx(tmp_path / "model.onnx").predict(X)[[item.name for item in spec.outputs]]
    assert (graph.to_numpy().reshape(answers.shape) == answers).mean() > 0.99


def _scores(spec, own):
    """Return scores that decide as an estimator did: options by name, labels by 0 and 1."""
    if own.ndim == 2:
        return np.where(own == 1, 1.0, -1.0)
    return (own[:, None] == np.array(spec.outputs[0].options)).astype(np.float64)


def test_labels_are_scored_row_by_row_only():
    rules = "inputs: {x: [0, 1]}\nlabels: [p, q]\nrules:\n  - {name: r, when: x >= 0.9, then: p implies q}\n"
    X = pd.DataFrame({"x": np.linspace(0, 1, 40)})
    y = pd.DataFrame({"p": (X["x"] > 0.5).astype(int), "q": (X["x"] > 0.6).astype(int)})
    model = SafeClassifier(rules, RandomForestClassifier(5, random_state=0), compare=False).fit(X, y)
    for score in (model.score, model.label_accuracy):
        assert score(X, y) > 0.9
        for rows, truth in ((X, y[:1]), (X[:1], y)):
            with pytest.raises(ValueError, match="inconsistent numbers of samples"):
                score(rows, truth)
        with pytest.raises(ValueError, match="0 sample"):
            score(X[:0], y[:0])


def test_searches_and_numbers_as_classes(patients):
    X, y = patients
    model = SafeClassifier(TREAT, estimator=encoded(HistGradientBoostingClassifier(max_iter=10)))
    search = GridSearchCV(model, {"estimator__histgradientboostingclassifier__max_leaf_nodes": [4, 8]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.4
    assert (cross_val_score(model, X, y, cv=2) > 0.4).all()
    stars = y.map({"wait": 1, "pills": 2, "clinic": 3, "surgery": 5})
    rules = "inputs: {fever: [34, 43]}\nchoices: {stars: ['1', '2', '3', '4', '5']}\nrules:\n"
    rules += "  - {name: hot, when: fever >= 40, then: stars != '1'}\n"
    for inner in (HistGradientBoostingClassifier(max_iter=10), xgboost.XGBClassifier(n_estimators=10, n_jobs=1)):
        rated = SafeClassifier(rules, estimator=encoded(inner)).fit(X, stars)  # nobody has four stars
        assert set(rated.predict(X)) <= {1, 2, 3, 5}
        assert (rated.predict(X) == stars).mean() > 0.5
        assert 1 not in rated.predict(X[X["fever"] >= 40])


def test_clear_errors(patients):
    X, y = patients
    with pytest.raises(ConversionError, match=r"no predict_proba\. Wrap it: CalibratedClassifierCV"):
        SafeClassifier(TREAT, estimator=encoded(LinearSVC())).fit(X, y)
    with pytest.raises(DataError, match="unknown option 'magic'"):
        SafeClassifier(TREAT, estimator=encoded(LogisticRegression())).fit(X, y.replace("wait", "magic"))
