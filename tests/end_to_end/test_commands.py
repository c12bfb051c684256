"""The command line: what it prints, its exit codes, and how it refuses."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

import smle_check
from smle import NetworkRegressor, SafeRegressor, Specification, load
from smle.certificates.document import Proved
from smle.cli import app
from smle.cli.app import print_proved, print_statements, proved_json, reported
from smle.demo import BRAKING_RULES
from smle_check.claims import DerivedObligation
from smle_check.digits import margin_text
from support.commands import refused, run

QUICK = ("--set", "max_epochs=1", "--set", "hidden_layer_sizes=8")


def _flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


CHANGES = {
    "rules.yaml": ("brake >= 0.8", "brake >= 0.9"),
    "model.json": ('"rows": 1500', '"rows": 1501'),
    "certificate.json": ('"bound":"-4/5"', '"bound":"-3/5"'),
    "model.safetensors": None,  # a bit
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_named(braking_folder, name):
    path = braking_folder / name
    if name == "model.safetensors":
        _flip(path, path.stat().st_size - 3)
    else:
        path.write_text(path.read_text().replace(*CHANGES[name], 1))
    assert name in refused("verify", braking_folder, code=1)


MISTAKES = {
    "no such rules": (["train", "{d}/data.csv", "{d}/nothing.yaml", "-o", "{d}/m"], "nothing.yaml"),
    "no such data": (["train", "{d}/nothing.csv", "{d}/rules.yaml", "-o", "{d}/m"], "nothing.csv"),
    "not a table": (["train", "{d}/empty.csv", "{d}/rules.yaml", "-o", "{d}/m"], "empty.csv"),
    "columns missing": (["train", "{d}/other.csv", "{d}/rules.yaml", "-o", "{d}/m"], "brake"),
    "rules not readable": (["train", "{d}/data.csv", "{d}/broken.yaml", "-o", "{d}/m"], "speeed"),
    "outside the domain": (["train", "{d}/far.csv", "{d}/rules.yaml", "-o", "{d}/m"], "distance"),
    "text in a number": (["train", "{d}/text.csv", "{d}/rules.yaml", "-o", "{d}/m"], "speed"),
    "place is taken": (
        ["train", "{d}/data.csv", "{d}/rules.yaml", "-o", "{d}", "--set", "max_epochs=1"],
        "not a model folder",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_get_one_clear_line(mistake, files, braking_table):
    (files / "empty.csv").write_text("")
    braking_table.rename(columns={"brake": "brakes"}).to_csv(files / "other.csv", index=False)
    (files / "broken.yaml").write_text(BRAKING_RULES.replace("speed >= 20", "speeed >= 20"))
    braking_table.assign(distance=braking_table["distance"] + 500).to_csv(files / "far.csv", index=False)
    braking_table.assign(speed="fast").to_csv(files / "text.csv", index=False)
    arguments, expected = MISTAKES[mistake]
    assert expected in refused(*[part.format(d=files) for part in arguments])
    assert not (files / "m").exists()


def test_debug_shows_the_traceback(files):
    result = run("--debug", "verify", files / "absent")
    assert result.exit_code == 2
    assert "Traceback" in result.output


def test_rules_command(files):
    fine = run("rules", files / "rules.yaml", "--data", files / "data.csv")
    assert fine.exit_code == 0, fine.output
    assert "emergency braking" in fine.output
    assert "rows of data" in fine.output
    refused("rules", files / "data.csv")
    assert "or `diff OLD NEW`" in refused("rules", files / "rules.yaml", files / "rules.yaml")


@pytest.mark.parametrize("old", ["1", "refuse"])
def test_rules_diff_tells_how_inputs_are_read(old, tmp_path):
    text = "inputs: {{k: {{range: [0, 9]{flags}}}}}\noutputs: [y]\nrules:\n  - {{name: r, when: k > 2, then: y >= 1}}\n"
    (tmp_path / "old.yaml").write_text(text.format(flags=f", missing: {old}"))
    (tmp_path / "new.yaml").write_text(text.format(flags=", missing: 5, integer: true"))
    compared = run("rules", "diff", tmp_path / "old.yaml", tmp_path / "new.yaml")
    assert compared.exit_code == 0, compared.output
    assert compared.output.startswith("Neither")
    assert "changed: input 'k' takes whole numbers only" in compared.output
    data = json.loads(run("rules", "diff", tmp_path / "old.yaml", tmp_path / "new.yaml", "--json").stdout)
    assert data["verdict"] == "neither"
    assert [change["what"] for change in data["changes"]] == ["integer", "missing"]
    assert data["newly_forbidden"]["inputs"] == {"k": None}


def test_rules_diff_refuses_what_does_not_mean_the_same(tmp_path):
    (tmp_path / "old.yaml").write_text(CHOICES)
    (tmp_path / "new.yaml").write_text(
        CHOICES.replace("[clear, left, right]", "{options: [clear, left, right], pick: min}")
    )
    reason = refused("rules", "diff", tmp_path / "old.yaml", tmp_path / "new.yaml")
    assert "'advice' picks the largest score in the old file and the smallest in the new one" in reason


CHOICES = """
inputs: {a: [-3, 3], b: [-3, 3]}
choices: {advice: [clear, left, right]}
rules:
  - {name: wall on the left, when: a <= -1, then: advice != left}
"""


def test_train_and_predict_choices(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(-3, 3, (300, 2)), columns=["a", "b"])
    table["advice"] = np.where(table["b"] < 0, "clear", np.where(table["a"] > 0, "right", "left"))
    table.to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "rules.yaml").write_text(CHOICES)
    trained = run("train", tmp_path / "data.csv", tmp_path / "rules.yaml", "-o", tmp_path / "m", *QUICK)
    assert trained.exit_code == 0, trained.output
    assert "accuracy" in trained.output
    assert "On 60 held-out rows" in trained.output
    predicted = run("predict", tmp_path / "m", tmp_path / "data.csv", "-o", tmp_path / "p.csv")
    assert predicted.exit_code == 0, predicted.output
    assert not (pd.read_csv(tmp_path / "p.csv").loc[table["a"] <= -1, "advice"] == "left").any()


def _verify_command(text):
    """Return the words after `smle verify` as a shell reads the line."""
    (line,) = [line for line in text.splitlines() if "smle verify" in line]
    return shlex.split(line.partition("smle verify")[2])


def test_commands_to_copy_are_quoted(files, braking_folder, braking_model, tmp_path, monkeypatch):
    trained = run("train", files / "data.csv", files / "rules.yaml", "-o", files / "my model", *QUICK)
    assert _verify_command(trained.output) == [str(files / "my model")]
    exported = run("export", braking_folder, "-o", tmp_path / "m ü.onnx")
    assert _verify_command(exported.output) == [str(tmp_path / "m ü.onnx")]
    assert shlex.split(exported.output.splitlines()[-1])[-1] == str(tmp_path / "m ü.onnx")
    monkeypatch.setattr("smle.demo.run_demo", lambda *arguments, **options: braking_model)
    assert _verify_command(run("demo", "-o", tmp_path / "my demo").output) == [str(tmp_path / "my demo" / "model")]


def test_errors_of_the_system_are_said_in_words(braking_folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    said = refused("export", braking_folder, "-o", tmp_path / "file" / "m.onnx")
    assert f"'{tmp_path / 'file'}' is a file, not a folder" in said
    for error in (OSError(21, "Is a directory", "here"), OSError(21, "Is a directory", ".fresh", None, "here")):
        with pytest.raises(typer.Exit), reported():
            raise error
        assert capsys.readouterr().err == "error: 'here': Is a directory.\n"
    with pytest.raises(typer.Exit), reported():
        raise OSError(28, "No space left on device")
    assert capsys.readouterr().err == "error: No space left on device.\n"


def test_markup_in_names_stays_text(files, braking_table):
    text = BRAKING_RULES.replace("name: tailgating", 'name: "[red]no[/red] <script>"')
    (files / "rules.yaml").write_text(text)
    trained = run("train", files / "data.csv", files / "rules.yaml", "-o", files / "m", *QUICK)
    assert trained.exit_code == 0, trained.output
    assert "[red]no[/red]" in trained.output


_PROVED = [Fraction(299999, 10**7), Fraction(99996, 10**5), Fraction(1, 3) + Fraction(1, 10**30), Fraction(2, 3)]


def test_margins_are_never_printed_larger_than_they_were_proved(braking_spec, capsys):
    rules = [rule.name for rule in braking_spec.rules]
    proved = [
        Proved(0, rule, "everywhere", "y <= 1", margin, DerivedObligation(0, i, None, (), 0))
        for i, (rule, margin) in enumerate(zip(rules, _PROVED, strict=True))
    ]
    print_proved(proved, braking_spec)
    print_statements(proved)
    texts = re.findall(r"\b(0\.\d+) *│$", capsys.readouterr().out, re.MULTILINE)
    assert texts == 2 * ["0.0299", "0.999", "0.333", "0.666"]
    for entry, margin in zip(proved_json(proved), _PROVED, strict=True):
        assert Fraction(entry["margin"]) <= margin < Fraction(math.nextafter(entry["margin"], math.inf))


def test_verify_an_exported_file(braking_folder, tmp_path):
    path = tmp_path / "model.onnx"
    exported = run("export", braking_folder, "-o", path, "--json")
    assert json.loads(exported.stdout)["onnx"] == str(path)
    text = run("verify", path, "--assumptions")
    assert text.exit_code == 0, text.output
    assert "Asserted by the exporter" in text.output
    proved = load(braking_folder).certificate_.proved
    for rule in {item.rule for item in proved}:
        assert margin_text(min(item.margin for item in proved if item.rule == rule)) in text.output
    answer = json.loads(run("verify", path, "--json").stdout)
    assert answer["verdict"] == "proved"
    folder = json.loads(run("verify", braking_folder, "--json").stdout)
    assert [(p["rule"], p["margin"]) for p in answer["proved"]] == [(p["rule"], p["margin"]) for p in folder["proved"]]
    assert answer["claim"] == folder["claim"]
    _flip(path, path.stat().st_size // 2)
    rejected = run("verify", path, "--json")
    assert rejected.exit_code == 1
    assert "digest" in json.loads(rejected.stdout)["reason"]
    refused("verify", tmp_path / "absent.onnx")
    (tmp_path / "model.onnx.certificate.json").unlink()
    refused("verify", path, code=1)
    refused("export", braking_folder, "-o", tmp_path)
    (tmp_path / "data.csv").write_text("precious")
    assert "ends in .onnx" in refused("export", braking_folder, "-o", tmp_path / "data.csv")
    assert (tmp_path / "data.csv").read_text() == "precious"


def _program(*arguments, **environment):
    """Run the installed command in a process of its own."""
    program = Path(sys.executable).with_name("smle")
    done = subprocess.run(
        [program, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_verification_needs_no_torch(braking_folder, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['sklearn'] = None\n"
        "from smle.cli import main; sys.argv = ['smle', 'verify', sys.argv[1]]; main()"
    )
    for place, status, text in ((braking_folder, 0, "Holds:"), (tmp_path / "absent", 2, "not a model folder")):
        done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert text in done.stdout + done.stderr


DECLARED = """
inputs:
  k: {range: [0, 9], integer: true, missing: 3}
  road: {categories: [dry, wet, icy], missing: wet}
  speed: [0, 40]
outputs: [y]
rules: [{name: r, when: k > 2 and road == icy, then: y <= 0.1}]
"""


def test_all_three_print_the_same_domain_and_assumptions(tmp_path):
    """Ranges, one-hot groups, formats, whole numbers, stand-ins; what only the rules file knows is said to be there."""
    X = pd.DataFrame({"k": np.arange(12) % 10, "road": ["dry", "wet", "icy"] * 4, "speed": np.arange(12.0)})
    model = SafeRegressor(
        Specification.from_yaml(DECLARED), NetworkRegressor(hidden_layer_sizes=(4,), embedding=4, max_epochs=1)
    ).fit(X, X["k"] / 9)
    model.save(tmp_path / "m")
    model.to_onnx(tmp_path / "m.onnx")
    folder = run("verify", tmp_path / "m", "--assumptions").output.splitlines()
    graph = run("verify", tmp_path / "m.onnx", "--assumptions").output.splitlines()
    alone = {}
    for place in ("m", "m.onnx"):
        command = [sys.executable, "-I", "-S", str(Path(smle_check.__file__).parent), str(tmp_path / place)]
        alone[place] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def domain(lines):
        return [line for line in lines if line.startswith("for all ")]

    def assumed(lines):
        return [line for line in lines if line.startswith("assumed: ")]

    assert domain(folder) == domain(alone["m"])
    assert domain(folder)[:3] == [
        "for all k in [0, 9]",
        "for all speed in [0, 40]",
        "for all inputs in which exactly one of road=dry, road=wet, road=icy is 1, the others 0",
    ]
    assert "float32 and float64" in domain(folder)[3]
    assert (
        domain(graph) == domain(alone["m.onnx"]) == [*domain(folder)[:3], domain(folder)[3].replace(" and float64", "")]
    )
    assert assumed(folder) == assumed(graph) == assumed(alone["m.onnx"])
    told = [line for line in assumed(folder) if line not in assumed(alone["m"])]
    assert [line.split(". ")[0] for line in told] == [
        "assumed: Inputs declared as whole numbers are whole: k",
        "assumed: A missing value of k is read as 3 by the rules",
        "assumed: A missing value of road is read as wet by the rules",
    ]
    assert assumed(alone["m"])[-1].startswith(
        "assumed: Not stated here, and not used by the proof: which inputs are whole"
    )
    assert json.loads(run("verify", tmp_path / "m", "--json").stdout)["domain"] == domain(folder)


def test_help_has_examples_and_machines_can_read_every_command():
    for command in app.registered_commands:
        name = command.callback.__name__
        shown = run(name, "--help").output
        assert re.search(r"Example:\s+smle", shown), name
        assert name == "schema" or "--json" in shown, name  # that one prints JSON alone


def test_completion():
    assert "complete -o default -F _smle_completion smle" in _program(_SMLE_COMPLETE="source_bash")
    assert _program(_SMLE_COMPLETE="complete_bash", COMP_WORDS="smle ver", COMP_CWORD="1").split() == ["verify"]


def test_help_is_quick_and_imports_nothing_heavy():
    code = "import sys, smle.cli; print(*({'torch', 'numpy', 'pandas', 'sklearn', 'yaml'} & set(sys.modules)))"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
