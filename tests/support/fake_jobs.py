"""Jobs that only pretend to work; a module of its own, so that worker processes can import it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FakeJob:
    name: str
    folder: str
    seconds: float = 0.0
    fails: bool = False
    methods: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.name


def calls(folder: str | Path) -> list[str]:
    """Names of jobs in the order in which they were begun."""
    path = Path(folder) / "calls.txt"
    return path.read_text().split() if path.exists() else []


def solve(job: FakeJob) -> list[dict[str, object]]:
    import torch

    with (Path(job.folder) / "calls.txt").open("a") as stream:
        stream.write(f"{job.name}\n")
    time.sleep(job.seconds)
    if job.fails and not (Path(job.folder) / "repaired").exists():
        raise ZeroDivisionError(f"job {job.name} cannot be done")
    return [{"name": job.name, "process": os.getpid(), "threads": torch.get_num_threads(), "score": float("nan")}]


def die(job: FakeJob) -> list[dict[str, object]]:
    os._exit(1)
