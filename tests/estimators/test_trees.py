"""`fit` says when trees would do better than the network, and only then; those who follow it are better off."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from smle import NetworkClassifier, NetworkRegressor, SafeClassifier, SafeRegressor, Specification
from smle.errors import AccuracyWarning
from smle.estimators import concerns
from support.commands import run

INPUTS = f"inputs: {{{', '.join(f'{name}: [0, 1]' for name in 'abcdefghij')}}}\n"
NUMBERS = Specification.from_yaml(INPUTS + "outputs: [y]\nrules: [{name: cap, when: a >= 0.5, then: y <= 12}]")
LABELS = Specification.from_yaml(INPUTS + "labels: [p, q]\nrules: [{name: one, then: not (p and q)}]")
OPTIONS = Specification.from_yaml(
    INPUTS + "choices: {k: [no, yes]}\nrules: [{name: r, when: a >= 0.9, then: k != yes}]"
)


def table(seed=0, rows=1200):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.uniform(0, 1, (rows, 10)), columns=list("abcdefghij"))
    noise = rng.normal(size=rows)
    steps = 5.0 * (X["a"] > 0.3) + 4.0 * ((X["b"] > 0.6) & (X["c"] > 0.5)) + 3 * np.floor(5 * X["d"]) + 0.3 * noise
    return X, steps, X["a"] + 2 * X["b"] + 0.3 * noise


def fitted(model, X, y):
    """Fit a model; of a poor one more than one warning tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        return model.fit(X, y)


def advice_of(model):
    return model.description_["scores"]["advice"]


def test_steps_are_for_trees_and_following_the_advice_pays():
    X, steps, _ = table()
    with pytest.warns(AccuracyWarning, match="Trees would do better than the network here: R2 of 'y' is"):
        model = SafeRegressor(NUMBERS, NetworkRegressor(), random_state=0).fit(X[:800], steps[:800])
    advice = advice_of(model)
    assert "SafeRegressor(spec, HistGradientBoostingRegressor())" in advice
    assert "--estimator auto" in advice
    assert f"Note: {advice}" in str(model.certificate_)
    other = SafeRegressor(NUMBERS, HistGradientBoostingRegressor(random_state=0)).fit(X[:800], steps[:800])
    gain = other.score(X[800:], steps[800:]) - model.score(X[800:], steps[800:])
    assert gain > 0.02
    assert "advice" not in other.description_["scores"]


def test_slopes_and_noise_are_not():
    X, _, slope = table()
    noise = np.random.default_rng(1).normal(size=len(X))
    for y in (slope, noise):
        with warnings.catch_warnings():
            warnings.simplefilter("error", AccuracyWarning)
            model = SafeRegressor(NUMBERS, NetworkRegressor(), random_state=0).fit(X, y)
        assert advice_of(model) == ""


@pytest.mark.parametrize("kind", ["labels", "options"])
def test_labels_and_choices_are_compared_too_unless_something_else_than_accuracy_was_asked_for(kind):
    X, _, _ = table()
    on = (X["a"] > 0.3) ^ ((X["b"] > 0.6) & (X["c"] > 0.5))
    y = np.where(on, "yes", "no") if kind == "options" else pd.DataFrame({"p": on.astype(int), "q": 0})
    spec = OPTIONS if kind == "options" else LABELS
    model = fitted(SafeClassifier(spec, NetworkClassifier(random_state=0)), X, y)
    assert "SafeClassifier(spec, HistGradientBoostingClassifier())" in advice_of(model)
    weighted = SafeClassifier(spec, NetworkClassifier(random_state=0, class_weight="balanced"))
    assert advice_of(fitted(weighted, X, y)) == ""


def test_networks_that_were_stopped_early_are_not_judged():
    X, steps, _ = table()
    model = fitted(SafeRegressor(NUMBERS, NetworkRegressor(max_epochs=5), random_state=0), X, steps)
    assert advice_of(model) == ""
    assert model.score(X, steps) < 0.9


def test_rules_count_on_both_sides():
    """Where a rule forbids what trees have learned, they are no better."""
    X, steps, _ = table()
    flat = Specification.from_yaml(INPUTS + "outputs: [y]\nrules: [{name: cap, then: 3 <= y <= 3.1}]")
    assert advice_of(fitted(SafeRegressor(flat, NetworkRegressor(), random_state=0), X, steps)) == ""


def test_the_comparison_changes_nothing_that_is_served():
    X, steps, _ = table(rows=400)
    made = []
    for compared in (True, False):
        network = NetworkRegressor(max_epochs=5)
        made.append(fitted(SafeRegressor(NUMBERS, network, random_state=0, compare=compared), X, steps))
    assert np.array_equal(made[0].predict(X), made[1].predict(X))


def test_columns_that_only_the_network_reads_are_for_trees_as_well():
    X, _, slope = table()
    further = X.assign(region=np.where(X["c"] > 0.5, "north", "south"), size=1000 * X["d"])
    y = slope + 4 * (further["size"] > 600) * (further["region"] == "north") - 3 * (further["size"] % 200 > 100)
    assert advice_of(fitted(SafeRegressor(NUMBERS, NetworkRegressor(), random_state=0), further, y))


def test_the_command_says_it(tmp_path):
    X, steps, _ = table()
    X.assign(y=steps).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "rules.yaml").write_text(NUMBERS.to_yaml())
    result = run("train", tmp_path / "data.csv", tmp_path / "rules.yaml", "-o", tmp_path / "model")
    assert result.exit_code == 0, result.output
    assert "Note: Trees would do better than the network here" in " ".join(result.output.split())


def test_with_many_outputs_those_are_learned_for_which_trees_are_good(monkeypatch):
    X, steps, slope = table()
    names = [f"y{i}" for i in range(6)]
    spec = Specification.from_yaml(INPUTS + f"outputs: {names}\nrules: [{{name: cap, then: y0 <= 50}}]")
    y = pd.DataFrame({name: steps if i in (2, 4, 5) else slope for i, name in enumerate(names)})
    shapes = []
    boosters = concerns._boosters
    monkeypatch.setattr(concerns, "_boosters", lambda X, y, *rest: shapes.append(y.shape) or boosters(X, y, *rest))
    advice = advice_of(fitted(SafeRegressor(spec, NetworkRegressor(), random_state=0), X, y))
    assert any(f"R2 of 'y{i}'" in advice for i in (2, 4, 5))
    assert [shape[1] for shape in shapes] == [3]
