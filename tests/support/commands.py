"""Commands of smle, called in this process."""

from click.testing import Result
from typer.testing import CliRunner

from smle.cli import app


def run(*arguments: object) -> Result:
    """Call `smle ARGUMENTS`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
