"""What commands say first, how they say that something is wrong, and which place they name."""

import json
import shlex
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from smle import SafeRegressor, Specification
from smle.cli import main
from smle.cli.app import print_rows
from smle.errors import RuleError
from support.commands import refused, run

RULES = """inputs:
  income: [1, 100_000]
  age: {range: [18, 90], integer: true}
outputs: [limit]
rules:
  - {name: cap, then: 0 <= limit <= 60000}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("loans")
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {"income": random.uniform(1, 1e5, 60), "age": random.integers(18, 90, 60), "monthly rate": random.random(60)}
    )
    table["limit"] = 0.3 * table["income"]
    table.assign(id=range(60)).to_csv(place / "table.csv", index=False)
    table.drop(columns="monthly rate").to_csv(place / "less.csv", index=False)
    (place / "rules.yaml").write_text(RULES, encoding="utf-8")
    model = SafeRegressor(RULES, estimator=Ridge(), compare=False)
    model.fit(table[["income", "age", "monthly rate"]], table["limit"]).save(place / "model")
    return place


def test_the_verdict_comes_first(place):
    said = run("verify", place / "model")
    assert said.exit_code == 0
    assert said.output.startswith("Holds: every rule is proved")
    assert "clip: an answer beyond the limits" in said.output
    assert "\nassumed:" not in said.output
    command = shlex.split(said.output.splitlines()[-1].partition(": smle ")[2])
    assert command == ["verify", str(place / "model"), "--assumptions"]
    whole = run(*command).output
    assert whole.startswith(said.output.rpartition("For which inputs")[0])
    assert all(f"\n{start}" in whole for start in ("for all income", "Proved: ", "assumed: ", "Not guaranteed: "))


def test_help_shows_flags_as_flags():
    for command in ((), ("verify",)):
        assert "<bool>" not in run(*command, "--help").output


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("predict", "model", "less.csv", "-o", "p.csv"), 2, "Missing: 'monthly rate'"),
        (("verify", "rules.yaml"), 2, "is a file"),
        (("rules", "nowhere.yaml"), 2, "Cannot read"),
        (("monitor", "model", "table.csv", "--tolerance", "3"), 2, "--tolerance"),
        (("train", "less.csv", "nowhere.yaml", "-o", "new"), 2, "Cannot read"),
        (("demo", "-o", "rules.yaml/new"), 2, "Not a directory"),
    ],
)
def test_errors_are_json_where_json_is_asked_for(place, monkeypatch, command, code, words):
    monkeypatch.chdir(place)
    said = run(*command, "--json")
    assert said.exit_code == code
    assert not said.stderr
    found = json.loads(said.stdout)
    assert (found["verdict"], found["exit_code"]) == ("error", code)
    assert words in found["reason"]
    text = run(*command)
    assert text.stderr == f"error: {found['reason']}\n"
    assert not text.stdout


def test_wrong_options_are_json_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["smle", "predict", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    found = json.loads(capsys.readouterr().out)
    assert "Missing argument" in found["reason"]


def test_a_column_that_only_the_model_reads_is_not_said_to_be_in_the_rules(place):
    said = refused("predict", place / "model", place / "less.csv", "-o", place / "p.csv")
    assert "what the model was trained on (more than the rules name)" in said
    assert "less.csv, rows 1 to 60" in said
    table = pd.read_csv(place / "table.csv").drop(columns="age")
    table.to_csv(place / "no-age.csv", index=False)
    said = refused("predict", place / "model", place / "no-age.csv", "-o", place / "p.csv")
    assert "Expected the inputs of the rules as columns. Missing: 'age'" in said


def test_columns_that_a_model_does_not_read_are_said_once(place):
    said = run("predict", place / "model", place / "table.csv", "-o", place / "p.csv")
    assert said.stderr == "note: Columns that the model does not read: 'id'.\n"
    assert not run("predict", place / "model", place / "table.csv", "-o", place / "p.csv", "--keep", "id").stderr
    found = json.loads(run("predict", place / "model", place / "table.csv", "-o", place / "p.csv", "--json").stdout)
    assert found["columns_not_read"] == ["id"]


@pytest.mark.parametrize("there", [True, False])
def test_an_interrupted_training_suggests_to_resume_only_from_a_checkpoint(place, monkeypatch, there):
    checkpoint = place / "run.checkpoint"

    def interrupted(*_, **__):
        if there:
            checkpoint.write_bytes(b"...")
        raise KeyboardInterrupt

    monkeypatch.setattr(Specification, "from_file", interrupted)
    said = run("train", place / "table.csv", place / "rules.yaml", "-o", place / "new", "--checkpoint", checkpoint)
    checkpoint.unlink(missing_ok=True)
    assert said.exit_code == 130
    assert ("--resume" in said.stderr) == there


HEAD = "inputs:\n  speed: [0, 40]\n  road: {categories: [dry, wet]}\noutputs: [brake]\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rules:\n  - name: r\n    when: sped < 3\n    then: brake > 0\n", "Line 7:"),
        ("rules:\n  - name: r\n    when: speed < 3\n    then: brake * brake > 0\n", "Line 8:"),
        ("rules:\n  - then: brake + > 0\n    name: r\n", "Line 6:"),
        (
            "rules:\n  - name: r\n    when: >\n      speed < 3 and\n      speed >> 3\n    then: brake > 0\n",
            "Lines 7 to 9:",
        ),
        ("rules:\n  - name: r\n    when: speed < 3 and\n      sped > 3\n    then: brake > 0\n", "Lines 7 to 8:"),
        ("rules:\n  - name: r\n    then: |\n      brake > 0\n      and brak > 3\n", "Lines 7 to 9:"),
        ("constants:\n  dry: 3\nrules: []\n", "Line 6:"),
        ("constants:\n  speed: 3\nrules: []\n", "Line 6:"),
        ("rules:\n  - {name: r, then: brake < 1}\n  - {name: r\u3164, then: brake < 2}\n", "Line 7:"),
    ],
)
def test_messages_name_the_lines_of_the_file(text, place):
    with pytest.raises(RuleError) as caught:
        Specification.from_yaml(HEAD + text)
    assert str(caught.value).startswith(place), caught.value


def test_many_categories_are_cut_in_print_and_whole_in_json(tmp_path):
    names = [f"a{i}" for i in range(40)]
    rules = (
        f"inputs: {{kind: {{categories: [{', '.join(names)}]}}}}\noutputs: [y]\nrules: [{{name: r, then: y <= 1}}]\n"
    )
    table = pd.DataFrame({"kind": names, "y": 0.0})
    model = SafeRegressor(rules, make_pipeline(OneHotEncoder(), Ridge()), compare=False)
    model.fit(table[["kind"]], table["y"]).save(tmp_path / "m")
    printed = " ".join(run("verify", tmp_path / "m", "--assumptions").output.split())
    assert "kind=a9, ... (29 more; --json names all), kind=a39 is 1, the others 0" in printed
    whole = json.loads(run("verify", tmp_path / "m", "--json").stdout)["domain"]
    assert all(f"kind={name}" in whole[0] for name in names)


def test_columns_without_anything_are_left_out(capsys):
    print_rows("t", ("a", "", ""), [("1", "", "new"), ("2", "", "")])
    (heading,) = [line for line in capsys.readouterr().out.splitlines() if "a" in line and "┃" in line]
    assert heading.count("┃") == 3
