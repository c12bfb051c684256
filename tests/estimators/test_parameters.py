"""What estimators are told is kept, has one default, and means what scikit-learn means by it."""

import inspect
import json
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputClassifier

import smle
from smle import NetworkRegressor, SafeClassifier, SafeRegressor, SMLERegressor, Specification, load
from smle.errors import DataError, ModelFormatError, NotCertifiedError
from smle.parameters import NetworkParameters, help_of, plain_parameters
from smle.training import TrainingOptions

RULES = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: cap, then: y <= 3}]\n"
LABELS = "inputs: {x: [0, 1]}\nlabels: [a, b]\nrules: [{name: one, when: x >= 0.9, then: not (a and b)}]\n"
QUICK = {"hidden_layer_sizes": (8,), "max_epochs": 2, "random_state": 3}


@pytest.fixture
def table():
    x = np.linspace(0, 1, 60)
    return pd.DataFrame({"x": x}), pd.Series(2 + 2 * x, name="y")


def test_a_loaded_model_has_the_parameters_that_it_was_fitted_with(table, tmp_path):
    told = {**QUICK, "learning_rate": 3e-3, "patience": None, "schedule": None}
    network = SafeRegressor(RULES, NetworkRegressor(**told), compare=False, out_of_domain="clip").fit(*table)
    estimator = SafeRegressor(RULES, Ridge(), out_of_domain="warn").fit(*table)
    for name, model in (("network", network), ("estimator", estimator)):
        model.save(tmp_path / name)
        again = load(tmp_path / name)
        assert plain_parameters(again) == plain_parameters(model)
        assert again.spec == Specification.from_yaml(RULES)
        np.testing.assert_array_equal(again.predict(table[0]), model.predict(table[0]))
    again = load(tmp_path / "network")
    assert again.out_of_domain == "clip"
    assert not again.compare
    for name, value in told.items():
        assert getattr(again.estimator, name) == value
    np.testing.assert_array_equal(again.fit(*table).predict(table[0]), network.predict(table[0]))  # the same once more


@pytest.mark.parametrize("parameters", [{"max_epochs": 8}, {"spec": RULES}, {"out_of_domain": "hide"}, [1]])
def test_other_parameters_in_a_folder_are_refused(table, tmp_path, parameters):
    model = SafeRegressor(RULES.replace("{name: cap, then: y <= 3}", ""), NetworkRegressor(**QUICK), compare=False).fit(
        *table
    )
    model.deployed_.describe({**model.description_, "parameters": parameters})
    model.save(tmp_path / "model")
    with pytest.raises(ModelFormatError, match=r"model\.json"):
        load(tmp_path / "model")
    for wrong in ({"hidden": [8]}, {"max_epochs": 0}, {"checkpoint": "file"}, [1]):
        model.deployed_.describe({**model.description_, "parameters": {}, "network": wrong})
        model.save(tmp_path / "model", overwrite=True)
        with pytest.raises(ModelFormatError, match=r"model\.json"):
            load(tmp_path / "model")


def test_parameters_of_networks_are_stated_once():
    stated = {item.name: item.default for item in fields(NetworkParameters)}
    for kind in (NetworkRegressor, SMLERegressor):
        parameters = inspect.signature(kind).parameters
        assert {name: parameters[name].default for name in stated} == stated
        assert all(f"{name}: {words}" in kind.__doc__ for name, words in help_of(kind).items())
        assert set(help_of(kind)) == set(parameters)
    shared = [item for item in fields(TrainingOptions) if item.name in stated]
    assert len(shared) > 8
    given = {"final_epochs": 0, "weight_decay": 0.0}  # the loop decides nothing by the data
    assert {item.name: item.default for item in shared} == {
        item.name: given.get(item.name, stated[item.name]) for item in shared
    }


def test_a_search_reaches_the_network_inside(table):
    X, y = table
    model = SafeRegressor(RULES, NetworkRegressor(**QUICK), compare=False)
    search = GridSearchCV(model, {"estimator__max_epochs": [1, 8], "out_of_domain": ["clip"]}, cv=2).fit(X, y)
    assert search.best_estimator_.estimator_.max_epochs == search.best_params_["estimator__max_epochs"]
    assert search.best_estimator_.certificate_.check()
    assert [len(part.estimator_.history_.loss) for part in (model.set_params(estimator__max_epochs=3).fit(X, y),)] == [
        3
    ]
    copied = clone(model)
    assert copied.estimator is not model.estimator
    assert copied.get_params()["estimator__max_epochs"] == 3
    assert not hasattr(copied, "estimator_")
    assert not hasattr(model.estimator, "network_")


def test_what_an_estimator_can_do_it_can_do_inside(table):
    X, y = table
    model, plain = SafeRegressor(RULES, SGDRegressor(random_state=0)), SGDRegressor(random_state=0)
    for part in np.array_split(np.arange(60), 3):
        model.partial_fit(X.iloc[part], y.iloc[part])
        plain.partial_fit(X.iloc[part], y.iloc[part])
        assert model.certificate_.check()
    np.testing.assert_allclose(model.own_answers(X)[:, 0], plain.predict(X), atol=1e-5)
    rules = (
        "inputs: {x: [0, 1]}\nchoices: {side: [left, right]}\nrules: [{name: r, when: x <= 0.1, then: side == left}]"
    )
    sides = np.where(X["x"] > 0.5, "right", "left")
    classifier = SafeClassifier(rules, SGDClassifier(loss="log_loss", random_state=0))
    for part in np.array_split(np.arange(60), 3):  # the first has one side alone
        classifier.partial_fit(X.iloc[part], sides[part])
    assert classifier.classes_.tolist() == ["left", "right"]
    grown = SafeRegressor(RULES, GradientBoostingRegressor(n_estimators=3, warm_start=True), random_state=0).fit(X, y)
    first = grown.estimator_.estimators_[0, 0].predict(X.to_numpy())
    grown.set_params(estimator__n_estimators=5, estimator__max_depth=1).fit(X, y)
    depths = [tree.get_depth() for tree in grown.estimator_.estimators_.ravel()]
    assert depths == [3, 3, 3, 1, 1]
    assert np.array_equal(grown.estimator_.estimators_[0, 0].predict(X.to_numpy()), first)
    forests = [SafeRegressor(RULES, RandomForestRegressor(3), random_state=seed).fit(X, y) for seed in (1, 1, 2)]
    assert [forest.estimator_.random_state for forest in forests] == [1, 1, 2]
    answers = [forest.predict(X) for forest in forests]
    assert np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])


def test_weights_are_routed_to_the_network_by_default(table):
    X, y = table
    weight = np.where(np.arange(60) < 30, 1.0, 0.0)
    network = NetworkRegressor(**QUICK)
    plain = SafeRegressor(RULES, network, compare=False).fit(X, y, sample_weight=weight)
    with config_context(enable_metadata_routing=True):
        asking = SafeRegressor(RULES, network.set_fit_request(sample_weight=True), compare=False)
        assert np.array_equal(asking.fit(X, y, sample_weight=weight).predict(X), plain.predict(X))
        SafeRegressor(RULES).get_metadata_routing().route_params(caller="fit", params={"sample_weight": weight})


def test_rows_outside_are_treated_as_the_estimator_was_told(table):
    X, y = table
    far = pd.DataFrame({"x": [0.5, 7.0]})
    strict = SafeRegressor(RULES, estimator=Ridge()).fit(X, y)
    with pytest.raises(DataError, match="outside the domain"):
        strict.predict(far)
    mild = SafeRegressor(RULES, estimator=Ridge(), out_of_domain="clip").fit(X, y)
    assert mild.predict(far)[1] <= 3
    with pytest.raises(DataError, match="outside the domain"):
        mild.predict(far, out_of_domain="raise")
    narrow = SafeRegressor(RULES.replace("[0, 1]", "[0, 2]"), estimator=Ridge(), out_of_domain="clip")
    assert len(cross_val_score(narrow, X, y, cv=3)) == 3
    with pytest.raises(ValueError, match="Expected out_of_domain to be 'raise', 'warn' or 'clip'"):
        SafeRegressor(RULES, estimator=Ridge(), out_of_domain="hide").fit(X, y)


def test_the_score_of_several_labels_is_that_of_scikit_learn(table):
    X = table[0]
    y = pd.DataFrame({"a": (X["x"] > 0.3).astype(int), "b": (np.arange(60) % 3 == 0).astype(int)})
    model = SafeClassifier(LABELS, estimator=MultiOutputClassifier(LogisticRegression())).fit(X, y)
    weight = np.linspace(1, 2, 60)
    found = model.predict(X)
    assert model.score(X, y) == pytest.approx(accuracy_score(y, found))
    assert model.score(X, y, weight) == pytest.approx(accuracy_score(y, found, sample_weight=weight))
    assert model.label_accuracy(X, y) == pytest.approx((found == y.to_numpy()).mean())
    assert model.score(X, y) < model.label_accuracy(X, y) < 1


def test_a_certified_folder_is_replaced_if_that_is_said(table, tmp_path):
    model = SafeRegressor(RULES, estimator=Ridge()).fit(*table)
    free = SafeRegressor(RULES.replace("{name: cap, then: y <= 3}", ""), estimator=Ridge()).fit(*table)
    free.save(tmp_path / "model")
    model.save(tmp_path / "model")  # nothing was proved of the one before
    before = (tmp_path / "model" / "certificate.json").read_bytes()
    for other in (free, model, smle.correct(lambda table: table, Specification.from_yaml(RULES))):
        with pytest.raises((ModelFormatError, smle.errors.ConversionError)):
            other.save(tmp_path / "model")
    with pytest.raises(ModelFormatError, match="holds a certified model"):
        free.save(tmp_path / "model")
    assert (tmp_path / "model" / "certificate.json").read_bytes() == before
    free.save(tmp_path / "model", overwrite=True)
    assert json.loads((tmp_path / "model" / "model.json").read_text())["kind"] == "SafeRegressor"
    assert not (tmp_path / "model" / "certificate.json").exists()


def test_verify_certify_and_project_take_estimators(table):
    X, y = table
    model = SafeRegressor(RULES, estimator=Ridge()).fit(X, y)
    corrected = smle.correct(Ridge().fit(X, y), Specification.from_yaml(RULES))
    for safe in (model, corrected):
        assert smle.certify(safe) is safe.certificate_
        assert [item.rule for item in smle.verify(safe)] == ["cap"]
    network = SafeRegressor(RULES, NetworkRegressor(**QUICK, final_epochs=0), compare=False).fit(X, y)
    for safe, most in ((model, 2.5), (network, 2.75)):
        stricter = smle.project(safe, Specification.from_yaml(RULES.replace("<= 3", f"<= {most!r}")))
        np.testing.assert_array_equal(stricter.predict(X), np.minimum(safe.predict(X), np.float32(most)))
        assert stricter.certificate_.check()
        assert stricter.predict(X).max() < safe.predict(X).max()
    assert smle.project(model).predict(X).max() == model.predict(X).max()
    with pytest.raises(NotCertifiedError, match="Nothing is proved"):
        smle.certify(SafeRegressor(RULES.replace("{name: cap, then: y <= 3}", ""), Ridge()).fit(X, y))
    for call in (lambda: smle.project(model, margin=1.0), lambda: smle.certify(model, files={})):
        with pytest.raises(TypeError, match="is for"):
            call()
