"""`smle demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smle.cli.app import DEMO, Json, app, print_json, print_proved, print_scores, proved_json, quoted, reported, say


@app.command(rich_help_panel=DEMO)
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for data, rules and model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of simulation and training.")] = 0,
    as_json: Json = False,
) -> None:
    """Simulate a braking data set, train a plain and a safe network, prove the rules.

    Example: smle demo -o demo
    """
    with reported(as_json):
        from smle.demo import run_demo
        from smle.extras import require
        from smle.report.recorded import scores_of

        require("torch", "The demo, which trains networks,")
        model = run_demo(output, seed=seed)
        assert model.certificate_ is not None
        proved, scores = model.certificate_.proved, model.description_["scores"]
        if as_json:
            print_json({"model": f"{output}/model", "scores": scores, "proved": proved_json(proved)})
            return
        print_proved(proved, model.specification_)
        print_scores(scores_of(scores))
        say("Certificate: proved in exact arithmetic, for every input in the domain.")
        say(f"Files: {output}/model (model, rules, certificate), {output}/braking.csv, {output}/braking.yaml")
        say(f"Check again: smle verify {quoted(output / 'model')}")
        say(f"Report: {output / 'report.html'}")
