"""Every example runs, and what it trains breaks no rule in exact arithmetic."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SMALL = {
    "load_forecast": {"hours": 300, "max_epochs": 3},
    **{name: {"rows": 400} for name in ("hierarchical_forecast", "basal_rates", "invoice", "warehouses")},
    "train_speeds": {"rows": 60, "max_epochs": 2},
    "price_list": {"count": 60},
    "bank": {"rows": 400, "max_iter": 20},
    "energy": {"rows": 400, "max_epochs": 3, "max_iter": 20},
}


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_examples_from_six_fields() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.filterwarnings("ignore::smle.errors.AccuracyWarning")  # after three epochs
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_breaks_no_rule(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = loaded(path).main(**SMALL.get(path.stem, {"rows": 400, "max_epochs": 3}))
    assert (result["safe"] if isinstance(result, dict) else result) == 0.0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_says_how_to_run_it(path: Path) -> None:
    assert f"python examples/{path.name}" in path.read_text(encoding="utf-8")
