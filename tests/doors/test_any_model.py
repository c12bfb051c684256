"""Any model, corrected exactly: estimators, pipelines and functions behind a clip list."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from smle import Specification, correct
from smle.errors import ContradictionError, DataError
from smle.nearest.oracle import nearest_outputs
from smle.rules.membership import broken
from smle.tables import encode_inputs
from support.rules_cases import BANK
from support.sampling import Judge, hard_points


def estimators():
    columns = make_column_transformer((OneHotEncoder(), ["job"]), remainder=SimpleImputer())
    return {
        "ridge": make_pipeline(columns, Ridge()),
        "boosting": make_pipeline(columns, MultiOutputRegressor(HistGradientBoostingRegressor(max_iter=40))),
    }


@pytest.mark.parametrize("name", ["ridge", "boosting"])
def test_an_estimator_answers_like_nearest_allowed_post_processing_without_a_violation(bank, name):
    """With categories, missing values, a column that the rules do not know, moving and capped limits."""
    X, y = bank[0].drop(columns="town"), bank[1]
    spec, model = Specification.from_yaml(BANK), estimators()[name].fit(X, y)
    safe = correct(model, spec)
    answers, info = safe.predict(X, return_info=True)
    encoded, plain = encode_inputs(spec, X), model.predict(X)
    assert broken(spec, encoded, plain).any()
    assert not broken(spec, encoded, answers.astype(np.float64)).any()
    allowed = nearest_outputs(spec, encoded, plain.astype(np.float64))
    assert np.abs(answers - allowed).max() <= 1e-6 * np.abs(allowed).max()
    kept = ~broken(spec, encoded, plain.astype(np.float32).astype(np.float64)).any(axis=1)
    assert np.array_equal(answers[kept], plain[kept].astype(np.float32))
    assert np.allclose(info["moved"], answers - plain, atol=1e-2)
    assert len(safe.certificate_.check()) == 8
    assert repr(safe) == "CorrectedModel(Pipeline, 8 statements proved)"


def test_a_function_is_attacked_in_vain():
    spec = Specification.from_yaml(BANK)
    rng = np.random.default_rng(5)

    def hostile(X):
        return rng.choice([np.nan, np.inf, -np.inf, 1e38, -1.0, 0.0, 499.99, 1e7], size=(len(X), 2))

    safe, judge = correct(hostile, spec), Judge(spec)
    for X in hard_points(spec, rng, 2000, dtype=np.float64):
        table = pd.DataFrame({"income": X[:, 0], "age": np.round(X[:, 1])})
        table["job"] = np.array(["none", "employee", "self-employed"])[X[:, 2:].argmax(axis=1)]
        with pytest.warns(UserWarning, match="NaN, infinite or beyond 1e30"):
            answers = safe.predict(table)
        assert judge.violations(encode_inputs(spec, table), answers) == []
    assert safe.served_["replaced"] > 1000


def test_the_median_answer_to_examples_takes_the_place_of_nan(bank):
    X, _ = bank
    spec = Specification.from_yaml(BANK)
    answers = np.tile([1234.0, 7.5], (len(X), 1))
    safe = correct(lambda given: np.where(np.arange(len(given))[:, None] == 0, np.nan, answers[: len(given)]), spec, X)
    rich = pd.DataFrame({"income": [90000.0] * 3, "age": 50.0, "job": "employee"})
    with pytest.warns(UserWarning, match="2 of 6 answers"):
        assert np.array_equal(safe.predict(rich), np.tile(np.float32([1234.0, 7.5]), (3, 1)))


def test_one_output_is_a_vector_and_rows_outside_the_domain_are_refused():
    spec = Specification.from_yaml(
        "inputs: {w: [2, 250]}\noutputs: [dose]\nrules:\n  - {name: r, then: 0 <= dose <= 0.05 * w}\n"
    )
    safe = correct(lambda X: np.full(len(X), 9.0), spec)
    assert safe.predict(pd.DataFrame({"w": [10.0, 40.0]})).tolist() == pytest.approx([0.5, 2.0], rel=1e-6)
    with pytest.raises(DataError, match="outside"):
        safe.predict(pd.DataFrame({"w": [1.0]}))
    assert safe.predict(pd.DataFrame({"w": [1.0]}), out_of_domain="clip").tolist() == pytest.approx([0.1], rel=1e-6)


@pytest.mark.parametrize(
    ("model", "rules", "error", "message"),
    [
        (3, "  - {name: r, then: y <= 1}", TypeError, "method `predict`, a function, or the path of"),
        (len, "  - {name: r, then: y <= 1}\n  - {name: s, when: a > 3, then: y >= a}", ContradictionError,
         "'s' and 'r' contradict each other at a="),
        (np.zeros, "  - {name: r, then: y <= 1}", DataError, r"shape \(2, 2\): a column each for y, z"),
    ],
)  # fmt: skip
def test_clear_errors(model, rules, error, message):
    spec = Specification.from_yaml(f"inputs: {{a: [0, 9]}}\noutputs: [y, z]\nrules:\n{rules}\n")
    with pytest.raises(error, match=message):
        correct((lambda X: np.zeros(len(X))) if model is np.zeros else model, spec).predict(
            pd.DataFrame({"a": [1.0, 2.0]})
        )
