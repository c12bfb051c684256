"""Results on disk: one JSON file per job, written whole or not at all, so that a killed run can go on.

The rows of many jobs also fit into one CSV file, to be kept for good and taken over by another run (`pack`, `take`).
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import logging
import math
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import smle
from smle.files import replacing
from studies.harness import environment

_log = logging.getLogger(__name__)

FORMAT = 1
_ORIGINS = "origins.json"
_ABOUT = ("job", "job_seconds", "job_cpu", "origin")
_TEXT = {
    "benchmark", "task", "group", "preset", "study", "method", "metric", "variant", "stopped", "key", "job", "origin",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The outcome of one job: rows, or the error it ended with; when, where and with which versions.

    `seconds` by the clock, `cpu` of processor time (0: not measured).
    """

    key: str
    job: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    seconds: float
    error: str = ""
    traceback: str = ""
    cpu: float = 0.0
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

    def write(self, outcome: Outcome) -> None:
        """Write one outcome atomically: a reader sees the whole file or none, also after a power cut."""
        document = {"format": FORMAT, **_plain(asdict(outcome))}
        with replacing(self._jobs / f"{outcome.key}.json") as (fresh,):
            fresh.write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")

    def read(self) -> dict[str, Outcome]:
        """Return all stored outcomes by key; a file that cannot be read is logged and counts as missing."""
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

    def pack(self, name: str, outcomes: Sequence[Outcome]) -> None:
        """Write the rows of jobs that succeeded to `name.csv`, where they came from to `origins.json`."""
        place, rows = self.folder / _ORIGINS, []
        origins = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
        for outcome in outcomes:
            source = {key: value for key, value in outcome.origin.items() if key not in ("when", "hostname")}
            source["when"] = str(outcome.origin.get("when", ""))[:10]
            text = json.dumps(source, sort_keys=True)
            short = hashlib.sha256(text.encode()).hexdigest()[:8]
            origins[short] = source
            about = dict(zip(_ABOUT, (json.dumps(outcome.job), outcome.seconds, outcome.cpu, short), strict=True))
            rows += [{"key": outcome.key, **(about if not n else {}), **row} for n, row in enumerate(outcome.rows)]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        with (self.folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, columns, lineterminator="\n")
            writer.writeheader()
            for row in rows:
                writer.writerow({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()})
        place.write_text(json.dumps(origins, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def take(self, folder: str | Path, names: Sequence[str]) -> None:
        """Take over the jobs in another folder's CSV files of these names that this one lacks.

        Raises:
            OSError: If the folder has no `origins.json`.
        """
        source, here = Path(folder), self.read()
        origins = json.loads((source / _ORIGINS).read_text(encoding="utf-8"))
        found: dict[str, list[dict[str, Any]]] = {}
        for path in (path for name in names if (path := source / f"{name}.csv").is_file()):
            with path.open(encoding="utf-8", newline="") as stream:
                for line in csv.DictReader(stream):
                    if key := line.pop("key", ""):
                        row = {name: _value(name, text) for name, text in line.items() if text or name == "score"}
                        found.setdefault(key, []).append(row)
        for key in found.keys() - here.keys():
            job, seconds, cpu, short = (found[key][0][name] for name in _ABOUT)
            rows = tuple({name: value for name, value in row.items() if name not in _ABOUT} for row in found[key])
            self.write(Outcome(key, json.loads(job), rows, seconds, cpu=cpu, origin=origins.get(short, {})))

    def note_run(self, entry: Mapping[str, Any]) -> None:
        """Append one line about a run (wall-clock seconds, workers, jobs done) to `runs.jsonl`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "runs.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(_plain(dict(entry)), allow_nan=False) + "\n")

    def runs(self) -> list[dict[str, Any]]:
        """Return the lines of `runs.jsonl`; a line cut off by a kill is left out."""
        path, entries = self.folder / "runs.jsonl", []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return entries


def _value(name: str, text: str) -> Any:
    """Return a cell of a CSV file as what it was."""
    if name in _TEXT:
        return text
    if text in ("True", "False", ""):
        return {"True": True, "False": False}.get(text)
    return int(text) if text.lstrip("-").isdigit() else float(text)


def origin() -> dict[str, Any]:
    """Describe the machine and the versions of this process."""
    return {"smle": smle.__version__, "hostname": socket.gethostname(), **environment()}


def commit() -> str:
    """Return the commit of the clone, `+` where files of smle or of the studies differ; "" outside a repository."""
    studies = Path(__file__).parents[1]
    head = _git("rev-parse", "--short=12", "HEAD", folder=studies)
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "studies", folder=studies.parent)
    return head + ("+" if head and changed else "")


def _git(*arguments: str, folder: Path) -> str:
    try:
        return subprocess.check_output(  # noqa: S603 - fixed arguments
            ("git", *arguments),  # noqa: S607 - the user's git
            cwd=folder, stderr=subprocess.DEVNULL, text=True, timeout=10,
        ).strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""


def _plain(value: Any) -> Any:
    """Return plain data for JSON: NumPy scalars as numbers, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
