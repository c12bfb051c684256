"""Benches: `run_bench(name)` runs one and writes its tables and numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from studies.harness import BenchResult, write

_ROOT = Path(__file__).parents[1]


def available() -> dict[str, str]:
    """Return the benches, by name with their module: all files here and in `studies.attacks` that define `run`."""
    found = {}
    for folder in ("bench", "attacks"):
        for place in sorted((_ROOT / folder).glob("*.py")):
            if "\ndef run(" in place.read_text(encoding="utf-8"):
                found[place.stem] = f"studies.{folder}.{place.stem}"
    return dict(sorted(found.items()))


def _run(name: str) -> Callable[..., BenchResult]:
    run: Callable[..., BenchResult] = import_module(available()[name]).run
    return run


def options_of(name: str) -> set[str]:
    """Return the options of a bench: `jobs` and `folder`, if it has many jobs."""
    return set(inspect.signature(_run(name)).parameters) - {"quick", "passed"}


def run_bench(
    name: str, *, quick: bool = False, output: str | PathLike[str] | None = None, **options: Any
) -> BenchResult:
    """Run a bench; with `output`, write NAME.md and NAME.json into that folder.

    Options are `jobs` and `folder`, for benches of many jobs, which go on where a run stopped.

    Raises:
        ValueError: If there is no such bench, or it does not take an option.
    """
    known = available()
    if name not in known:
        raise ValueError(f"Expected a bench among {', '.join(known)}. Got {name!r}.")
    unknown = sorted(options.keys() - options_of(name))
    if unknown:
        raise ValueError(f"Bench '{name}' takes no --{unknown[0]}: it is one job.")
    result: BenchResult = _run(name)(quick, **options)
    if output is not None:
        write(result, Path(output))
    return result
