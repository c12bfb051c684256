"""enforcement="correct": trained without rules, then made safe; an estimator like any other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from sklearn.base import clone

from smle import SafeClassifier, SafeRegressor, Specification, load
from smle.export import check_onnx

NAMES = ["l0", "l1", "l2", "l3", "l4"]
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (0, 2)]
TAGS = Specification.from_yaml(
    "inputs: {a: [-3, 3], b: [-3, 3]}\nlabels: [l0, l1, l2, l3, l4]\nrules:\n"
    f"  - {{name: apart, never_together: {[[NAMES[i], NAMES[k]] for i, k in PAIRS]}}}\n"
)
OPTIONS = {"hidden": (16,), "max_epochs": 60, "patience": 20, "random_state": 0, "progress": False}


def tagged(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (rows, 2))
    return X, (X @ rng.normal(size=(2, 5)) + 0.3 > 0).astype(int)  # breaks the rules in many rows


def conflicts(on: np.ndarray) -> np.ndarray:
    return np.any([on[:, i] & on[:, k] for i, k in PAIRS], axis=0)


def test_labels_obey_and_the_rest_stays_as_without_rules(tmp_path: Path) -> None:
    X, y = tagged()
    assert conflicts(y == 1).mean() > 0.3
    model = SafeClassifier(TAGS, enforcement="correct", **OPTIONS).fit(X, y)
    plain = SafeClassifier(replace(TAGS, rules=()), **OPTIONS).fit(X, y)
    ours, before = np.asarray(model.predict(X)) == 1, np.asarray(plain.predict(X)) == 1
    broken = conflicts(before)
    assert broken.any()
    assert not conflicts(ours).any()
    assert (ours != before)[~broken].mean() < 0.01
    assert model.certificate_ is not None
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X))


def test_repeats_itself_and_exports(tmp_path: Path) -> None:
    X, y = tagged(200)
    model = SafeClassifier(TAGS, enforcement="correct", **OPTIONS).fit(X, y)
    np.testing.assert_array_equal(clone(model).fit(X, y).decision_function(X), model.decision_function(X))
    model.to_onnx(tmp_path / "model.onnx")
    check_onnx(tmp_path / "model.onnx")
    running = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    feeds = {name: X[:, [i]].astype(np.float32) for i, name in enumerate(TAGS.columns)}
    on = np.concatenate(running.run(NAMES, feeds), axis=1)
    assert not conflicts(on).any()
    np.testing.assert_array_equal(on, np.asarray(model.predict(X)) == 1)


def test_numbers_are_cut_off_where_rules_apply() -> None:
    spec = Specification.from_yaml(
        "inputs: {a: [-2, 2]}\noutputs: [p]\nrules:\n  - {name: cap, when: a >= 0, then: p <= 0.5}\n"
    )
    X = np.linspace(-2, 2, 300)[:, None]
    y = np.abs(X[:, 0])
    model = SafeRegressor(spec, enforcement="correct", **OPTIONS).fit(X, y)
    predicted = np.asarray(model.predict(X)).ravel()
    assert predicted[X[:, 0] >= 0].max() <= 0.5
    assert np.abs(predicted - y)[X[:, 0] < -0.1].max() < 0.3
    assert predicted[X[:, 0] < -1.5].min() > 1.0


def test_rules_that_move_with_the_input_are_refused() -> None:
    spec = Specification.from_yaml("inputs: {a: [-2, 2]}\noutputs: [p]\nrules:\n  - {name: cap, then: p <= a}\n")
    with pytest.raises(ValueError, match="without inputs in 'then'"):
        SafeRegressor(spec, enforcement="correct", **OPTIONS).fit(np.zeros((20, 1)), np.zeros(20))
