"""`smle bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smle.cli.app import STUDIES, Json, app, reported


@app.command(rich_help_panel=STUDIES)
def bench(
    name: Annotated[str | None, typer.Argument(help="Which bench; none: list them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, seconds instead of minutes.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for table, numbers and plot.")] = None,
    as_json: Json = False,
) -> None:
    """Measure ratios in one run, with versions and machine recorded.

    Example: smle bench guarantees --quick -o results/
    """
    with reported():
        from smle.bench import available, run_bench

        if name is None:
            for known in available():
                print(known)
            return
        result = run_bench(name, quick=quick, output=output)
        print(result.json() if as_json else result.markdown())
