"""What all commands share: the app, consoles, errors as one line and an exit code, JSON and tables."""

from __future__ import annotations

import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

import smle
from smle.errors import CertificateError, ContradictionError, DataError, NotCertifiedError, SmleError
from smle_check.floats import BINARY64, round_down
from smle_check.names import visible

if TYPE_CHECKING:
    from fractions import Fraction

    import pandas as pd

    from smle.certificates.document import Proved
    from smle.report.recorded import Scores
    from smle.rules import Specification

__all__ = [
    "DEMO", "MODELS", "REFUTED", "RULES", "UNDECIDED", "WRONG", "Json", "app", "common", "counted", "data_named", "err",
    "float_below", "note", "out", "print_json", "print_proved", "print_rows", "print_scores", "print_statements",
    "proved_json", "quoted", "reported", "say", "warn",
]  # fmt: skip


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Make help show `--json`, not `--json <bool>`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows flags as flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        return _without_types_of_flags(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


app = typer.Typer(
    name="smle",
    cls=_Group,
    help="Models that provably obey rules: fit or train them, and check the proofs.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Console(Console):
    """A console that lets `reported` handle a closed pipe; rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        _discard(sys.stderr)  # an unread message must not change the exit code


out, err = _Console(highlight=False), _Console(stderr=True, highlight=False)
_settings = {"debug": False}

REFUTED, WRONG, UNDECIDED = 1, 2, 3  # exit codes
_VERDICTS = {REFUTED: "rejected", WRONG: "error", UNDECIDED: "undecided", 130: "interrupted"}  # in JSON
_LISTED = 40  # lines of scores by output
_MEANINGS = {
    "clip": "clip: an answer beyond the limits of a rule is moved onto the limit.",
    "check": "check: every answer is tested; one that fails is replaced by an answer that the rules allow.",
    "": "margin: the room left to the limit of a rule in the worst case, with rounding deducted.",
}  # by what a statement is enforced

# Headings of `smle --help`; a command names the one it belongs under.
RULES, MODELS, DEMO = "Rules", "Models", "Demonstration"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"smle {smle.__version__}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command, including `python -m studies`."""
    _settings["debug"] = debug


@contextmanager
def reported(
    as_json: bool = False, *, interrupted: Callable[[], str] = lambda: "nothing was written."
) -> Iterator[None]:
    """Turn errors into one clear line and an exit code: 1 does not hold, 2 the request was wrong, 3 undecided.

    With `as_json`, the line is a JSON object on standard output.
    """
    try:
        with _flushed():
            yield
    except (CertificateError, ContradictionError) as error:
        _fail("does not hold", error, REFUTED, as_json)
    except NotCertifiedError as error:
        kind, code = ("does not hold", REFUTED) if error.refuted else ("not proved", UNDECIDED)
        _fail(kind, error, code, as_json)
    except SmleError as error:
        _fail("error", error, WRONG, as_json)
    except BrokenPipeError:  # `smle predict ... | head`
        _discard(sys.stdout)
        raise typer.Exit(141) from None
    except (OSError, ValueError) as error:
        _fail("error", error, WRONG, as_json)
    except KeyboardInterrupt:
        _end("interrupted", interrupted(), 130, as_json)


@contextmanager
def _flushed() -> Iterator[None]:
    """Flush standard output while the exit code can still be chosen."""
    try:
        yield
    except typer.Exit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _fail(kind: str, error: Exception, code: int, as_json: bool) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout)
    if _settings["debug"]:
        traceback.print_exc()
    _end(kind, " ".join(_words(error).split()) or type(error).__name__, code, as_json)


def _end(kind: str, message: str, code: int, as_json: bool) -> NoReturn:
    """Print the reason, as a line or as JSON, and exit."""
    if as_json:
        print_json({"verdict": _VERDICTS[code], "reason": message, "error": kind, "exit_code": code})
    else:
        note(f"{kind}: {message}")
    raise typer.Exit(code) from None


def _words(error: Exception) -> str:
    """Return the message of an error, without the system's error number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    place = error.filename2 or error.filename
    return f"{error.strerror}." if place is None else f"'{place}': {error.strerror}."


@contextmanager
def data_named(place: str | Path, chunk: pd.DataFrame | None = None) -> Iterator[None]:
    """Prefix errors about a table with its file, and for a chunk of it with its rows."""
    try:
        yield
    except DataError as error:
        first = int(chunk.index[0]) + 1 if chunk is not None and len(chunk) else 1
        rows = "" if chunk is None else f", rows {first} to {first + len(chunk) - 1}"
        raise DataError(f"{place}{rows}: {error}") from None


def quoted(place: str | Path) -> str:
    """Quote a path for the shell, in commands to copy."""
    return shlex.quote(str(place))


@contextmanager
def counted(title: str, *, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show a title and a running count on a terminal; yield a function to call with the count."""
    if not err.is_terminal:
        yield lambda count: None
        return
    with err.status(escape(title)) as status:
        yield lambda count: status.update(f"{escape(title)}: {count:,} {unit}")


def say(text: str, *, style: str | None = None) -> None:
    """Print a line without markup or wrapping."""
    out.print(text, style=style, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning that belongs to the result."""
    say(f"WARNING: {text}", style="bold red")


def note(text: str) -> None:
    """Print a line on standard error."""
    err.print(text, markup=False, soft_wrap=True)


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=1, sort_keys=True))


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of text, without markup and without empty columns."""
    kept = [k for k, column in enumerate(columns) if column or any(row[k] for row in rows)]
    table = Table(title=escape(title), title_justify="left")
    for k in kept:
        table.add_column(escape(columns[k]), overflow="fold")
    for row in rows:
        table.add_row(*(escape(row[k]) for k in kept))
    out.print(table)


def print_proved(proved: Sequence[Proved], spec: Specification | None) -> None:
    """Print one line per rule, with its smallest margin or what enforces it; without `spec`, rules by name only."""
    from smle.certificates.document import by_rule, how_proved

    found = by_rule(proved)
    if spec is None:
        counted = [(name, str(len(items)), how_proved(items)) for name, items in found.items()]
        _print_proved(proved, "rules", ("rule", "statements"), counted)
        return
    rows = []
    for rule in spec.rules:
        last = how_proved(found.get(visible(rule.name), []))
        rows.append((visible(rule.name), visible(rule.when or "always"), visible(rule.then), last))
    _print_proved(proved, "rules", ("rule", "when", "then"), rows)


def print_statements(proved: Sequence[Proved]) -> None:
    """Print one line per proved statement."""
    from smle.certificates.document import how_proved

    rows = [(p.rule, p.where.removeprefix("where "), p.sentence, how_proved([p])) for p in proved]
    _print_proved(proved, "statements", ("rule", "when", "then"), rows)


def _print_proved(proved: Sequence[Proved], what: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose last column says how each line is proved, and explain the words in it."""
    ways = {item.by for item in proved}
    print_rows(f"Proved {what}", (*columns, "enforced by" if any(ways) else "margin"), rows)
    for way, meaning in _MEANINGS.items():
        if way in ways:
            say(meaning)


def print_scores(scores: Scores) -> None:
    """Print scores by method, and by output if there are several."""
    table = [(line.title, line.score, line.broken, line.seconds) for line in scores.table()]
    titles = ("", scores.metric, "rows that break a rule", "seconds")
    known = [i for i in range(len(titles)) if any(row[i] for row in table)]
    print_rows(f"On {scores.place}", [titles[i] for i in known], [[row[i] for i in known] for row in table])
    heads, lines = scores.by_output()
    if lines:
        left = f" ({_LISTED} of {len(lines)} lines)" if len(lines) > _LISTED else ""
        print_rows(f"By output{left}", heads, lines[:_LISTED])


def proved_json(proved: Sequence[Proved]) -> list[dict[str, Any]]:
    """Return the proved statements as plain data."""
    return [
        {"rule": p.rule, "head": p.head, "where": p.where, "holds": p.sentence, "margin": float_below(p.margin)}
        | ({"by": p.by} if p.by else {})
        for p in proved
    ]


def float_below(margin: Fraction) -> float:
    """Return a margin as a float rounded down, so never more than was proved."""
    return float(round_down(margin, BINARY64))
