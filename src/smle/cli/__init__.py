"""Command line: parse, call, print. Exit codes: 0 holds or done, 1 refuted, 2 the request was wrong, 3 undecided.

Each command is a function in its own module, decorated with `@app.command()`; importing the module registers it. Heavy
imports stay inside the functions, so that `smle --help` is quick.
"""

import sys

from smle.cli import models, monitor, predict, project, report, rules, schema, show_demo, train
from smle.cli.app import WRONG, Command, app, print_json

__all__ = ["app", "main", "models", "monitor", "predict", "project", "report", "rules", "schema", "show_demo", "train"]

# In the order of use, which is also the order of headings in `smle --help`.
_ORDER = ("rules", "schema", "train", "verify", "predict", "project", "monitor", "export", "report", "demo")
_names = {id(command): getattr(command.callback, "__name__", "") for command in app.registered_commands}
app.registered_commands.sort(key=lambda c: (*_ORDER, _names[id(c)]).index(_names[id(c)]))
for _command in app.registered_commands:
    _command.cls = Command


def main() -> None:
    """Run the `smle` command. With `--json`, errors about options are JSON, too."""
    if "--json" not in sys.argv:
        app()
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer and click name this class differently, by version
            raise
        print_json({"verdict": "error", "reason": error.format_message(), "error": "error", "exit_code": WRONG})
        code = WRONG
    sys.exit(code)
