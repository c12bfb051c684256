"""`smle train --estimator`: any estimator from the command line, through all commands."""

import json

import numpy as np
import pandas as pd
import pytest

from smle.rules import Specification
from smle.rules.membership import broken
from smle.tables import encode_inputs
from support.commands import refused, run
from support.rules_cases import BANK as RULES


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table with text that looks like numbers, missing values and a column that no model should read."""
    folder = tmp_path_factory.mktemp("bank")
    rng = np.random.default_rng(0)
    n = 500
    table = pd.DataFrame({
        "id": [f"row {i}" for i in range(n)], "income": rng.lognormal(10.3, 0.6, n).clip(0, 1e6).round(2),
        "age": rng.integers(18, 100, n).astype(float), "job": rng.choice(["none", "employee", "self-employed"], n),
        "town": rng.choice(["01", "1", "x"], n),
    })  # fmt: skip
    table.loc[rng.random(n) < 0.1, ["age", "job", "town"]] = None
    limit = np.minimum(0.3 * table["income"] * rng.uniform(0.8, 1.2, n), 60000) + 9000 * (table["town"] == "01")
    table["limit"], table["rate"] = limit.round(2), (8 + 4 * (table["job"] == "none") + rng.normal(0, 1, n)).round(3)
    table.to_csv(folder / "bank.csv", index=False)
    (folder / "bank.yaml").write_text(RULES)
    (folder / "stricter.yaml").write_text(RULES.replace("60000", "30000").replace("24.5", "20"))
    result = run("train", folder / "bank.csv", folder / "bank.yaml", "-o", folder / "model",
                 "--estimator", "hist-gradient-boosting", "--ignore", "id")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "model alone" in result.output
    assert "moved to obey" in result.output
    assert "Worst margin" not in result.output
    return folder


def violations(folder, predictions):
    table = pd.read_csv(folder / "bank.csv", dtype={"town": str, "job": str})
    spec = Specification.from_yaml(RULES)
    found = pd.read_csv(predictions)[["limit", "rate"]].to_numpy()
    return broken(spec, encode_inputs(spec, table), found).any()


def test_every_command_takes_it(place):
    result = run("verify", place / "model")
    assert result.exit_code == 0
    assert "enforced by" in result.output
    result = run("predict", place / "model", place / "bank.csv", "-o", place / "p.csv", "--info")
    assert result.exit_code == 0, result.output
    assert not violations(place, place / "p.csv")
    ways = pd.read_csv(place / "p.csv")["served"].value_counts()
    assert set(ways.index) == {"kept", "moved"}
    result = run("monitor", place / "model", place / "bank.csv", "--json")
    assert result.exit_code == 0, result.output
    served = {c["name"]: c["now"] for c in json.loads(result.output)["changes"] if c["kind"] == "served"}
    assert served == {
        "kept": ways["kept"] / ways.sum(),
        "moved": ways["moved"] / ways.sum(),
        "near": 0,
        "replaced": 0,
        "safe": 0,
    }
    result = run("monitor", place / "model", place / "bank.csv")
    assert "answers moved to obey" in result.output
    assert "How often rules bind" in result.output
    result = run("report", place / "model", "--data", place / "bank.csv", "-o", place / "report.html")
    assert result.exit_code == 0, result.output
    page = (place / "report.html").read_text()
    assert "All 6 rules hold for every input of the domain" in page
    assert "HistGradientBoostingRegressor" in page


def test_the_exported_file_answers_as_the_folder(place):
    assert run("export", place / "model", "-o", place / "model.onnx").exit_code == 0
    assert run("verify", place / "model.onnx").exit_code == 0
    for model in ("model", "model.onnx"):
        assert run("predict", place / model, place / "bank.csv", "-o", place / f"{model}.csv").exit_code == 0
    folder, file = (pd.read_csv(place / f"{model}.csv").to_numpy() for model in ("model", "model.onnx"))
    assert np.abs(folder - file).max() <= 1e-6 * np.abs(folder).max()
    assert not violations(place, place / "model.onnx.csv")


def test_export_says_how_far_numbers_of_file_and_folder_are_apart(place, tmp_path):
    call = ("export", place / "model", "-o", tmp_path / "m.onnx", "--data", place / "bank.csv")
    said = run(*call)
    assert said.exit_code == 0, said.output
    rows, answers = len(pd.read_csv(place / "bank.csv")), []
    for model in (place / "model", tmp_path / "m.onnx"):
        assert run("predict", model, place / "bank.csv", "-o", tmp_path / "p.csv").exit_code == 0
        answers.append(pd.read_csv(tmp_path / "p.csv")[["limit", "rate"]])
    apart = (answers[0] - answers[1]).abs().max().to_dict()
    place_and_size = f"{place / 'bank.csv'}, folder and file differ by at most {apart['limit']:.2g} ('limit')."
    assert f"On {rows:,} rows of {place_and_size}" in said.stdout
    found = json.loads(run(*call, "--json").stdout)
    assert found["largest_difference"] == apart
    assert found["rows"] == rows
    pd.read_csv(place / "bank.csv").head(9).assign(income=-1).to_csv(tmp_path / "outside.csv", index=False)
    done = run(*call[:-1], tmp_path / "outside.csv", "--json")  # both clamp such rows
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 9
    assert "no such file" in refused("export", place / "model", "-o", tmp_path / "new.onnx", "--data", "nowhere.csv")
    assert not (tmp_path / "new.onnx").exists()


def test_export_compares_no_model_without_rules(place, tmp_path):
    (tmp_path / "plain.yaml").write_text((place / "bank.yaml").read_text().partition("rules:")[0] + "rules: []\n")
    train = ("train", place / "bank.csv", tmp_path / "plain.yaml", "-o", tmp_path / "model", "--estimator", "ridge")
    assert run(*train).exit_code == 0
    call = ("export", tmp_path / "model", "-o", tmp_path / "m.onnx", "--no-require-certificate")
    done = run(*call, "--data", place / "bank.csv", "--json")
    assert "--data needs a model with rules" in json.loads(done.stdout)["reason"]
    assert not (tmp_path / "m.onnx").exists()
    assert run(*call).exit_code == 0


def test_edited_rules_need_no_training(place):
    result = run("project", place / "model", place / "stricter.yaml", "-o", place / "stricter", "--data",
                 place / "bank.csv")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert run("verify", place / "stricter").exit_code == 0
    run("predict", place / "stricter", place / "bank.csv", "-o", place / "s.csv")
    assert pd.read_csv(place / "s.csv")["limit"].max() <= 30000


def test_the_best_of_several_models_is_taken(place):
    pd.read_csv(place / "bank.csv").head(120).to_csv(place / "few.csv", index=False)
    result = run("train", place / "few.csv", place / "bank.yaml", "-o", place / "auto", "--estimator", "auto",
                 "--ignore", "id", "--set", "max_epochs=1", "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    scores = [tried["score"] for tried in summary["tried"]]
    assert summary["trained"] == summary["tried"][0]["model"]
    assert scores == sorted(scores, reverse=True)
    assert {"ridge", "hist-gradient-boosting", "random-forest"} <= {tried["model"] for tried in summary["tried"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--estimator", "magic"], "Expected --estimator to be one of network, smle, auto, hist"),
        (["--estimator", "ridge", "--ignore", "income"], "--ignore: the rules read 'income'"),
        (["--estimator", "ridge", "--ignore", "nothing"], "--ignore: there is no column 'nothing'"),
        (["--estimator", "ridge", "--checkpoint", "file"], "--checkpoint is for networks"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(place, tmp_path, options, message):
    assert message in refused("train", place / "bank.csv", place / "bank.yaml", "-o", tmp_path / "model", *options)
    assert not (tmp_path / "model").exists()


def test_export_compares_the_labels_of_a_sample(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"l{i}" for i in range(14)]
    rules = "".join(f"  - {{name: r{i}, then: l{i} implies l{(i - 1) // 2}}}\n" for i in range(1, 14))
    rules += "  - {name: apart, when: x >= 0.5, then: not (l1 and l2)}\n"
    (tmp_path / "labels.yaml").write_text(f"inputs: {{x: [0, 1]}}\nlabels: [{', '.join(names)}]\nrules:\n{rules}")
    table = pd.DataFrame({"x": rng.random(120)})
    for i, name in enumerate(names):
        table[name] = (rng.random(120) < 0.3 + 0.4 * np.sin(i + 6 * table["x"]) ** 2).astype(int)
    table.to_csv(tmp_path / "labels.csv", index=False)
    result = run("train", tmp_path / "labels.csv", tmp_path / "labels.yaml", "-o", tmp_path / "model", "--estimator",
                 "random-forest")  # fmt: skip
    assert result.exit_code == 0, result.output
    result = run("export", tmp_path / "model", "-o", tmp_path / "m.onnx", "--data", tmp_path / "labels.csv")
    assert result.exit_code == 0, result.output
    assert "120 of 120 rows" in result.output
    assert "have the same labels in the folder and in the file" in result.output
    result = run("export", tmp_path / "model", "-o", tmp_path / "m.onnx", "--data", tmp_path / "labels.csv", "--json")
    assert json.loads(result.output)["rows_with_the_same_labels"] == 120
