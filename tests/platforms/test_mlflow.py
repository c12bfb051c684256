"""MLflow: what is logged, loaded and served is the certified model, and a folder that was tampered with is refused."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import smle
from smle import NetworkClassifier, SafeClassifier, SafeRegressor
from smle.errors import CertificateError

mlflow = pytest.importorskip("mlflow")
pytestmark = [pytest.mark.audit, pytest.mark.filterwarnings("default")]  # mlflow warns of its own type hints

RULES = """
inputs: {size: [0, 10], count: {range: [0, 9], integer: true}, color: {categories: [red, blue], missing: red}}
choices: {grade: [low, high]}
rules:
  - {name: small, when: size < 5, then: grade == low}
"""


@pytest.fixture
def tracked(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small package has no data base
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_experiment("smle")
    with mlflow.start_run():
        yield
    mlflow.set_tracking_uri(None)


def rows(count=60):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": rng.uniform(0, 10, count),
            "count": rng.integers(0, 10, count),
            "color": rng.choice(["red", "blue"], count),
        }
    )


def test_log_load_predict(tracked, braking_model, braking_table):
    from smle.platforms.mlflow import load_model, log_model

    X = braking_table[["distance", "speed", "friction"]]
    uri = log_model(braking_model, "brakes").model_uri
    served = mlflow.pyfunc.load_model(uri)
    assert np.array_equal(served.predict(X)["brake"], braking_model.predict(X))
    assert [column.name for column in served.metadata.signature.inputs] == list(X.columns)
    assert served.input_example.shape == (1, 3)
    again = load_model(uri)
    assert again.certificate_.check()
    with pytest.raises(mlflow.exceptions.MlflowException, match="speed"):
        served.predict(X.drop(columns="speed"))
    far = X.assign(distance=500.0)
    with pytest.raises(ValueError, match="outside the domain"):
        served.predict(far)
    assert len(served.predict(far, params={"out_of_domain": "clip"})) == len(far)
    params = {"out_of_domain": "clip", "bad_rows": "set aside"}
    assert served.predict(far, params=params)["set_aside"].isna().all()


def test_requirements_are_those_of_the_kind_of_model(tmp_path, braking_model, braking_table):
    from smle.platforms.mlflow import save_model

    X, y = braking_table[["distance", "speed", "friction"]], braking_table["brake"]
    estimator = SafeRegressor(braking_model.specification_, estimator=Ridge()).fit(X, y)
    for model, wanted in ((braking_model, "smle"), (estimator, "smle[onnx]")):
        save_model(model, tmp_path / wanted)
        listed = (tmp_path / wanted / "requirements.txt").read_text().split()
        assert [name for name in listed if name.startswith(("smle", "torch"))] == [f"{wanted}=={smle.__version__}"]


def test_types_of_the_signature(tmp_path):
    from smle.platforms.mlflow import save_model

    X = rows()
    model = SafeClassifier(RULES, NetworkClassifier(max_epochs=2), random_state=0, compare=False)
    model.fit(X, np.where(X["size"] > 6, "high", "low"))
    save_model(model, tmp_path / "saved")
    served = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    kinds = {column.name: column.type.name for column in served.metadata.signature.inputs}
    assert kinds == {"size": "double", "count": "long", "color": "string"}
    assert [column.type.name for column in served.metadata.signature.outputs] == ["string"]
    missing = X.assign(color=[None, *X["color"][1:]])
    assert served.predict(missing)["grade"].tolist() == model.predict(missing).tolist()


def test_columns_that_the_rules_do_not_know_are_part_of_the_signature(tmp_path):
    from smle.platforms.mlflow import save_model

    rules = "inputs: {size: [0, 10]}\noutputs: [price]\nrules:\n  - {name: fair, then: 0 <= price <= 2 * size + 1}\n"
    X = rows().drop(columns="count")
    words = make_column_transformer((OneHotEncoder(sparse_output=False), ["color"]), remainder="passthrough")
    model = SafeRegressor(rules, estimator=make_pipeline(words, Ridge())).fit(X, X["size"])
    save_model(model, tmp_path / "saved", input_example=X[:1])
    served = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    assert {column.name for column in served.metadata.signature.inputs} == {"size", "color"}
    assert np.array_equal(served.predict(X)["price"], model.predict(X))


def test_the_certificate_is_checked_on_load(tmp_path, braking_folder):
    from smle.platforms.mlflow import save_model

    save_model(braking_folder, tmp_path / "saved")
    mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    (rules,) = (tmp_path / "saved").rglob("rules.yaml")
    rules.write_text(rules.read_text().replace("0.8", "0.7"))
    with pytest.raises(CertificateError, match="rules"):
        mlflow.pyfunc.load_model(str(tmp_path / "saved"))
