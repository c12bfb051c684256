"""The bench harness: interleaving, records, files; and the guarantees bench's own instances."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from smle.bench import available, run_bench
from smle.bench.guarantees import hundred_rules, problem
from smle.bench.harness import BenchResult, Plot, Table, interleaved, write
from smle.guarantees.verify import verify


def test_contenders_take_turns() -> None:
    calls: list[str] = []

    def contender(name: str) -> Callable[[], None]:
        def call() -> None:
            calls.append(name)
            time.sleep(0.011)

        return call

    timings = interleaved({"a": contender("a"), "b": contender("b")}, rounds=3)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert timings["a"].ratio == 1.0
    assert len(timings["b"].seconds) == 3


def test_a_short_contender_is_called_several_times_and_counted_per_call() -> None:
    calls: list[int] = []
    timings = interleaved({"a": lambda: calls.append(0)}, rounds=2)
    assert len(calls) > 10
    assert timings["a"].median < 0.005


def test_the_budget_ends_the_rounds_after_at_least_one() -> None:
    timings = interleaved({"a": lambda: None}, rounds=1000, budget=0.0)
    assert len(timings["a"].seconds) == 1


def result() -> BenchResult:
    table = Table("Numbers", ("name", "value", "ok"), (("x", 0.12345, True), ("y", 12345, False)), "How.")
    plot = Plot("title", "n", "seconds", {"ours": ((1.0, 10.0), (0.1, 0.2))})
    return BenchResult("example", "An example", (table,), (plot,), passed={"fast": True, "small": False})


def test_a_result_is_written_as_table_numbers_and_plot(tmp_path: Path) -> None:
    paths = write(result(), tmp_path)
    page = (tmp_path / "example.md").read_text(encoding="utf-8")
    assert "| x | 0.123 | yes |" in page
    assert "| y | 12,345 | no |" in page
    assert "* NOT MET: small" in page
    assert "Python" in page
    record = json.loads((tmp_path / "example.json").read_text(encoding="utf-8"))
    assert record["passed"] == {"fast": True, "small": False}
    assert record["environment"]["packages"]["numpy"]
    assert len(paths) in (2, 3)


def test_benches_are_found_by_their_files() -> None:
    assert "guarantees" in available()
    assert "harness" not in available()
    with pytest.raises(ValueError, match="Expected a bench among"):
        run_bench("nothing")


def test_the_instances_of_the_guarantees_bench_are_what_they_say() -> None:
    spec, arrangement, over = problem(0, d=4, n=8, m=2, clauses=3, affine=False, room=100.0)
    assert verify(over, spec, arrangement).hold
    spec, arrangement, over = problem(0, d=4, n=8, m=2, clauses=3, affine=True, room=0.01)
    assert not verify(over, spec, arrangement).hold
    spec, arrangement, over = hundred_rules(affine=True)
    assert len(verify(over, spec, arrangement)) == 100


@pytest.mark.slow
def test_the_guarantees_bench_runs(tmp_path: Path) -> None:
    found = run_bench("guarantees", quick=True, output=tmp_path)
    assert (tmp_path / "guarantees.md").exists()
    assert len(found.tables) == 8
    answers = [row[-1] for row in found.tables[0].rows]
    assert all(answers)
