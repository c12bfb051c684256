"""`smle demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smle.cli.app import DEMO, Json, app, out, print_json, print_proved, print_rows, proved_json, quoted, reported


@app.command(rich_help_panel=DEMO)
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for data, rules and model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of simulation and training.")] = 0,
    as_json: Json = False,
) -> None:
    """Simulate a braking data set, train a plain and a safe network, prove the rules.

    Example: smle demo -o demo
    """
    with reported():
        from smle.demo import run_demo
        from smle.extras import require

        require("torch", "The demo, which trains networks,")
        result = run_demo(output, seed=seed)
        assert result.model.certificate_ is not None
        proved = result.model.certificate_.proved
        if as_json:
            figures = {"rows": result.rows, "r2": result.r2, "violations": result.violations}
            print_json({"model": f"{output}/model", **figures, "proved": proved_json(proved)})
            return
        out.print(f"Braking demo: {result.rows} simulated rows, {result.data_violations:.1%} break a rule.\n")
        print_proved(proved, result.model.specification_)
        rows = [(name, f"{r2:.4f}", f"{result.violations[name]:.1%}") for name, r2 in result.r2.items()]
        print_rows("On test data", ("network", "R2", "rows that break a rule"), rows)
        out.print("Certificate: proved in exact arithmetic, for every input in the domain.")
        out.print(f"Files: {output}/model (model, rules, certificate), {output}/braking.csv, {output}/braking.yaml")
        out.print(f"Check again: smle verify {quoted(output / 'model')}", soft_wrap=True, markup=False)
        out.print(f"Read: {result.report}")
