"""One page per benchmark, in Markdown and HTML, with its figures and CSV file: a function of stored results alone."""

from __future__ import annotations

import base64
import csv
import html
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.experiments import figures
from studies.experiments.checks import checks
from studies.experiments.published import SCORES
from studies.experiments.store import Outcome
from studies.experiments.tables import (
    METHODS,
    ResultTable,
    Row,
    ablation,
    all_tables,
    beside,
    failures,
    groups_of,
    quartiles,
    values,
)

__all__ = ["write_page"]

_TITLES = {
    "synthetic": "Synthetic regression",
    "forecasting": "Multi-step forecasting of time series",
    "classification": "Multi-label classification",
}
_STANDIN = "GENERATED STAND-INS, not the paper's data"
_PRESETS = {
    "best": "a plain network and the head of rules behind it, our default",
    "paper": "as the paper's text says",
    "published": "as the paper's published code does",
}
_SECTIONS = (
    ("scores", figures.draw_scores, "q1"),
    ("seeds", None, ""),
    ("gaps", None, ""),
    ("distribution", None, ""),
    ("violations", figures.draw_violations, "violations"),
    ("inference", figures.draw_inference, "inference"),
    ("guarantees", None, ""),
    ("training", None, ""),
    ("pdcg", None, ""),
)


@dataclass(frozen=True)
class _Heading:
    level: int
    text: str


@dataclass(frozen=True)
class _Picture:
    name: str
    title: str
    svg: bytes


Block = _Heading | _Picture | ResultTable | str


def write_page(
    folder: Path,
    benchmark: str,
    outcomes: Sequence[Outcome],
    *,
    studies: Mapping[tuple[str, str], str],
    runs: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write `<benchmark>.md`, `.html`, `.csv`, `-summary.csv` and figures to a folder; return a summary as plain data.

    Args:
        folder: Where to.
        benchmark: Which one.
        outcomes: All results of this benchmark, any presets, studies and seeds.
        studies: The ablation's studies by factor and variant.
        runs: Wall-clock times of the runs that filled the folder.
        notes: What readers should know about the results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = [row for outcome in outcomes for row in outcome.rows]
    standin = any(row.get("standin") or outcome.job.get("quick") for outcome in outcomes for row in outcome.rows)
    label = f" ({_STANDIN})" if any(row.get("standin") for row in rows) else " (quick run)" if standin else ""
    blocks: list[Block] = [_Heading(1, _TITLES[benchmark] + label)]
    summary: dict[str, Any] = {"benchmark": benchmark, "jobs": len(outcomes), "standin": standin, "presets": {}}
    notes = [*notes, *_scoreless(rows)]
    summary["notes"] = notes
    blocks += [_origin(outcomes), *notes, _legend(benchmark, standin=bool(label))]
    for preset in sorted({row["preset"] for row in rows}):
        main = [row for row in rows if row["preset"] == preset and row["study"] == "main"]
        if main:
            blocks += _preset_blocks(folder, main, benchmark, preset, label)
            failed = sum(o.failed and o.job["preset"] == preset and o.job["study"] == "main" for o in outcomes)
            found = [] if standin else checks(main, benchmark, preset, failed=failed)
            blocks += _check_blocks(preset, found)
            summary["presets"][preset] = _summary(main, benchmark) | {"checks": [vars(check) for check in found]}
        table = ablation([row for row in rows if row["preset"] == preset], benchmark, studies)
        if table is not None:
            blocks += [_Heading(2, f"{table.title}, preset `{preset}`"), table.note, table]
            summary["presets"].setdefault(preset, {})["ablation"] = [
                dict(zip(table.columns, row, strict=True)) for row in table.rows
            ]
    broken = [(outcome.key, outcome.error) for outcome in outcomes if outcome.failed]
    table = failures(broken)
    summary["failed"] = [key for key, _ in broken]
    blocks += [_Heading(2, table.title), table.note, table] if table else [_no_failures(outcomes)]
    blocks += [_Heading(2, "How this was made"), *_how(benchmark, outcomes, runs)]
    (folder / f"{benchmark}.md").write_text(_markdown(blocks), encoding="utf-8")
    (folder / f"{benchmark}.html").write_text(_html(blocks), encoding="utf-8")
    (folder / f"{benchmark}.csv").write_text(_csv(rows), encoding="utf-8")
    (folder / f"{benchmark}-summary.csv").write_text(_csv(_medians(rows, benchmark)), encoding="utf-8")
    return summary


def _preset_blocks(folder: Path, rows: list[Row], benchmark: str, preset: str, label: str) -> list[Block]:
    seeds = len({row["seed"] for row in rows})
    what = _PRESETS.get(preset, "")
    blocks: list[Block] = [_Heading(2, f"Preset `{preset}`" + (f": {what}" if what else ""))]
    tables = all_tables(rows, benchmark)
    for name, draw, suffix in _SECTIONS:
        if name not in tables:
            continue
        blocks.append(_Heading(3, tables[name].title))
        if draw is not None:
            count = f"{seeds} seeds" if seeds > 1 else "one seed"
            title = f"{_TITLES[benchmark]}: preset {preset}, {count}{label}"
            figure = draw(rows, benchmark, title=title)
            stem = f"{benchmark}-{preset}-{suffix}"
            svg = figures.picture(figure, "svg")
            (folder / f"{stem}.svg").write_bytes(svg)
            (folder / f"{stem}.png").write_bytes(figures.picture(figure, "png"))
            blocks.append(_Picture(f"{stem}.png", f"{tables[name].title}, preset {preset}", svg))
        blocks += [tables[name].note, tables[name]]
    return blocks


def _check_blocks(preset: str, found: Sequence[Any]) -> list[Block]:
    if not found:
        return []
    lines = tuple((check.statement, check.found, "met" if check.met else "NOT MET") for check in found)
    table = ResultTable("checks", "", ("asked", "found", ""), lines)
    return [_Heading(3, f"What is asked of preset `{preset}`"), table]


# --- words


def _legend(benchmark: str, *, standin: bool) -> str:
    tasks = {
        "synthetic": "9 tasks under 6 random linear properties each (P1 to P6, easy to hard)",
        "forecasting": "25 series of the M4 competition, whose consecutive predictions may differ by a quantile of the "
        "changes in the series at most",
        "classification": "5 data sets, pairs of labels forbidden whose frequency is at or below a quantile",
    }
    what = "A few small tasks to see that everything works; scores mean nothing" if standin else tasks[benchmark]
    return (
        f"{what}. `oracle` moves the true outputs to the nearest allowed ones; `preprocess` trains on such "
        "outputs and guarantees nothing; `postprocess` moves every prediction; `smle` is certified and needs no solver "
        "to predict. What is marked 'paper' are the numbers that the paper reports."
    )


def _origin(outcomes: Sequence[Outcome]) -> str:
    commits = Counter(str(outcome.origin.get("commit") or "unknown") for outcome in outcomes)
    machines = sorted({_machine(outcome.origin) for outcome in outcomes})
    versions = sorted(
        {
            ", ".join(f"{name} {number}" for name, number in outcome.origin.get("packages", {}).items())
            for outcome in outcomes
        }
    )
    days = sorted(str(outcome.origin.get("when", ""))[:10] for outcome in outcomes)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    listed = (
        ", ".join(f"{name} ({count} jobs)" for name, count in commits.most_common())
        if len(commits) > 1
        else next(iter(commits))
    )
    return f"Computed {when}; commit {listed}; {'; '.join(machines)}; {'; '.join(versions)}."


def _machine(origin: Mapping[str, Any]) -> str:
    where = f"{origin.get('processor')} ({origin.get('cores')} cores), {origin.get('machine')}"
    return f"{where}, Python {origin.get('python')}, smle {origin.get('smle')}"


def _scoreless(rows: Sequence[Row]) -> list[str]:
    lost = [f"{row['method']} on {row['task']} (seed {row['seed']})" for row in rows if row["score"] is None]
    return [f"WITHOUT A FINITE SCORE, and left out of medians: {', '.join(lost)}."] if lost else []


def _no_failures(outcomes: Sequence[Outcome]) -> str:
    return f"No job failed: {len(outcomes)} of {len(outcomes)} ended with a result."


def _how(benchmark: str, outcomes: Sequence[Outcome], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    total = sum(outcome.seconds for outcome in outcomes)
    parts = [
        f"`python -m studies reproduce {benchmark}` with the presets, seeds and studies above; {len(outcomes)} jobs "
        f"took {total / 60:.1f} minutes together, one core each. All rows are in `{benchmark}.csv`."
    ]
    if runs:
        listed = "; ".join(
            f"{run['jobs']} jobs in {run['seconds'] / 60:.1f} minutes with {run['workers']} worker(s)" for run in runs
        )
        parts.append(f"Runs of this folder, all benchmarks: {listed}.")
    return parts


# --- numbers


def _medians(rows: Sequence[Row], benchmark: str) -> list[Row]:
    """Return one line per preset, study, property and method: quartiles, beside the paper's."""
    lines: list[Row] = []
    for preset, study in sorted({(row["preset"], row["study"]) for row in rows}):
        part = [row for row in rows if (row["preset"], row["study"]) == (preset, study)]
        for group in groups_of(part, benchmark):
            for method in METHODS:
                found = values(part, "score", method=method, group=group)
                box = quartiles(found)
                if box is None:
                    continue
                paper = beside(SCORES, part, benchmark).get(method, {}).get(group) if study == "main" else None
                lines.append(
                    {"preset": preset, "study": study, "group": group, "method": method, "runs": len(found)}
                    | box._asdict()
                    | ({f"paper_{name}": value for name, value in paper._asdict().items()} if paper else {})
                )
    return lines


def _summary(rows: Sequence[Row], benchmark: str) -> dict[str, Any]:
    models = [row for row in rows if row["method"] == "smle"]
    medians: dict[str, dict[str, float]] = {}
    for group in groups_of(rows, benchmark):
        boxes = {method: quartiles(values(rows, "score", method=method, group=group)) for method in METHODS}
        medians[group] = {method: box.median for method, box in boxes.items() if box is not None}
    return {
        "median_score": medians,
        "models": len(models),
        "certified": sum(bool(row.get("certified")) for row in models),
        "seeds": sorted({row["seed"] for row in rows}),
    }


# --- writing


def _csv(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    return stream.getvalue()


def _markdown(blocks: Sequence[Block]) -> str:
    parts = []
    for block in blocks:
        match block:
            case _Heading(level, text):
                parts.append("#" * level + " " + text)
            case _Picture(name, title, _):
                parts.append(f"![{title}]({name})")
            case ResultTable():
                parts.append(block.markdown())
            case str():
                parts.append(block)
    return "\n\n".join(part for part in parts if part) + "\n"


_STYLE = """body { font-family: system-ui, sans-serif; color: #222; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; } th { background: #f3f3f3; }
img { max-width: 100%; } code { background: #f3f3f3; padding: 0 .2em; }"""


def _html(blocks: Sequence[Block]) -> str:
    """Return a page that needs no other file."""
    parts, title = [], ""
    for block in blocks:
        match block:
            case _Heading(level, text):
                title = title or text
                parts.append(f"<h{level}>{_inline(text)}</h{level}>")
            case _Picture(_, caption, svg):
                data = base64.b64encode(svg).decode()
                parts.append(f'<img alt="{html.escape(caption)}" src="data:image/svg+xml;base64,{data}">')
            case ResultTable():
                parts.append(block.html())
            case str():
                parts.append(f"<p>{_inline(block)}</p>" if block else "")
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
