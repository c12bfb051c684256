"""smle.correct: fitted estimators, classifiers, ONNX files and functions; what can be stored is."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.exceptions import NotFittedError
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import LinearSVC

from smle import Specification, correct, load
from smle.errors import ConversionError, DataError, ModelFormatError
from smle.export import load_onnx
from smle.rules.membership import broken
from smle.tables import encode_inputs
from support import rules_cases

DOSE = Specification.from_yaml(rules_cases.DOSE)
SHARES = Specification.from_yaml("""
inputs: {a: [0, 1], b: [0, 1]}
outputs: [p, q]
rules:
  - {name: shares, then: p >= 0 and q >= 0 and p + q <= 1}
""")


def test_an_estimator_with_examples_can_be_stored(doses, tmp_path):
    X, y = doses
    plain = Ridge().fit(X, y)
    safe, bare = correct(plain, DOSE, X), correct(plain, DOSE)
    assert np.abs(safe.predict(X) - bare.predict(X)).max() < 1e-5
    safe.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert np.array_equal(loaded.predict(X), safe.predict(X).astype(np.float64))
    safe.to_onnx(tmp_path / "model.onnx")
    assert np.abs(load_onnx(tmp_path / "model.onnx").predict(X)["dose"] - safe.predict(X)).max() < 1e-5
    with pytest.raises(ConversionError, match="cannot be stored: pass examples"):
        bare.save(tmp_path / "bare")
    assert not (tmp_path / "bare").exists()


def test_what_has_no_stored_form_is_served_in_python(doses, tmp_path):
    X, y = doses
    model = KernelRidge(kernel="rbf", gamma=1e-3).fit(X, y)
    safe = correct(model, DOSE, X)
    assert np.array_equal(safe.model.predict(X), model.predict(X))
    assert not broken(DOSE, encode_inputs(DOSE, X), safe.predict(X)[:, None].astype(np.float64)).any()
    for kept in (safe, correct(lambda X: np.ones(len(X)), DOSE, X)):
        with pytest.raises(ConversionError, match=r"cannot be stored: .*(KernelRidge|a function in Python)"):
            kept.save(tmp_path / "model")


def onnx_file(place, inputs, nodes, constants=()):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    out = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", None])]
    graph = helper.make_graph(nodes, "g", values, out, [numpy_helper.from_array(v, n) for n, v in constants])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), place)
    return place


def test_onnx_files_are_corrected_stored_and_exported(doses, tmp_path):
    X, _ = doses
    wide = onnx_file(
        tmp_path / "wide.onnx", [("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_node("MatMul", ["x", "w"], ["out"])], [("w", np.array([[0.06], [0.0]], dtype=np.float32))],
    )  # fmt: skip
    named = onnx_file(
        tmp_path / "named.onnx", [("weight", TensorProto.DOUBLE, ["N", 1]), ("extra", TensorProto.FLOAT, ["N", 1])],
        [helper.make_node("Cast", ["weight"], ["w"], to=TensorProto.FLOAT),
         helper.make_node("Mul", ["w", "extra"], ["out"])],
    )  # fmt: skip
    X = X.assign(extra=np.float32(0.06))
    found = []
    for file in (wide, named):
        safe = correct(file, DOSE, X)
        found.append(safe.predict(X))
        assert not broken(DOSE, encode_inputs(DOSE, X), found[-1][:, None].astype(np.float64)).any()
        safe.save(tmp_path / "model", overwrite=True)
        assert np.array_equal(load(tmp_path / "model").predict(X), found[-1])
        safe.to_onnx(tmp_path / "safe.onnx")
        assert np.abs(load_onnx(tmp_path / "safe.onnx").predict(X)["dose"] - found[-1]).max() < 1e-5
    assert np.abs(found[0] - found[1]).max() < 1e-6
    with pytest.raises(DataError, match="Missing: 'extra'"):
        safe.predict(X.drop(columns="extra"))
    (tmp_path / "text.onnx").write_text("no model")
    for place, message in ((tmp_path / "text.onnx", "onnxruntime cannot"), (tmp_path / "gone.onnx", "Cannot read")):
        with pytest.raises(ModelFormatError, match=message):
            correct(place, DOSE)


def test_coupled_outputs_of_any_function():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(0, 1, (200, 2)), columns=["a", "b"])
    safe = correct(lambda X: 2 * np.asarray(X) - 0.5, SHARES, X)
    answers, info = safe.predict(X, return_info=True)
    assert not broken(SHARES, X.to_numpy(), answers.astype(np.float64)).any()
    inside = (2 * X.to_numpy() - 0.5 >= 0).all(axis=1) & ((2 * X.to_numpy() - 0.5).sum(axis=1) <= 0.999)
    assert np.array_equal(answers[inside], (2 * X.to_numpy() - 0.5)[inside].astype(np.float32))
    assert info["moved"][~inside].any()


def test_classifiers_are_corrected():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(0, 1, 300), "b": rng.uniform(0, 1, 300)})
    spec = Specification.from_yaml(
        "inputs: {a: [0, 1], b: [0, 1]}\nchoices: {c: [x, y, z]}\nrules:\n  - {name: r, when: a > 0.5, then: c != x}\n"
    )
    y = np.array(["x", "y", "z"])[rng.integers(0, 3, 300)]
    y[(X["a"] > 0.4)] = "x"
    for model in (LogisticRegression().fit(X, y), LinearSVC().fit(X, y)):
        answers = correct(model, spec).predict(X)
        own = model.predict(X)
        assert (own[X["a"] > 0.5] == "x").any()
        assert (answers[X["a"] > 0.5] != "x").all()
        assert (answers == own)[(X["a"] <= 0.5) | (own != "x")].all()
    labels = Specification.from_yaml(
        "inputs: {a: [0, 1], b: [0, 1]}\nlabels: [l, m]\nrules:\n  - {name: r, then: not (l and m)}\n"
    )
    both = MultiOutputClassifier(LogisticRegression()).fit(
        X, np.stack([X["a"] > 0.3, X["b"] > 0.3], axis=1).astype(int)
    )
    answers = correct(both, labels).predict(X)
    assert answers.sum(axis=1).max() == 1
    single = both.predict(X).sum(axis=1) < 2
    assert np.array_equal(answers[single], both.predict(X)[single])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (lambda n: ["much"] * n, "Expected numbers as answers .dose.. Got 'much'"),
        (lambda n: [10**400] * n, "a whole number too large for a float"),
        (lambda n: [None] + [1.0] * (n - 1), None),
        (lambda n: np.ones((n, 2)), "Expected answers of shape"),
        (lambda n: np.ones(n) + 1j, "Expected numbers as answers"),
        (lambda n: [[1.0], [1.0, 2.0]], "Expected numbers as answers"),
    ],
)
def test_answers_that_are_no_numbers_are_refused_in_one_line(doses, answers, message):
    X, _ = doses
    safe = correct(lambda X: answers(len(X)), DOSE)
    if message is None:
        with pytest.warns(UserWarning, match="1 of 400 answers of the model are NaN"):
            assert np.isfinite(safe.predict(X)).all()
    else:
        with pytest.raises(DataError, match=message):
            safe.predict(X)


def test_other_mistakes(doses):
    X, _ = doses
    with pytest.raises(NotFittedError):
        correct(Ridge(), DOSE)
    with pytest.raises(TypeError, match="Got the class Ridge"):
        correct(Ridge, DOSE)
    with pytest.raises(DataError, match="Missing: 'weight'"):
        correct(lambda X: np.ones(len(X)), DOSE).predict(X.rename(columns={"weight": "mass"}))
    labels = Specification.from_yaml(
        "inputs: {a: [0, 1]}\nlabels: [l]\nrules:\n  - {name: r, when: a > 0.5, then: l}\n"
    )
    with pytest.raises(DataError, match="Expected a classifier"):
        correct(Ridge().fit(np.ones((2, 1)), [1, 2]), labels).predict(pd.DataFrame({"a": [0.1]}))
