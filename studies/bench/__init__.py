"""Benches: `run_bench(name)` runs one and writes its tables and numbers."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from studies.harness import BenchResult, write

__all__ = ["available", "run_bench"]


def available() -> tuple[str, ...]:
    """Return the names of all benches: the modules of this package that define `run`."""
    names = []
    for module in pkgutil.iter_modules(__path__):
        spec = find_spec(f"{__name__}.{module.name}")
        source = Path(spec.origin) if spec is not None and spec.origin is not None else None
        if source is not None and "\ndef run(" in source.read_text(encoding="utf-8"):
            names.append(module.name)
    return tuple(sorted(names))


def run_bench(
    name: str, *, quick: bool = False, output: str | PathLike[str] | None = None, **options: Any
) -> BenchResult:
    """Run a bench; with `output`, write NAME.md and NAME.json into that folder.

    Args:
        name: Which one.
        quick: Small sizes.
        output: Where to write.
        options: `jobs` and `folder`, for benches of many jobs, which go on where a run stopped.

    Raises:
        ValueError: If there is no such bench, or it does not take an option.
    """
    if name not in available():
        raise ValueError(f"Expected a bench among {', '.join(available())}. Got {name!r}.")
    run = importlib.import_module(f"{__name__}.{name}").run
    unknown = sorted(options.keys() - inspect.signature(run).parameters.keys())
    if unknown:
        raise ValueError(f"Bench '{name}' takes no --{unknown[0]}: it is one job.")
    result: BenchResult = run(quick, **options)
    if output is not None:
        write(result, Path(output))
    return result
