"""Networks read all columns of a table: text, missing values, and what the rules do not name; through every door."""

import numpy as np
import pandas as pd
import polars
import pytest
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from smle import (
    NetworkClassifier,
    NetworkRegressor,
    SafeClassifier,
    SafeQuantileRegressor,
    SafeRegressor,
    SMLERegressor,
    Specification,
    correct,
    load,
    project,
)  # fmt: skip
from smle.errors import DataError, ModelFormatError
from smle.export import check_onnx, load_onnx
from smle.tables import encode_inputs
from smle.tables.further import FurtherColumns

QUICK = {"hidden_layer_sizes": (16, 16), "embedding": 8, "max_epochs": 60, "random_state": 0}
RULES = "inputs: {size: [0, 10]}\noutputs: [price]\nrules: [{name: cap, when: size <= 5, then: price <= 8}]\n"


@pytest.fixture(scope="module")
def houses() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 600
    table = pd.DataFrame({"rooms": rng.integers(1, 6, n), "size": rng.uniform(0, 10, n)})
    table["town"] = rng.choice(["Bonn", "Köln", "Trier"], n)
    table["garden"] = rng.random(n) < 0.5
    table["id"] = [f"house {i}" for i in range(n)]  # says nothing, and there are too many
    table["price"] = table["size"] + 2 * table["rooms"] + table["town"].map({"Bonn": 0, "Köln": 4, "Trier": -4})
    table.loc[rng.random(n) < 0.2, "rooms"] = np.nan
    table.loc[rng.random(n) < 0.1, "town"] = None
    return table


def safe(kind: type = SafeRegressor, **more: object) -> SafeRegressor:
    return kind(RULES, NetworkRegressor(**QUICK), compare=False, **more)


def test_a_network_learns_from_columns_that_the_rules_do_not_name(houses: pd.DataFrame) -> None:
    X, y = houses.drop(columns="price"), houses["price"]
    narrow = safe().fit(X[["size"]], y)
    wide = safe().fit(X, y)
    plain = NetworkRegressor(**QUICK).fit(X, y)
    assert narrow.estimator_.score(X, y) < 0.6 < 0.8 < wide.estimator_.score(X, y)
    assert narrow.score(X, y) < wide.score(X, y)
    assert plain.score(X, y) > 0.8
    assert wide.deployed_.front.columns == ("rooms", "garden", "town")
    assert wide.predict(X)[X["size"] <= 5].max() <= 8
    assert (wide.own_answers(X)[:, 0] == wide.estimator_.predict(X)).all()


def test_with_the_columns_of_the_rules_alone_nothing_changes(houses: pd.DataFrame) -> None:
    X, y = houses[["size"]], houses["price"]
    same = [safe().fit(rows, y).predict(rows) for rows in (X, X.to_numpy())]
    assert np.array_equal(*same)


@pytest.mark.parametrize("inner", [NetworkRegressor(**{**QUICK, "max_epochs": 5}), HistGradientBoostingRegressor()])
def test_targets_in_the_table_are_not_read(houses: pd.DataFrame, inner: object) -> None:
    numbers = houses[["size", "rooms", "price"]]
    for kind in (SafeRegressor, SafeQuantileRegressor):
        model = kind(RULES, inner, compare=False).fit(numbers, numbers["price"])
        assert "price" not in model.deployed_.front.columns
        assert "price" not in model.feature_names_in_
        assert model.score(numbers, numbers["price"]) < 0.9


def test_a_table_without_anything_to_learn_from_is_refused() -> None:
    with pytest.raises(DataError, match="Got none to learn from"):
        NetworkRegressor().fit(pd.DataFrame({"id": [f"row {i}" for i in range(200)]}), np.arange(200.0))


def test_every_door_answers_the_same(houses: pd.DataFrame, tmp_path) -> None:
    X, y = houses.drop(columns="price"), houses["price"]
    box = SMLERegressor(RULES, **{**QUICK, "max_epochs": 5}, compare=False)
    for name, model in (("rules", safe()), ("quantiles", safe(SafeQuantileRegressor)), ("box", box)):
        answers = model.fit(X, y).predict(X)
        model.save(tmp_path / name)
        again = load(tmp_path / name)
        assert np.array_equal(again.predict(X), answers)
        assert np.array_equal(again.predict(X[["town", "size", "garden", "rooms"]]), answers)
        assert np.array_equal(again.predict(polars.from_pandas(X)), answers)
        assert again.text_inputs == ("town",)
        assert again.n_features_in_ == 4
        model.to_onnx(tmp_path / f"{name}.onnx")
        assert check_onnx(tmp_path / f"{name}.onnx").proved
        graph = load_onnx(tmp_path / f"{name}.onnx").predict(X).to_numpy()
        np.testing.assert_allclose(graph.reshape(answers.shape), answers, atol=1e-4)
        one = np.concatenate([again.predict(X.iloc[i : i + 1]) for i in range(30)])
        np.testing.assert_allclose(one, answers[:30], atol=1e-5)
        stricter = Specification.from_yaml(again.specification_.to_yaml().replace("8", "7"))
        projected = project(again, stricter)
        assert projected.predict(X)[X["size"] <= 5].max() <= 7
        with pytest.raises(DataError, match="rooms"):
            again.predict(X[["size"]])
        with pytest.raises(DataError, match="expecting 4 features"):
            again.predict(X[["size"]].to_numpy())


def test_a_torch_module_takes_all_that_the_network_reads(houses: pd.DataFrame) -> None:
    X, y, few = houses.drop(columns="price"), houses["price"], {**QUICK, "max_epochs": 3}
    box = SMLERegressor(RULES, **few, compare=False)
    for model in (SafeRegressor(RULES, NetworkRegressor(**few), compare=False), box):
        answers, encoded = model.fit(X, y).predict(X), encode_inputs(model.specification_, X)
        wide = torch.tensor(model.deployed_.front.features(X, encoded), dtype=torch.float32)
        with torch.no_grad():
            found = model.to_torch()(torch.tensor(encoded), wide)[:, 0].numpy()
        np.testing.assert_allclose(found, answers, atol=1e-4)


def test_a_refit_of_projected_heads_reads_them_too(houses: pd.DataFrame) -> None:
    X, y = houses.drop(columns="price"), houses[["price"]]
    box = SMLERegressor(RULES, **{**QUICK, "max_epochs": 5}, compare=False).fit(X, y)
    new = project(box, Specification.from_yaml(RULES.replace("<= 8", "<= 7")), X=X, y=y)
    assert new.predict(X)[X["size"] <= 5].max() <= 7
    assert new.score(X, y) > box.score(X, y) - 0.2


def test_learning_goes_on_with_the_same_columns(houses: pd.DataFrame, tmp_path) -> None:
    X, y = houses.drop(columns="price"), houses["price"]
    model = safe()
    for part in np.array_split(np.arange(len(X)), 3):
        model.partial_fit(X.iloc[part], y.iloc[part])
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    before = again.predict(X)
    assert np.array_equal(again.estimator_.predict(X), again.own_answers(X)[:, 0])
    again.partial_fit(X.assign(town="Ulm"), y)  # unseen, and zeros in all columns of the towns
    assert not np.array_equal(again.predict(X), before)
    assert again.deployed_.front.columns == model.deployed_.front.columns


def test_labels_with_thresholds_go_on_from_a_folder(houses: pd.DataFrame, tmp_path) -> None:
    X, y = houses.drop(columns="price"), (houses[["price"]] > 10).astype(int).rename(columns={"price": "dear"})
    rules = "inputs: {size: [0, 10]}\nlabels: [dear]\nrules: [{name: small, when: size <= 1, then: not dear}]\n"
    network = NetworkClassifier(**{**QUICK, "warm_start": True})
    model = SafeClassifier(rules, network, thresholds=0.3, compare=False).fit(X, y)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_allclose(again.estimator_.raw_outputs(X), model.estimator_.raw_outputs(X), atol=1e-4)
    again.set_params(estimator__max_epochs=1, estimator__learning_rate=1e-7, estimator__calibrate=False).fit(X, y)
    np.testing.assert_allclose(again.decision_function(X), model.decision_function(X), atol=1e-2)
    assert again.score(X, y) > 0.9


def test_columns_are_read_in_one_way(houses: pd.DataFrame) -> None:
    further = FurtherColumns.of(houses, without=["size", "price"])
    assert further.names == ("rooms", "garden", "town")
    assert further.width == 2 + 1 + 4  # missing rooms are flagged, a missing town is a town of its own
    assert FurtherColumns.from_json(further.to_json()) == further
    assert further.read(houses).shape == (600, 7)
    row = further.read(pd.DataFrame({"rooms": [np.nan], "garden": [True], "town": ["Ulm"]}))
    assert row.tolist() == [[further.numbers["rooms"], 1, 1, 0, 0, 0, 0]]
    with pytest.raises(DataError, match="'rooms': expected finite numbers"):
        further.read(pd.DataFrame({"rooms": [np.inf], "garden": [True], "town": ["Bonn"]}))
    for wrong in (None, {}, {**further.to_json(), "flagged": ["town"]}, {**further.to_json(), "texts": [1]}):
        with pytest.raises(ModelFormatError, match="further"):
            FurtherColumns.from_json(wrong)


def test_networks_in_pipelines_searches_and_wrappers_are_estimators_like_any_other(houses, tmp_path) -> None:
    X, y = houses.drop(columns="price"), houses["price"]
    assert make_pipeline("passthrough", NetworkRegressor(**QUICK)).fit(X, y).score(X, y) > 0.8  # without rules
    network, numbers = NetworkRegressor(**{**QUICK, "max_epochs": 5}), X[["size", "rooms"]]
    for name, inner, rows in (
        ("pipeline", make_pipeline(StandardScaler(), network), numbers),
        ("units", TransformedTargetRegressor(network, transformer=StandardScaler()), numbers),
        ("search", GridSearchCV(network, {"embedding": [4, 8]}, cv=2), X),
    ):
        model = SafeRegressor(RULES, inner, compare=False).fit(rows, y)
        model.save(tmp_path / name)
        assert np.array_equal(load(tmp_path / name).predict(rows), model.predict(rows))
        assert model.predict(rows)[rows["size"] <= 5].max() <= 8
    chosen = np.where(y > 15, "dear", np.where(y > 8, "fair", "cheap"))
    choice = "choices: {price: [fair, dear, cheap]}\nrules: [{name: small, when: size <= 1, then: price != dear}]"
    rules = f"inputs: {{size: [0, 10]}}\n{choice}"
    for inner in (NetworkClassifier(**QUICK), make_pipeline(StandardScaler(), NetworkClassifier(**QUICK))):
        model = SafeClassifier(rules, inner, compare=False).fit(numbers, chosen)
        assert model.score(numbers, chosen) > (chosen == "fair").mean() + 0.1
        assert (model.classes_ == ["cheap", "dear", "fair"]).all()
    fitted = NetworkRegressor(**QUICK).fit(numbers, y)
    corrected = correct(fitted, Specification.from_yaml(RULES), numbers)
    assert corrected.predict(numbers)[numbers["size"] <= 5].max() <= 8
    corrected.save(tmp_path / "corrected")
