"""From facts to what the page shows: texts, tables and drawings, in the order of reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from markupsafe import Markup

from smle.certificates import checker
from smle.report import svg
from smle.report.judge import NO_RULES, PROVED, Judgement
from smle.report.measured import Measured
from smle.report.ranges import OutputRanges
from smle.report.recorded import METHODS, RecordedScores, history_of, scores_of, training_of
from smle.report.statements import Corner, RuleVerdict
from smle.report.wording import (
    domain_text,
    formula,
    margin_text,
    number,
    point,
    readable,
    requirement_lines,
    share,
    words,
)
from smle.rules import Choice, Label, Specification

__all__ = [
    "Cells",
    "cell_name",
    "data_view",
    "guarantee_view",
    "history_view",
    "ranges_view",
    "rules_view",
    "verdict_view",
]

_RULES, _STATEMENTS = 400, 200
_HINTS = {
    "postprocess": "nearest allowed answer, by optimization when predicting",
    "oracle": "nearest allowed truth: the best that obeys",
    "data": "the rows as they are",
}


def verdict_view(judgement: Judgement, verdicts: Sequence[RuleVerdict], measured: Measured | None) -> dict[str, Any]:
    """Return the first thing to read: the verdict, for what, and how it was reached."""
    spec = judgement.spec
    count = len(spec.rules) if spec is not None else 0
    if judgement.verdict == NO_RULES:
        return {
            "kind": "none",
            "word": "No rules",
            "headline": "No rules: nothing is proved about this model.",
            "lines": ["It is a plain network. State rules and train with them to get a certificate."],
            "facts": [],
        }
    if judgement.verdict != PROVED:
        return {
            "kind": "rejected",
            "word": "Rejected",
            "headline": "The proof was not accepted. Do not rely on this model.",
            "lines": [
                f"The checker says: {judgement.reason}",
                "Either a file was changed after certification, or the folder is incomplete. Nothing is proved about "
                "the files as they are.",
            ],
            "facts": [],
        }
    rules = {1: "The rule holds", 2: "Both rules hold"}.get(count, f"All {count:,} rules hold")
    return {
        "kind": "proved",
        "word": "Proved",
        "headline": f"{rules} for every input of the domain.",
        "lines": [
            "Seen or unseen, whatever the backbone computes, and for the rounded float32 numbers that are deployed. "
            f"Checked again while this report was written: {len(judgement.proved):,} statements in exact arithmetic, "
            f"{judgement.seconds:.2f} s, without a solver and without tolerance."
        ],
        "facts": _verdict_facts(judgement, verdicts, measured),
    }


def _verdict_facts(
    judgement: Judgement, verdicts: Sequence[RuleVerdict], measured: Measured | None
) -> list[tuple[str, str, str]]:
    spec = judgement.spec
    assert spec is not None
    inputs = len(spec.inputs)
    facts = [("Rules proved", f"{len(spec.rules):,} of {len(spec.rules):,}", "")]
    known = [v for v in verdicts if v.worst is not None]
    if known:
        least = min(known, key=lambda v: v.margin or 0.0)
        facts.append(
            (
                "Smallest margin",
                margin_text(least.worst.margin if least.worst else Fraction(0)),
                f"rule “{_short(spec.rules[least.rule].name)}”",
            )
        )
    ranges = "; ".join(f"{name} {values}" for name, values in domain_text(spec)[:3]) + ("; …" if inputs > 3 else "")
    facts.append(("Domain", f"{inputs:,} input{'s' if inputs != 1 else ''}", _short(ranges, 120)))
    if measured is not None:
        value = f"{measured.any_broken['safe']:,} of {measured.inside:,}"
        data = measured.any_broken.get("data")
        more = "" if data is None else f"in the data itself: {data:,}"
        facts.append(("Rows that break a rule", value, more))
    return facts


def _short(text: str, size: int = 40) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def rules_view(
    judgement: Judgement, spec: Specification, verdicts: Sequence[RuleVerdict], measured: Measured | None
) -> dict[str, Any]:
    """Return the rules in words and formulas, each with its verdict."""
    by_rule = {v.rule: v for v in verdicts}
    rows = []
    for index, rule in enumerate(spec.rules[:_RULES]):
        required = requirement_lines(rule, spec)
        lines = [f"{formula(rule, spec)}  ⟹  {required[0]}", *(f"∧ {line}" for line in required[1:])]
        row = {"name": rule.name, "words": words(rule, spec), "formula": lines, "bar": None, "where": "", "margin": ""}
        row.update(_rule_verdict(by_rule.get(index), spec, measured))
        rows.append(row)
    ordered = sorted(judgement.proved, key=lambda item: item.margin)[:_STATEMENTS]
    return {
        "rules": rows,
        "rules_left_out": len(spec.rules) - len(rows),
        "labels": any(isinstance(output, Label) for output in spec.outputs),
        "constants": [(name, checker.decimal(value)) for name, value in spec.constants],
        "small_margin": any(v.margin is not None and v.margin < 1e-4 for v in verdicts),
        "statements": [
            {
                "rule": p.rule,
                "where": readable(p.where, spec),
                "sentence": readable(p.sentence, spec),
                "margin": margin_text(p.margin),
            }
            for p in ordered
        ],
        "statements_total": len(judgement.proved),
    }


def _rule_verdict(verdict: RuleVerdict | None, spec: Specification, measured: Measured | None) -> dict[str, Any]:
    if verdict is None:
        return {"badge": "not proved", "badge_kind": "bad", "statements": 0, "seen": ""}
    if verdict.worst is None:
        seen = "No input of the domain meets its condition."
        return {"badge": "never active", "badge_kind": "quiet", "statements": 0, "seen": seen}
    seen = ""
    if measured is not None:
        seen = f"active on {share(measured.active[verdict.rule] / measured.inside)} of the rows"
    row = {
        "badge": "proved",
        "badge_kind": "",
        "statements": verdict.statements,
        "margin": margin_text(verdict.worst.margin),
        "seen": seen,
    }
    corner = verdict.corner
    if corner is None:
        return row
    row["where"] = _where(corner, verdict, spec)
    if corner.pair is None:
        title = f"can take {number(corner.low)} to {number(corner.high)}, limit {number(corner.limit)}"
        row["bar"] = svg.reach_bar(corner.low, corner.high, corner.limit, upward=corner.upward, title=title)
    return row


def _where(corner: Corner, verdict: RuleVerdict, spec: Specification) -> str:
    """Say where a margin is attained."""
    assert verdict.worst is not None
    place = "" if verdict.worst.where == "everywhere" else f", {readable(verdict.worst.where, spec)}"
    if corner.pair is not None:
        h, k = (spec.targets[i] for i in corner.pair)
        return f"Worst case: {h} and {k} come closest to occurring together{place}."
    values = ", ".join(f"{spec.targets[j]} = {number(v)}" for j, v in corner.outputs[:6])
    values += ", …" if len(corner.outputs) > 6 else ""
    if corner.x is None:
        at = " at a corner of the certified box that is the same for all inputs"
    else:
        at = f" at {_short(point(spec.columns, corner.x.tolist()), 300)}"
    return f"Worst case of {_short(readable(verdict.worst.sentence, spec), 200)}: {values}{at}{place}."


def guarantee_view(spec: Specification | None) -> dict[str, Any]:
    """Return claim, assumptions and limits in the words of the certificate format."""
    statement: Mapping[str, Any] = checker.STATEMENT
    return {
        "claim": statement["claim"],
        "assumptions": [
            *statement["assumptions"],
            "Python's integers and fractions compute correctly, and SHA-256 is what it is taken for.",
        ],
        "not_guaranteed": [
            *statement["not_guaranteed"],
            "That the rules say what their author meant: read them above.",
            "What model.json says about data and scores: it is bound to the proof, not proved.",
        ],
        "domain": [] if spec is None else domain_text(spec),
    }


def cell_name(spec: Specification, rules: Sequence[int]) -> str:
    """Return the rules of a cell by name."""
    if not rules:
        return "no rule active"
    names = ", ".join(spec.rules[r].name for r in rules[:5])
    return _short(names, 160) + (f" and {len(rules) - 5} more" if len(rules) > 5 else "")


def ranges_view(
    ranges: Sequence[OutputRanges],
    names: Sequence[str],
    spec: Specification,
    *,
    seen: Mapping[tuple[int, int], tuple[float, float]],
) -> list[dict[str, Any]]:
    """Return panels of bars, one per output; `seen` has predicted ranges by (cell, output)."""
    kinds = {output.name: isinstance(output, Label) for output in spec.outputs}
    panels = []
    for item in ranges:
        rows = []
        target = spec.targets[item.output]
        label = kinds.get(target, False)
        for part in item.ranges:
            if part.reach is None:
                numbers = "anything: free"
            else:
                numbers = " to ".join(number(v) for v in part.reach)
                numbers += " (never predicted)" if label and part.reach[1] < 0 else ""
            limits = [(limit.low, limit.high, limit.upward) for limit in part.limits]
            shown = seen.get((part.cell, item.output))
            bar = svg.range_bar(part.reach, limits, _span(item, seen), seen=shown, title=f"{target}: {numbers}")
            rows.append({"name": names[part.cell], "bar": bar, "numbers": numbers})
        title = f"{target} (logit; predicted from 0 on)" if label else target
        panels.append({"name": title, "rows": rows, "left_out": item.left_out})
    return panels


def _span(item: OutputRanges, seen: Mapping[tuple[int, int], tuple[float, float]]) -> tuple[float, float]:
    low, high = item.span
    values = [v for (_, output), ends in seen.items() if output == item.output for v in ends]
    return min([low, *values]), max([high, *values])


def history_view(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawing of the training history, if one is recorded."""
    record = history_of(description)
    drawing = None if record is None else svg.history(record)
    caption: str | Markup = ""
    if record is not None and drawing is not None:
        parts = ["Validation loss (strong) and training loss (thin)"]
        if record.best is not None:
            parts.append(f"dashed: epoch {number(record.best)}, which was kept")
        if record.epochs is not None:
            parts.append(f"{record.epochs} epochs")
        if record.seconds is not None:
            parts.append(f"{record.seconds:.1f} s")
        if record.stopped:
            parts.append(f"ended by {record.stopped.replace('_', ' ')}")
        caption = "; ".join(parts) + "."
    return {"history": drawing, "history_caption": caption}


@dataclass(frozen=True)
class Cells:
    """Names of the cells, whether each is free, and their recorded and measured rows."""

    names: tuple[str, ...]
    free: tuple[bool, ...]


def data_view(
    description: Mapping[str, Any], spec: Specification | None, cells: Cells, measured: Measured | None
) -> dict[str, Any]:
    """Return accuracy, violations, coverage and plots: what is recorded, and what the given table says."""
    recorded = scores_of(description)
    view: dict[str, Any] = {
        "data_section": True,
        "data_lead": _data_lead(recorded, measured),
        "comparison": _comparison(recorded, measured),
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
    where = "test rows at training" if recorded.rows is None else f"{recorded.rows:,} test rows at training"
    if recorded.score:
        titles.append(f"{_metric(recorded.metric)}, {where}")
        columns.append({k: f"{v:.4f}" for k, v in recorded.score.items()})
    if recorded.violations:
        titles.append(f"Rows that break a rule, {where}")
        columns.append({k: share(v) for k, v in recorded.violations.items()})
    if measured is not None and measured.scores:
        titles.append(f"{_metric(measured.metric)}, given table")
        columns.append({k: f"{v:.4f}" for k, v in measured.scores.items()})
    if measured is not None and measured.any_broken:
        titles.append("Rows that break a rule, given table")
        columns.append({k: share(v / measured.inside) for k, v in measured.any_broken.items()})
    rows = []
    for method, name in {"data": "data", **METHODS}.items():
        if any(method in column for column in columns):
            cells = [column.get(method, "–") for column in columns]
            rows.append({"name": name, "hint": _HINTS.get(method, ""), "cells": cells})
    if not rows and recorded.others:
        titles = ["Recorded score"]
        rows = [{"name": k, "hint": "", "cells": [f"{v:.4f}"]} for k, v in list(recorded.others.items())[:40]]
    caption = "Accuracy against what it is compared with. – means not recorded or not measured."
    if measured is not None and 0 < measured.sampled < measured.inside:
        caption += f" Oracle and post-processing on the table: {measured.sampled:,} rows drawn at random."
    return {"titles": titles, "rows": rows, "caption": caption}


def _metric(name: str) -> str:
    return {"R2": "R²", "accuracy": "Accuracy"}.get(name, name)


def _rule_table(spec: Specification, measured: Measured) -> dict[str, Any]:
    titles = {"data": "data", "plain": "plain twin", "safe": "safe model"}
    shown = [name for name in titles if name in measured.broken]
    rows = []
    for index, rule in enumerate(spec.rules[:_RULES]):
        active = measured.active[index]
        closest = measured.closest[index]
        part = active / measured.inside
        rows.append(
            {
                "name": rule.name,
                "bar": svg.share_bar(part, title=f"{share(part)} of the rows"),
                "active": f"{active:,} ({share(part)})",
                "cells": [f"{measured.broken[name][index]:,}" for name in shown],
                "closest": "–" if closest is None else number(closest),
            }
        )
    return {"titles": [titles[name] for name in shown], "rows": rows}


def _cells_view(description: Mapping[str, Any], cells: Cells, measured: Measured | None) -> dict[str, Any]:
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
