"""torch is an extra: what runs without it, and what the rest says. Python starts as if torch were not installed."""

import json
import os
import subprocess
import sys

import pytest
from sklearn.linear_model import Ridge

from smle import NetworkRegressor, SafeRegressor

HIDING = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *rest: None if name.partition(".")[0] == "torch" else find(name, *rest)
)
"""

PROGRAM = """
import json, sys
from typer.testing import CliRunner

from smle.cli import app

results = []
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, arguments)
    results.append((done.exit_code, done.output, repr(done.exception)))
assert "torch" not in sys.modules
print(json.dumps(results))
"""

WORKS = [
    ["rules", "braking.yaml"],
    ["rules", "braking.yaml", "--data", "data.csv", "-o", "rules.html"],
    ["rules", "diff", "braking.yaml", "braking.yaml"],
    ["verify", "model"],
    ["verify", "m.onnx"],
    ["predict", "m.onnx", "data.csv", "-o", "predictions.csv"],
    ["predict", "m.onnx", "data.csv", "-o", "predictions.parquet", "--info", "--keep-all"],
    *(
        command
        for model in ("model", "corrected", "ridge")
        for command in (
            ["predict", model, "data.csv", "-o", f"{model}.csv", "--info"],
            ["monitor", model, "data.csv"],
            ["export", model, "-o", f"{model}.onnx"],
            ["report", model, "-o", f"{model}.html", "--data", "data.csv"],
        )
    ),
    ["project", "corrected", "braking.yaml", "-o", "projected"],
    ["train", "full.csv", "braking.yaml", "-o", "trained", "--estimator", "ridge"],
]
NEEDS_TORCH = [
    ["train", "full.csv", "braking.yaml", "-o", "new"],
    ["project", "model", "braking.yaml", "-o", "new"],
    ["demo", "-o", "demo"],
]
ROOMS = ["nn", "networks.safe_network", "training", "training.loop", "heads.box.network.assurance"]


@pytest.fixture
def place(braking_model, braking_folder, braking_table, tmp_path):
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDING)
    braking_model.to_onnx(tmp_path / "m.onnx")
    (tmp_path / "braking.yaml").write_text(braking_model.specification_.to_yaml())
    braking_table.to_csv(tmp_path / "full.csv", index=False)
    X, y = braking_table.drop(columns="brake"), braking_table["brake"]
    X.to_csv(tmp_path / "data.csv", index=False)
    quick = {"hidden_layer_sizes": (8,), "embedding": 8, "max_epochs": 2, "random_state": 0}
    spec = braking_model.specification_
    SafeRegressor(spec, NetworkRegressor(**quick), compare=False).fit(X, y).save(tmp_path / "corrected")
    SafeRegressor(spec, estimator=Ridge()).fit(X, y).save(tmp_path / "ridge")
    return tmp_path


def python(place, *arguments):
    path = os.pathsep.join([str(place / "hiding"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )


def commands(place, wanted):
    done = python(place, "-c", PROGRAM, json.dumps(wanted))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_torch_is_hidden(place):
    done = python(place, "-c", "import torch")
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr


def test_commands(place):
    for arguments, (code, output, error) in zip(WORKS, commands(place, WORKS), strict=True):
        assert code == 0, (arguments, output, error)
    assert (place / "predictions.csv").read_text().startswith("brake\n0")
    refused = commands(place, NEEDS_TORCH)
    for arguments, (code, output, error) in zip(NEEDS_TORCH, refused, strict=True):
        assert code == 2, (arguments, output, error)
        assert output.startswith("error: "), arguments
        assert "needs the package torch. Install it with: pip install 'smle[torch]'" in output
        assert output.endswith(", or use --estimator hist-gradient-boosting\n") == (arguments[0] == "train")
        assert output.count("\n") == 1
    assert {file.name for file in place.iterdir()}.isdisjoint({"new", "demo"})


def test_the_checker(place):
    for model in ("model", "m.onnx"):
        done = python(place, "-m", "smle_check", model)
        assert done.returncode == 0, done.stderr
        assert "PROVED" in done.stdout


def test_python(place):
    code = f"""
import numpy as np
import pandas as pd
import smle
from importlib import import_module
from sklearn.linear_model import LinearRegression
from smle import Specification, diagnose
from smle.certificates.document import Certificate
from smle.errors import MissingDependencyError
from smle.export import check_onnx, load_onnx, write_onnx
from smle.storage import read_record

spec, table = Specification.from_file("braking.yaml"), pd.read_csv("data.csv")
assert not diagnose(spec, table).contradictory
assert Certificate.read("model").check()
assert check_onnx("m.onnx").proved
write_onnx(read_record("model"), "again.onnx")
assert load_onnx("again.onnx").predict(table).equals(load_onnx("m.onnx").predict(table))

for name in ("model", "corrected", "ridge"):
    model = smle.load(name)
    assert len(model.predict(table, return_info=True)[0]) == len(table)
    assert smle.verify(model) == smle.certify(model).proved
    assert model.usage(table).rows == len(table)
    model.save(name + "-again")
    model.to_onnx(name + "-again.onnx")
capped = Specification.from_yaml(
    "inputs: {{w: [2, 250]}}\\noutputs: [y]\\nrules: [{{name: r, then: 0 <= y <= 0.05 * w and y <= 4}}]\\n"
)
rows = pd.DataFrame({{"w": np.linspace(2.0, 250, 50)}})
line = LinearRegression().fit(rows, 0.06 * rows["w"])
for safe in (smle.correct(line, capped), smle.SafeRegressor(capped, line).fit(rows, 0.06 * rows["w"])):
    assert (safe.predict(rows).max(), len(safe.certificate_.check())) == (4.0, 3)
network = smle.SafeRegressor(spec)
try:
    network.fit(table, [0.5] * len(table))
except MissingDependencyError as error:
    assert "pip install 'smle[torch]'" in str(error)
else:
    raise AssertionError("fit")

doors = {{room: (lambda room=room: import_module("smle." + room)) for room in {ROOMS}}}
doors["to_torch"] = smle.load("corrected").to_torch
doors["write_network"] = lambda: getattr(import_module("smle.export"), "write_network")
for name, door in doors.items():
    try:
        door()
    except MissingDependencyError as error:
        assert "pip install 'smle[torch]'" in str(error)
    else:
        raise AssertionError(name)
import sys

assert "torch" not in sys.modules
"""
    done = python(place, "-c", code)
    assert done.returncode == 0, done.stderr
