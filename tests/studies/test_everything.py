"""`python -m studies all`: every part is run once, what failed is told about and tried again."""

import pytest
from typer.testing import CliRunner

from studies import everything
from studies.changes import changes_of
from studies.cli import app
from studies.harness import BenchResult, Table, write


@pytest.fixture
def runs(monkeypatch):
    """Benches and a reproduction that note that they ran; the one named `bad` fails the first time."""
    called = []

    def bench(name):
        class Module:
            @staticmethod
            def run(quick=False, folder=None):
                called.append((name, quick, folder))
                if name == "bad" and len([one for one in called if one[0] == "bad"]) == 1:
                    raise ValueError("no data")
                return BenchResult(name, name, (Table("t", ("a",), ((1,),)),), quick=quick)

        return Module

    listed = {name: name for name in ("bad", "good")}
    monkeypatch.setattr(everything, "available", lambda: listed)
    monkeypatch.setattr("studies.bench.available", lambda: listed)
    monkeypatch.setattr("studies.bench.import_module", bench)
    monkeypatch.setattr(everything, "commit", lambda: "abc")
    monkeypatch.setattr(everything, "reproduce", lambda names, **options: called.append(("reproduction", options)))
    return called


def test_a_run_goes_on_where_it_stopped(runs, tmp_path):
    said = []
    first = everything.run_everything(tmp_path, quick=True, say=said.append)
    assert [(part.name, part.outcome) for part in first] == [
        ("bad", "failed"),
        ("good", "done"),
        ("reproduction", "done"),
    ]
    assert "[1/3] bad: failed (0 s): ValueError: no data" in said
    assert "no data" in (tmp_path / "parts" / "bad" / "error.txt").read_text()
    assert (tmp_path / "good.md").is_file()
    assert runs[0] == ("bad", True, tmp_path / "parts" / "bad")
    runs[1:] = []
    again = everything.run_everything(tmp_path, quick=True, say=said.append)
    assert [part.outcome for part in again] == ["done", "found", "found"]
    assert len(runs) == 2
    assert [part.outcome for part in everything.run_everything(tmp_path, say=said.append)] == ["done"] * 3, "not quick"


def test_pages_of_another_commit_are_named(runs, tmp_path, monkeypatch):
    everything.run_everything(tmp_path, only=["good"])
    monkeypatch.setattr(everything, "commit", lambda: "def")
    (part,) = everything.run_everything(tmp_path, only=["good"])
    assert part.outcome == "found, made by commit abc"


def test_parts_are_chosen_by_name(runs, tmp_path):
    assert everything.parts(only=["good"]) == ["good"]
    assert everything.parts(skip=["bad", "reproduction"]) == ["good"]
    with pytest.raises(ValueError, match="Expected parts among bad, good, reproduction"):
        everything.parts(only=["other"])


def test_the_command_ends_with_an_error_where_a_part_failed(runs, tmp_path):
    result = CliRunner().invoke(app, ["all", "-o", str(tmp_path), "--quick", "--skip", "reproduction"])
    assert result.exit_code == 1
    assert "failed: bad" in result.output
    assert CliRunner().invoke(app, ["all", "-o", str(tmp_path), "--quick", "--skip", "reproduction"]).exit_code == 0


def test_what_got_worse_is_named_first(tmp_path):
    def page(folder, cost, score, **passed):
        rows = (("ours", "1 row", cost, score), ("theirs", "1 row", 2.0, "0.5 ± 0.1"))
        table = Table("Cost", ("method", "size", "us", "score"), rows)
        write(BenchResult("speed", "Speed", (table,), passed), tmp_path / folder)

    page("old", 1.0, "14.45%", quick=True, small=False, sound=False)
    page("new", 1.2, "14.5%", quick=False, small=True, sound=False, other=False)
    text = changes_of(tmp_path / "old", tmp_path / "new")
    lost, still, gained, moved = (part.partition("\n")[2] for part in text.split("## ")[1:])
    assert "speed: quick" in lost
    assert "speed: sound" in still
    assert "speed: small" in gained
    assert [line for line in moved.splitlines() if line.startswith("| speed")] == [
        "| speed | Cost | ours 1 row | us | 1.0 | 1.2 | 1.20 |"
    ]


@pytest.mark.audit
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile warns about parts of torch
def test_a_real_part_runs(tmp_path):
    (part,) = everything.run_everything(tmp_path, quick=True, only=["training"])
    assert part.outcome == "done"
    assert (tmp_path / "training.json").is_file()
