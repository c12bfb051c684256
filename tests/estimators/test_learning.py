"""What a network learns: losses, weights of classes; what stands between it and the head: temperature, thresholds."""

import doctest

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier

import smle.estimators.quantiles
import smle.estimators.safe_estimators
from smle import (
    NetworkClassifier,
    NetworkRegressor,
    SafeClassifier,
    SafeQuantileRegressor,
    SafeRegressor,
    SMLEClassifier,
    SMLERegressor,
    Specification,
    load,
)
from smle.errors import DataError, ModelFormatError, RuleError
from smle.estimators.calibration import temperature
from smle.estimators.class_tasks import task_of
from smle.estimators.quantiles import at_quantile, quantile_rules
from smle.export import load_onnx
from smle.heads.box.estimators import box_training, learned_box

QUICK = {"hidden_layer_sizes": (16,), "max_epochs": 40, "random_state": 0, "verbose": False}
CAPPED = "inputs: {x: [0, 10]}\noutputs: [y]\nrules: [{name: cap, then: 0 <= y <= 9}]\n"
PAIR = "inputs: {x: [0, 1]}\nlabels: [old, young]\nrules: [{name: one, then: not (old and young)}]\n"


def capped(**more):
    return SafeRegressor(CAPPED, NetworkRegressor(**{**QUICK, **more}), compare=False)


def pair(thresholds=None):
    return SafeClassifier(PAIR, NetworkClassifier(**QUICK), thresholds=thresholds, compare=False)


@pytest.fixture(scope="module")
def skewed() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (400, 1))
    return X, rng.exponential(1 + X[:, 0] / 5)


@pytest.fixture(scope="module")
def noisy_labels() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, 500)
    old = rng.uniform(0, 1, 500) < 0.6 * x
    return pd.DataFrame({"x": x}), np.stack([old, ~old], axis=1).astype(int)


@pytest.mark.parametrize(
    ("loss", "low", "high"),
    [
        ("squared_error", 0.56, 0.7),
        ("absolute_error", 0.43, 0.56),
        ("quantile", 0.83, 0.95),
        ("poisson", 0.56, 0.7),
        (lambda predicted, wanted: (predicted - wanted).abs(), 0.43, 0.56),
    ],
)
def test_a_loss_decides_which_share_of_the_rows_lies_below(skewed, loss, low, high):
    X, y = skewed
    of_quantiles = {"quantile": 0.9} if loss == "quantile" else {}
    model = capped(loss=loss, **of_quantiles).fit(X, y)
    answers = model.predict(X)
    assert answers.min() >= 0
    assert answers.max() <= 9
    assert low <= (y <= answers).mean() <= high
    assert model.certificate_.check()


def test_poisson_is_for_numbers_from_zero_on(skewed):
    with pytest.raises(DataError, match="counts and rates"):
        capped(loss="poisson").fit(skewed[0], skewed[1] - 1)
    two = SafeRegressor("inputs: {a: [0, 9]}\noutputs: [fine, falls]\nrules: []\n", NetworkRegressor(loss="poisson"))
    with pytest.raises(DataError, match="Output 'falls'"):
        two.fit(pd.DataFrame({"a": np.arange(9.0)}), np.stack([np.arange(9.0), -np.arange(9.0)], axis=1))


def test_balanced_classes_find_more_of_the_rare_side():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 2)).clip(-3, 3)
    rare = X[:, 0] + rng.normal(size=500) > 2
    choice = "inputs: {a: [-3, 3], b: [-3, 3]}\nchoices: {risk: [low, high]}\nrules: []\n"
    y = np.where(rare, "high", "low")
    found = {
        str(weights): (
            SafeClassifier(choice, NetworkClassifier(class_weight=weights, **QUICK), compare=False).fit(X, y).predict(X)
            == "high"
        )[rare].mean()
        for weights in (None, "balanced", {"high": 10.0})
    }
    assert min(found["balanced"], found["{'high': 10.0}"]) > found["None"] + 0.1
    labels = choice.replace("choices: {risk: [low, high]}", "labels: [high]")
    both = [
        SafeClassifier(labels, NetworkClassifier(class_weight=w, **QUICK), compare=False).fit(
            X, rare[:, None].astype(int)
        )
        for w in (None, "balanced")
    ]
    plain, balanced = (model.predict(X)[rare].mean() for model in both)
    assert balanced > plain + 0.1
    with pytest.raises(ValueError, match="class_weight by name"):
        SafeClassifier(choice, NetworkClassifier(class_weight={"hihg": 2.0}, **QUICK), compare=False).fit(X, y)


@pytest.mark.parametrize(
    "outputs", ["labels: [a, b, c]", "choices: {c: [x, y, z]}", "choices: {c: {options: [x, y, z], pick: min}}"]
)
def test_the_temperature_is_that_of_the_least_loss(outputs):
    rng = np.random.default_rng(0)
    task = task_of(Specification.from_yaml(f"inputs: {{x: [0, 1]}}\n{outputs}\nrules: []"))
    logits = 2 * rng.normal(size=(4000, 3))
    if outputs.startswith("labels"):
        targets = (rng.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    else:
        targets = np.eye(3)[(task.sign * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)]
    assert temperature(task, 5 * logits, targets, None) == pytest.approx(0.2, rel=0.1)
    assert np.isfinite(temperature(task, np.where(targets == 1, 9.0, -9.0) * getattr(task, "sign", 1.0), targets, None))


def test_a_temperature_changes_no_decision():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 4)).clip(-3, 3)
    y = (X[:, 0] + 2 * rng.normal(size=300) > 0).astype(int)
    raw, calibrated = (NetworkClassifier(calibrate=value, **QUICK).fit(X, y) for value in (False, True))
    assert np.array_equal(raw.predict(X), calibrated.predict(X))
    assert not np.allclose(raw.predict_proba(X), calibrated.predict_proba(X), atol=1e-3)


def test_rules_hold_for_the_labels_that_thresholds_make(noisy_labels, tmp_path):
    X, y = noisy_labels
    plain = pair().fit(X, y)
    eager = pair(thresholds={"old": 0.2}).fit(X, y)
    labels, chance = eager.predict(X), eager.predict_proba(X)
    assert not labels.all(axis=1).any()
    assert labels[:, 0].mean() > plain.predict(X)[:, 0].mean() + 0.1
    assert eager.thresholds_ == {"old": 0.2, "young": 0.5}
    assert np.array_equal(chance >= [0.2, 0.5], labels == 1)
    eager.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(X), chance)
    assert again.thresholds_ == eager.thresholds_
    assert again.thresholds == {"old": 0.2}
    eager.to_onnx(tmp_path / "model.onnx")
    assert np.array_equal(load_onnx(tmp_path / "model.onnx").predict(X)[["old", "young"]].to_numpy(), labels)
    eager.deployed_.describe({**eager.description_, "thresholds": [2.0, 0.5]})
    eager.save(tmp_path / "other")
    with pytest.raises(ModelFormatError, match="threshold"):
        load(tmp_path / "other").predict_proba(X)


def test_thresholds_are_tuned_on_rows_held_out(noisy_labels):
    X, y = noisy_labels
    plain, tuned = (pair(thresholds=t).fit(X, y) for t in (None, "balanced_accuracy"))
    assert tuned.thresholds_["old"] < 0.5

    def balanced(model):
        old = model.predict(X)[:, 0]
        return (old[y[:, 0] == 1].mean() + (1 - old)[y[:, 0] == 0].mean()) / 2

    assert balanced(tuned) > balanced(plain)


def test_thresholds_of_an_estimator_are_part_of_its_stored_form(noisy_labels, tmp_path):
    X, y = noisy_labels
    free = PAIR.replace("[{name: one, then: not (old and young)}]", "[{name: one, when: x >= 2, then: old}]")
    free = free.replace("[0, 1]", "[0, 3]")
    inside = MultiOutputClassifier(LogisticRegression())
    model = SafeClassifier(free, estimator=inside, thresholds=0.3).fit(X, y)
    wanted = np.stack([part[:, 1] for part in inside.fit(X, y).predict_proba(X)], axis=1)
    assert np.array_equal(model.predict(X), (wanted >= 0.3).astype(int))
    np.testing.assert_allclose(model.predict_proba(X), wanted, atol=1e-5)
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").predict_proba(X), model.predict_proba(X))


def test_what_has_no_meaning_is_refused(skewed):
    for model in (NetworkRegressor(quantile=0.9), SMLERegressor(CAPPED, quantile=0.9)):
        with pytest.raises(ValueError, match=r"loss='quantile' with quantile=0\.9"):
            model.fit(*skewed)
    for kind in (SafeRegressor, SafeClassifier, SafeQuantileRegressor):
        with pytest.raises(TypeError, match="max_epochs"):
            kind(CAPPED, max_epochs=3)
    for name in ("warm_start", "thresholds", "calibrate"):  # a box has none of these
        with pytest.raises(TypeError, match=name):
            SMLEClassifier(PAIR, **{name: True})
    with pytest.raises(TypeError, match="takes no argument 'groups'"):
        SafeRegressor(CAPPED, NetworkRegressor(**QUICK)).fit(*skewed, groups=np.zeros(400))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"thresholds": "f1", "estimator": MultiOutputClassifier(LogisticRegression())}, "no rows are held out"),
        ({"thresholds": {"odl": 0.3}}, "thresholds by name"),
        ({"thresholds": 1.5}, "thresholds"),
        ({"estimator__class_weight": {"old": -1.0}}, "class_weight"),
    ],
)
def test_labels_refuse_what_has_no_meaning(noisy_labels, parameters, reason):
    with pytest.raises(ValueError, match=reason):
        SafeClassifier(PAIR, NetworkClassifier(**QUICK)).set_params(**parameters).fit(*noisy_labels)


def test_weights_are_pulled_to_zero_where_much_is_noise(skewed):
    def size(loss, decay):
        model = capped(loss=loss, weight_decay=decay).fit(*skewed)
        return sum(float(np.square(weight).sum()) for weight, _ in model.deployed_.front.layers)

    assert size("squared_error", None) < 0.95 * size("squared_error", 0.0)
    assert size("absolute_error", None) == size("absolute_error", 0.0)


def test_callbacks_see_every_epoch_and_end_training(skewed):
    seen = []

    def stop(info):
        seen.append(info.epoch)
        return info.epoch == 3

    model = capped(callbacks=[stop], device="cpu", weight_decay=0.1).fit(*skewed)
    assert seen == [0, 1, 2, 3]
    assert model.estimator_.history_.stopped == "callback"


def test_quantiles_never_cross_and_obey_the_limits_of_the_number(skewed, tmp_path):
    X, y = skewed
    levels = (0.4, 0.5, 0.9)
    inside = HistGradientBoostingRegressor(max_iter=60, min_samples_leaf=5, random_state=0)
    plain = np.stack([at_quantile(inside, q).fit(X, y).predict(X) for q in levels], axis=1)
    assert (np.diff(plain) < 0).any()
    for model in (
        SafeQuantileRegressor(CAPPED, quantiles=levels, estimator=inside),
        SafeQuantileRegressor(CAPPED, NetworkRegressor(**QUICK), quantiles=levels),
    ):
        answers = model.fit(X, y).predict(X)
        assert (np.diff(answers) >= 0).all()
        assert answers.min() >= 0
        assert answers.max() <= 9
        np.testing.assert_allclose((y[:, None] <= answers).mean(axis=0), levels, atol=0.12)
        assert model.certificate_.check()
        assert model.score(X, y) > 0
        model.save(tmp_path / "model", overwrite=True)
        again = load(tmp_path / "model")
        assert np.array_equal(again.predict(X), answers)
        assert again.quantiles == levels
        assert again.score(X, y) == model.score(X, y)


def test_rules_about_quantiles_may_say_more_and_keep_their_order():
    width = "inputs: {x: [0, 10]}\noutputs: [y_q10, y_q90]\nrules: [{name: width, then: y_q90 - y_q10 <= 5}]\n"
    spec = quantile_rules(Specification.from_yaml(width), (0.1, 0.9))
    assert [rule.then for rule in spec.rules] == ["y_q90 - y_q10 <= 5", "y_q10 <= y_q90"]
    assert quantile_rules(spec, (0.1, 0.9)) == spec
    part = width.replace("then: y_q90 - y_q10 <= 5", "then: x > 5 or y_q10 <= y_q90")  # in order for some inputs
    assert len(quantile_rules(Specification.from_yaml(part), (0.1, 0.9)).rules) == 2
    other = width.replace("name: width, then: y_q90 - y_q10 <= 5", "name: quantiles in order, then: y_q10 <= 3")
    with pytest.raises(RuleError, match="Two rules"):
        quantile_rules(Specification.from_yaml(other), (0.1, 0.9))
    with pytest.raises(DataError, match="quantiles of one number"):
        quantile_rules(Specification.from_yaml(width), (0.1, 0.5))
    with pytest.raises(ValueError, match="increasing order"):
        quantile_rules(Specification.from_yaml(CAPPED), (0.9, 0.1))
    with pytest.raises(ValueError, match="estimator of quantiles"):
        at_quantile(Ridge(), 0.5)


def test_training_goes_on_from_the_weights_as_they_are(skewed, tmp_path):
    X, y = skewed
    model = SafeRegressor(
        CAPPED, NetworkRegressor(warm_start=True, **{**QUICK, "max_epochs": 30, "final_epochs": 0}), compare=False
    ).fit(X, y)
    first, before = model.estimator_.history_.best, model.predict(X)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").set_params(
        estimator__max_epochs=1, estimator__learning_rate=1e-6, estimator__verbose=False
    )
    np.testing.assert_allclose(again.fit(X, y).predict(X), before, atol=1e-3)  # an epoch of steps that are nothing
    assert again.estimator_.history_.validation_loss[0] == pytest.approx(first, rel=1e-3)
    assert again.certificate_.check()
    assert again.certificate_.document["digest"] != model.certificate_.document["digest"]
    with pytest.raises(ValueError, match="warm_start=False"):
        again.set_params(estimator__hidden_layer_sizes=(8, 8)).fit(X, y)
    assert again.certificate_.check()  # it is what it was


def test_parts_of_a_table_are_learned_one_after_the_other(skewed, noisy_labels):
    X, y = skewed[0], np.minimum(skewed[0][:, 0], 8)
    model = capped(batch_size=32)
    for _ in range(5):
        for part in np.array_split(np.arange(len(X)), 2):
            model.partial_fit(X[part], y[part])
            assert model.certificate_.check()
            assert model.predict(X).max() <= 9
    assert model.score(X, y) > 0.95
    with pytest.raises(AttributeError, match="no attribute 'partial_fit'"):
        SafeRegressor(CAPPED, Ridge()).partial_fit(X, y)
    labels = pair(thresholds=0.3)
    for _ in range(3):
        chance = labels.partial_fit(*noisy_labels).predict_proba(noisy_labels[0])
    assert np.array_equal(chance >= 0.3, labels.predict(noisy_labels[0]) == 1)
    assert chance[:, 0].mean() == pytest.approx(noisy_labels[1][:, 0].mean(), abs=0.15)


MODULES = [learned_box, *(getattr(smle.estimators, name) for name in ["networks", "quantiles", "safe_estimators"])]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted > 3
    assert found.failed == 0


def test_training_on_from_a_model_that_was_not_verified_proves_its_head_anew(tmp_path):
    X = np.linspace(0, 1, 60)[:, None]
    rules = "inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: cap, then: y <= 0.5}]"
    for name, text in (("stated", rules), ("weaker", rules.replace("0.5", "9"))):
        SafeRegressor(text, NetworkRegressor(max_epochs=2), compare=False, random_state=0).fit(X, X[:, 0]).save(
            tmp_path / name
        )
    model = load(tmp_path / "stated", verify=False)
    model.deployed_._proof = load(tmp_path / "weaker").deployed_.proof  # as if the files had been exchanged
    model.partial_fit(X, 5 + X[:, 0])
    stated = load(tmp_path / "stated").certificate_.document["specification"]
    assert model.certificate_.document["specification"] == stated
    assert model.predict(X).max() <= 0.5


@pytest.mark.parametrize(
    ("given", "refits", "heads"),
    [({}, 1, 2), ({"gate": False}, 0, 1), ({"gate": False, "refit_heads": True}, 1, 1), ({"refit_heads": False}, 0, 2)],
)
def test_without_a_gate_the_learned_box_is_algorithm_2_as_it_is(skewed, monkeypatch, given, refits, heads):
    """One head for all inputs, and nothing after the last projection."""
    calls = []
    refit = box_training.refit_network
    monkeypatch.setattr(box_training, "refit_network", lambda *args, **named: calls.append(1) or refit(*args, **named))
    rules = "inputs: {x: [0, 10]}\noutputs: [y]\nrules: [{name: cap, when: x >= 8, then: y <= 3}]\n"
    model = SMLERegressor(rules, **given, **QUICK | {"max_epochs": 3}, compare=False).fit(*skewed)
    assert (len(calls), len(model.deployed_.head.tensors["gate.signatures"])) == (refits, heads)
