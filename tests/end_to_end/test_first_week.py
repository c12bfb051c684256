"""docs/first-week.md and second-week.md: every command runs, in its order, and does what the page says."""

import re
from pathlib import Path

import pandas as pd
import pytest

from support.project import ROOT
from support.tours import typed

PAGE = ROOT / "docs" / "first-week.md"
SECOND = ROOT / "docs" / "second-week.md"


def test_the_first_week(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = typed(PAGE, tmp_path, instead=("3000", "400"))
    assert len(said) >= 10
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
        assert Path(name).stat().st_size > 10_000


def test_the_second_week(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = typed(SECOND, tmp_path, instead=("2000", "60"))
    assert len(said) >= 10
    assert "The new rules are stricter" in said["smle rules diff rules.yaml next.yaml"]
    assert re.search(
        r"in tables: 60 changed.*cap\[a0000\]: .* -> .*and 50 more",
        said["smle rules diff rules.yaml next.yaml"],
        re.DOTALL,
    )
    assert "Holds: every rule is proved" in said["smle verify next-model"]
    assert "Holds: every rule is proved" in said["smle verify prices.onnx"]
    assert "Changed: demand" in said["smle monitor model this-week.csv --bad-rows set-aside"]
    reasons = Path("answers.csv.bad.csv").read_text(encoding="utf-8")
    (stated,) = re.findall(r"```\n(row,reason\n.*?)```", SECOND.read_text(encoding="utf-8"), re.DOTALL)
    assert all(line in reasons for line in stated.splitlines())
    assert "got 'a-new-one'" in reasons
    answers, caps = pd.read_csv("answers.csv"), pd.read_csv("next-prices.csv").set_index("article")["highest"]
    rows = pd.read_csv("this-week.csv").iloc[answers["row"] - 1]
    assert len(answers) == 57
    assert (answers["price"].to_numpy() <= caps[rows["article"]].to_numpy()).all()
    costs = pd.read_csv("prices.csv").set_index("article")["cost"][rows["article"]].to_numpy()
    careful = rows["demand"].isna().to_numpy()
    assert 0 < careful.sum() < len(rows)
    assert (answers["price"].to_numpy() <= 1.8 * costs)[careful].all()


@pytest.mark.parametrize("image", re.findall(r"\]\((images/\S+)\)", PAGE.read_text(encoding="utf-8")))
def test_its_pictures_are_there(image):
    assert (PAGE.parent / image).read_bytes().startswith(b"\x89PNG")
