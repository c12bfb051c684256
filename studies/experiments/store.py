"""Results on disk: one JSON file per job, written whole or not at all, so that a killed run can go on."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import smle

__all__ = ["Outcome", "Store", "commit", "origin"]

_log = logging.getLogger(__name__)

FORMAT = 1
_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "highspy", "piqp", "joblib")


@dataclass(frozen=True)
class Outcome:
    """What came of one job: rows, or the error it ended with; when, where and with which versions."""

    key: str
    job: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    seconds: float
    error: str = ""
    traceback: str = ""
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the job ended with an error."""
        return bool(self.error)


class Store:
    """The folder `jobs` of a run.

    Args:
        folder: The run's folder; made if missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._jobs = self.folder / "jobs"

    def write(self, outcome: Outcome) -> Path:
        """Write one outcome atomically: a reader sees the whole file or none, also after a power cut."""
        self._jobs.mkdir(parents=True, exist_ok=True)
        target = self._jobs / f"{outcome.key}.json"
        document = {"format": FORMAT, **_plain(asdict(outcome))}
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1, allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
        return target

    def read(self) -> dict[str, Outcome]:
        """Return all stored outcomes by key; a file that cannot be read is told about and counts as missing."""
        found = {}
        for path in sorted(self._jobs.glob("*.json")):
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
                if document.pop("format") != FORMAT:
                    raise ValueError("another format")
                outcome = Outcome(**{**document, "rows": tuple(document["rows"])})
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                _log.warning("%s: not a result of this version of the format (%s); the job runs again.", path, error)
                continue
            found[outcome.key] = outcome
        return found

    def note_run(self, entry: Mapping[str, Any]) -> None:
        """Append one line about a run (wall-clock seconds, workers, jobs done) to `runs.jsonl`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "runs.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(_plain(dict(entry)), allow_nan=False) + "\n")

    def runs(self) -> list[dict[str, Any]]:
        """Return the lines of `runs.jsonl`; a line cut off by a kill is left out."""
        path = self.folder / "runs.jsonl"
        entries = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
        return entries


def origin() -> dict[str, Any]:
    """Describe where and with what this process computes."""
    return {
        "smle": smle.__version__,
        "python": platform.python_version(),
        "packages": _versions(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "hostname": socket.gethostname(),
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def commit() -> str:
    """Return the commit of the clone, `+` where files of smle or of the studies differ; "" outside a repository."""
    studies = Path(__file__).parents[1]
    head = _git("rev-parse", "--short=12", "HEAD", folder=studies)
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "studies", folder=studies.parent)
    return head + ("+" if head and changed else "")


def _git(*arguments: str, folder: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ("git", *arguments),  # noqa: S607 - the user's git
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


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


def _plain(value: Any) -> Any:
    """Return what JSON can say: NumPy scalars as numbers, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
