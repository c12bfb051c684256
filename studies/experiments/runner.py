"""Run independent jobs: local processes or a cluster, results kept as they come, resumed where a run stopped."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import smle
from smle.errors import TrainingError
from studies.experiments.backends import spread
from studies.experiments.store import Outcome, Store, commit, origin
from studies.harness import one_thread

_log = logging.getLogger(__name__)

# Seconds between two lines of the log.
_QUIET = 30.0


class Unit(Protocol):
    """A job: a frozen dataclass with a key that no other job has and that can name a file."""

    @property
    def key(self) -> str:
        """The name of the job's result."""


Solve = Callable[[Any], list[dict[str, Any]]]


@dataclass(frozen=True)
class Results:
    """The outcomes of a list of jobs, in the order of their keys.

    Attributes:
        outcomes: One per job that has ended, failed ones included.
        reused: How many were found finished in the folder.
        notes: What a reader should know, for example that versions are mixed.
    """

    outcomes: tuple[Outcome, ...]
    reused: int = 0
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all jobs that succeeded."""
        return [row for outcome in self.outcomes for row in outcome.rows]

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The jobs that ended with an error."""
        return tuple(outcome for outcome in self.outcomes if outcome.failed)


def run_jobs(
    jobs: Sequence[Unit],
    solve: Solve,
    *,
    folder: str | Path | None,
    n_jobs: int = 1,
    backend: str = "loky",
    address: str | None = None,
    together: Callable[[Any], Hashable] | None = None,
    retry_failed: bool = False,
) -> Results:
    """Solve every job that has no result in `folder` yet, keep each result when its job ends, return all of them.

    A job that raises becomes an outcome with its error; other jobs go on. Ctrl-C, a kill or a power cut lose only
    the jobs in progress: the same call goes on with the rest.

    Args:
        jobs: What to solve.
        solve: A top-level function from a job to its rows; cluster workers import it.
        folder: Results go to `folder/jobs/<key>.json`; None: nothing is kept.
        n_jobs: Jobs at a time; -1: one per core. A cluster with an address decides by itself.
        backend: "loky" (local processes), "ray" or "dask".
        address: The cluster's address; None: a local cluster.
        together: Jobs with the same value are solved by one worker, one after the other: they share what the first
            ones leave in its memory. Their results are kept when the last of them ends.
        retry_failed: Solve jobs again that failed in an earlier run.

    Raises:
        ValueError: If two jobs have the same key, or for an unknown back-end.
        MissingDependencyError: If the back-end is not installed.
        TrainingError: If a local worker process died.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_jobs(jobs, solve, folder=temporary, n_jobs=n_jobs)
    wanted = {job.key: job for job in jobs}
    for key, count in Counter(job.key for job in jobs).items():
        if count > 1:
            raise ValueError(f"Two jobs have the key '{key}': expected different ones.")
    store, here = Store(folder), commit()
    done = {
        key: outcome
        for key, outcome in store.read().items()
        if key in wanted and outcome.job == _description(wanted[key]) and not (outcome.failed and retry_failed)
    }
    notes = _mixture(list(done.values()), here)
    for note in notes:
        _log.warning(note)
    todo = [job for key, job in wanted.items() if key not in done]
    work, reused, finished, start = Work(solve, here), len(done), 0, time.perf_counter()
    if todo:
        # A single worker shares its memory anyway: there each result is kept at once.
        alone = backend == "loky" and n_jobs == 1
        results = spread(
            work, _lots(todo, None if alone else together), backend=backend, n_jobs=n_jobs, address=address
        )
        last = start
        _log.info("%d of %d jobs to do.", len(todo), len(wanted))
        try:
            with closing(results):
                for lot, result in results:
                    ended = [work.lost(job, result) for job in lot] if isinstance(result, BaseException) else result
                    for outcome in ended:
                        store.write(outcome)
                        done[outcome.key] = outcome
                        finished += 1
                        last = _told(outcome, finished, len(todo), start, last)
        finally:
            wall = time.perf_counter() - start
            store.note_run(
                {"jobs": finished, "asked": len(todo), "seconds": wall, "workers": n_jobs, "backend": backend}
                | {"commit": here, **origin()}
            )
    return Results(tuple(done[key] for key in sorted(done)), reused, notes)


def solve_all(jobs: Sequence[Unit], solve: Solve, folder: str | Path | None = None, *, n_jobs: int = 1) -> Results:
    """Solve jobs of which none may fail.

    Raises:
        TrainingError: If a job failed.
    """
    results = run_jobs(jobs, solve, folder=folder, n_jobs=n_jobs, retry_failed=True)
    if results.failures:
        first = results.failures[0]
        raise TrainingError(
            f"{len(results.failures)} of {len(jobs)} jobs failed, first {first.key}: {first.error}. Those that ended "
            "are kept in the folder that you name; run the same command again to go on."
        )
    return results


def read_results(folder: str | Path) -> Results:
    """Return what is stored in a run's folder, without running anything."""
    stored = Store(folder).read()
    return Results(tuple(stored[key] for key in sorted(stored)), len(stored))


@dataclass(frozen=True)
class Work:
    """Solves jobs in the process that calls it; keeps rows and seconds of each, or its error."""

    solve: Solve
    commit: str

    def __call__(self, lot: Sequence[Unit]) -> list[Outcome]:
        """Return the outcomes, one job after the other; exceptions become part of them."""
        return [self.one(job) for job in lot]

    def one(self, job: Unit) -> Outcome:
        """Return the outcome of a job."""
        start, cpu = time.perf_counter(), time.process_time()
        try:
            with one_thread():
                outcome = self.outcome(job, rows=tuple(self.solve(job)))
        except Exception as error:  # noqa: BLE001 - a failed job is a result: recorded, shown, never dropped
            outcome = self.lost(job, error)
        return replace(outcome, seconds=time.perf_counter() - start, cpu=time.process_time() - cpu)

    def lost(self, job: Unit, error: BaseException) -> Outcome:
        """Return the outcome of a job that did not come to an end."""
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return self.outcome(job, error=text, traceback="".join(traceback.format_exception(error)))

    def outcome(self, job: Unit, **found: Any) -> Outcome:
        """Return an outcome with its job and its origin."""
        what: dict[str, Any] = {"rows": (), "seconds": 0.0, "origin": {"commit": self.commit, **origin()}} | found
        return Outcome(job.key, _description(job), **what)


def _lots(jobs: Sequence[Unit], together: Callable[[Any], Hashable] | None) -> list[list[Unit]]:
    """Return the jobs in lots for one worker each, in their order."""
    lots: dict[Hashable, list[Unit]] = {}
    for job in jobs:
        lots.setdefault(together(job) if together else job.key, []).append(job)
    return list(lots.values())


def _description(job: Any) -> dict[str, Any]:
    """Return the job's fields as they come back from a file (tuples are lists there).

    Without the place of the data: it may differ when a run goes on elsewhere.
    """
    values = dataclasses.asdict(job)
    values.pop("data_dir", None)
    stored: dict[str, Any] = json.loads(json.dumps(values))
    return stored


def _mixture(outcomes: Sequence[Outcome], here: str) -> tuple[str, ...]:
    """Say whether stored results come from another commit or version than this run."""
    notes = []
    for label, field, current in (("commit", "commit", here), ("version of smle", "smle", smle.__version__)):
        now = current or "unknown"
        counts = Counter(str(outcome.origin.get(field) or "unknown") for outcome in outcomes)
        others = ", ".join(f"{count} from {value}" for value, count in sorted(counts.items()) if value != now)
        if others:
            notes.append(f"Stored results come from another {label}: {others}; this is {now}. They are kept.")
    return tuple(notes)


def _told(outcome: Outcome, done: int, total: int, start: float, last: float) -> float:
    """Log a job that failed, and now and then how long the rest may take; return when that was logged last."""
    if outcome.failed:
        _log.warning("Job %s failed: %s", outcome.key, outcome.error)
    now = time.perf_counter()
    if now - last < _QUIET and done < total:
        return last
    left = (now - start) / done * (total - done) / 60
    text = "%d of %d jobs done; last %s in %.1f s; about %.0f min left."
    _log.info(text, done, total, outcome.key, outcome.seconds, left)
    return now
