"""The bench harness: interleaving, records, files; and the guarantees bench's own instances."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from smle.heads.box.proof.verify import verify
from studies import harness
from studies.bench import available, run_bench
from studies.bench.guarantees import problem
from studies.harness import BenchResult, Table, interleaved, write


class Clock:
    """Stands still except when told to go on: what is measured does not depend on the load of the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(harness, "time", clock)
    return clock


def test_options_of_other_benches_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no --jobs"):
        run_bench("inference", quick=True, jobs=2)


def test_contenders_take_turns(clock: Clock) -> None:
    calls: list[str] = []

    def contender(name: str) -> Callable[[], None]:
        def call() -> None:
            calls.append(name)
            clock.now += 0.011 if name == "a" else 0.022

        return call

    timings = interleaved({"a": contender("a"), "b": contender("b")}, rounds=3)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert timings["a"].ratio == 1.0
    assert timings["b"].ratio == pytest.approx(2.0)
    assert len(timings["b"].seconds) == 3


def test_a_short_contender_is_called_several_times_and_counted_per_call(clock: Clock) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(0)
        clock.now += 0.0009

    timings = interleaved({"a": call}, rounds=2)
    assert len(calls) == 1 + 2 * 11
    assert timings["a"].median == pytest.approx(0.0009)


def test_the_budget_ends_the_rounds_after_at_least_one(clock: Clock) -> None:
    def call() -> None:
        clock.now += 1.0

    assert len(interleaved({"a": call}, rounds=1000, budget=0.0)["a"].seconds) == 1
    assert len(interleaved({"a": call}, rounds=1000, budget=4.5)["a"].seconds) == 5


def result() -> BenchResult:
    table = Table("Numbers", ("name", "value", "ok"), (("x", 0.12345, True), ("y", 12345, False)), "How.")
    return BenchResult("example", "An example", (table,), passed={"fast": True, "small": False})


def test_a_result_is_written_as_tables_and_numbers(tmp_path: Path) -> None:
    paths = write(result(), tmp_path)
    page = (tmp_path / "example.md").read_text(encoding="utf-8")
    assert "| x | 0.123 | yes |" in page
    assert "| y | 12,345 | no |" in page
    assert "* NOT MET: small" in page
    assert "Python" in page
    record = json.loads((tmp_path / "example.json").read_text(encoding="utf-8"))
    assert record["passed"] == {"fast": True, "small": False}
    assert record["environment"]["packages"]["numpy"]
    assert sorted(path.name for path in paths) == ["example.json", "example.md"]


def test_benches_are_found_by_their_files() -> None:
    assert "guarantees" in available()
    assert not {"harness", "peer_env", "peer_methods"} & available().keys()
    with pytest.raises(ValueError, match="Expected a bench among"):
        run_bench("nothing")


def test_the_instances_of_the_guarantees_bench_are_what_they_say() -> None:
    spec, cells, over = problem(0, d=4, n=8, m=2, clauses=3, affine=False, room=100.0)
    assert verify(over, spec, cells).hold
    spec, cells, over = problem(0, d=4, n=8, m=2, clauses=3, affine=True, room=0.01)
    assert not verify(over, spec, cells).hold
