"""Commands of smle, called in this process."""

from typing import Any

from typer.testing import CliRunner

from smle.cli import app

_KINDS = {1: "does not hold: ", 2: "error: ", 3: "not proved: "}


def run(*arguments: object) -> Any:
    """Call `smle ARGUMENTS`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object, code: int = 2) -> str:
    """Call `smle ARGUMENTS`, which must say in one line what is wrong and end with this code; return the line."""
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert not done.stdout
    assert done.stderr.startswith(_KINDS[code])
    assert done.stderr.count("\n") == 1
    assert "Errno" not in done.stderr
    return str(done.stderr)
