"""docs/command-line.md keeps its word: its settings are read, its five mistakes get these very messages.

`SMLE_UPDATE_DOCS=1 pytest tests/end_to_end/test_commands_docs.py` writes the messages into the page.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from smle.cli import app
from smle.cli.settings import TrainSettings
from smle.demo import BRAKING_RULES
from support.commands import run

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
BLOCK = re.compile(r"```console\n\$ (.*?)\n(.*?)```", re.DOTALL)


@pytest.fixture
def place(braking_folder, braking_table, tmp_path, monkeypatch):
    """A folder with everything that the page mentions."""
    rows = braking_table
    rows.to_csv(tmp_path / "data.csv", index=False)
    rows.rename(columns={"speed": "sped"}).to_csv(tmp_path / "drives.csv", index=False)
    far = rows.copy()
    far.loc[[11, 40], "distance"] = [250.0, 900.0]
    far.to_csv(tmp_path / "far.csv", index=False)
    (tmp_path / "model.onnx").write_bytes(b"\x08\x09\x12\x04smle\x00\x00")
    (tmp_path / "braking.yaml").write_text(BRAKING_RULES)
    (tmp_path / "clash.yaml").write_text(BRAKING_RULES.replace("brake >= 0.5", "brake <= 0.5"))
    shutil.copytree(braking_folder, tmp_path / "tampered")
    weights = bytearray((tmp_path / "tampered" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "tampered" / "model.safetensors").write_bytes(bytes(weights))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_five_mistakes(place):
    text = PAGE.read_text(encoding="utf-8")
    fresh = text
    codes = []
    for command, shown in BLOCK.findall(text):
        program, *arguments = shlex.split(command)
        assert program == "smle"
        result = run(*arguments)
        codes.append(result.exit_code)
        assert result.output.count("\n") == 1
        fresh = fresh.replace(f"$ {command}\n{shown}```", f"$ {command}\n{result.output.strip()}\n```")
    assert codes == [2, 1, 2, 2, 1]
    if os.environ.get("SMLE_UPDATE_DOCS"):
        PAGE.write_text(fresh, encoding="utf-8")
    assert fresh == PAGE.read_text(encoding="utf-8")


def _commands(section):
    """Return the commands in the block of a section."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    return [shlex.split(line)[1:] for line in re.search(r"```sh\n(.*?)```", text, re.DOTALL)[1].splitlines()]


def _run(arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (arguments, result.output)


def test_predict_as_on_the_page(place):
    Path("model.onnx").unlink()
    _run(["export", "model", "-o", "model.onnx"])
    rows = pd.read_csv("data.csv").drop(columns="brake").assign(id=range(1500), date="2025-01-01")
    rows.to_csv("new.csv", index=False)
    rows.assign(distance=rows["distance"] + 150).to_parquet("new.parquet")
    for arguments in _commands("Predict"):
        _run(arguments)
    shown = pd.read_parquet("predictions.parquet")
    assert list(shown.columns)[:3] == ["brake", "active_rules", "in_domain"]
    assert not shown["in_domain"].all()


@pytest.mark.audit
def test_train_as_on_the_page(place):
    rows = pd.read_csv("data.csv").head(200).assign(id=range(200))  # to be quick
    rows.to_csv("data.csv", index=False)
    rows.to_parquet("data.parquet")
    Path("braking.yaml").rename("rules.yaml")
    (stated,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    Path("settings.yaml").write_text(stated)
    for arguments in _commands("Train"):
        shutil.rmtree("model")
        _run(arguments)


def test_settings_on_the_page_are_known(tmp_path):
    (stated,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "s.yaml").write_text(stated)
    settings = TrainSettings.read(tmp_path / "s.yaml", [], {})
    assert settings.parameters["max_epochs"][0] == yaml.safe_load(stated)["max_epochs"]


def test_every_command_of_the_page_exists():
    known = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"^smle (\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= known
