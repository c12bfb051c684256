"""`smle monitor`: what a model sees now against what it was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smle.cli.app import MODELS, Json, app, counted, data_named, print_json, print_rows, reported, say, warn
from smle.cli.places import RequireCertificate, load_model, require_model, require_table, texts_of

if TYPE_CHECKING:
    from smle.monitor import Drift, Usage

__all__ = ["monitor"]

_TITLES = {
    "domain": "{}",
    "clip": "{}",
    "served": "{}",
    "broken": "the model alone breaks '{}'",
    "missing": "'{}' is missing",
    "rule": "rule '{}' is on",
    "cell": "cell {}",
    "input": "{}",
}
_WAYS = {
    "kept": "answers kept",
    "moved": "answers moved to obey",
    "replaced": "answers replaced (NaN)",
    "safe": "stored safe answers",
}


@app.command(rich_help_panel=MODELS)
def monitor(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with the input columns.")],
    tolerance: Annotated[float, typer.Option(help="Ignore differences between shares up to this size.")] = 0.02,
    require_certificate: RequireCertificate = False,
    as_json: Json = False,
) -> None:
    """Count which rules are on, what lies outside the domain and what the head does, against the training rows.

    A head of rules keeps, moves or replaces answers: its counts, and the rules that the model alone broke, are shown.

    A share counts as changed if a 99 % interval of the difference (for all shares together, rows being independent)
    lies beyond the tolerance. The exit code is 0 whether something changed or not.

    Example: smle monitor model/ last-week.csv

    Example: smle monitor model/ last-week.csv --json
    """
    with reported():
        require_model(model, table=data, usage="smle monitor {model} {table}")
        require_table(data)
        from smle.monitor import Usage, compare
        from smle.tables.files import read_chunks

        if not 0 <= tolerance < 1:
            raise ValueError(f"Expected --tolerance to be a number from 0 up to 1. Got {tolerance}.")
        loaded = load_model(model, require_certificate=require_certificate)
        stored = loaded.description_.get("training")
        training = None if stored is None else Usage.from_json(stored)
        now: Usage | None = None
        with counted("counting", unit="rows") as progress:
            for chunk in read_chunks(data, text=texts_of(loaded)):
                first = int(chunk.index[0]) + 1
                with data_named(f"{data}, rows {first} to {first + len(chunk) - 1}"):
                    part = loaded.usage(chunk)
                now = part if now is None else now + part
                progress(now.rows)
        assert now is not None
        spec = loaded.specification_
        dates = {spec.columns[i] for i in spec.dates}
        changes = () if training is None else compare(training, now, tolerance=tolerance, dates=dates)
        if as_json:
            print_json(_as_json(training, now, changes, tolerance))
        else:
            _show(training, now, changes, tolerance)


def _as_json(training: Usage | None, now: Usage, changes: tuple[Drift, ...], tolerance: float) -> dict[str, Any]:
    result: dict[str, Any] = _finite(
        {
            "tolerance": tolerance,
            "drift": any(change.verdict == "changed" for change in changes) if changes else None,
            "changes": [change._asdict() for change in changes],
            "now": now.to_json(),
            "training": None if training is None else training.to_json(),
        }
    )
    return result


def _finite(value: Any) -> Any:
    """Return plain data, with None for infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show(training: Usage | None, now: Usage, changes: tuple[Drift, ...], tolerance: float) -> None:
    if training is None:
        rows = [(name, f"{count:.2%}") for name, count in _shares(now)]
        print_rows(f"{now.rows} rows", ("share of", "now"), rows)
        say("The model has no record of its training rows, so there is nothing to compare with.")
    else:
        # Bins and cells are many: those that changed are shown, the rest is in the JSON. So are rules always on.
        shown = [c for c in changes if c.kind not in ("cell", "input") or c.verdict == "changed"]
        shown = [c for c in shown if not (c.kind == "rule" and c.training == c.now == 1)]
        lines = []
        for c in shown:
            verdict = "unclear" if c.verdict == "open" else c.verdict
            interval = f"{c.low:+.2%} to {c.high:+.2%}"
            lines.append((_title(c.kind, c.name), f"{c.training:.2%}", f"{c.now:.2%}", interval, verdict))
        title = f"{training.rows} training rows, {now.rows} rows now"
        print_rows(title, ("share of", "training", "now", "difference", ""), lines)
        for name, count in now.outside.items():
            if count:
                say(f"Outside the range of {name}: {count} {'row' if count == 1 else 'rows'}.")
        changed, unsure = (sum(c.verdict == verdict for c in changes) for verdict in ("changed", "open"))
        say(
            f"{changed} of {len(changes)} shares changed by more than {tolerance:.1%}; for {unsure} there are too few "
            "rows to tell. All intervals hold jointly with 99 % confidence if rows are independent."
        )
    for name, count in now.missing.items():
        if count == now.rows:
            warn(f"'{name}' is missing in every row; its stand-in was used.")
    if now.head is not None and now.head.concern:
        warn(now.head.concern)


def _title(kind: str, name: str) -> str:
    return _TITLES[kind].format(_WAYS.get(name, name) if kind == "served" else name)


def _shares(now: Usage) -> list[tuple[str, float]]:
    """Return all shares of one table."""
    counts: list[tuple[str, Mapping[str, int]]] = [("missing", now.missing), ("rule", now.rules)]
    if now.head is not None:
        counts = [("served", now.head.ways), ("broken", now.head.broken), *counts]
    shares = [("rows outside the domain", now.outside_rows / now.rows)]
    shares += [("units clipped", now.clipped_share)] if now.cells else []
    return shares + [(_title(kind, name), k / now.rows) for kind, found in counts for name, k in found.items()]
