"""The harness of all benches: ratios measured in one run, interleaved, with versions and machine on record.

A bench is one file of this package with a function `run(quick: bool) -> BenchResult`; nothing else has to be
registered.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from studies.experiments.backends import one_thread
from studies.results import Environment, Table, environment

__all__ = [
    "BenchResult",
    "Environment",
    "Table",
    "Timing",
    "environment",
    "interleaved",
    "keep_memory",
    "one_thread",
    "write",
]


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender over several rounds; `ratio` is the median, round by round, to the baseline."""

    seconds: tuple[float, ...]
    ratio: float

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)


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


@dataclass(frozen=True)
class BenchResult:
    """What a bench found. `passed` maps each requirement to whether it was met."""

    name: str
    title: str
    tables: tuple[Table, ...]
    passed: dict[str, bool] = field(default_factory=dict)
    quick: bool = False
    environment: Environment = field(default_factory=environment)

    def markdown(self) -> str:
        """Return the whole result as a Markdown page."""
        where = self.environment
        versions = ", ".join(f"{name} {version}" for name, version in where.packages.items())
        parts = [
            f"# {self.title}",
            f"Measured on {where.when}, {where.processor} ({where.cores} cores, {where.memory_gb:.0f} GB), "
            f"{where.machine}, Python {where.python}; {versions}."
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
