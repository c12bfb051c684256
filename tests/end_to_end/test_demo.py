"""The demo as a whole: what it measures and what it leaves behind."""

from smle import load
from smle.demo import run_demo


def test_demo(tmp_path):
    scores = run_demo(tmp_path).description_["scores"]
    assert scores["violations"]["safe"] == 0
    assert scores["violations"]["plain"] > 0
    assert scores["violations"]["data"] > 0.05
    assert scores["score"]["safe"] > scores["score"]["postprocess"] - 0.01
    model = load(tmp_path / "model")
    assert model.certificate_.check()
    assert model.description_["scores"] == scores
    assert "All 4 rules hold" in (tmp_path / "report.html").read_text(encoding="utf-8")
