"""`smle schema`: JSON Schemas for editors and pipelines."""

from __future__ import annotations

from typing import Annotated

import typer

from smle.cli.app import RULES, app, reported

__all__ = ["schema"]


@app.command(rich_help_panel=RULES)
def schema(name: Annotated[str, typer.Argument(help="`rules` or `certificate`.")]) -> None:
    """Print the JSON Schema of rules files or of certificates, for editors that complete and check them.

    Example: smle schema rules > rules.schema.json
    """
    with reported():
        from smle.schemas import schema_text

        print(schema_text(name), end="")
