"""docs/first-week.md: every command of the tour runs, in its order, and does what the page says."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from support.commands import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-week.md"
ROWS = 400  # instead of the page's, to be quick


def test_the_tour(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 14
    said = {}
    for line in lines:
        command, _, wanted = line.partition("   # exit code ")
        if command.startswith("smle "):
            result = run(*shlex.split(command)[1:])
            assert result.exit_code == int(wanted or 0), f"{line}\n{result.output}"
            said[command] = " ".join(result.output.split())
        else:
            command = command.replace("python ", f"{shlex.quote(sys.executable)} ").replace("3000", str(ROWS))
            subprocess.run(["sh", "-c", command], check=True, timeout=120)
    (clash,) = re.findall(r"^!! .*$", text, re.MULTILINE)
    assert clash in said["smle rules wrong.yaml"]
    assert "stricter" in said["smle rules diff rules.yaml stricter.yaml"]
    assert "Holds: every rule is proved" in said["smle verify model"]
    assert "Holds: every rule is proved" in said["smle verify model.onnx"]
    assert "Verdict: proved" in said["smle report model --data loans.csv -o report.html"]
    folder, exported = pd.read_csv("answers.csv"), pd.read_csv("from-onnx.csv")
    assert list(folder.columns) == ["branch", "card", "overdraft", "rate"]
    pd.testing.assert_frame_equal(folder.drop(columns="branch"), exported, rtol=1e-4, atol=0.01)
    for name in ("rules.html", "report.html"):
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.parametrize("image", re.findall(r"\]\((images/\S+)\)", PAGE.read_text(encoding="utf-8")))
def test_its_pictures_are_there(image):
    assert (PAGE.parent / image).read_bytes().startswith(b"\x89PNG")
