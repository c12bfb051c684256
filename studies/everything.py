"""All pages with one command: every bench, and the reproduction. What is finished in a folder is not run again."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.bench import available, options_of, run_bench
from studies.experiments.presets import BENCHMARKS, PRESETS
from studies.experiments.reproduce import reproduce
from studies.experiments.store import commit

REPRODUCTION = "reproduction"


@dataclass(frozen=True)
class Part:
    """What became of one part: `done`, `found` (finished before) or `failed`; seconds, and what went wrong."""

    name: str
    outcome: str
    seconds: float
    error: str = ""


def parts(only: Collection[str] = (), skip: Collection[str] = ()) -> list[str]:
    """Return the parts to run: benches by name, then the reproduction.

    Raises:
        ValueError: If a name is unknown.
    """
    known = [*available(), REPRODUCTION]
    for name in (*only, *skip):
        if name not in known:
            raise ValueError(f"Expected parts among {', '.join(known)}. Got '{name}'.")
    return [name for name in known if name not in skip and (not only or name in only)]


def run_everything(
    output: str | Path,
    *,
    quick: bool = False,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    jobs: int = 1,
    seeds: int = 1,
    study: str = "main",
    say: Callable[[str], None] = print,
) -> list[Part]:
    """Run every part that a folder lacks, and write all pages to it.

    Benches of many jobs keep each result below `OUTPUT/parts` as it ends. A part that fails does not stop the others;
    the same call tries it again. Parts that another commit finished are kept, and named: for pages of one commit begin
    with an empty folder.

    Arguments are the options of `python -m studies all`; progress goes to `say`.

    Returns:
        What became of each part.

    Raises:
        ValueError: If a part is unknown.
    """
    folder, wanted, ended = Path(output), parts(only, skip), []
    here = commit()
    for number, name in enumerate(wanted, 1):
        say(f"[{number}/{len(wanted)}] {name} ...")
        ended.append(_part(name, folder, here, quick, jobs, {"seeds": seeds, "study": study}))
        part = ended[-1]
        say(f"[{number}/{len(wanted)}] {name}: {part.outcome} ({part.seconds:.0f} s){part.error and ': ' + part.error}")
    return ended


def _part(name: str, folder: Path, here: str, quick: bool, jobs: int, asked: dict[str, Any]) -> Part:
    place = folder / "parts" / name
    stamp, start = place / ("done-quick" if quick else "done"), time.perf_counter()
    if stamp.is_file():
        origin = stamp.read_text(encoding="utf-8")
        return Part(name, "found" if origin == here else f"found, made by commit {origin or 'unknown'}", 0.0)
    place.mkdir(parents=True, exist_ok=True)
    try:
        if name == REPRODUCTION:
            reproduce(BENCHMARKS, output=folder, presets=PRESETS, jobs=jobs, quick=quick, retry_failed=True, **asked)
        else:
            options = {key: value for key, value in (("jobs", jobs), ("folder", place)) if key in options_of(name)}
            run_bench(name, quick=quick, output=folder, **options)
    except Exception as error:  # noqa: BLE001 - the other parts go on, and this one is told about
        (place / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Part(name, "failed", time.perf_counter() - start, text)
    stamp.write_text(here, encoding="utf-8")
    return Part(name, "done", time.perf_counter() - start)
