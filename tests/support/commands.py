"""Commands of smle, called in this process."""

from typing import Any

from typer.testing import CliRunner

from smle.cli import app


def run(*arguments: object) -> Any:
    """Call `smle ARGUMENTS`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
