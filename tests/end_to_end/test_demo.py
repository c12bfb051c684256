"""The demo as a whole: what it measures and what it leaves behind."""

from smle import load
from smle.demo import run_demo


def test_demo(tmp_path):
    result = run_demo(tmp_path)
    assert result.violations["safe"] == 0
    assert result.violations["plain"] > 0
    assert result.data_violations > 0.05
    assert result.r2["safe"] > result.r2["post-processed"] - 0.01
    model = load(tmp_path / "model")
    assert model.certificate_.check()
    assert model.description_["scores"]["score"]["safe"] == result.r2["safe"]
    assert "All 4 rules hold" in result.report.read_text(encoding="utf-8")
