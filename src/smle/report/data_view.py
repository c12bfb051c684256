"""Data and accuracy for the page: what is recorded, and what the given table says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from smle.report import svg
from smle.report.measured import Measured
from smle.report.recorded import INSIDE, METHODS, RecordedScores, outputs_of, scores_of, training_of
from smle.report.wording import number, share, short
from smle.rules import Choice, Label, Specification
from smle_check.names import visible

__all__ = ["CellNames", "accuracy_view", "cell_name", "data_view"]

_RULES = 400
_QUICK = "at training a quick model: ridge regression and trees"
_HINTS = {
    "postprocess": "nearest allowed answer, by optimization when predicting",
    "oracle": "allowed answers with the best score, for those who know the truth",
    "data": "the rows as they are",
}


def cell_name(spec: Specification, rules: Sequence[int], *, partly: int = 0) -> str:
    """Return the rules of a cell by name; `partly` counts rules that bind in a part of it only."""
    names = ", ".join(visible(spec.rules[r].name) for r in rules[:5])
    text = short(names, 160) + (f" and {len(rules) - 5} more" if len(rules) > 5 else "")
    if partly:
        more = f"{partly} rule{'s' if partly > 1 else ''} in parts of it"
        text = f"{text}, and {more}" if text else f"one head; {more}"
    return text or "no rule active"


@dataclass(frozen=True)
class CellNames:
    """Names of the cells, whether each is free, and their recorded and measured rows."""

    names: tuple[str, ...]
    free: tuple[bool, ...]


def data_view(
    description: Mapping[str, Any], spec: Specification | None, cells: CellNames, measured: Measured | None
) -> dict[str, Any]:
    """Return accuracy, violations, coverage and plots: what is recorded, and what the given table says."""
    recorded = scores_of(description)
    view: dict[str, Any] = {
        "data_section": True,
        "data_lead": _data_lead(recorded, measured),
        "comparison": _comparison(recorded, measured),
        "by_output": _by_output(recorded, measured),
        "rule_table": None,
        "figures": [],
        "figures_title": "",
        **_cells_view(description, cells, measured),
    }
    if measured is not None and spec is not None:
        if spec.rules:
            view["rule_table"] = _rule_table(spec, measured)
        if measured.targets is not None:
            view.update(_figures(spec, measured))
    return view


def accuracy_view(description: Mapping[str, Any], measured: Measured | None) -> dict[str, Any]:
    """Return what stands beside the verdict: scores of the safe model and of what it is compared with, and a warning.

    What the given table says comes first, unless only the recorded scores know a plain model.
    """
    recorded = scores_of(description)
    sources = [(recorded.metric, recorded.score, recorded.outputs, recorded_rows(recorded))]
    if measured is not None and measured.scores:
        table = (
            measured.metric,
            measured.scores,
            outputs_of(measured.by_output),
            f"{measured.inside:,} rows of the table",
        )
        sources.insert(0 if "plain" in measured.scores or "plain" not in recorded.score else 1, table)
    metric, score, outputs, where = next((source for source in sources if source[1]), sources[0])
    quick = (
        " The plain model is a quick one: ridge regression and trees."
        if score is recorded.score and recorded.plain == "quick"
        else ""
    )
    columns: list[tuple[str, Mapping[str, float]]] = [(metric_title(metric), score)]
    rare = min((item for item in outputs if "safe" in item.recall), key=lambda item: item.recall["safe"], default=None)
    if rare is not None:
        columns.append((f"Recall of {short(rare.side, 24)}", rare.recall))
    lowest = min((item for item in outputs if "safe" in item.score), key=lambda item: item.score["safe"], default=None)
    if lowest is not None and rare is None and len(outputs) > 1:
        columns.append((f"Worst: {short(lowest.name, 24)}", lowest.score))
    concern = (measured.concern if measured is not None else "") or recorded.concern
    return {
        "word": "Poor accuracy" if concern else "Accuracy",
        "poor": bool(concern),
        "titles": [title for title, _ in columns],
        "rows": [
            (name, [f"{values[method]:.3f}" if method in values else "–" for _, values in columns])
            for method, name in _titles(recorded, measured).items()
            if method in score
        ],
        "where": f"Measured on {where}, not proved.{quick}" if score else "",
        "concern": concern,
        "cost": recorded.cost,
    }


def _data_lead(recorded: RecordedScores, measured: Measured | None) -> str:
    if measured is None:
        known = bool(recorded.score or recorded.others)
        return (
            "Figures recorded when the model was trained. They are measurements on some rows, not proofs."
            if known
            else "No table was given and no scores are recorded."
        )
    text = f"Measured on the given table of {measured.rows:,} rows. These are measurements on some rows, not proofs."
    if measured.outside:
        columns = ", ".join(f"{name} {count:,}" for name, count in list(measured.outside.items())[:8])
        text += f" {measured.rows - measured.inside:,} rows lie outside the domain and were left out ({columns})."
    if measured.targets is None:
        text += " The table does not have all outputs, so accuracy was not measured."
    return text


def _comparison(recorded: RecordedScores, measured: Measured | None) -> dict[str, Any]:
    """Return one row per method, with what is recorded and what was measured."""
    titles: list[str] = []
    columns: list[dict[str, str]] = []
    where = recorded_rows(recorded)
    if recorded.score:
        titles.append(f"{metric_title(recorded.metric)}, {where}")
        columns.append({k: f"{v:.4f}" for k, v in recorded.score.items()})
    if recorded.violations:
        titles.append(f"Rows that break a rule, {where}")
        columns.append({k: share(v) for k, v in recorded.violations.items()})
    if measured is not None and measured.scores:
        titles.append(f"{metric_title(measured.metric)}, given table")
        columns.append({k: f"{v:.4f}" for k, v in measured.scores.items()})
    if measured is not None and measured.violations:
        titles.append("Rows that break a rule, given table")
        columns.append({k: share(v) for k, v in measured.violations.items()})
    rows = []
    for method, name in {"data": "data", **_titles(recorded, measured)}.items():
        if any(method in column for column in columns):
            cells = [column.get(method, "–") for column in columns]
            hint = _QUICK if method == "plain" and recorded.plain == "quick" else _HINTS.get(method, "")
            rows.append({"name": name, "hint": hint, "cells": cells})
    if not rows and recorded.others:
        titles = ["Recorded score"]
        rows = [{"name": k, "hint": "", "cells": [f"{v:.4f}"]} for k, v in list(recorded.others.items())[:40]]
    caption = "Accuracy against what it is compared with. – means not recorded or not measured."
    if measured is not None and 0 < measured.sampled < measured.inside:
        caption += f" Best that obeys and post-processing on the table: {measured.sampled:,} rows drawn at random."
    return {"titles": titles, "rows": rows, "caption": caption}


def _titles(recorded: RecordedScores, measured: Measured | None) -> Mapping[str, str]:
    """Return what the methods are called: the plain model may be the one in front of a head of rules."""
    own = measured is not None and measured.alone
    return INSIDE if recorded.plain == "estimator" or (own and recorded.plain != "quick") else METHODS


def recorded_rows(recorded: RecordedScores) -> str:
    """Return on which rows the recorded scores were measured."""
    kind = "validation" if recorded.where == "validation" else "test"
    return f"{kind} rows at training" if recorded.rows is None else f"{recorded.rows:,} {kind} rows at training"


def metric_title(name: str) -> str:
    """Return a score as a heading."""
    return {"R2": "R²", "accuracy": "Accuracy"}.get(name, name)


def _by_output(recorded: RecordedScores, measured: Measured | None) -> dict[str, Any] | None:
    """Return scores by output, those of the table if it was scored, where there are several or one has a rare side."""
    known = measured is not None and bool(measured.scores)
    outputs = outputs_of(measured.by_output) if measured is not None and known else recorded.outputs
    lines: list[tuple[str, str, Mapping[str, float]]] = []
    for item in outputs:
        if len(outputs) > 1:
            lines.append((item.name, metric_title(item.metric), item.score))
        if item.side:
            lines.append((item.name, f"Recall of {short(item.side)}", item.recall))
            lines.append((item.name, "Balanced accuracy", item.balanced))
    shown = [method for method in METHODS if any(method in values for _, _, values in lines)]
    if not shown:
        return None
    rows = [
        {"name": name, "score": score, "cells": [f"{v[m]:.4f}" if m in v else "–" for m in shown]}
        for name, score, v in lines
    ]
    return {
        "caption": "On the given table." if known else f"On {recorded_rows(recorded)}.",
        "titles": [_titles(recorded, measured)[method] for method in shown],
        "rows": rows,
    }


def _rule_table(spec: Specification, measured: Measured) -> dict[str, Any]:
    titles = {"data": "data", "plain": "model alone" if measured.alone else "plain model", "safe": "safe model"}
    shown = [name for name in titles if name in measured.broken]
    rows = []
    for index, rule in enumerate(spec.rules[:_RULES]):
        active = measured.active[index]
        closest = measured.closest[index]
        part = active / measured.inside
        rows.append(
            {
                "name": visible(rule.name),
                "bar": svg.share_bar(part, title=f"{share(part)} of the rows"),
                "active": f"{active:,} ({share(part)})",
                "cells": [f"{measured.broken[name][index]:,}" for name in shown],
                "closest": "–" if closest is None else number(closest),
            }
        )
    return {"titles": [titles[name] for name in shown], "rows": rows}


def _cells_view(description: Mapping[str, Any], cells: CellNames, measured: Measured | None) -> dict[str, Any]:
    trained = training_of(description).cells
    columns: list[tuple[str, list[float]]] = []
    if len(trained) == len(cells.names):
        columns.append(("Share of training rows", list(trained)))
    if measured is not None and len(measured.cells) == len(cells.names):
        columns.append(("Share of the table", [count / measured.inside for count in measured.cells]))
    rows = []
    for index, name in enumerate(cells.names):
        shares = []
        for title, values in columns:
            value = values[index]
            shares.append((svg.share_bar(value, title=f"{title}: {share(value)}"), share(value)))
        head = "free, nothing required" if cells.free[index] else "certified"
        rows.append({"name": name, "head": head, "shares": shares})
    return {"cells": rows, "cell_titles": [title for title, _ in columns]}


def _figures(spec: Specification, measured: Measured) -> dict[str, Any]:
    assert measured.targets is not None
    figures: list[tuple[str, Markup]] = []
    numbers, chances, truths, column = [], [], [], 0
    for output in spec.outputs:
        width = len(output.options) if isinstance(output, Choice) else 1
        true, found = (a[:, column : column + width] for a in (measured.targets, measured.outputs))
        if isinstance(output, Choice):
            sign = 1.0 if output.pick == "max" else -1.0
            weights = np.exp(sign * found - (sign * found).max(axis=1, keepdims=True))
            chances.append((weights / weights.sum(axis=1, keepdims=True)).reshape(-1))
            truths.append((true == true.max(axis=1, keepdims=True)).astype(float).reshape(-1))
            if output.pick == "min":
                truths[-1] = (true == true.min(axis=1, keepdims=True)).astype(float).reshape(-1)
        elif isinstance(output, Label):
            chances.append(0.5 * (1.0 + np.tanh(found[:, 0] / 2)))
            truths.append((true[:, 0] >= 0.5).astype(float))
        else:
            numbers.append((output.name, true[:, 0], found[:, 0]))
        column += width
    for name, true, found in numbers[:3]:
        picked = np.linspace(0, len(true) - 1, min(len(true), 500)).astype(int)
        figures.append(
            (f"{name}: predicted against true, {len(picked)} rows", svg.scatter(true[picked], found[picked], name))
        )
        figures.append((f"{name}: residuals of {len(true):,} rows", svg.residual_bars(found - true, name)))
    if chances:
        drawing = svg.calibration(np.concatenate(chances), np.concatenate(truths))
        figures.append(
            ("Calibration: all labels and options together; the size of a dot is the number of predictions", drawing)
        )
    return {"figures": figures, "figures_title": "Residuals" if numbers else "Calibration"}
