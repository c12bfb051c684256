"""What all results have in common: tables in Markdown, and a record of the machine and the versions behind them."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from pathlib import Path

__all__ = ["Environment", "Table", "environment"]

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
        """Return title, note and table as Markdown; the title is a heading of some level."""
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


@dataclass(frozen=True)
class Environment:
    """Where something was measured: machine, Python, versions of packages that matter, time."""

    machine: str
    processor: str
    cores: int
    memory_gb: float
    python: str
    packages: dict[str, str]
    when: str


def environment() -> Environment:
    """Describe this machine and the installed versions."""
    return Environment(
        machine=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gb=round(_memory(), 1),
        python=platform.python_version(),
        packages=_versions(),
        when=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


@lru_cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@lru_cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return float("nan")
