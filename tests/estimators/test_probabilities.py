"""Probabilities: 0 for what the rules forbid at an input, 1 for what they force, and always in line with `predict`."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from smle import NetworkClassifier, SafeClassifier, SMLEClassifier, Specification, correct, load
from smle.rules.membership import active

LOAN = Specification.from_yaml("""
inputs: {income: [0, 10], debt: [0, 10]}
choices: {advice: [grant, ask, refuse]}
rules:
  - {name: debts, when: debt >= 8, then: advice != grant}
  - {name: rich, when: income >= 9 and debt < 5, then: advice == grant}
  - {name: sums, when: income + debt <= 3.3, then: "advice in [ask, grant]"}
  - {name: gap, when: debt >= 5, then: score(grant) <= score(ask) - 0.2 * income + 1}
""")
TAGS = Specification.from_yaml("""
inputs: {a: [0, 1], b: [0, 1]}
labels: [cat, dog, animal, car]
rules:
  - {name: off, when: a >= 0.5, then: not car}
  - {name: on, when: b >= 0.7, then: dog}
  - {name: implied, then: dog implies animal}
  - {name: apart, then: not (cat and dog)}
  - {name: pair, when: a < 0.5, then: cat or car}
""")


def rows(spec: Specification, n: int = 600) -> np.ndarray:
    upper = np.array([float(v) for v in spec.upper])
    X = np.random.default_rng(0).uniform(0, 1, (n, 2)) * upper
    X[: n // 4] = np.round(X[: n // 4] / upper * 10) / 10 * upper  # at borders of conditions
    return X


@cache
def loan(network: bool = False) -> SafeClassifier:
    X = rows(LOAN)
    y = np.random.default_rng(1).choice(["grant", "ask", "refuse"], len(X), p=[0.6, 0.25, 0.15])
    inner = NetworkClassifier(max_epochs=2, verbose=False) if network else LogisticRegression()
    return SafeClassifier(LOAN, inner, random_state=0, compare=False).fit(X, y)


@cache
def tags(thresholds: float | None = None) -> SafeClassifier:
    X = rows(TAGS)
    y = np.random.default_rng(1).integers(0, 2, (len(X), 4))
    inner = MultiOutputClassifier(LogisticRegression())
    return SafeClassifier(TAGS, estimator=inner, thresholds=thresholds, random_state=0).fit(X, y)


def on(spec: Specification, X: np.ndarray) -> dict[str, np.ndarray]:
    return {rule.name: active(rule, X) for rule in spec.rules}


@pytest.mark.parametrize("network", [False, True])
def test_a_forbidden_option_has_probability_zero(network: bool) -> None:
    model, X = loan(network), rows(LOAN)
    chance = dict(zip(model.classes_, model.predict_proba(X).T, strict=True))
    when = on(LOAN, X)
    assert min(when[name].sum() for name in when) > 5
    assert (chance["grant"][when["debts"]] == 0).all()
    assert (chance["grant"][when["rich"]] == 1).all()
    assert (chance["refuse"][when["sums"]] == 0).all()
    behind = when["gap"] & (X[:, 0] > 5)  # grant is behind ask by something there: it cannot win
    assert (chance["grant"][behind] == 0).all()
    free = ~(when["debts"] | when["rich"] | when["sums"] | (when["gap"] & (X[:, 0] >= 5)))
    assert (np.stack(list(chance.values()))[:, free] > 0).all()


def test_probabilities_of_options_add_up_and_keep_the_odds_of_the_others() -> None:
    model, X = loan(), rows(LOAN)
    chance, scores = model.predict_proba(X), model.decision_function(X)
    np.testing.assert_allclose(chance.sum(axis=1), 1, atol=1e-12)
    assert (model.classes_[chance.argmax(axis=1)] == model.predict(X)).all()
    both = (chance > 0).all(axis=1)
    for i, k in ((0, 1), (1, 2)):
        allowed = both | ((chance[:, i] > 0) & (chance[:, k] > 0))
        odds = np.log(chance[allowed, i] / chance[allowed, k])
        np.testing.assert_allclose(odds, (scores[:, i] - scores[:, k])[allowed], atol=1e-6)


@pytest.mark.parametrize("thresholds", [None, 0.3])
def test_labels_that_are_forced_or_forbidden_have_one_or_zero(thresholds: float | None) -> None:
    model, X = tags(thresholds), rows(TAGS)
    chance, when = model.predict_proba(X), on(TAGS, X)
    cat, dog, animal, car = chance.T
    assert (car[when["off"]] == 0).all()
    assert (dog[when["on"]] == 1).all()
    assert (animal[when["on"]] == 1).all()  # implied
    assert (cat[when["on"]] == 0).all()  # excluded by a label that is forced
    assert (car[when["on"] & when["pair"]] == 1).all()  # one of two, and the other is excluded
    open_ = ~when["on"]
    assert ((chance[open_][:, :3] > 0) & (chance[open_][:, :3] < 1)).all()  # what is open excludes by decisions only
    assert ((chance >= (thresholds or 0.5)) == model.predict(X)).all()


def test_stored_models_say_the_same(tmp_path: Path) -> None:
    for name, model, X in (("loan", loan(), rows(LOAN)), ("tags", tags(), rows(TAGS))):
        model.save(tmp_path / name)
        again = load(tmp_path / name)
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        alone = np.concatenate([again.predict_proba(X[i : i + 1]) for i in range(40)])
        np.testing.assert_allclose(alone, model.predict_proba(X)[:40], atol=1e-6)


@pytest.mark.parametrize("pick", ["max", "min"])
def test_a_learned_box_says_so_too(pick: str) -> None:
    spec = Specification.from_yaml(
        f"inputs: {{x: [0, 10]}}\nchoices: {{advice: {{options: [go, stop], pick: {pick}}}}}\n"
        "rules: [{name: high, when: x >= 8, then: advice != go}]"
    )
    X = np.linspace(0, 10, 200)[:, None]
    y = np.where(np.random.default_rng(0).uniform(size=200) < 0.7, "go", "stop")
    model = SMLEClassifier(spec, compare=False, random_state=0, max_epochs=2).fit(X, y)
    chance = model.predict_proba(X)
    assert (chance[X[:, 0] >= 8] == [0, 1]).all()
    assert (chance[X[:, 0] < 7.9] > 0).all()


def test_scores_that_moved_were_not_kept() -> None:
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\nchoices: {c: [a, b]}\nrules: [{name: gap, then: score(a) <= score(b) - 1}]"
    )
    model = correct(lambda X: np.stack([np.asarray(X)[:, 0], np.full(len(X), 1.25)], axis=1), spec)
    _, info = model.predict(np.array([[0.0], [0.5]]), return_info=True)
    assert info["served"].tolist() == ["kept", "moved"]  # b wins in both, and in the second by more than before
    assert model.served_ == {"kept": 1, "moved": 1, "near": 0, "replaced": 0, "safe": 0}
