"""`python -m studies`: runs from a clone, beside the installed package and not in it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from studies.bench import available
from studies.cli import app

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_benches_are_listed_and_others_refused():
    assert {"guarantees", "soundness", "training"} <= set(run("bench").output.split())
    refused = run("bench", "nonsense")
    assert refused.exit_code == 2
    assert "Expected a bench among" in refused.output
    assert json.loads(run("bench", "--json").stdout) == {"benches": list(available())}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["bench", "nonsense"], "Expected a bench among"),
        (["reproduce", "synthetic", "--preset", "paper", "--task", "nonsense", "-o", "new"], "nonsense"),
    ],
)
def test_errors_are_json_where_json_is_asked_for(tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    done = run(*command, "--json")
    assert done.exit_code == 2
    assert words in json.loads(done.stdout)["reason"]


def test_the_command_runs_in_a_clone_and_every_part_has_an_example():
    done = subprocess.run(
        [sys.executable, "-m", "studies", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        assert name in done.stdout
        assert "Example: python -m studies" in " ".join(run(name, "--help").output.split())


MET = {
    "accuracy": "^(?!.*: network)",  # five epochs are too few
    "acasxu": "",
    "correction": "",
    "guarantees": "agree|optimum",
    "quantiles": "",
    "scale": "",
}
"""The requirements that a quick run meets, too, by a pattern."""


@pytest.mark.audit
@pytest.mark.filterwarnings("ignore")  # of torch.compile, and of ray about its own settings
@pytest.mark.parametrize("name", sorted(set(available()) - {"peers", "soundness"}))
def test_every_bench_without_a_test_of_its_own_runs_quickly(name, tmp_path):
    result = run("bench", name, "--quick", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"{name}.md").read_text(encoding="utf-8").count("\n| ") > 5
    found = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert found["tables"]
    if name in MET:
        wanted = {what: met for what, met in found["passed"].items() if re.search(MET[name], what)}
        assert wanted
        assert all(wanted.values()), wanted


@pytest.mark.parametrize("plain", [False, True])
def test_exports_of_a_folder(braking_folder, tmp_path, plain):
    result = run("verifier-export", braking_folder, "-o", tmp_path / "cells", *(["--plain"] if plain else []))
    assert result.exit_code == 0, result.output
    written = {path.suffix for path in (tmp_path / "cells").iterdir()}
    assert written == {".onnx", ".vnnlib"}
    (braking_folder / "model.safetensors").write_bytes(b"other")
    assert run("verifier-export", braking_folder, "-o", tmp_path / "more").exit_code != 0


def test_the_package_knows_nothing_of_the_studies():
    for place in (ROOT / "src").rglob("*.py"):
        assert "import studies" not in place.read_text(encoding="utf-8"), place
        assert "from studies" not in place.read_text(encoding="utf-8"), place


def test_only_their_own_tests_import_the_studies():
    for place in (ROOT / "tests").rglob("*.py"):
        if "studies" not in place.parts and place.name != "fake_rows.py":
            assert not re.search(r"^\s*(from|import) studies", place.read_text(encoding="utf-8"), re.MULTILINE), place
