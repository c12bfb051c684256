"""Fuzz one target: guided by coverage where atheris is installed, else by plain mutation of the seeds."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from studies.fuzz.targets import TARGETS, Defect
from studies.harness import within

LIMIT = 20
"""Seconds of processor time after which an input counts as hanging; seeds take milliseconds."""


@dataclass(frozen=True)
class Outcome:
    """How it was done, how many inputs were tried, and the defects: file and what happened."""

    guided: bool
    tried: int
    defects: dict[Path, str]


def fuzz(target: str, *, seconds: float, output: Path, guided: bool | None = None, seed: int = 0) -> Outcome:
    """Fuzz a target for about `seconds`; write inputs that show a defect to `output`.

    Inputs that lie there already are tried first. Coverage guides the search, by default where atheris is installed.

    Raises:
        ValueError: If there is no such target.
    """
    if target not in TARGETS:
        raise ValueError(f"Expected a target among {', '.join(TARGETS)}. Got {target!r}.")
    output.mkdir(parents=True, exist_ok=True)
    if guided is None:
        guided = importlib.util.find_spec("atheris") is not None
    return (_guided if guided else _plain)(target, seconds, output, seed)


def replay(target: str, data: bytes) -> str:
    """Return what a target does wrong with an input; empty if nothing."""
    try:
        with within(LIMIT):
            TARGETS[target].run(data)
    except Defect as defect:
        return str(defect)
    except TimeoutError as error:
        return str(error)
    except (Exception, RecursionError):  # noqa: BLE001 - also a defect of the target itself
        return traceback.format_exc(limit=-3)
    return ""


def _note(output: Path, data: bytes, reason: str, defects: dict[Path, str]) -> None:
    """Keep an input unless the same message, numbers aside, was found before."""
    known = {_kind(other) for other in defects.values()}
    if _kind(reason) not in known and len(known) < 100:
        place = output / hashlib.sha256(data).hexdigest()[:16]
        place.write_bytes(data)
        defects[place] = reason


def _kind(reason: str) -> str:
    return re.sub(r"\b(0x)?[0-9a-f]*\d[0-9a-f]*\b|b?'[^']*'", "#", reason)


def _plain(target: str, seconds: float, output: Path, seed: int) -> Outcome:
    rng = random.Random(seed)  # noqa: S311 - no secret
    pool = list(TARGETS[target].seeds().values())
    defects: dict[Path, str] = {}
    for data in [*pool, *(place.read_bytes() for place in sorted(output.iterdir()))]:
        if reason := replay(target, data):
            _note(output, data, reason, defects)
    end, tried = time.monotonic() + seconds, len(pool)
    while time.monotonic() < end:
        data = TARGETS[target].mutate(rng.choice(pool), rng, pool)
        tried += 1
        if reason := replay(target, data):
            _note(output, data, reason, defects)
        elif rng.random() < 0.002 and len(pool) < 500:  # go further from the seeds now and then
            pool.append(data)
    return Outcome(False, tried, defects)


def _guided(target: str, seconds: float, output: Path, seed: int) -> Outcome:
    """Let libFuzzer search in a process of its own, which ends at the first defect; then go on with another seed."""
    root = str(Path(__file__).parents[2])
    own = {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    defects: dict[Path, str] = {}
    end, tried = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as name:
        corpus, found = Path(name, "corpus"), Path(name, "found")
        for folder in (corpus, found):
            folder.mkdir()
        seeds = TARGETS[target].seeds()
        for i, data in enumerate(seeds.values()):
            (corpus / f"seed{i}").write_bytes(data)
        while (left := end - time.monotonic()) > 1 and len(defects) < 100:
            seed += 1
            arguments = [
                sys.executable, "-W", "ignore", "-m", "studies.fuzz.guided", target, str(corpus),
                f"-max_total_time={max(1, int(left))}", f"-timeout={LIMIT}", f"-artifact_prefix={found}/",
                f"-max_len={2 * max(map(len, seeds.values()))}", f"-seed={seed}", "-print_final_stats=1",
                "-rss_limit_mb=4096", "-verbosity=0",
            ]  # fmt: skip
            done = subprocess.run(  # noqa: S603 - our own module
                arguments, capture_output=True, text=True, errors="replace", check=False, env={**os.environ, **own}
            )
            said = done.stderr.splitlines()
            counts = [line.split(":")[-1] for line in said if "number_of_executed_units" in line]
            tried += int(counts[-1]) if counts else 0
            named = next((line for line in said if "ERROR" in line or "Defect" in line), done.stderr[-300:])
            fresh = [place for place in found.iterdir() if not place.name.startswith("slow-unit")]
            if not fresh:
                if done.returncode:
                    raise RuntimeError(f"The fuzzer itself failed: {done.stderr[-2000:]}")
                break
            for place in fresh:
                data = place.read_bytes()
                _note(output, data, replay(target, data) or named, defects)
                place.unlink()
    return Outcome(True, tried, defects)
