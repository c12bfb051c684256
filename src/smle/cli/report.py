"""`smle report`: one self-contained HTML page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smle.cli.app import MODELS, REFUTED, UNDECIDED, Json, app, counted, note, print_json, reported, say, warn
from smle.cli.places import RequireCertificate, require_model, require_table

__all__ = ["report"]


@app.command(rich_help_panel=MODELS)
def report(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="CSV or Parquet file to measure coverage, violations and accuracy on.")
    ] = None,
    plain: Annotated[
        Path | None, typer.Option("--plain", help="Model folder of a baseline to compare with on the data.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="Title; by default the name of the folder.")] = None,
    annex: Annotated[
        bool,
        typer.Option("--annex", help="Add what Annex IV of the EU AI Act requires, and how far the report covers it."),
    ] = False,
    require_certificate: RequireCertificate = True,
    as_json: Json = False,
) -> None:
    """Check a model again and write one self-contained HTML page: what is proved, with which margins, for which inputs.

    The page needs no network and can be printed. Exit code 1: the proof was not accepted; 3: there is none because the
    model has no rules (--no-require-certificate lets that pass). The page says so in both cases.

    Example: smle report model/ --data test.csv -o report.html

    Example: smle report model/ --data test.csv -o documentation.html --annex
    """
    with reported(as_json):
        require_model(model, table=data, usage="smle report {model} --data {table}")
        if data is not None:
            require_table(data)
        if plain is not None:
            require_model(plain)
        from smle.report import write_report

        with counted("checking, measuring, writing"):
            result = write_report(model, data, output, plain=plain, name=title, annex=annex)
        if as_json:
            facts = {"verdict": result.verdict, "reason": result.reason, "warning": result.concern or None}
            print_json({"report": str(result.path), **facts})
        else:
            say(f"Verdict: {result.verdict}")
            if result.concern:
                warn(result.concern)
            say(f"Report: {result.path}")
        if result.verdict == "rejected":
            note(f"does not hold: {result.reason}")
            raise typer.Exit(REFUTED)
        if result.verdict == "no rules" and require_certificate:
            note("not proved: The model has no rules and no certificate: nothing is proved.")
            raise typer.Exit(UNDECIDED)
