"""One page per benchmark with its figures: a function of stored results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.experiments import figures, tables
from studies.experiments.store import Outcome
from studies.experiments.tables import METHODS, SCORES, Row, groups_of, values
from studies.harness import Table

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
    (tables.scores, figures.draw_scores, "q1"),
    (tables.seed_intervals, None, ""),
    (tables.gaps, None, ""),
    (tables.distributions, None, ""),
    (tables.violations, figures.draw_violations, "violations"),
    (tables.inference, figures.draw_inference, "inference"),
    (tables.guarantees, None, ""),
    (tables.training, None, ""),
    (tables.pdcg, None, ""),
)


def write_page(
    folder: Path,
    benchmark: str,
    outcomes: Sequence[Outcome],
    *,
    studies: Mapping[tuple[str, str], str],
    runs: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write `<benchmark>.md` and its figures to a folder; return a summary as plain data.

    `outcomes` are all results of the benchmark, under any presets, studies and seeds; `studies` are those of the
    ablation by factor and variant; `runs` have the wall-clock times; `notes` say what readers should know.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = [row for outcome in outcomes for row in outcome.rows]
    standin = any(row.get("standin") or outcome.job.get("quick") for outcome in outcomes for row in outcome.rows)
    label = f" ({_STANDIN})" if any(row.get("standin") for row in rows) else " (quick run)" if standin else ""
    lost = [f"{row['method']} on {row['task']} (seed {row['seed']})" for row in rows if row["score"] is None]
    notes = [*notes, *([f"WITHOUT A FINITE SCORE, and left out of medians: {', '.join(lost)}."] if lost else [])]
    summary: dict[str, Any] = {"benchmark": benchmark, "jobs": len(outcomes), "standin": standin, "presets": {}}
    summary["notes"] = notes
    parts = [f"# {_TITLES[benchmark]}{label}", _origin(outcomes), *notes, _legend(benchmark, standin=bool(label))]
    main = [row for row in rows if row["study"] == "main"]
    if main:
        parts.append(tables.by_preset(main, benchmark).markdown())
    for preset in sorted({row["preset"] for row in rows}):
        own = [row for row in main if row["preset"] == preset]
        if own:
            parts += _preset_parts(folder, own, benchmark, preset, label)
            failed = sum(o.failed and o.job["preset"] == preset and o.job["study"] == "main" for o in outcomes)
            found = [] if standin else checks(own, benchmark, preset, failed=failed)
            lines = tuple((statement, said, "met" if met else "NOT MET") for statement, said, met in found)
            if found:
                parts.append(Table(f"What is asked of preset `{preset}`", ("asked", "found", ""), lines).markdown(3))
            summary["presets"][preset] = _summary(own, benchmark) | {"checks": [check._asdict() for check in found]}
        varied = [row for row in rows if row["preset"] == preset]
        table = tables.ablation(varied, benchmark, studies)
        if table is not None:
            pairs = tables.ablation_pairs(varied, benchmark, studies)
            parts += [f"## Ablation, preset `{preset}`", *(found.markdown(3) for found in (table, pairs) if found)]
            summary["presets"].setdefault(preset, {})["ablation"] = [
                dict(zip(table.columns, row, strict=True)) for row in table.rows
            ]
    broken = [(outcome.key, outcome.error) for outcome in outcomes if outcome.failed]
    summary["failed"] = [key for key, _ in broken]
    failures = tables.failures(broken)
    parts.append(failures.markdown() if failures else f"No job failed: all {len(outcomes)} ended with a result.")
    parts += ["## How this was made", *_how(benchmark, outcomes, runs)]
    (folder / f"{benchmark}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return summary


def _preset_parts(folder: Path, rows: list[Row], benchmark: str, preset: str, label: str) -> list[str]:
    seeds = len({row["seed"] for row in rows})
    parts = [f"## Preset `{preset}`: {_PRESETS[preset]}"]
    for make, draw, suffix in _SECTIONS:
        table = make(rows, benchmark)
        if table is None:
            continue
        parts.append(table.markdown(3))
        if draw is not None:
            count = f"{seeds} seeds" if seeds > 1 else "one seed"
            figure = draw(rows, benchmark, title=f"{_TITLES[benchmark]}: preset {preset}, {count}{label}")
            name = f"{benchmark}-{preset}-{suffix}.png"
            (folder / name).write_bytes(figures.picture(figure, "png"))
            parts.append(f"![{table.title}, preset {preset}]({name})")
    return parts


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
    origins = [outcome.origin for outcome in outcomes]
    commits = Counter(str(origin.get("commit") or "unknown") for origin in origins).most_common()
    machines = sorted({
        f"{origin.get('processor')} ({origin.get('cores')} cores), {origin.get('machine')}, "
        f"Python {origin.get('python')}, smle {origin.get('smle')}" for origin in origins
    })  # fmt: skip
    packages = (origin.get("packages", {}).items() for origin in origins)
    versions = sorted({", ".join(f"{name} {number}" for name, number in own) for own in packages})
    days = sorted(str(origin.get("when", ""))[:10] for origin in origins)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    listed = ", ".join(f"{name} ({count} jobs)" for name, count in commits) if len(commits) > 1 else commits[0][0]
    return f"Computed {when}; commit {listed}; {'; '.join(machines)}; {'; '.join(versions)}."


def _how(benchmark: str, outcomes: Sequence[Outcome], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    clock, cpu = (sum(getattr(outcome, name) for outcome in outcomes) / 60 for name in ("seconds", "cpu"))
    rows = [row for outcome in outcomes for row in outcome.rows if row["preset"] != "best" or row["method"] != "smle"]
    training = sum(values(rows, "cpu_train")) / 60
    parts = [
        f"`python -m studies reproduce {benchmark}` with the presets, seeds and studies above: {len(outcomes)} jobs, "
        f"{clock:.0f} minutes by the clock one after the other, {training:.0f} minutes of processor time for training"
        + (f", {cpu:.0f} for whole jobs" if cpu else "")
        + f". All rows are in `{benchmark}.csv`."
    ]
    if runs:
        listed = "; ".join(
            f"{run['jobs']} jobs in {run['seconds'] / 60:.1f} minutes with {run['workers']} worker(s)" for run in runs
        )
        parts.append(f"Runs of this folder, all benchmarks: {listed}.")
    return parts


# --- numbers


def _summary(rows: Sequence[Row], benchmark: str) -> dict[str, Any]:
    models = [row for row in rows if row["method"] == "smle"]
    scores = {
        group: {method: values(own, "score", method=method) for method in METHODS}
        for group, own in tables.by_group(rows, benchmark)
    }
    return {
        "median_score": {
            group: {method: float(np.median(found)) for method, found in own.items() if found}
            for group, own in scores.items()
        },
        "models": len(models),
        "certified": sum(bool(row.get("certified")) for row in models),
        "seeds": sorted({row["seed"] for row in rows}),
    }


# --- what a full run has to show: every model proved, scores beside the paper's, inference nearly as fast as without

_NEAR_ORACLE, _WORST_RUN, _LEVEL, _SLOWDOWN = 0.005, 0.02, 0.0001, 1.3
_AGAINST_PAPER: dict[str, tuple[tuple[str, float, str], ...]] = {
    "synthetic": (
        ("oracle", _NEAR_ORACLE, "at most 0.005 below the median of the paper's oracle, as printed (three digits)"),
        ("postprocess", 0.0, "at or above the median of the paper's `postprocess`"),
    ),
    "forecasting": (("postprocess", 0.003, "at most 0.003 below the median of the paper's `postprocess`, as printed"),),
    "classification": (),
}
"""What our default's median score is compared with, how far it may be below that, and how that is said."""


class Check(NamedTuple):
    """A statement about a run, what was found, and whether it is met."""

    statement: str
    found: str
    met: bool


def checks(rows: Sequence[Row], benchmark: str, preset: str, *, failed: int = 0) -> list[Check]:
    """Return the checks of one benchmark under one preset, of which some jobs may have failed."""
    groups = groups_of(rows, benchmark)
    if preset != "best":
        return [_proved(rows, failed), _within_quartiles(rows, groups, benchmark)]
    found = [_proved(rows, failed), _worst(rows, "postprocess", _LEVEL, "`postprocess`, which has the same network")]
    medians = {group: _median(rows, "smle", group) for group in groups}
    for method, slack, words in _AGAINST_PAPER[benchmark]:
        paper = SCORES[benchmark][method]
        apart = {group: median - paper[group].median for group, median in medians.items()}
        found.append(_per_group(f"median score {words}", apart, slack))
    if benchmark == "synthetic":
        apart = {group: median - _median(rows, "oracle", group) for group, median in medians.items()}
        words = f"the same against the median of the oracle in this run (not rounded): at most {_NEAR_ORACLE} below"
        found.insert(3, _per_group(words, apart, _NEAR_ORACLE))
        found.append(_worst(rows, "oracle", _WORST_RUN, "its oracle"))
    return [*found, _fast(rows, groups)]


def _proved(rows: Sequence[Row], failed: int) -> Check:
    models = [row for row in rows if row["method"] == "smle"]
    certified = sum(bool(row.get("certified")) for row in models)
    violating = sum(row["exact_violations"] > 0 for row in models)
    scoreless = sum(row["score"] is None for row in models)
    return Check(
        "every job ends with a certified model, and no test example violates its property",
        f"{certified} of {len(models) + failed} certified, {violating} with a violation, {failed} failed"
        + (f", {scoreless} without a finite score" if scoreless else ""),
        certified == len(models) + failed and violating == scoreless == 0,
    )


def _per_group(statement: str, differences: dict[str, float], slack: float) -> Check:
    """Check that no property's number is more than `slack` below what it is compared with."""
    text = ", ".join(f"{group}: {value:+.4f}" for group, value in differences.items())
    return Check(statement, text, all(value >= -slack for value in differences.values()))


def _median(rows: Sequence[Row], method: str, group: str) -> float:
    found = values(rows, "score", method=method, group=group)
    return float(np.median(found)) if found else float("nan")


def _within_quartiles(rows: Sequence[Row], groups: Sequence[str], benchmark: str) -> Check:
    """Compare as the paper counts, which has one run per task: the median over tasks, for each seed."""
    paper, apart = SCORES[benchmark]["smle"], {}
    for group in (group for group in groups if group in paper):
        medians = tables.seed_medians(rows, method="smle", group=group)
        apart[group] = (float(np.mean(medians)) if medians else float("nan")) - paper[group].q1
    seeds = len({row["seed"] for row in rows})
    statement = f"mean over {seeds} seed(s) of the median score at or above the first quartile of the paper's `smle`"
    return _per_group(statement, apart, 0.0)


def _worst(rows: Sequence[Row], method: str, limit: float, words: str) -> Check:
    """Check that no run is more than `limit` below another method in the same run."""
    runs = tables.paired(rows)
    gap, task = max((tables.behind(run, "smle", method), task) for (task, _), run in runs.items())
    found = f"{gap:.6f} ({task}) in {len(runs)} runs"
    return Check(f"no run more than {limit} below {words}", found, gap <= limit)


def _fast(rows: Sequence[Row], groups: Sequence[str]) -> Check:
    found = [x for group in groups for x in tables.slowdowns(rows, "seconds_per_example", method="smle", group=group)]
    median = float(np.median(found)) if found else float("nan")
    statement = f"inference one example at a time at most {_SLOWDOWN} times that of `preprocess`, in the median"
    return Check(statement, f"{median:.2f}", median <= _SLOWDOWN)
