"""A model that obeys and is no good does not go out without a word, and a good one without a warning."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, SMLERegressor, Specification, load
from smle.baselines import QuickModel
from smle.errors import AccuracyWarning
from smle.estimators import compare_models, quick_baseline, without_rules
from smle.estimators.concerns import concern_about, cost_of_rules
from smle.estimators.scores import ScoreTable, compare, encode_targets
from smle.nearest.oracle import nearest_outputs
from support.safe_networks import AtTheEnd

INPUTS = "inputs: {weight: [2, 250], age: [0, 1]}\noutputs: [dose]\nrules:\n"
CROSSING = """\
  - {name: per weight, then: 0 <= dose <= 0.05 * weight}
  - {name: cap, then: dose <= 4}
"""
SMALL = {"hidden_layer_sizes": (32, 32), "embedding": 16, "max_epochs": 60, "random_state": 0}


def dosing(compare=True, **more):
    return SafeRegressor(INPUTS + CROSSING, NetworkRegressor(**{**SMALL, **more}), compare=compare)


@pytest.fixture(scope="module")
def doses():
    """Rows that break nothing, under a limit that moves and meets a fixed one."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"weight": rng.uniform(2, 250, 1500), "age": rng.uniform(0, 1, 1500)})
    return X, np.minimum(0.05 * X["weight"], 4) * (0.3 + 0.6 * X["age"])


@pytest.fixture(scope="module")
def poor(doses):
    with pytest.warns(AccuracyWarning) as caught:
        model = SMLERegressor(INPUTS + CROSSING, **SMALL, enforcement=AtTheEnd()).fit(*doses)
    return model, str(caught[0].message)


def test_learned_heads_that_are_far_behind_are_told_of_with_a_remedy(poor, doses):
    model, text = poor
    scores = model.description_["scores"]
    assert scores["score"]["safe"] < scores["score"]["postprocess"] - 0.1
    assert scores["concern"] == text
    assert f"R2 of 'dose' is {scores['score']['safe']:.2f} on 300 validation rows" in text
    assert "one convex part of what 'per weight' and 'cap' allow, with one straight limit" in text
    assert "Use SafeRegressor or SafeClassifier" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended = dosing().fit(*doses)  # what the warning says
    found = mended.description_["scores"]["score"]
    assert found["safe"] > found["postprocess"] - 0.01 > scores["score"]["safe"] + 0.1


def test_a_network_that_is_poor_before_it_is_corrected_is_told_of(doses):
    with pytest.warns(AccuracyWarning, match=r"Likely cause: .*after 1 epoch and was still getting better"):
        dosing(max_epochs=1, learning_rate=1e-5).fit(*doses)


def test_the_warning_is_stored_and_printed(poor, tmp_path):
    model, text = poor
    model.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "model.json").read_text())["scores"]["concern"] == text
    printed = str(load(tmp_path / "model").certificate_)
    score = model.description_["scores"]["score"]
    assert f"R2 this model {score['safe']:.4f}, plain {score['plain']:.4f}" in printed
    assert "not proved" in printed
    assert f"WARNING: {text}" in printed


def test_certificates_of_models_without_scores_say_so(doses):
    model = dosing(max_epochs=1, compare=False).fit(*doses)
    assert model.description_["scores"] == {}
    assert str(model.certificate_).endswith("Accuracy: not measured.")
    model.set_scores({"mine": 0.5})
    assert str(model.certificate_).endswith("Accuracy: not measured.")


def test_good_models_and_models_without_rules_are_not_warned_about(braking_model, doses):
    scores = braking_model.description_["scores"]
    assert scores["concern"] == scores["cost"] == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = SafeRegressor(without_rules(Specification.from_yaml(INPUTS + CROSSING)), NetworkRegressor(**SMALL)).fit(
            *doses
        )
        constant = dosing(max_epochs=2).fit(doses[0], np.full(1500, 0.05))
    assert plain.description_["scores"] == {}
    assert constant.description_["scores"]["concern"] == ""  # there is nothing to explain


UNITS = Specification.from_yaml("""
inputs: {income: [10, 100], risk: [0, 1]}
outputs: [limit, rate]
rules:
  - {name: ranges, then: 0 <= limit <= 20000 and 0 <= rate <= 0.3}
  - {name: price of size, then: rate >= 0.03 + limit * 0.000005}
""")


@pytest.fixture(scope="module")
def loans():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"income": rng.uniform(10, 100, 800), "risk": rng.uniform(0, 1, 800)})
    limit = X["income"] * 200 * (1 - 0.7 * X["risk"]) + rng.normal(0, 1500, 800)
    rate = 0.02 + 0.12 * X["risk"] + rng.normal(0, 0.02, 800)
    return X, pd.DataFrame({"limit": limit, "rate": rate})


def test_the_best_that_obeys_is_the_best_in_the_score_that_is_shown(loans):
    X, y = loans
    encoded, truth = X.to_numpy(), y.to_numpy()
    raw = nearest_outputs(UNITS, encoded, truth)
    best = nearest_outputs(UNITS, encoded, truth, scale=truth.std(axis=0))
    score = ScoreTable.of(UNITS, encoded, truth, {"raw": raw, "best": best}).scores()
    better = score["best"]
    assert score["raw"] < better - 0.05  # the units matter here
    model = SafeRegressor(UNITS, NetworkRegressor(**SMALL)).fit(X, y)
    scores = compare_models(model, X, y, plain=quick_baseline(UNITS, X, y))["score"]
    assert scores["oracle"] == pytest.approx(better)
    assert scores["oracle"] >= max(scores["safe"], scores["postprocess"])


def test_scores_by_output_are_those_of_scikit_learn(loans):
    X, y = loans
    model = SafeRegressor(UNITS, NetworkRegressor(**{**SMALL, "max_epochs": 5}), compare=False).fit(X, y)
    scores = compare_models(model, X, y)
    from sklearn.metrics import r2_score

    expected = r2_score(y, model.predict(X), multioutput="raw_values")
    assert [item["name"] for item in scores["outputs"]] == ["limit", "rate"]
    np.testing.assert_allclose([item["score"]["safe"] for item in scores["outputs"]], expected)
    assert scores["score"]["safe"] == pytest.approx(expected.mean())


def test_recall_and_balanced_accuracy_where_one_side_is_rare():
    from sklearn.metrics import balanced_accuracy_score, recall_score

    spec = Specification.from_yaml("inputs: {x: [0, 1]}\nlabels: [fraud, large]\nrules: []\n")
    rng = np.random.default_rng(0)
    truth = np.stack([rng.random(500) < 0.05, rng.random(500) < 0.4], axis=1).astype(float)
    guess = np.where(rng.random((500, 2)) < 0.3, 1 - truth, truth)
    fraud, large = ScoreTable.of(spec, np.zeros((500, 1)), truth, {"safe": guess - 0.5}).entries()
    assert "rare" not in large
    assert fraud["rare"]["side"] == "fraud"
    assert fraud["rare"]["rows"] == truth[:, 0].sum()
    assert fraud["rare"]["recall"]["safe"] == pytest.approx(recall_score(truth[:, 0], guess[:, 0]))
    balanced = balanced_accuracy_score(truth[:, 0], guess[:, 0])
    assert fraud["rare"]["balanced_accuracy"]["safe"] == pytest.approx(balanced)


RARE = Specification.from_yaml("""
inputs: {amount: [0, 1], night: [0, 1]}
labels: [fraud]
rules:
  - {name: small is fine, when: amount <= 0.1, then: not fraud}
""")


def test_a_rare_label_that_is_never_found_is_far_behind(braking_model):
    """It is right in 96 of 100 rows, and finds nothing."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.2, 1, (1000, 2))
    truth = (X.sum(axis=1, keepdims=True) > 1.75).astype(float)
    assert 0.02 < truth.mean() < 0.06
    model = SafeClassifier(RARE, NetworkClassifier(**{**SMALL, "max_epochs": 1}), compare=False).fit(X, truth)
    never = np.full((1000, 1), -1.0)
    found = compare(RARE, X, truth, {"safe": never, "plain": truth - 0.5})
    assert found.scores()["safe"] > 0.94
    assert "balanced accuracy of 'fraud' is 0.50" in concern_about(found, model)
    assert concern_about(compare(RARE, X, truth, {"safe": truth - 0.5, "plain": truth - 0.5}), model) == ""


def test_choices_are_compared_by_what_is_chosen():
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\nchoices: {advice: {options: [left, right], pick: min}}\n"
        "rules: [{name: keep right, when: x <= 0.5, then: advice == right}]\n"
    )
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.random(300)})
    y = pd.DataFrame({"advice": np.where(X["x"] > 0.7, "left", "right")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SafeClassifier(spec, NetworkClassifier(**SMALL)).fit(X, y)
    scores = compare_models(model, X, y)
    assert set(scores["score"]) == {"safe", "plain", "postprocess", "oracle"}
    assert scores["score"]["safe"] == pytest.approx(model.score(X, y["advice"]))
    wrong = -encode_targets(spec, y)  # the other option wins
    found = compare(spec, X.to_numpy(), encode_targets(spec, y), {"safe": wrong, "plain": -wrong})
    assert found.scores() == {"safe": 0.0, "plain": 1.0, "oracle": 1.0, "postprocess": 1.0}
    assert "accuracy of 'advice' is 0.00" in concern_about(found, model)


def test_a_difference_by_chance_is_no_concern(poor):
    model, _ = poor
    spec = model.specification_
    rng = np.random.default_rng(0)
    X = np.stack([np.full(20, 200.0), rng.random(20)], axis=1)
    truth = rng.uniform(1, 3, (20, 1))
    guess = truth.copy()
    guess[0] += 2  # one row of twenty costs more than a tenth of the variance
    found = compare(spec, X, truth, {"safe": guess, "plain": truth})
    assert found.scores()["safe"] < 0.8
    assert concern_about(found, model) == ""


def test_weights_count_in_the_comparison(poor):
    model, _ = poor
    rng = np.random.default_rng(0)
    X = np.stack([np.full(100, 200.0), rng.random(100)], axis=1)
    truth = rng.uniform(1, 3, (100, 1))
    guess = np.where(np.arange(100)[:, None] < 50, truth, 2.0)
    outputs = {"safe": guess, "plain": truth}
    found = [compare(model.specification_, X, truth, outputs, weight=w) for w in (None, (np.arange(100) < 50) + 1e-9)]
    assert [bool(concern_about(part, model)) for part in found] == [True, False]


def test_rules_that_the_data_contradict_are_named(doses):
    spec = Specification.from_yaml(INPUTS + "  - {name: nothing, then: 0 <= dose <= 0.5}\n")
    X, y = doses[0].to_numpy(), doses[1].to_numpy()[:, None]
    found = compare(spec, X, y, {"safe": np.full_like(y, 0.4), "plain": y})
    text = cost_of_rules(found)
    assert "falls from 1.00" in text
    assert "Rule 'nothing' is broken by" in text


@pytest.mark.parametrize("kind", ["linear", "curved"])
def test_the_quick_model_is_a_fair_one(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1500, 4))
    y = X @ np.array([[1.0, 1e6], [2.0, 0], [0, 1e6], [0, 0]])
    if kind == "curved":
        y = y * np.sign(X[:, 3:])
    spec = Specification.from_yaml(
        "inputs: {a: [-1, 1], b: [-1, 1], c: [-1, 1], d: [-1, 1]}\noutputs: [u, v]\nrules: []\n"
    )
    model = QuickModel.fit(spec, X[:1000], y[:1000])
    scores = [
        item["score"]["q"]
        for item in ScoreTable.of(spec, X[1000:], y[1000:], {"q": model.raw_outputs(X[1000:])}).entries()
    ]
    assert min(scores) > (0.99 if kind == "linear" else 0.7)


def test_preprocess_stands_in_the_table() -> None:
    spec = Specification.from_yaml("inputs: {x: [0, 1]}\noutputs: [y]\nrules: [{name: low, then: y <= 0.5}]")
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.uniform(0, 1, 300)})
    y = pd.DataFrame({"y": X["x"]})
    model = SafeRegressor(spec, NetworkRegressor(max_epochs=3)).fit(X, y)
    baselines = {"plain": quick_baseline(spec, X, y), "preprocess": quick_baseline(spec, X, y, preprocess=True)}
    found = compare_models(model, X, y, **baselines)
    assert {"safe", "plain", "preprocess", "postprocess", "oracle"} <= found["score"].keys()
    assert found["violations"]["preprocess"] < found["violations"]["plain"]
    assert found["score"]["preprocess"] < found["score"]["plain"]
