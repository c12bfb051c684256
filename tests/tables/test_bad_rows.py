"""Rows that cannot be read are set aside with a reason; the others are answered as if they had come alone."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression

from smle import NetworkRegressor, SafeClassifier, SafeRegressor, Specification, correct
from smle.errors import DataError
from smle.export import load_onnx
from smle.monitor import compare

INPUTS = """
inputs:
  a: [0, 10]
  b: {range: [0, 1], missing: 0}
  n: {range: [0, 99999999], integer: true}
  c: {categories: [x, y]}
  d: [2000-01-01, 2030-01-01]
"""
NUMBERS = Specification.from_yaml(INPUTS + "outputs: [z]\nrules: [{name: r, when: a >= 5, then: z <= 3}]")
LABELS = Specification.from_yaml(INPUTS + "labels: [p, q]\nrules: [{name: r, then: not (p and q)}]")
OPTIONS = Specification.from_yaml(INPUTS + "choices: {k: [no, yes]}\nrules: [{name: r, when: a >= 5, then: k != yes}]")
WRONG = {
    1: ("c", "purple", "'c': expected one of x, y, got 'purple'"),
    3: ("a", None, "'a' is missing"),
    4: ("a", "n/k", "'a': expected a number, got 'n/k'"),
    5: ("d", "2020-01-01 12:30", "'d': expected a date such as 2020-01-31, got '2020-01-01 12:30'"),
    6: ("w", "?", "'w': expected a number, got '?'"),
    8: ("n", 1.5, "'n': expected a whole number, got 1.5"),
}


def rows_of(count=300):
    rng = np.random.default_rng(0)
    days = pd.to_datetime(rng.integers(11000, 20000, count), unit="D").strftime("%Y-%m-%d")
    return pd.DataFrame(
        {
            "a": rng.uniform(0, 10, count),
            "b": rng.uniform(size=count),
            "n": rng.integers(0, 99, count),
            "c": rng.choice(["x", "y"], count),
            "d": days,
            "w": rng.normal(size=count),
        }
    )


X = rows_of()
TRUTH = {
    "z": X["a"] + X["w"],
    "labels": pd.DataFrame({"p": (X["w"] > 0).astype(int), "q": (X["a"] > 5).astype(int)}),
    "k": np.where(X["w"] > 0, "yes", "no"),
}


def spoiled(table, wrong=WRONG):
    table = table.astype(object)
    for row, (column, value, _) in wrong.items():
        table.loc[row, column] = value
    return table


@pytest.fixture(scope="module")
def models():
    forest = RandomForestClassifier(10, random_state=0)
    numbers = X[["a", "n", "w"]]
    made = {
        "network": SafeRegressor(NUMBERS, NetworkRegressor(max_epochs=3), random_state=0, compare=False),
        "labels": SafeClassifier(LABELS, random_state=0, compare=False),
        "options": SafeClassifier(OPTIONS, random_state=0, compare=False),
    }
    made["network"].fit(X, TRUTH["z"])
    made["labels"].set_params(estimator=_chosen(forest)).fit(X, TRUTH["labels"])
    made["options"].set_params(estimator=_chosen(forest)).fit(X, TRUTH["k"])
    inner = LinearRegression().fit(numbers, TRUTH["z"])
    made["function"] = correct(lambda table: inner.predict(table[list(numbers)]), NUMBERS)
    return made


def _chosen(model):
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline

    return make_pipeline(make_column_transformer(("passthrough", ["a", "n", "w"])), model)


@pytest.mark.parametrize("name", ["network", "labels", "options", "function"])
def test_answers_stay_at_their_rows_and_are_those_of_good_rows_alone(models, name):
    model, bad = models[name], spoiled(X.head(20))
    wrong = dict(WRONG)
    if name == "function":  # only the model itself knows what it can read
        bad.loc[6, "w"] = X.loc[6, "w"]
        del wrong[6]
    bad.loc[7, "b"] = None  # has a stand-in
    kept = [row for row in range(20) if row not in wrong]
    good = X.head(20).iloc[kept].copy()
    good["b"] = good["b"].mask(good.index == 7)
    with pytest.raises(DataError):
        model.predict(bad)
    before = model.served_["set aside"]
    answers, info = model.predict(bad, bad_rows="set aside", return_info=True)
    alone, facts = model.predict(good, return_info=True)
    assert len(answers) == 20
    assert np.array_equal(answers[kept].astype(alone.dtype), alone)
    assert pd.isna(answers[list(wrong)]).all()
    assert info["set_aside"] == {row: reason for row, (_, _, reason) in wrong.items()}
    assert model.served_["set aside"] - before == len(wrong)
    assert [info["active_rules"][row] for row in kept] == facts["active_rules"]
    assert info["served"][kept].tolist() == facts["served"].tolist()
    assert set(info["served"][list(wrong)]) == {"set aside"}
    assert not info["in_domain"][list(wrong)].any()
    assert np.array_equal(info["moved"][kept], facts["moved"])


def test_probabilities_and_scores_stay_at_their_rows(models):
    bad, kept = spoiled(X.head(20)), [row for row in range(20) if row not in WRONG]
    for name in ("labels", "options"):
        for ask in (models[name].predict_proba, models[name].decision_function):
            found = ask(bad, bad_rows="set aside")
            assert np.array_equal(found[kept], ask(X.head(20).iloc[kept]))
            assert np.isnan(found[list(WRONG)]).all()


@pytest.mark.parametrize("name", ["network", "labels", "options"])
def test_types_do_not_depend_on_whether_a_row_is_bad(models, name):
    model = models[name]
    one, info = model.predict(X.head(3), bad_rows="set aside", return_info=True)
    with pytest.warns(UserWarning, match="set aside"):
        two = model.predict(spoiled(X.head(9)), bad_rows="set aside")
    assert one.dtype == two.dtype
    assert info["set_aside"] == {}
    assert one.tolist() == model.predict(X.head(3)).tolist()


@pytest.mark.parametrize("name", ["network", "labels", "options", "function"])
def test_a_table_of_bad_rows_alone_is_answered_with_nothing(models, name):
    answers, info = models[name].predict(spoiled(X.head(2)).iloc[[1]], bad_rows="set aside", return_info=True)
    assert len(answers) == 1
    assert pd.isna(answers).all()
    assert list(info["set_aside"]) == [0]


def test_rows_outside_the_domain_are_no_bad_rows_and_are_named_by_their_number(models):
    bad = spoiled(X.head(20))
    bad.loc[9, "a"] = 12.0
    with pytest.raises(DataError, match=r"1 of 14 rows lie outside .* in row 10"):
        models["network"].predict(bad, bad_rows="set aside")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        models["network"].predict(bad, bad_rows="set aside", out_of_domain="warn")
    texts = [str(item.message) for item in found]
    assert any("(rows 10)" in text for text in texts)
    assert any(text.startswith("6 of 20 rows were set aside (row 2: 'c': expected one of x, y") for text in texts)
    assert all(item.filename == __file__ for item in found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = models["network"].predict(bad, bad_rows="set aside", out_of_domain="clip", return_info=True)
    assert 9 not in info["set_aside"]


def test_every_kind_of_table_and_arrays(models):
    bad = spoiled(X.head(9), {row: wrong for row, wrong in WRONG.items() if row in (1, 4, 5)})
    bad.loc[4, "w"] = None
    expected, info = models["network"].predict(bad, bad_rows="set aside", return_info=True)
    texts = {name: [None if pd.isna(value) else str(value) for value in bad[name]] for name in bad}
    records = [{name: texts[name][row] for name in texts} for row in range(9)]
    for table in (pl.DataFrame(texts), texts, records):
        found, facts = models["network"].predict(table, bad_rows="set aside", return_info=True)
        assert np.array_equal(found, expected, equal_nan=True)
        assert facts["set_aside"] == info["set_aside"]
    spec = Specification.from_yaml("{inputs: {a: [0, 1], b: [0, 1]}, outputs: [y], rules: [{name: r, then: y <= 5}]}")
    rows = np.array([[0.5, 0.5], [np.nan, 0.5], [0.25, 0.75]])
    model = SafeRegressor(spec, LinearRegression()).fit(rows[[0, 2, 0, 2]], [1, 2, 3, 4])
    served = correct(lambda table: np.asarray(table, dtype=float).sum(axis=1), spec)
    for ask in (model.predict, served.predict):
        for given in (rows, rows.tolist(), [[0.5, 0.5], ["?", 0.5], [0.25, 0.75]]):
            found, facts = ask(given, bad_rows="set aside", return_info=True)
            assert np.array_equal(found[[0, 2]], ask(rows[[0, 2]]))
            assert np.isnan(found[1])
            assert list(facts["set_aside"]) == [1]


def test_columns_that_lack_and_unknown_policies_are_refused(models):
    for model in models.values():
        with pytest.raises(DataError, match="Missing: 'a'"):
            model.predict(X.drop(columns="a"), bad_rows="set aside")
        with pytest.raises(ValueError, match=r"Expected bad_rows to be 'raise' or 'set aside'\. Got 'drop'"):
            model.predict(X.head(2), bad_rows="drop")


def test_steps_are_whole_numbers_or_none():
    spec = Specification.from_yaml(
        "{inputs: {a: [0, 10]}, outputs: {y: {step: 0.5, range: [0, 100]}}, rules: [{name: r, then: y <= 5}]}"
    )
    model = correct(lambda table: np.asarray(table["a"], dtype=float), spec)
    found, _ = model.predict({"a": [1.2, None, 9.0]}, bad_rows="set aside", return_info=True, as_steps=True)
    assert found.ravel().tolist() == [2, None, 10]


def test_exported_files_set_aside_the_same_rows_and_what_float32_cannot_hold(models, tmp_path):
    models["network"].to_onnx(tmp_path / "model.onnx")
    exported = load_onnx(tmp_path / "model.onnx")
    bad = spoiled(X.head(20))
    bad.loc[10, "n"] = 2**24 + 1
    good, aside = exported.without_bad_rows(bad)
    expected = {row: reason for row, (_, _, reason) in WRONG.items()}
    assert {row: aside.reasons[row] for row in expected} == expected
    assert list(aside.reasons) == [*WRONG, 10]
    assert "float holds exactly" in aside.reasons[10]
    assert list(exported.predict(good).index) == aside.kept.tolist()


def test_the_monitor_counts_them_and_calls_many_a_change(models):
    model = models["network"]
    training = model.usage(X)
    bad = spoiled(X, dict.fromkeys(range(30), ("a", "n/k", "")))
    with pytest.raises(DataError):
        model.usage(bad)
    now = model.usage(bad, bad_rows="set aside")
    assert (now.rows, now.set_aside) == (270, 30)
    assert (now + now).set_aside == 60
    assert type(now).from_json(now.to_json()) == now
    found = {change.kind: change for change in compare(training, now, NUMBERS).changes}
    assert found["aside"].verdict == "changed"
    assert found["aside"].now == 0.1
    assert "aside" not in {change.kind for change in compare(training, training, NUMBERS).changes}
