"""Data and accuracy for the page: as recorded, and as measured on the given table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from smle.monitor import Usage
from smle.regions.cells import Cells, binding_rules
from smle.report import svg
from smle.report.measured import Measured
from smle.report.recorded import Scores, metric_title, scores_of, typeset
from smle.report.tables import Cell, PageTable, named, numbers, share
from smle.report.wording import count_text, listed, number, short
from smle.rules import Choice, Label, Specification, share_text
from smle_check.names import visible

__all__ = ["accuracy_view", "data_view"]

_RULES = 400
_LINES = 40  # scores by output


def data_view(
    description: Mapping[str, Any],
    spec: Specification,
    cells: Cells | None,
    training: Usage | None,
    measured: Measured | None,
) -> dict[str, Any]:
    """Return accuracy, violations, coverage and plots; `cells` are those of a learned box."""
    recorded = scores_of(description.get("scores"), rules=bool(spec.rules))
    table = None if measured is None else measured.scores
    view: dict[str, Any] = {
        "data_section": True,
        "data_lead": _lead(recorded, measured),
        "comparison": _comparison([scores for scores in (recorded, table) if scores is not None], measured),
        "by_output": _by_output(table if table is not None and table.score else recorded),
        "rule_table": None,
        "figures": [],
        "figures_title": "",
        "cells": _cells_view(spec, cells, training, measured),
    }
    if measured is not None and spec.rules:
        view["rule_table"] = _rule_table(spec, measured)
    if measured is not None and measured.targets is not None:
        view.update(_figures(spec, measured.targets, measured.outputs, measured.chances))
    return view


def accuracy_view(description: Mapping[str, Any], measured: Measured | None, *, rules: bool = True) -> dict[str, Any]:
    """Return scores of the safe model and of what it is compared with, and a warning, to show next to the verdict.

    Scores on held-out rows come first: the given table may contain training rows.
    """
    recorded = scores_of(description.get("scores"), rules=rules)
    table = None if measured is None or not measured.scores.score else measured.scores
    found = table if table is not None and not recorded.score else recorded
    columns: list[tuple[str, Mapping[str, float]]] = [(metric_title(found.metric), found.score)]
    rare = [item for item in found.outputs if "safe" in item.recall]
    scored = [item for item in found.outputs if "safe" in item.score]
    if rare:
        least = min(rare, key=lambda item: item.recall["safe"])
        columns.append((f"Recall of {short(least.side, 24)}", least.recall))
    elif len(scored) > 1:
        worst = min(scored, key=lambda item: item.score["safe"])
        columns.append((f"Worst: {short(worst.name, 24)}", worst.score))
    concern = (measured.scores.concern if measured is not None else "") or recorded.concern
    quick = " The plain model is a quick one: ridge regression and trees." if found.plain == "quick" else ""
    where = [f"Measured on {found.place}, not proved.{quick}"] if found.score else []
    if table is not None and found is recorded and "safe" in table.score:
        where.append(f"On the given {table.place}: {metric_title(table.metric)} {table.score['safe']:.3f}.")
    if measured is not None and table is not None:
        where.append(measured.trained_text)
    return {
        "word": "Poor accuracy" if concern else "Accuracy",
        "poor": bool(concern),
        "titles": [title for title, _ in columns],
        "rows": [
            (name, [f"{values[method]:.3f}" if method in values else "–" for _, values in columns])
            for method, name in {"safe": "", **found.titles}.items()  # the model itself first
            if method in found.score
        ],
        "where": " ".join(filter(None, where)),
        "concern": typeset(concern),
        "recorded_concern": concern,
        "cost": typeset(recorded.cost),
    }


def _lead(recorded: Scores, measured: Measured | None) -> str:
    if measured is None:
        if not recorded.score:
            return "No table was given and no scores are recorded."
        return "Figures recorded when the model was trained. They are measurements on some rows, not proofs."
    text = f"Measured on the given table of {measured.rows:,} rows. These are measurements on some rows, not proofs."
    if measured.outside:
        columns = ", ".join(f"{name} {count:,}" for name, count in list(measured.outside.items())[:8])
        text += f" {measured.rows - measured.inside:,} rows lie outside the domain and were left out ({columns})."
    if measured.targets is not None:
        text = f"{text} {measured.trained_text}".rstrip()
    else:
        text += " The table does not have all outputs, so accuracy was not measured."
    return text


def _comparison(sources: Sequence[Scores], measured: Measured | None) -> PageTable:
    """Return one row per method, with recorded and measured scores."""
    titles: list[str] = []
    rows: dict[str, tuple[Cell, dict[int, str]]] = {}
    for source in sources:
        for part, title in (("score", metric_title(source.metric)), ("broken", "Rows that break a rule")):
            lines = [line for line in source.table() if getattr(line, part)]
            for line in lines:
                _, cells = rows.setdefault(line.method, (named(line.title, line.hint), {}))
                cells[len(titles)] = getattr(line, part)
            titles += [f"{title}, {source.place}"] if lines else []
    order = [method for method in (*(sources[0].titles if sources else ()), "data") if method in rows]
    caption = "Accuracy against what it is compared with. – means not recorded or not measured."
    if measured is not None and 0 < measured.sampled < measured.inside:
        caption += f" Nearest allowed answers on the table: {measured.sampled:,} rows drawn at random."
    shown = [(name, *(cells.get(i, "–") for i in range(len(titles)))) for name, cells in map(rows.__getitem__, order)]
    return PageTable([("Answers of", ""), *numbers(titles)], shown, caption)


def _by_output(scores: Scores) -> PageTable | None:
    titles, lines = scores.by_output()
    if not lines:
        return None
    left_out = f" {len(lines) - _LINES} more lines are in model.json." if len(lines) > _LINES else ""
    columns = [(title, "") for title in titles[:2]] + numbers(titles[2:])
    return PageTable(columns, lines[:_LINES], f"On {scores.place}.{left_out}", "Scores by output")


def _rule_table(spec: Specification, measured: Measured) -> PageTable:
    titles = {"data": "data", "plain": measured.scores.titles["plain"], "safe": "safe model"}
    shown = [name for name in titles if name in measured.broken]
    rows = []
    for index, rule in enumerate(spec.rules[:_RULES]):
        active, closest = measured.usage.rules[rule.name], measured.closest[index]
        part = active / measured.inside
        broken = [f"{measured.broken[name][index]:,}" for name in shown]
        where = share(part, f"{active:,} ({share_text(part)})")
        rows.append((visible(rule.name), where, *broken, "–" if closest is None else number(closest)))
    columns = [("Rule", ""), ("Rows where it is active", "share")]
    columns += numbers([*(f"Broken by {titles[name]}" for name in shown), "Least room seen"])
    return PageTable(columns, rows, label="Rules on the table")


def _cells_view(
    spec: Specification, cells: Cells | None, training: Usage | None, measured: Measured | None
) -> PageTable | None:
    """Return the cells of a learned box by their rules, with their shares of rows."""
    if cells is None:
        return None
    columns: list[tuple[str, Sequence[float]]] = []
    table = None if measured is None else measured.usage
    for title, usage in (("Share of training rows", training), ("Share of the table", table)):
        counts = () if usage is None else usage.cells
        if len(counts) == len(cells) and min(counts, default=0) >= 0 < sum(counts):
            columns.append((title, [count / sum(counts) for count in counts]))
    rows = []
    for index in range(len(cells)):
        free = cells.free_cell and index == len(cells) - 1
        head = "free, nothing required" if free else "certified"
        shares = [share(values[index], title=title) for title, values in columns]
        rows.append((_cell_name(cells, spec, index), head, *shares))
    titles = [("Region: rules that are active together", ""), ("Head", ""), *((title, "share") for title, _ in columns)]
    return PageTable(titles, rows, label="Regions", rows_are="regions")


def _cell_name(cells: Cells, spec: Specification, index: int) -> str:
    """Name a cell by its rules, and count the rules that bind in part of it only."""
    bound = binding_rules(cells, spec, index)
    rules = {rule for rule, region in bound if region is None or not cells.regions[region]}
    partly = len({rule for rule, _ in bound} - rules)
    text = listed((visible(spec.rules[rule].name) for rule in sorted(rules)), 160)
    if partly:
        more = f"{count_text(partly, 'rule')} in parts of it"
        return f"{text}, and {more}" if text else f"one head; {more}"
    return text or "no rule active"


def _figures(spec: Specification, targets: Any, outputs: Any, chances: Any) -> dict[str, Any]:
    figures: list[tuple[str, Markup]] = []
    truths = []
    for output, place in spec.output_slices:
        true, found = targets[:, place], outputs[:, place]
        if isinstance(output, Choice):
            sign = 1.0 if output.pick == "max" else -1.0
            truths.append((sign * true == (sign * true).max(axis=1, keepdims=True)).astype(float))
        elif isinstance(output, Label):
            truths.append((true >= 0.5).astype(float))
        elif len(figures) < 6:
            name, true, found = visible(output.name), true[:, 0], found[:, 0]
            picked = np.linspace(0, len(true) - 1, min(len(true), 500)).astype(int)
            drawn = svg.scatter(true[picked], found[picked], name)
            figures.append((f"{name}: predicted against true, {len(picked)} rows", drawn))
            bars = svg.histogram(found - true, f"predicted − true {name}", f"Histogram of the residuals of {name}")
            figures.append((f"{name}: residuals of {len(true):,} rows", bars))
    title = "Residuals" if figures else "Calibration"
    if chances is not None:
        drawing = svg.calibration(chances.reshape(-1), np.concatenate(truths, axis=1).reshape(-1))
        caption = "Calibration: all labels and options together; the size of a dot is the number of predictions"
        figures.append((caption, drawing))
    return {"figures": figures, "figures_title": title}
