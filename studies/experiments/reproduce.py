"""Repeat the paper's experiments: make the jobs, run what is missing, write the pages."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import product
from operator import itemgetter
from pathlib import Path

from smle.errors import DataError
from studies.experiments import data, methods
from studies.experiments.page import write_page
from studies.experiments.presets import ABLATIONS, BENCHMARKS, PRESETS
from studies.experiments.runner import read_results, run_jobs
from studies.experiments.store import Outcome, Store

STUDIES = ("main", "ablation", "all")


def reproduce(
    benchmarks: Sequence[str],
    *,
    output: str | Path,
    presets: Sequence[str],
    data_dir: str | Path | None = None,
    seeds: int = 1,
    study: str = "main",
    jobs: int = 1,
    backend: str = "loky",
    address: str | None = None,
    quick: bool = False,
    task: str | None = None,
    retry_failed: bool = False,
    report_only: bool = False,
    taken_from: str | Path | None = None,
) -> Path:
    """Run the jobs that a folder lacks, then write one page per benchmark from everything in the folder.

    Calling it again with the same folder goes on where the last run stopped; other presets, seeds and studies are
    added to the same pages.

    Arguments are the options of `python -m studies reproduce`, but for `taken_from` (`--from`); seeds are 0, 1, ...

    Returns:
        The folder; `summary.json` in it has the medians, counts and checks.

    Raises:
        ValueError: If something is asked for that does not exist.
        DataError: If data are missing.
    """
    folder = Path(output)
    # Workers elsewhere do not share the environment of this process.
    where = data_dir or os.environ.get("SMLE_DATA")
    place = str(Path(where).resolve()) if where else None
    wanted = make_jobs(benchmarks, presets=presets, seeds=seeds, study=study, quick=quick, data_dir=place, task=task)
    if taken_from is not None:
        Store(folder).take(taken_from, benchmarks)
    if not report_only:
        if not quick:
            data.prepare(sorted({job.benchmark for job in wanted}), place)
        run_jobs(
            wanted, methods.solve, folder=folder, n_jobs=jobs, backend=backend, address=address,
            together=methods.chain, retry_failed=retry_failed,
        )  # fmt: skip
    write_pages(folder, quick=quick, benchmarks=benchmarks)
    return folder


def make_jobs(
    benchmarks: Sequence[str], *, presets: Sequence[str], seeds: int, study: str, quick: bool, data_dir: str | None,
    task: str | None = None,
) -> list[methods.Job]:  # fmt: skip
    """Return the jobs of a request.

    Raises:
        ValueError: If something is asked for that does not exist.
    """
    for name, value, known in (
        *(("benchmark", benchmark, BENCHMARKS) for benchmark in benchmarks),
        *(("preset", preset, PRESETS) for preset in presets),
        ("study", study, STUDIES),
    ):
        if value not in known:
            raise ValueError(f"Expected a {name} among {', '.join(known)}. Got '{value}'.")
    if seeds < 1:
        raise ValueError(f"Expected a positive number of seeds. Got {seeds}.")
    found: list[methods.Job] = []
    for preset, benchmark in product(presets, benchmarks):
        studies = ["main"] if study != "ablation" else []
        if study != "main" and preset != "best":  # the ablation is about the paper's network
            studies += dict.fromkeys(ABLATIONS.get(benchmark, {}).values())
        keys = [key for key in methods.task_keys(benchmark, quick=quick) if task in (None, key)]
        found += [
            methods.Job(benchmark, key, preset, name, seed, quick, data_dir)
            for name, seed, key in product(studies, range(seeds), keys)
        ]
    if not found and task is not None:
        names = [key for benchmark in benchmarks for key in methods.task_keys(benchmark, quick=quick)]
        near = get_close_matches(task, names, n=3, cutoff=0.3) or names[:3]
        raise ValueError(f"There is no task '{task}' of {', '.join(benchmarks)}. Near: {', '.join(near)}.")
    if not found:
        raise ValueError(
            f"There is no {study} of {', '.join(benchmarks)} under {', '.join(presets)}: the paper varies its own "
            "network, on synthetic and forecasting tasks."
        )
    return found


def write_pages(folder: Path, *, quick: bool, benchmarks: Sequence[str]) -> None:
    """Write the pages of all stored results, quick ones or full ones, and `summary.json`.

    Raises:
        DataError: If there are none.
    """
    results, store = read_results(folder), Store(folder)
    if not results.outcomes:
        raise DataError(f"There are no results in '{folder}'. Run the experiments first, without --report-only.")
    summary: dict[str, object] = {}
    for benchmark in benchmarks:
        own = (outcome for outcome in results.outcomes if outcome.job["benchmark"] == benchmark)
        outcomes = [outcome for outcome in own if bool(outcome.job["quick"]) == quick]
        if outcomes:
            store.pack(benchmark, outcomes)
            shown, notes = _whole(outcomes, benchmark, quick)
            studies = ABLATIONS.get(benchmark, {})
            summary[benchmark] = write_page(folder, benchmark, shown, studies=studies, runs=store.runs(), notes=notes)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _whole(outcomes: Sequence[Outcome], benchmark: str, quick: bool) -> tuple[list[Outcome], list[str]]:
    """Return what a page shows, and notes about the rest: medians over some tasks are not those over all.

    A seed that is not complete is left out where another one of the same preset and study is.
    """
    kind = itemgetter("preset", "study", "seed")
    counts = Counter(kind(outcome.job) for outcome in outcomes)
    full = len(methods.task_keys(benchmark, quick=quick))
    complete = {key[:2] for key, count in counts.items() if count == full}
    notes, left = [], set()
    for key in sorted(key for key, count in counts.items() if count < full):
        text = f"{counts[key]} of {full} jobs of preset {key[0]}, {key[1]}, seed {key[2]} have ended."
        if key[:2] in complete:
            left.add(key)
            notes.append(f"LEFT OUT: {text} They are in `{benchmark}.csv`.")
        else:
            notes.append(f"NOT COMPLETE: {text} Numbers below are of these only.")
    return [outcome for outcome in outcomes if kind(outcome.job) not in left], notes
