"""What `smle.platforms.mlflow` does before MLflow is called, so these tests run without it."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from smle import SafeRegressor, load
from smle.errors import ModelFormatError, NotCertifiedError
from smle.platforms import mlflow
from smle.platforms.mlflow import input_example, save_model

RULES = """
inputs:
  size: [0, 1]
  half: {range: [0, 1.5], step: 0.5}
  narrow: {range: [0.9, 1.05], step: 0.5}
  count: {range: [0, 3], integer: true}
  known: {range: [0, 3], integer: true, missing: 1}
  day: [2020-01-01, 2020-02-01]
outputs: [price]
rules:
  - {name: fair, then: 0 <= price <= 1 + size}
"""


def test_the_example_is_a_row_that_the_model_answers():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "size": rng.uniform(0, 1, 40),
            "half": rng.integers(0, 4, 40) / 2,
            "narrow": 1.0,
            "count": rng.integers(0, 4, 40),
            "known": rng.integers(0, 4, 40),
            "day": rng.integers(18262, 18294, 40),
        }
    )
    model = SafeRegressor(RULES, estimator=Ridge(), compare=False).fit(X, X["size"])
    example = input_example(model)
    assert len(model.predict(example)) == 1
    assert example["narrow"][0] == 1


def test_an_onnx_file_is_refused_with_what_to_pass_instead(braking_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow, "_pyfunc", lambda: SimpleNamespace(save_model=None))
    load(braking_folder).to_onnx(tmp_path / "model.onnx")
    with pytest.raises(ModelFormatError, match="pass the folder that it was exported from"):
        save_model(tmp_path / "model.onnx", tmp_path / "saved")


def test_a_model_without_rules_is_refused_before_it_is_logged(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow, "_pyfunc", lambda: SimpleNamespace(save_model=None))
    X = pd.DataFrame({"size": np.linspace(0, 1, 20)})
    model = SafeRegressor("inputs: {size: [0, 1]}\noutputs: [price]\nrules: []\n", Ridge()).fit(X, X["size"])
    with pytest.raises(NotCertifiedError, match="without rules"):
        save_model(model, tmp_path / "saved")
