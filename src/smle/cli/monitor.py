"""`smle monitor`: compare what a model sees now with its training data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smle.cli.app import MODELS, Json, app, counted, data_named, print_json, print_rows, reported, say, warn
from smle.cli.places import RequireCertificate, load_model, require_model, require_one_of, require_table
from smle.errors import DataError
from smle_check.names import visible

if TYPE_CHECKING:
    from smle.monitor import Change, Changes, Usage
    from smle.rules import Specification

__all__ = ["monitor"]

_TITLES = {
    "broken": "the model alone breaks '{}'",
    "missing": "'{}' is missing",
    "rule": "rule '{}' is on",
    "cell": "rules that are on together ({})",
}  # others are named alone
_WAYS = {
    "kept": "answers kept",
    "moved": "answers moved to obey",
    "near": "answers by searches cut short",
    "replaced": "answers replaced (NaN)",
    "safe": "stored safe answers",
}


@app.command(rich_help_panel=MODELS)
def monitor(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with the input columns.")],
    tolerance: Annotated[float, typer.Option(help="Ignore differences between shares up to this size.")] = 0.005,
    false_alarms: Annotated[
        float, typer.Option(help="Probability of reporting a change although nothing changed.")
    ] = 0.01,
    bad_rows: Annotated[
        str, typer.Option(help="Rows that cannot be read: raise, or set-aside, which counts them.")
    ] = "raise",
    require_certificate: RequireCertificate = False,
    as_json: Json = False,
) -> None:
    """Say what changed since training: inputs, rules that apply, missing values, rows outside the domain.

    First comes what changed; below it, how often each rule applies, and how often the model alone breaks it.

    SciPy's tests (Fisher, Kolmogorov-Smirnov, chi-squared) are combined by Holm's procedure: if nothing changed and
    rows are independent, at most 1 of 100 pages reports a change. The exit code is always 0.

    Example: smle monitor model/ last-week.csv

    Example: smle monitor model/ last-week.csv --json
    """
    with reported(as_json):
        require_model(model, table=data, usage="smle monitor {model} {table}")
        require_table(data)
        from smle.monitor import Usage, compare
        from smle.tables.table_files import read_chunks, text_columns

        if not 0 <= tolerance < 1:
            raise ValueError(f"Expected --tolerance to be a number from 0 up to 1. Got {tolerance}.")
        if not 0 < false_alarms < 1:
            raise ValueError(f"Expected --false-alarms to be a number between 0 and 1. Got {false_alarms}.")
        require_one_of("--bad-rows", bad_rows, ("raise", "set-aside"))
        loaded = load_model(model, require_certificate=require_certificate)
        stored = loaded.description_.get("training")
        training = None if stored is None else Usage.from_json(stored)
        now: Usage | None = None
        with counted("counting", unit="rows") as progress:
            for chunk in read_chunks(data, text=text_columns(loaded.specification_, loaded.text_inputs)):
                with data_named(data, chunk):
                    part = loaded.usage(chunk, bad_rows=bad_rows.replace("-", " "))
                now = part if now is None else now + part
                progress(now.rows)
        assert now is not None
        if not now.rows:
            raise DataError(f"{data}: expected rows that can be read. Got none: `smle predict` lists what is wrong.")
        spec = loaded.specification_
        if training is None:
            print_json(_as_json(None, now, None)) if as_json else _show_alone(now)
            return
        found = compare(training, now, spec, tolerance=tolerance, false_alarms=false_alarms)
        print_json(_as_json(training, now, found)) if as_json else _show(training, now, found, spec)


def _as_json(training: Usage | None, now: Usage, found: Changes | None) -> dict[str, Any]:
    judged = {} if found is None else {"tolerance": found.tolerance, "false_alarms": found.false_alarms}
    result: dict[str, Any] = _finite(
        {
            **judged,
            "drift": None if found is None else bool(found.moved),
            "changes": [] if found is None else [change._asdict() for change in found.changes],
            "now": now.to_json(),
            "training": None if training is None else training.to_json(),
        }
    )
    return result


def _finite(value: Any) -> Any:
    """Replace infinities and NaN by None, since JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show_alone(now: Usage) -> None:
    rows = [(name, f"{count:.2%}") for name, count in _shares(now)]
    print_rows(f"{now.rows:,} rows", ("share of", "now"), rows)
    say("The model has no record of its training rows, so there is nothing to compare with.")
    _warn(now)


def _show(training: Usage, now: Usage, found: Changes, spec: Specification) -> None:
    moved = found.moved
    title = f"{training.rows:,} training rows, {now.rows:,} rows now"
    if moved:
        listed = ", ".join(_title(change.kind, change.name) for change in moved[:5])
        more = f" and {len(moved) - 5} more" if len(moved) > 5 else ""
        say(f"Changed: {listed}{more} ({len(moved)} of {found.tests} tests).", style="bold")
        print_rows(
            f"What moved ({title})", ("", "training", "now", "rows that moved", "p"), [_line(c, spec) for c in moved]
        )
    else:
        say(f"Nothing changed beyond what chance explains ({found.tests} tests; {title}).", style="bold")
    _show_binding(found, spec)
    for name, count in now.outside.items():
        if count:
            say(f"Outside the range of {name}: {count:,} {'row' if count == 1 else 'rows'}.")
    small = sum(change.verdict == "small" for change in found.changes)
    if small:
        say(f"{small} more changed by no more than the tolerance of {found.tolerance:.1%}; --json lists them.")
    say(
        f"If nothing changed and rows are independent, at most {found.false_alarms:.0%} of pages like this report a "
        f"change. With these rows, a share of 10 % that moves by {100 * found.detectable:.1f} points is found 9 times "
        "in 10."
    )
    _warn(now)


def _line(change: Change, spec: Specification) -> tuple[str, ...]:
    """Format a change: shares, medians of a number, or the category that moved most."""
    from smle.rules import NumericInput

    title = _title(change.kind, change.name)
    p = "below 1e-6" if (change.p or 0) < 1e-6 else f"{change.p:.2g}"
    item = next((i for i in spec.inputs if i.name == change.name), None)
    if change.kind == "input" and isinstance(item, NumericInput):
        ends = [f"median {item.text(value)}" for value in (change.training, change.now)]
        return (title, *ends, f"at least {change.size:.2%}", p)
    part = f" '{change.part}'" if change.part and change.kind == "input" else f" ({change.part})" if change.part else ""
    sign = "" if change.part else "+" if change.size > 0 else ""
    return (title + part, f"{change.training:.2%}", f"{change.now:.2%}", f"{sign}{change.size:.2%}", p)


def _show_binding(found: Changes, spec: Specification) -> None:
    """Print how often each rule applies and binds, and how answers were served, in training and now."""
    known = {(change.kind, change.name): change for change in found.changes}
    rows = []
    for rule in spec.rules:
        on, broken = known.get(("rule", rule.name)), known.get(("broken", rule.name))
        if on is not None and not (rule.when is None and broken is None):
            cells = ["always", ""] if rule.when is None else [f"{on.training:.2%}", f"{on.now:.2%}"]
            cells += ["", ""] if broken is None else [f"{broken.training:.2%}", f"{broken.now:.2%}"]
            rows.append((visible(rule.name), *cells, "changed" if on.verdict == "changed" else ""))
    if rows:
        heads = ("rule", "on: training", "now", "model alone breaks it: training", "now", "")
        print_rows("How often rules bind", heads, rows)
    served = [c for c in found.changes if c.kind in ("served", "aside", "domain", "missing", "clip")]
    if served:
        lines = [
            (_title(c.kind, c.name), f"{c.training:.2%}", f"{c.now:.2%}", "changed" if c.verdict == "changed" else "")
            for c in served
        ]
        print_rows("What else", ("share of", "training", "now", ""), lines)


def _warn(now: Usage) -> None:
    if now.set_aside:
        warn(f"{now.set_aside:,} of {now.rows + now.set_aside:,} rows cannot be read and were set aside.")
    for name, count in now.missing.items():
        if count == now.rows:
            warn(f"'{name}' is missing in every row; its stand-in was used.")
    if now.head is not None and now.head.concern:
        warn(now.head.concern)


def _title(kind: str, name: str) -> str:
    return _TITLES.get(kind, "{}").format(_WAYS.get(name, name) if kind == "served" else name)


def _shares(now: Usage) -> list[tuple[str, float]]:
    counts: list[tuple[str, Mapping[str, int]]] = [("missing", now.missing), ("rule", now.rules)]
    if now.head is not None:
        counts = [("served", now.head.ways), ("broken", now.head.broken), *counts]
    shares = [("rows outside the domain", now.outside_rows / now.rows)]
    shares += [("units clipped", now.clipped_share)] if now.cells else []
    return shares + [(_title(kind, name), k / now.rows) for kind, found in counts for name, k in found.items()]
