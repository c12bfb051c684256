"""Stored estimators with their heads in one ONNX file: tables with text, missing values and undeclared columns."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from smle import SafeClassifier
from smle.certificates.document import arrays_of
from smle.corrected import CorrectedModel
from smle.errors import DataError, ModelFormatError, RuleError
from smle.export import check_onnx, load_onnx, write_onnx
from smle.graphs.convert import stored_form
from smle.heads.rules.rules_author import certify_rules
from smle.rules import Specification
from smle.serving.fronts import StoredModel
from smle.storage import ModelRecord
from smle.tables import encode_inputs
from smle.tables.frames import frame_of

pytest.importorskip("skl2onnx")

RULES = """
inputs:
  income: {range: [0, 200000], missing: 20000}
  age: {range: [18, 100], integer: true}
  region: {categories: [north, south, east], missing: south}
outputs: [limit]
rules:
  - {name: affordable, then: 0 <= limit <= 0.35 * income + 100}
  - {name: young, when: age < 25, then: limit <= 5000}
  - {name: north, when: region == north and income >= 50000, then: limit >= 1000}
"""


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    """Four numbers and two texts, of which the rules know three columns; some values are missing."""
    rng = np.random.default_rng(seed)
    income = rng.uniform(0, 200000, rows).round(2)
    income[rng.random(rows) < 0.1] = np.nan
    region = rng.choice(np.array(["north", "south", "east", None], dtype=object), rows, p=[0.3, 0.3, 0.3, 0.1])
    debts = rng.integers(0, 9, rows)
    job = rng.choice(["clerk", "nurse", "smith", ""], rows)
    years = np.where(rng.random(rows) < 0.1, np.nan, rng.uniform(0, 40, rows)).round(1)
    columns = {"job": job, "income": income, "region": region, "debts": debts, "years": years}
    return pd.DataFrame({**columns, "age": rng.integers(18, 100, rows)})


def targets(data: pd.DataFrame) -> np.ndarray:
    return 0.4 * data["income"].fillna(9000) - 900 * data["debts"] + 2000 * (data["job"] == "nurse") - 4000


def encoded_first(model) -> object:
    texts = make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), OneHotEncoder(handle_unknown="ignore"))
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    return make_pipeline(
        make_column_transformer((texts, ["job", "region"]), (numbers, ["income", "debts", "years", "age"])), model
    )


ESTIMATORS = {
    "ridge": lambda: encoded_first(Ridge()),
    "forest": lambda: encoded_first(RandomForestRegressor(n_estimators=5, max_depth=6, random_state=0)),
    "boosting": lambda: encoded_first(HistGradientBoostingRegressor(max_iter=20, categorical_features=None)),
    "subgraphs": lambda: encoded_first(GaussianProcessRegressor(alpha=1.0, optimizer=None)),
}


def record_of(stored: StoredModel, spec: Specification) -> ModelRecord:
    files = {"rules": spec.to_yaml().encode(), "model": ModelRecord.description_bytes({}), "onnx": stored.onnx}
    certificate = certify_rules(spec, files=files)
    return ModelRecord(arrays_of(certificate.tensors), {}, spec.to_yaml(), certificate, stored.onnx)


def stored(name: str, spec: Specification) -> StoredModel:
    data = table(300)
    frame = frame_of(data)
    model = ESTIMATORS[name]().fit(frame, targets(data))
    return stored_form(model, spec, frame, encode_inputs(spec, data))


@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_file_answers_as_the_stored_model_does(tmp_path, name, monitor):
    spec = Specification.from_yaml(RULES)
    model = stored(name, spec)
    record, place = record_of(model, spec), tmp_path / "m.onnx"
    write_onnx(record, place, monitor=monitor)
    result = check_onnx(place)
    assert len(result.proved) == 4
    assert any(line.startswith("the model: ") for line in result.asserted)
    assert "inputs of the model alone: debts, job, years" in result.asserted
    data = table(400, seed=1)
    corrected = CorrectedModel(model, spec, record.certificate)
    expected, info = corrected.predict(data, return_info=True)
    running = load_onnx(place)
    found = running.predict(data)
    assert np.allclose(found["limit"], expected, rtol=1e-5, atol=1e-3)
    assert (info["moved"] != 0).sum() > 20
    one = running.predict(data.iloc[[7]])
    assert np.allclose(one["limit"], found["limit"].iloc[[7]], rtol=1e-6)
    if monitor:
        _, facts = running.predict(data, return_info=True)
        assert {"young", "north"} <= {rule for names in facts["active_rules"] for rule in names}
        assert facts["in_domain"].all()


def test_missing_values_reach_the_model(tmp_path):
    """The rules have stand-ins for them; a model inside sees that they are missing."""
    spec = Specification.from_yaml(RULES)
    data = table(3000)
    texts = OneHotEncoder(handle_unknown="ignore")
    kinds = make_column_transformer((texts, ["region"]), remainder="passthrough")
    model = make_pipeline(kinds, HistGradientBoostingRegressor(max_iter=60, categorical_features=None))
    data["region"] = data["region"].astype(object).where(data["region"].notna(), np.nan)
    columns = ["region", "income", "age"]
    frame = frame_of(data[columns])
    y = np.where(data["income"].isna(), 500.0, 3000.0) + 1000 * data["region"].isna()
    fitted = stored_form(model.fit(frame, y), spec, frame, encode_inputs(spec, data))
    write_onnx(record_of(fitted, spec), tmp_path / "m.onnx")
    rows = pd.DataFrame(
        {"region": ["south", None, "south", None], "income": [20000.0, 20000.0, np.nan, np.nan], "age": [50] * 4}
    )
    found = load_onnx(tmp_path / "m.onnx").predict(rows)["limit"]
    assert np.allclose(found, [3000, 4000, 500, 1500], atol=200)


def test_columns_that_are_not_there_are_named(tmp_path):
    spec = Specification.from_yaml(RULES)
    write_onnx(record_of(stored("ridge", spec), spec), tmp_path / "m.onnx")
    model = load_onnx(tmp_path / "m.onnx")
    with pytest.raises(DataError, match="debts"):
        model.predict(table(3).drop(columns="debts"))
    with pytest.raises(DataError, match="'years': expected numbers"):
        model.predict(table(3).assign(years="long"))


# --- models from elsewhere ------------------------------------------------------------------------------------------


def foreign(inputs, nodes, constants=(), opset=20, functions=(), outputs=(("answers", TensorProto.FLOAT),)) -> bytes:
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    graph = helper.make_graph(nodes, "g", values, ends, list(constants))
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)][: 2 if functions else 1]
    return helper.make_model(graph, opset_imports=sets, ir_version=8, functions=list(functions)).SerializeToString()


NUMBERS = "inputs: {a: [0, 1], b: [0, 1]}\noutputs: [y]\nrules:\n  - {name: r, when: a <= 0.5, then: y <= b}\n"
WIDE = ("X", TensorProto.FLOAT, ["N", 2])


def served(tmp_path, model: bytes, rules: str = NUMBERS):
    spec = Specification.from_yaml(rules)
    write_onnx(record_of(StoredModel(model), spec), tmp_path / "m.onnx")
    return load_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_one_wide_input_is_fed_with_the_features(tmp_path, kind):
    nodes = [helper.make_node("ReduceSum", ["X", "axes"], ["answers"], keepdims=0)]
    axes = numpy_helper.from_array(np.array([1]), "axes")
    model = foreign([("X", kind, ["N", 2])], nodes, [axes], outputs=[("answers", kind)])
    found = served(tmp_path, model).predict(pd.DataFrame({"a": [0.25, 0.75], "b": [0.5, 0.5]}))["y"]
    assert np.allclose(found, [0.5, 1.25], atol=1e-6)


def test_older_operator_sets_functions_and_unused_outputs_are_taken(tmp_path):
    body = [helper.make_node("Add", ["p", "p"], ["q"])]
    double = helper.make_function("own", "Double", ["p"], ["q"], body, [helper.make_opsetid("", 12)])
    nodes = [
        helper.make_node("Double", ["X"], ["d"], domain="own"),
        helper.make_node("ReduceSum", ["d"], ["answers"], axes=[1], keepdims=1),
        helper.make_node("Neg", ["answers"], ["other"]),
    ]
    outputs = [("answers", TensorProto.FLOAT), ("other", TensorProto.FLOAT)]
    model = foreign([WIDE], nodes, opset=12, functions=[double], outputs=outputs)
    found = served(tmp_path, model).predict(pd.DataFrame({"a": [0.25, 0.75], "b": [0.5, 0.5]}))["y"]
    assert np.allclose(found, [0.5, 2.5], atol=1e-6)


def test_subgraphs_with_names_in_common_are_told_apart(tmp_path):
    """Both branches use one name, which is also that of a constant outside: names get prefixes of their own."""
    one = numpy_helper.from_array(np.float32([1]), "c")
    two = numpy_helper.from_array(np.float32([2]), "c")
    value = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    then = helper.make_graph([helper.make_node("Add", ["a", "c"], ["t"])], "then", [], [value], [two])
    other = helper.make_graph([helper.make_node("Mul", ["a", "c"], ["t"])], "else", [], [value])
    nodes = [
        helper.make_node("ReduceMax", ["a"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "c"], ["flag0"]),
        helper.make_node("ReduceMax", ["flag1"], ["flag2"], keepdims=0),
        helper.make_node("Cast", ["flag2"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["answers"], then_branch=then, else_branch=other),
    ]
    nodes.insert(2, helper.make_node("Cast", ["flag0"], ["flag1"], to=TensorProto.FLOAT))
    model = foreign([("a", TensorProto.FLOAT, ["N", 1]), ("c2", TensorProto.FLOAT, ["N", 1])], nodes, [one])
    running = served(tmp_path, model, NUMBERS.replace("a: [0, 1]", "a: [0, 3]"))
    rows = pd.DataFrame({"a": [2.0, 0.75], "b": [0.5, 0.5], "c2": [0.0, 0.0]})
    assert running.predict(rows)["y"].tolist() == [4.0, 2.75]
    assert running.predict(rows.iloc[[1]])["y"].tolist() == [0.75]


def test_numbers_that_the_rules_read_as_categories(tmp_path):
    rules = 'inputs: {a: [0, 1], k: {categories: ["0", "1"], missing: "1"}}\noutputs: [y]\nrules:\n'
    rules += "  - {name: r, when: k == 1, then: y <= 0.5}\n"
    nodes = [helper.make_node("Add", ["a", "k"], ["answers"])]
    columns = [("a", TensorProto.FLOAT, ["N", 1]), ("k", TensorProto.FLOAT, ["N", 1])]
    running = served(tmp_path, foreign(columns, nodes), rules)
    rows = pd.DataFrame({"a": [0.25] * 3, "k": pd.Series([0, 1, None], dtype="Int64")})
    found = running.predict(rows)["y"]
    assert found.tolist()[:2] == [0.25, 0.5]
    assert found.iloc[2] <= 0.5  # NaN of the model: the default answer


@pytest.mark.parametrize(
    ("inputs", "nodes", "error", "message"),
    [
        ([("a", TensorProto.STRING, ["N", 1])], [helper.make_node("Cast", ["a"], ["answers"], to=1)],
         ModelFormatError, "reads 'a' as text, the rules as a number"),
        ([WIDE], [helper.make_node("Gelu", ["X"], ["answers"], domain="com.microsoft")], ModelFormatError,
         r"operators of com\.microsoft"),
        ([("y", TensorProto.FLOAT, ["N", 1])], [helper.make_node("Neg", ["y"], ["answers"])], RuleError,
         "'y' is needed twice"),
    ],
    ids=["text", "domain", "output"],
)  # fmt: skip
def test_models_that_do_not_fit_are_refused(tmp_path, inputs, nodes, error, message):
    spec, data = Specification.from_yaml(NUMBERS), foreign(inputs, nodes)
    certificate = certify_rules(spec, files={"rules": spec.to_yaml().encode(), "onnx": data})
    record = ModelRecord(arrays_of(certificate.tensors), {}, spec.to_yaml(), certificate, data)
    with pytest.raises(error, match=message):
        write_onnx(record, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_without_rules_is_written_without_a_certificate(tmp_path):
    nodes = [helper.make_node("Neg", ["a"], ["answers"])]
    data = foreign([("a", TensorProto.FLOAT, ["N", 1])], nodes)
    spec = Specification.from_yaml("inputs: {a: [0, 1], b: [0, 1]}\noutputs: [y]\nrules: []\n")
    write_onnx(ModelRecord({}, {}, spec.to_yaml(), None, data), tmp_path / "m.onnx", monitor=False)
    assert onnx.load(tmp_path / "m.onnx").graph.output[0].name == "y"
    assert [place.name for place in tmp_path.iterdir()] == ["m.onnx"]


def test_a_file_answers_no_rows_with_no_answers(tmp_path):
    """The forest inside fails on no rows in onnxruntime."""
    rules = "inputs: {x: [0, 1]}\nlabels: [p, q]\nrules:\n  - {name: r, when: x >= 0.9, then: p implies q}\n"
    X = pd.DataFrame({"x": np.linspace(0, 1, 40)})
    y = pd.DataFrame({"p": (X["x"] > 0.5).astype(int), "q": (X["x"] > 0.6).astype(int)})
    SafeClassifier(rules, RandomForestClassifier(5), compare=False).fit(X, y).to_onnx(tmp_path / "m.onnx")
    model = load_onnx(tmp_path / "m.onnx")
    answers, facts = model.predict(X[:0], return_info=True)
    assert answers.dtypes.to_dict() == model.predict(X).dtypes.to_dict()
    assert (len(answers), len(facts["active_rules"]), len(facts["in_domain"])) == (0, 0, 0)
    aside = model.predict(X[:3].assign(x="none"), bad_rows="set aside", return_info=True)[0]
    assert aside.shape == (3, 2)
    assert aside.isna().all(axis=None)
