"""Jobs: their lists, and quick ones of every benchmark and preset, which end certified."""

import json

import numpy as np
import pytest
import torch

from smle.errors import DataError
from smle.heads.box.training.enforcement import PDCG
from studies.experiments import presets
from studies.experiments.methods import Job, load_task, solve
from studies.experiments.networks import PaperLayers
from studies.experiments.tables import ABLATION, METHODS

QUICK = {"synthetic": "n2-easy-P3", "forecasting": "Standin-S1-0.90", "classification": "Standin-0.6"}


@pytest.mark.parametrize("preset", presets.PRESETS)
@pytest.mark.parametrize("benchmark", presets.BENCHMARKS)
def test_quick_jobs_end_certified(benchmark, preset):
    rows = solve(Job(benchmark, QUICK[benchmark], preset, "main", 0, quick=True))
    assert [row["method"] for row in rows] == list(METHODS)
    assert json.loads(json.dumps(rows)) == rows
    by_method = {row["method"]: row for row in rows}
    for row in rows:
        assert row["standin"] == (benchmark != "synthetic")
        assert np.isfinite(row["score"])
        if row["method"] != "preprocess":
            assert row["violations"] == row["exact_violations"] == 0
        if row["method"] != "oracle":
            assert row["seconds_per_example"] > 0
            assert row["cpu_train"] > 0
        assert ("score_extrapolation" in row) == (benchmark == "synthetic")
    safe = by_method["smle"]
    assert safe["certified"] is True
    assert safe["worst_margin"] >= 0  # a checked clause promises no more than the rule
    assert ("pdcg_success" in safe) == (preset != "best")
    assert by_method["oracle"]["score"] >= safe["score"]  # nothing that obeys does better


def test_a_job_repeats_itself():
    job = Job("classification", QUICK["classification"], "best", "main", 3, quick=True)
    first, second = ({row["method"]: row["score"] for row in solve(job)} for _ in range(2))
    assert first == second


@pytest.mark.parametrize("preset", ["paper", "published"])
@pytest.mark.parametrize("study", ["q3-linear", "q3-lstm"])
def test_quick_ablations_end_certified(study, preset):
    (row,) = solve(Job("forecasting", QUICK["forecasting"], preset, study, 0, quick=True))
    assert (row["method"], row["certified"], row["study"]) == ("smle", True, study)


def test_every_published_variant_has_a_study():
    for benchmark, variants in ABLATION.items():
        assert set(presets.ABLATIONS[benchmark]) == {(factor, variant) for factor, variant, _ in variants}
    with pytest.raises(ValueError, match="q3-lstm"):
        presets.vary(presets.settings_of("synthetic", "paper", inputs=2, outputs=2), "synthetic", "q3-lstm")
    with pytest.raises(ValueError, match="'paper' or 'published'"):
        presets.vary(presets.settings_of("synthetic", "best", inputs=2, outputs=2), "synthetic", "q3-linear")


def test_missing_data_are_named(tmp_path):
    with pytest.raises(DataError, match=r"m4_selected\.csv"):
        load_task(Job("forecasting", "Hourly-H174-0.95", "best", "main", 0, data_dir=str(tmp_path)))


# --- presets


def test_the_papers_architectures():
    found = {b: presets.settings_of(b, "paper", inputs=8, outputs=4) for b in presets.BENCHMARKS}
    assert {b: s.backbone.widths for b, s in found.items()} == {
        "synthetic": (32, 64, 32),
        "forecasting": (32, 64, 96, 64, 32),
        "classification": (20, 40, 20),
    }
    assert {b: (s.options.batch_size, s.options.patience) for b, s in found.items()} == {
        "synthetic": (128, 5),
        "forecasting": (32, 15),
        "classification": (32, 30),
    }
    assert [s.enforcement().memory for s in found.values()] == [1, 1, 10]
    assert [s.linear for s in found.values()] == [True, False, False]
    assert {s.options.keep for s in found.values()} == {"last"}
    for settings in found.values():
        optimizer = settings.options.make_optimizer([torch.nn.Parameter(torch.zeros(1))])
        assert optimizer.defaults["lr"] == 1e-3
        assert optimizer.defaults["eps"] == 1e-7
        assert type(settings.enforcement()) is PDCG
    with pytest.raises(ValueError, match="preset"):
        presets.settings_of("synthetic", "better", inputs=2, outputs=2)


def test_recurrent_backbones_read_rows_as_sequences():
    X = np.random.default_rng(0).normal(size=(9, 4))
    network = PaperLayers((6, 5), recurrent=True).build(X)
    out = network(torch.tensor(X, dtype=torch.float32))
    assert out.shape == (9, 5)
    shuffled = network(torch.tensor(X[:, ::-1].copy(), dtype=torch.float32))
    assert not torch.allclose(out, shuffled)  # order matters
