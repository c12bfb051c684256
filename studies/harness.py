"""What all studies share: tables and pages, ratios measured in turns, and a record of the machine and the versions.

A bench is a function `run` in a file of `studies.bench` or `studies.attacks`, made by `bench`; nothing else has to be
registered.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import json
import logging
import multiprocessing
import os
import platform
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import cpu_count
from scipy import stats

Array = npt.NDArray[Any]
_PACKAGES = (
    "smle", "numpy", "scipy", "scikit-learn", "torch", "highspy", "piqp", "pyscipopt", "onnxruntime",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table of results; `note` says how it was measured and what to expect."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""

    def markdown(self, level: int = 2) -> str:
        """Return title, note and table as Markdown; `level` is that of the heading."""
        lines = [f"{'#' * level} {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in self.rows]
        return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


@lru_cache
def _machine() -> dict[str, Any]:
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0.0
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": next(named, platform.processor() or "unknown"),
        "cores": cpu_count(),
        "memory_gb": round(memory, 1),
        "python": platform.python_version(),
        "packages": versions,
    }


def environment() -> dict[str, Any]:
    """Return where something is measured: machine, Python, versions of packages that matter, and the time."""
    return {**_machine(), "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


# --- measuring


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender over several rounds; `ratio` is the median, round by round, to the baseline."""

    seconds: tuple[float, ...]
    ratio: float

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    @property
    def undisturbed(self) -> float:
        """First quartile of the seconds: calls that other work on the machine did not interrupt."""
        return statistics.quantiles([*self.seconds, self.seconds[0]], n=4, method="inclusive")[0]


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 5,
    budget: float = 30.0,
    clock: Callable[[], float] | None = None,
) -> dict[str, Timing]:
    """Time contenders in turns, so that a busy machine slows them all; the first one is the baseline.

    Each round calls every contender, in alternating order, after one call to warm up; one that takes less than 10 ms is
    called several times in a row and counted per call. Rounds stop when the budget (seconds) is spent, after at least
    one. `clock` is the wall's, if none is given.
    """
    clock = clock or time.perf_counter
    names = list(contenders)
    calls = {}
    for name in names:
        before = time.perf_counter()
        contenders[name]()
        calls[name] = min(100, max(1, int(0.01 / max(time.perf_counter() - before, 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            before = clock()
            for _ in range(calls[name]):
                contenders[name]()
            seconds[name].append((clock() - before) / calls[name])
        if time.perf_counter() - start > budget:
            break
    base = seconds[names[0]]
    return {
        name: Timing(tuple(values), statistics.median(v / b for v, b in zip(values, base, strict=True)))
        for name, values in seconds.items()
    }


def keep_memory() -> None:
    """Let this process keep freed memory, where the C library is glibc.

    Otherwise buffers of a few MB go back to the system after some calls and not after others, and which contender
    pays for the page faults changes from run to run: up to half of the time of a batch of 8,192 rows.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, the largest that it takes


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside; in a worker process, leave Ctrl-C to the process that started it."""
    import torch
    from threadpoolctl import threadpool_limits

    if multiprocessing.parent_process() is not None:
        # Only a main thread may say so; where it cannot, the driver ends the workers anyway.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block; its random numbers outside stay as they were."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Swallow what others print and log, and their warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError when the block takes more than `seconds` of processor time.

    It does nothing outside the main thread, or where the system has no such timer.
    """
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def asked(network: Callable[[Any], object], x: Any) -> Callable[[], None]:
    """Return a function that runs a torch network on rows in inference mode."""
    import torch

    def call() -> None:
        with torch.inference_mode():
            network(x)

    return call


def mean_interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval (Student's t); NaN for a single number."""
    mean = float(np.mean(numbers))
    if len(numbers) < 2:
        return mean, float("nan")
    return mean, float(stats.t.ppf(0.975, len(numbers) - 1) * stats.sem(numbers))


# --- pages


@dataclass(frozen=True)
class BenchResult:
    """What a bench found. `passed` maps each requirement to whether it was met."""

    name: str
    title: str
    tables: tuple[Table, ...]
    passed: dict[str, bool] = field(default_factory=dict)
    quick: bool = False
    environment: dict[str, Any] = field(default_factory=environment)

    def markdown(self) -> str:
        """Return the whole result as a Markdown page."""
        where = self.environment
        versions = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
        parts = [
            f"# {self.title}",
            f"Measured on {where['when']}, {where['processor']} ({where['cores']} cores, {where['memory_gb']:.0f} GB), "
            f"{where['machine']}, Python {where['python']}; {versions}."
            + (" Quick run: small sizes, few rounds." if self.quick else ""),
        ]
        parts += [table.markdown() for table in self.tables]
        if self.passed:
            met = "\n".join(f"* {'met' if ok else 'NOT MET'}: {what}" for what, ok in self.passed.items())
            parts.append(f"## Requirements\n\n{met}")
        return "\n\n".join(parts) + "\n"

    def json(self) -> str:
        """Return the whole result as JSON."""
        return json.dumps(asdict(self), indent=1, default=_plain, allow_nan=False) + "\n"


Measure = Callable[..., Iterable[Table]]
"""(quick, place for requirements and whether they are met, options of its own) -> tables."""


def bench(title: str, *, default_threads: bool = False) -> Callable[[Measure], Callable[..., BenchResult]]:
    """Turn a function that measures into a bench: one thread, kept memory, a page named after the file."""

    def made(measure: Measure) -> Callable[..., BenchResult]:
        @functools.wraps(measure)
        def run(quick: bool = False, **options: Any) -> BenchResult:
            passed: dict[str, bool] = {}
            keep_memory()
            with contextlib.nullcontext() if default_threads else one_thread():
                tables = tuple(measure(quick, passed, **options))
            return BenchResult(measure.__module__.rpartition(".")[2], title, tables, passed, quick)

        return run

    return made


def _plain(value: Any) -> object:
    return value.item() if hasattr(value, "item") else str(value)


def write(result: BenchResult, folder: str | Path) -> tuple[Path, Path]:
    """Write NAME.md and NAME.json; return the paths."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    page, record = target / f"{result.name}.md", target / f"{result.name}.json"
    page.write_text(result.markdown(), encoding="utf-8")
    record.write_text(result.json(), encoding="utf-8")
    return page, record
