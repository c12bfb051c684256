import json
import re

import pytest
from typer.testing import CliRunner

from smle.errors import DataError
from studies.cli import app
from studies.experiments import figures, methods, page
from studies.experiments.reproduce import make_jobs, reproduce
from studies.experiments.runner import read_results
from support.fake_rows import fake_rows


def pretend(job):
    """Rows of a job without training; one job in particular fails."""
    if job.task == "n2-hard-P5" and job.quick:
        raise RuntimeError("no convergence | here")
    wanted = {"n2-easy-P1": "P1", "n2-medium-P3": "P3"}.get(job.task, "P1")
    rows = [row for row in fake_rows(job.benchmark) if row["group"] == wanted][:4]
    return [row | {"task": job.task, "preset": job.preset, "seed": job.seed, "study": job.study} for row in rows]


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.setattr(methods, "solve", pretend)


@pytest.fixture
def pretended(drawn, monkeypatch):
    """Nothing is trained, and nothing drawn."""
    monkeypatch.setattr(figures, "picture", lambda figure, kind: b"")
    sections = tuple((make, draw and (lambda *a, **k: None), suffix) for make, draw, suffix in page._SECTIONS)
    monkeypatch.setattr(page, "_SECTIONS", sections)


def test_pages_show_results_failures_and_origin(tmp_path, drawn):
    folder = reproduce(["synthetic"], presets=["best"], output=tmp_path / "out", quick=True)
    text = (folder / "synthetic.md").read_text()
    assert "| synthetic_n2-hard-P5_best_main_seed0_quick | RuntimeError: no convergence \\| here |" in text
    assert "(quick run)" in text.splitlines()[0]
    assert re.search(r"commit \w+", text)
    for name in re.findall(r"\]\((.*?\.png)\)", text):
        assert (folder / name).is_file()
    rows = (folder / "synthetic.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 4
    summary = json.loads((folder / "summary.json").read_text())["synthetic"]
    assert summary["failed"] == ["synthetic_n2-hard-P5_best_main_seed0_quick"]
    assert summary["presets"]["best"]["certified"] == 2


def test_presets_and_seeds_gather_in_one_folder(tmp_path, pretended):
    reproduce(["synthetic"], presets=["best"], output=tmp_path, quick=True, seeds=2)
    reproduce(["synthetic"], output=tmp_path, quick=True, presets=["paper"])
    text = (tmp_path / "synthetic.md").read_text()
    assert "## Preset `best`" in text
    assert "## Preset `paper`" in text
    assert "Mean over 2 seeds" in text
    assert json.loads((tmp_path / "summary.json").read_text())["synthetic"]["presets"]["best"]["seeds"] == [0, 1]


def test_another_run_goes_on_from_kept_rows(tmp_path, pretended, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    reproduce(["synthetic"], presets=["best"], output=first, quick=True)
    solved = []
    monkeypatch.setattr(methods, "solve", lambda job: solved.append(job.task) or pretend(job))
    # Rows of another study, kept in the same folder:
    other = 'other,"{""benchmark"": ""synthetic"", ""quick"": true}",1,1,a'
    (first / "paper_choices.csv").write_text(f"key,job,job_seconds,job_cpu,origin\n{other}\n", encoding="utf-8")
    reproduce(["synthetic"], presets=["best"], output=second, quick=True, taken_from=first)
    assert solved == ["n2-hard-P5"]  # it failed, and only results are kept
    kept, again = (read_results(folder).outcomes for folder in (first, second))
    for one, other in zip(kept, again, strict=True):
        assert one.job == other.job
        assert [row.keys() for row in one.rows] == [row.keys() for row in other.rows]
        for a, b in zip(one.rows, other.rows, strict=True):
            assert a == {
                name: pytest.approx(b[name], rel=1e-5) if type(v) is float else b[name] for name, v in a.items()
            }
    assert (first / "synthetic.csv").read_text() == (second / "synthetic.csv").read_text()


def test_a_page_of_an_unfinished_run_says_so(tmp_path, pretended):
    reproduce(["synthetic"], presets=["best"], output=tmp_path, quick=True)
    assert "NOT COMPLETE" not in (tmp_path / "synthetic.md").read_text()
    (tmp_path / "jobs" / "synthetic_n2-easy-P1_best_main_seed0_quick.json").unlink()
    reproduce(["synthetic"], presets=["best"], output=tmp_path, quick=True, report_only=True)
    assert "NOT COMPLETE: 2 of 3 jobs of preset best, main, seed 0" in (tmp_path / "synthetic.md").read_text()


def test_a_seed_that_is_not_complete_is_kept_but_not_shown(tmp_path, pretended):
    reproduce(["synthetic"], presets=["best"], output=tmp_path, quick=True, seeds=2)
    (tmp_path / "jobs" / "synthetic_n2-easy-P1_best_main_seed1_quick.json").unlink()
    reproduce(["synthetic"], presets=["best"], output=tmp_path, quick=True, report_only=True)
    page = (tmp_path / "synthetic.md").read_text()
    assert "LEFT OUT: 2 of 3 jobs of preset best, main, seed 1" in page
    assert "one seed" in page
    assert "seed1" in (tmp_path / "synthetic.csv").read_text()


def test_quick_results_do_not_mix_with_full_ones(tmp_path, pretended, monkeypatch):
    reproduce(["synthetic"], presets=["best"], output=tmp_path, quick=True)
    keys = methods.task_keys("synthetic", quick=True)
    monkeypatch.setattr(methods, "task_keys", lambda benchmark, quick=False: keys)
    reproduce(["synthetic"], presets=["best"], output=tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())["synthetic"]
    assert summary["failed"] == []
    assert summary["presets"]["best"]["models"] == 3


def test_the_place_of_the_data_is_not_published(tmp_path, pretended):
    reproduce(["synthetic"], presets=["best"], output=tmp_path / "out", quick=True, data_dir=tmp_path / "secret-place")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert b"secret-place" not in path.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"presets": ["worst"]}, "paper, published, best"),
        ({"study": "q9"}, "main, ablation, all"),
        ({"seeds": 0}, "positive"),
    ],
)
def test_wrong_requests_are_refused(change, message):
    request = {"presets": ["best"], "seeds": 1, "study": "main", "quick": False, "data_dir": None}
    with pytest.raises(ValueError, match=message):
        make_jobs(["synthetic"], **(request | change))


def test_the_paper_s_numbers_of_jobs():
    request = {"presets": ["best"], "seeds": 2, "study": "main", "quick": False, "data_dir": None}
    sizes = {name: len(make_jobs([name], **request)) for name in ("synthetic", "forecasting", "classification")}
    assert sizes == {"synthetic": 2 * 54, "forecasting": 2 * 75, "classification": 2 * 15}


def test_the_ablation_has_one_job_per_task_and_study():
    request = {"presets": ["paper"], "seeds": 1, "quick": False, "data_dir": None}
    jobs = make_jobs(["synthetic", "forecasting"], study="ablation", **request)
    assert "main" not in {job.study for job in jobs}
    assert len(jobs) == 3 * 54 + 4 * 75  # variants that are the same network are trained once
    assert len(make_jobs(["synthetic"], study="all", **request)) == 4 * 54
    with pytest.raises(ValueError, match="on synthetic and forecasting tasks"):
        make_jobs(["classification"], study="ablation", **request)


def test_one_task_of_all_presets_by_its_name():
    request = {"presets": ["paper", "published", "best"], "seeds": 1, "study": "main", "quick": False, "data_dir": None}
    jobs = make_jobs(["synthetic", "forecasting"], task="n2-medium-P3", **request)
    assert [(job.benchmark, job.task, job.preset) for job in jobs] == [
        ("synthetic", "n2-medium-P3", preset) for preset in ("paper", "published", "best")
    ]
    with pytest.raises(ValueError, match=r"There is no task 'n2-medum-P3'.*n2-medium-P3"):
        make_jobs(["synthetic"], task="n2-medum-P3", **request)


def test_a_preset_must_be_named(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "synthetic", "--quick", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "--preset" in result.stderr


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match="no results"):
        reproduce(["synthetic"], presets=["best"], output=tmp_path, report_only=True)


def test_missing_data_are_named_before_anything_runs(tmp_path):
    result = CliRunner().invoke(
        app, ["reproduce", "forecasting", "--preset", "best", "--data-dir", str(tmp_path), "-o", str(tmp_path / "o")]
    )
    assert result.exit_code == 2
    assert "m4_selected.csv" in result.stderr
    assert not (tmp_path / "o" / "jobs").exists()


def test_command_prints_what_is_proved_and_json(tmp_path, pretended):
    arguments = ["reproduce", "synthetic", "--preset", "best", "--quick", "-o", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "certified: 2 of 2 models" in result.stdout
    assert "failed jobs: synthetic_n2-hard-P5_best_main_seed0_quick" in result.stdout
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(result.stdout)["synthetic"]["presets"]["best"]["models"] == 2


def test_an_interrupted_command_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupt(job):
        raise KeyboardInterrupt

    monkeypatch.setattr(methods, "solve", interrupt)
    result = CliRunner().invoke(app, ["reproduce", "synthetic", "--preset", "best", "--quick", "-o", str(tmp_path)])
    assert result.exit_code == 130
    assert "run the same command again to go on" in result.stderr


@pytest.mark.audit
def test_quick_run_needs_no_data_and_certifies_every_model(tmp_path, monkeypatch):
    monkeypatch.delenv("SMLE_DATA", raising=False)
    reproduce(["synthetic", "forecasting", "classification"], presets=["best"], output=tmp_path, quick=True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    for name, entry in summary.items():
        assert entry["failed"] == []
        part = entry["presets"]["best"]
        assert part["certified"] == part["models"] > 0
        title = (tmp_path / f"{name}.md").read_text().splitlines()[0]
        assert ("quick run" if name == "synthetic" else "GENERATED STAND-INS") in title
