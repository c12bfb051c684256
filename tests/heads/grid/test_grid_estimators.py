"""Estimators and corrected models whose outputs come in steps, and add up."""

import json
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import smle
from smle.errors import AccuracyWarning, DataError, RuleError
from smle.rules import Specification

WAREHOUSES = """
inputs:
  demand: {range: [0, 220], integer: true}
  weight: {range: [0, 10], step: 0.1}
outputs: {north: {integer: true}, south: {integer: true}, total: {integer: true}}
rules:
  - {name: caps, then: 0 <= north <= 150 and 0 <= south <= 120}
  - {name: books, then: total == north + south}
  - {name: all, then: total == demand}
"""


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"demand": rng.integers(0, 221, 120), "weight": rng.integers(0, 101, 120) / 10})
    north = X.demand * 0.6
    y = pd.DataFrame({"north": north, "south": X.demand - north, "total": X.demand.astype(float)})
    return X, y + rng.normal(0, 3, y.shape)


def books_balance(answers, X):
    assert (answers[:, 0] + answers[:, 1] == answers[:, 2]).all()
    assert (answers[:, 2] == X.demand.to_numpy()).all()
    assert (answers == np.rint(answers)).all()


def test_targets_that_do_not_add_up_are_reconciled_first(data):
    X, y = data
    model = smle.SafeRegressor(Specification.from_yaml(WAREHOUSES), estimator=LinearRegression())
    with pytest.warns(AccuracyWarning, match="do not add up as the rules ask"):
        model.fit(X, y)
    books_balance(model.predict(X), X)
    assert model.score(X, y) > 0.95


def test_reconciled_targets_add_up_and_move_as_little_as_possible(data):
    from smle.heads.grid.reduction import reconciled

    X, y = data
    spec = Specification.from_yaml(WAREHOUSES)
    found, moved, most = reconciled(spec, X.to_numpy(), y.to_numpy())
    assert np.allclose(found[:, 0] + found[:, 1], found[:, 2])
    assert np.allclose(found[:, 2], X.demand)
    assert moved == 120
    assert most > 1
    again, moved, _ = reconciled(spec, X.to_numpy(), found)
    assert moved == 0
    assert again is found
    spread = y.to_numpy().std(axis=0)
    apart = (found - y.to_numpy()) / spread  # the way is along the rows of the equalities
    assert np.allclose(apart[:, 0] * spread[0] / spread[0] ** 2, apart[:, 1] * spread[1] / spread[1] ** 2)


def test_a_model_is_stored_loaded_checked_and_exported(data, tmp_path):
    X, y = data
    model = smle.correct(LinearRegression().fit(X, y), Specification.from_yaml(WAREHOUSES), X)
    answers = model.predict(X)
    books_balance(answers, X)
    model.save(tmp_path / "model")
    loaded = smle.load(tmp_path / "model")
    assert (loaded.predict(X) == answers).all()
    assert smle.verify(loaded)
    changed = json.loads((tmp_path / "model" / "certificate.json").read_text())
    changed["specification"]["outputs"][0]["step"] = "1/2"
    (tmp_path / "model" / "certificate.json").write_text(json.dumps(changed))
    with pytest.raises(smle.errors.CertificateError):
        smle.load(tmp_path / "model")


def test_other_rules_beside_the_certificate_are_refused(data, tmp_path):
    X, y = data
    model = smle.correct(LinearRegression().fit(X, y), Specification.from_yaml(WAREHOUSES), X)
    from smle.certificates.agreement import require_same_rules

    other = Specification.from_yaml(WAREHOUSES.replace("{integer: true}}", "{integer: true, range: [0, 500]}}"))
    require_same_rules(model.certificate_, Specification.from_yaml(WAREHOUSES))
    with pytest.raises(smle.errors.CertificateError):
        require_same_rules(model.certificate_, Specification.from_yaml(WAREHOUSES.replace("150", "140")))
    assert other.grid is not None


def test_whole_numbers_of_steps_are_offered(data):
    X, y = data
    text = "inputs: {demand: {range: [0, 220], integer: true}, weight: {range: [0, 10], step: 0.1}}\n"
    spec = Specification.from_yaml(text + "outputs: {a: {step: 0.01}}\nrules: [{name: r, then: 0 <= a <= 131072}]\n")
    model = smle.correct(lambda X: np.full(len(X), 41943.17), spec)
    steps = model.predict(X, as_steps=True)
    assert steps.dtype == np.int64
    assert (steps == 4194317).all()  # float32 division misses this one
    fitted = smle.SafeRegressor(spec, estimator=LinearRegression()).fit(X, y["total"].clip(0).rename("a"))
    assert (np.abs(fitted.predict(X, as_steps=True) / 100 - fitted.predict(X)) < 1e-3).all()
    plain = smle.correct(
        lambda X: np.ones(len(X)), Specification.from_yaml(text + "outputs: [a]\nrules: [{name: r, then: a <= 3}]\n")
    )
    with pytest.raises(ValueError, match="as_steps"):
        plain.predict(X, as_steps=True)


def test_tables_between_steps_are_refused_and_computed_multiples_are_read(data):
    spec = Specification.from_yaml(WAREHOUSES)
    model = smle.correct(lambda X: np.ones((len(X), 3)), spec)
    with pytest.raises(DataError, match=r"expected multiples of 0\.1\. Got 0\.15"):
        model.predict(pd.DataFrame({"demand": [3], "weight": [0.15]}))
    X = pd.DataFrame({"demand": [3, 3], "weight": [0.1 + 0.2, 0.3]})
    books_balance(model.predict(X), X)
    single = pd.DataFrame({"demand": [3], "weight": np.array([0.3], dtype=np.float32)})
    books_balance(model.predict(single), single)


def test_quantiles_in_steps_stay_in_order():
    rng = np.random.default_rng(0)
    text = (
        "inputs: {x: [0, 1]}\noutputs: {sold: {integer: true, range: [0, 100]}}\nrules: [{name: r, then: sold >= 0}]\n"
    )
    X = pd.DataFrame({"x": rng.uniform(0, 1, 150)})
    y = pd.Series(np.rint(X.x * 50 + rng.normal(0, 5, 150)).clip(0), name="sold")
    network = smle.NetworkRegressor(max_epochs=3)
    model = smle.SafeQuantileRegressor(Specification.from_yaml(text), network, quantiles=(0.1, 0.5, 0.9))
    found = model.fit(X, y).predict(X)
    assert (found == np.rint(found)).all()
    assert (np.diff(found, axis=1) >= 0).all()


def test_doors_that_do_not_know_steps_refuse(data):
    X, y = data
    spec = Specification.from_yaml(WAREHOUSES)
    y = y.assign(total=X.demand, south=X.demand - y["north"])
    with pytest.raises(RuleError, match="learned box"):
        smle.SMLERegressor(spec, max_epochs=1).fit(X, y)


ATTACKED = """
inputs:
  demand: {range: [0, 18], integer: true}
  weight: {range: [0, 4], step: 0.1}
outputs: {north: {integer: true}, south: {integer: true}, price: {step: 0.01}}
rules:
  - {name: stock, then: 0 <= north <= 10 and 0 <= south <= 9 and 0 <= price <= 50}
  - {name: all of it, then: north + south == demand}
  - {name: dear, when: weight > 1.3, then: price >= 0.3 * weight}
"""


def test_attacks_judge_the_multiples_that_floats_stand_for():
    spec = Specification.from_yaml(ATTACKED)
    safe = smle.correct(
        lambda table: np.stack([table["demand"] / 2, table["demand"] / 3, table["weight"] / 5], 1), spec
    )
    assert not smle.attack(safe, tries=3000).found

    def moved(*by):
        return lambda table: (np.asarray(safe.predict(table, as_steps=True)) + by) / [1, 1, 100]

    # One step less: found, and the excess is one step, exactly.
    cheaper = smle.attack(moved(0, 0, -1), spec, rules=["dear"], tries=3000)
    assert cheaper.found
    assert cheaper.violation.excess == Fraction(1, 100)
    assert (Fraction(str(cheaper.violation.row["weight"])) * 10).denominator == 1
    lost = smle.attack(moved(1, 0, 0), spec, rules=["all of it"], tries=3000)
    assert lost.violation.rule == "all of it"
    assert lost.violation.excess == 1


def test_answers_that_are_only_rounded_to_their_step_are_kept():
    spec = Specification.from_yaml(
        "inputs: {x: [0, 1]}\noutputs: {y: {step: 0.01}, z: {step: 5}}\n"
        "rules: [{name: r, then: 0 <= y <= 2 and 0 <= z <= 100}]\n"
    )
    answers = np.array([[1.234, 7.4], [1.235, 10], [2.004, 50], [2.006, 50], [1, 103], [np.nan, 5]], dtype=np.float32)
    model = smle.correct(lambda X: answers, spec)
    with pytest.warns(UserWarning, match="NaN"):
        served, info = model.predict(np.zeros((6, 1)), return_info=True)
    assert info["served"].tolist() == ["kept", "kept", "kept", "moved", "moved", "replaced"]
    assert served[0].tolist() == [np.float32(1.23), 5]
    assert (model.served_["kept"], model.served_["moved"], model.served_["replaced"]) == (3, 2, 1)
