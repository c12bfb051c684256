"""Sample weights, final epochs and parameters of the estimators."""

import numpy as np
import pandas as pd
import pytest

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, SMLERegressor

QUICK = {"max_epochs": 30, "hidden_layer_sizes": (16,), "embedding": 8, "random_state": 0}
SPEC = "inputs: {a: [0, 10]}\noutputs: [u]\nrules:\n  - {name: cap, then: 0 <= u <= 8}\n"
LABELS = "inputs: {a: [0, 10]}\nlabels: [on, off]\nrules:\n  - {name: one, then: not (on and off)}\n"


def numbers(**more):
    return SafeRegressor(SPEC, NetworkRegressor(**QUICK, **more))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(0, 10, 300)})
    return X, pd.DataFrame({"u": rng.choice([2.0, 6.0], 300)})


def test_rows_of_weight_zero_count_as_absent(rows):
    X, y = rows
    weight = np.where(np.arange(300) % 3 == 0, 0.0, 1.0)
    weighted = numbers().fit(X, y, sample_weight=weight)
    without = numbers().fit(X[weight > 0], y[weight > 0], sample_weight=np.ones(200))
    assert np.array_equal(weighted.predict(X), without.predict(X))
    assert weighted.certificate_.check()


def test_equal_weights_are_no_weights(rows):
    X, y = rows
    plain = numbers().fit(X, y).predict(X)
    doubled = numbers().fit(X, y, sample_weight=np.full(300, 2.0)).predict(X)
    assert np.abs(plain - doubled).max() < 1e-3 * np.abs(plain).max()


@pytest.mark.parametrize("heavy", [2.0, 6.0])
def test_heavy_rows_pull(rows, heavy):
    X, y = rows
    weight = np.where(y["u"] == heavy, 50.0, 1.0)
    predicted = numbers().fit(X, y, sample_weight=weight).predict(X)
    assert abs(float(predicted.mean()) - heavy) < 1.0


def test_heavy_labels_pull(rows):
    X, _ = rows
    rng = np.random.default_rng(1)
    on = rng.random(300) < 0.5
    y = pd.DataFrame({"on": on, "off": ~on}).astype(int)
    model = SafeClassifier(LABELS, NetworkClassifier(**QUICK)).fit(X, y, sample_weight=np.where(on, 50.0, 1.0))
    assert model.predict(X)[:, 0].mean() > 0.9


def test_final_epochs_where_there_is_little_noise(rows):
    X, noise = rows
    clear = 0.7 * X["a"].to_numpy()
    fitted = {
        "clear": numbers().fit(X, clear),
        "noisy": numbers().fit(X, noise),
        "asked": numbers(final_epochs=2).fit(X, noise),
        "none": numbers(final_epochs=0).fit(X, clear),
        "constant": numbers().fit(X, np.full(300, 3.0)),
        "labels": SafeClassifier(LABELS, NetworkClassifier(**QUICK, learning_rate=0.01)).fit(
            X, np.stack([clear > 3, clear < 2], axis=1).astype(int)
        ),
    }
    found = {name: model.estimator_.history_.final_epochs for name, model in fitted.items()}
    assert found == {"clear": 30 // 4, "noisy": 0, "asked": 2, "none": 0, "constant": 0, "labels": 30 // 4}
    assert fitted["clear"].description_["history"]["final_epochs"] == 7
    assert all(model.certificate_.check() for model in fitted.values())


def test_predictions_stay_at_the_border_where_targets_are_beyond():
    X = np.linspace(0, 10, 400)[:, None]
    y = np.where(X[:, 0] < 5, 4.0, 20.0)  # the rule allows 8 at most
    model = SafeRegressor(
        SPEC, NetworkRegressor(max_epochs=60, hidden_layer_sizes=(16,), embedding=8), random_state=0
    ).fit(X, y)
    predicted = model.predict(X[X[:, 0] > 6])
    assert predicted.max() <= 8
    assert predicted.min() > 7.9


@pytest.mark.parametrize("weight", [np.zeros(300), -np.ones(300), np.full(300, np.nan)])
def test_bad_weights_are_refused(rows, weight):
    X, y = rows
    with pytest.raises(ValueError, match=r"(?i)weight"):
        numbers().fit(X, y, sample_weight=weight)


WRONG = {
    "estimator": ["ridge", SafeRegressor],
    "hidden_layer_sizes": [(0,), "64", (1.5,), 3],
    "embedding": [0, -1, 1.5, True],
    "bounds": ["constant", None, 3],
    "learning_rate": [0, -1.0, float("nan"), "fast"],
    "weight_decay": [-1.0],
    "loss": ["huber", None],
    "quantile": [0, 1.0],
    "warm_start": [1],
    "device": [3],
    "callbacks": [[3]],
    "batch_size": [0, 2.5],
    "max_epochs": [0, None],
    "patience": [0, "long"],
    "validation_fraction": [0, 1, 2.0],
    "schedule": ["linear", 3],
    "final_epochs": [-1, 1.5, "all", True, False],
    "enforcement": ["hope", None],
    "refit_heads": ["yes", 1],
    "gate": [None],
    "checkpoint": [3],
    "compare": [1],
    "verbose": ["loud"],
    "out_of_domain": ["hide", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_parameters_are_refused_with_one_shape_of_message(rows, name, value):
    homes = (NetworkRegressor, SafeRegressor, SMLERegressor)
    home = next(kind for kind in homes if name in kind._get_param_names())
    with pytest.raises(ValueError, match=rf"^Expected {name} to be .+\. Got .+\.$"):
        home(**{**({} if home is NetworkRegressor else {"spec": SPEC}), name: value}).fit(*rows)


def test_every_parameter_is_looked_at():
    unchecked = set(SafeRegressor().get_params()) - set(WRONG)
    assert unchecked == {"spec", "random_state"}  # read by the rules and by scikit-learn


def test_the_description_tells_what_training_saw(braking_model, braking_table):
    told = braking_model.description_
    assert told["training"]["rows"] == len(braking_table)
    near = ((braking_table["distance"] <= 10) & (braking_table["speed"] >= 20)).sum()
    assert told["training"]["rules"]["emergency braking"] == near
    assert sum(told["training"]["cells"]) == len(braking_table)
    assert all(sum(column["bins"]) == len(braking_table) for column in told["training"]["columns"].values())
    history = told["history"]
    assert (history["epochs"], history["final_epochs"]) == (40, 0)  # rows that break rules are noise
    assert history["epoch"][0] == 1
    assert history["best_epoch"] in history["epoch"]
    assert len(history["loss"]) == len(history["validation_loss"]) == len(history["epoch"])
