"""Versions of onnxruntime, each in an environment of its own that the bench makes, asked in processes of their own.

A process of its own: flushing is set for a whole process, and a runtime that reads past a buffer may take it down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .environments import command, pip, python_of, reason_of

NEWEST = "newest"
VERSIONS = ("1.22.0", "1.23.2", "1.24.1", "1.24.4", "1.28.0", NEWEST)
"""The oldest that the extra `onnx` allows; the last that read past a buffer (1.24.1) and before; those that refuse."""
_SECONDS = 600.0


@dataclass(frozen=True, eq=False)
class Case:
    """An ONNX file, the outputs to ask for, and one feed per call."""

    model: bytes
    names: Sequence[str]
    feeds: Sequence[Mapping[str, npt.NDArray[Any]]]
    level: str = "ORT_ENABLE_ALL"


@dataclass(eq=False)
class Runtime:
    """An onnxruntime. `told` counts calls that were answered, refused, or took the process down."""

    version: str
    python: Path
    told: Counter[str] = field(default_factory=Counter)

    def answers(self, cases: Sequence[Case], *, flush: bool = False) -> list[list[list[npt.NDArray[Any]] | None]]:
        """Return, for each case and call, the outputs, or None where the runtime refused or crashed."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write(cases, folder)
            start = 0
            while start < len(cases):
                start = self._pass(folder, start, cases, flush=flush)
            return [[self._answer(folder, number, call) for call in range(len(case.feeds))]
                    for number, case in enumerate(cases)]  # fmt: skip

    def _pass(self, folder: Path, start: int, cases: Sequence[Case], *, flush: bool) -> int:
        """Run cases from `start` on; return the number of the case to go on with."""
        script, mode = Path(__file__).with_name("onnx_worker.py"), "flush" if flush else "plain"
        arguments = [str(self.python), str(script), str(folder), str(start), mode]
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        try:
            done = subprocess.run(
                arguments, capture_output=True, text=True, timeout=_SECONDS, check=False, env={**os.environ, **own}
            )
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(arguments, -1, "", "not done in time")
        if done.returncode == 0:
            return len(cases)
        if done.returncode > 0:  # our script failed, not the runtime
            raise RuntimeError(f"Asking onnxruntime {self.version} failed: {done.stderr[-2000:]}")
        finished = [n for n in range(start, len(cases)) if (folder / f"{n}.done").exists() or _refused(folder, n)]
        return max(finished, default=start - 1) + 2

    def _answer(self, folder: Path, number: int, call: int) -> list[npt.NDArray[Any]] | None:
        place = folder / f"{number}.{call}.npz"
        if not place.exists():
            said = _refused(folder, number) or (folder / f"{number}.{call}.txt").exists()
            self.told["refused" if said else "crashed"] += 1
            return None
        try:
            with np.load(place) as stored:
                found = [stored[f"arr_{i}"] for i in range(len(stored.files))]
        except (OSError, ValueError, EOFError):  # it died while writing
            self.told["crashed"] += 1
            return None
        self.told["answered"] += 1
        return found


def _refused(folder: Path, number: int) -> bool:
    return (folder / f"{number}.txt").exists()


def _write(cases: Sequence[Case], folder: Path) -> None:
    listed = []
    for number, case in enumerate(cases):
        (folder / f"{number}.onnx").write_bytes(case.model)
        stored = {
            f"{call}/{name}": value.astype(str) if value.dtype == object else value
            for call, feed in enumerate(case.feeds)
            for name, value in feed.items()
        }
        np.savez(folder / f"{number}.feeds.npz", **stored)  # type: ignore[arg-type]
        listed.append({
            "model": f"{number}.onnx", "feeds": f"{number}.feeds.npz", "calls": len(case.feeds),
            "names": list(case.names), "level": case.level,
        })  # fmt: skip
    (folder / "cases.json").write_text(json.dumps(listed), encoding="utf-8")


def installed_runtime() -> Runtime:
    """Return the onnxruntime of the Python that runs the bench."""
    import onnxruntime

    return Runtime(str(onnxruntime.__version__), Path(sys.executable))


def prepare(folder: Path | None = None) -> tuple[list[Runtime], dict[str, str]]:
    """Return the runtimes that could be had, and for the others why not; environments are made once and kept.

    The folder is the one that SMLE_RUNTIMES names, else one in the user's cache.
    """
    named = os.environ.get("SMLE_RUNTIMES")
    folder = folder or (Path(named) if named else Path.home() / ".cache" / "smle" / "onnxruntime")
    found, missing = [], {}
    for version in VERSIONS:
        place = folder / version
        reason = _install(version, place)
        code, output = (1, reason) if reason else command([str(python_of(place)), "-c", _WHICH])
        if code == 0:
            found.append(Runtime(output.split()[-1], python_of(place)))
        else:
            missing[version] = reason or reason_of(output)
    return found, missing


_WHICH = "import numpy, onnxruntime; print(onnxruntime.__version__)"


def _install(version: str, place: Path) -> str:
    """Make an environment with one onnxruntime; return what went wrong, or nothing."""
    ready = place / "ready"
    if ready.exists():
        return ""
    try:
        venv.create(place, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no environment: {error}"
    wanted = "onnxruntime" if version == NEWEST else f"onnxruntime=={version}"
    reason = pip(place, "numpy", wanted)
    if not reason:
        ready.touch()
    return reason
