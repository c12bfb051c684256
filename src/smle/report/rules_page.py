"""Rules before training, as one self-contained HTML file: in words, on data, against each other, and their cost.

For domain experts rather than programmers: pictures first, formulas below.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from smle.advice.costs import RuleCost, score_text
from smle.advice.diagnosis import Diagnosis
from smle.report import svg
from smle.report.page import render, require_page, stamped, write_page
from smle.report.recorded import typeset
from smle.report.sentences import rule_view, rules_view
from smle.report.tables import PageTable
from smle.report.wording import count_text, domain_text, listed, number, short
from smle.rules import Categorical, Specification, share_text
from smle.tables import Reader
from smle_check.names import visible

__all__ = ["write_rules_page"]

_RULES = 200  # rules shown one by one
_MATRIX = 40  # most rules in the table of which rules meet
_BARS = 12  # bars drawn for an input
_CATEGORIES = 8
_BADGES = ("contradiction", "not proved", "never active", "redundant", "partly empty", "hidden equality", "one answer")


def write_rules_page(
    diagnosis: Diagnosis,
    path: str | PathLike[str] = "rules.html",
    *,
    table: Any = None,
    name: str = "Rules",
    kept: Mapping[str, Path] | None = None,
) -> Path:
    """Write the result of `smle.diagnose` as a page.

    Args:
        diagnosis: The result, with data or without.
        path: The HTML file to write.
        table: The table that was checked, for the values of its columns.
        name: Title of the page.
        kept: Files that the page must not replace, by description.

    Raises:
        ValueError: If the file exists and is not a page, or is one of those to keep.
        OSError: If it cannot be written.
    """
    target = Path(path)
    require_page(target, kept or {})
    write_page(target, render("rules.html", {"name": name, "kicker": "Rules", **stamped(), **_view(diagnosis, table)}))
    return target


def _view(found: Diagnosis, table: Any) -> dict[str, Any]:
    spec, data = found.spec, found.data
    matrix = _matrix(found)
    view = {
        "verdict": _verdict(found),
        "findings": [(f.severe, typeset(f.text)) for f in sorted(found.findings, key=lambda f: not f.severe)],
        "untested": [item.text for item in found.untested],
        "subtitle": f"{count_text(len(spec.rules), 'rule')}, {count_text(len(spec.inputs), 'input')}, "
        f"{count_text(len(spec.outputs), 'output')}",
        **rules_view(spec, [_rule(found, index) for index in range(min(len(spec.rules), _RULES))]),
        "has_data": data is not None,
        "has_targets": data is not None and data.costs is not None,
        "matrix": matrix,
        "cells": _cells(found),
        "outputs": _outputs(found),
        "inputs": _inputs(spec, table),
    }
    entries = [
        ("findings", "What to look at", bool(view["findings"] or view["untested"])),
        ("rules", "The rules", True),
        ("meet", "Which rules meet", bool(matrix)),
        ("cost", "What obeying costs", bool(view["outputs"])),
        ("inputs", "Inputs", True),
    ]
    return view | {"contents": [(anchor, title) for anchor, title, there in entries if there]}


def _verdict(found: Diagnosis) -> dict[str, Any]:
    severe = sum(f.severe for f in found.findings)
    doubtful = any(cell.status == "unknown" for cell in found.cells)
    lines = []
    if severe:
        kind, word = (
            "rejected",
            "Contradictory" if any(f.kind == "contradiction" for f in found.findings) else "Not safe",
        )
        headline = "No model can be certified under these rules yet."
        lines = [f"{count_text(severe, 'problem')} to solve first; each names the rules and an input where it shows."]
    elif doubtful:
        kind, word, headline = "none", "Undecided", "Some combinations of rules were too many to decide."
    else:
        kind, word, headline = "proved", "Consistent", "The rules can hold together, for every input of the domain."
    return {"kind": kind, "word": word, "headline": headline, "lines": lines, "facts": _facts(found)}


def _facts(found: Diagnosis) -> list[tuple[str, str, str]]:
    data = found.data
    facts = [("Rules", f"{len(found.spec.rules):,}", listed((visible(r.name) for r in found.spec.rules), 90))]
    if data is None:
        return facts
    outside = "all inside the domain" if not data.outside_rows else f"{data.outside_rows:,} outside the domain"
    facts.append(("Rows looked at", f"{data.rows:,}", outside))
    if data.costs is not None and data.price is not None:
        broken = sum(cost.broken > 0 for cost in data.costs)
        facts.append(
            ("Rules that some row breaks", f"{broken} of {len(data.costs)}", "as the table has it, before any model")
        )
        worst = min(data.price, key=lambda output: data.price[output])  # type: ignore[index]
        facts.append(
            (
                f"Best possible {typeset(data.metrics[worst])}",
                _best(data.price[worst]),
                f"of {visible(worst)}, for a model that obeys",
            )
        )
    return facts


def _rule(found: Diagnosis, index: int) -> dict[str, Any]:
    spec, data = found.spec, found.data
    rule = spec.rules[index]
    kinds = [f.kind for f in found.findings if rule.name in f.rules and f.kind in _BADGES]
    severe = any(f.severe for f in found.findings if rule.name in f.rules)
    row: dict[str, Any] = {
        **rule_view(rule, spec),
        "badge": kinds[0] if kinds else "consistent",
        "badge_kind": "bad" if severe else "quiet" if kinds else "",
        "shares": [],
        "costs": [],
        "where": "",
        "figures": [],
    }
    if data is None:
        return row
    cost = None if data.costs is None else data.costs[index]
    active = data.active[index]
    row["shares"].append(
        (f"applies to {share_text(active)} of the rows", svg.share_bar(active, title=f"active: {share_text(active)}"))
    )
    if cost is not None and not cost.broken:
        row["shares"].append(("no row breaks it", ""))
    elif cost is not None:
        wrong = cost.broken / cost.rows
        text = "1 row breaks it" if cost.broken == 1 else f"{cost.broken:,} rows break it"
        bar = svg.share_bar(wrong, "bar warn", title=f"broken: {share_text(wrong)}")
        row["shares"].append((f"{text}, {share_text(wrong)} of those where it applies", bar))
        if not kinds:
            row |= {"badge": "data break it", "badge_kind": "quiet"}
        row["costs"] = [
            f"costs {score_text(lost)} {typeset(data.metrics[name])} of {visible(name)}"
            for name, lost in sorted(cost.lost.items(), key=lambda item: -item[1])[:4]
        ]
        row["where"] = f"Cost: {cost.where}." if cost.where else ""
        row["figures"] = _figures(cost)
    return row


def _figures(cost: RuleCost) -> list[tuple[str, Markup]]:
    figures = []
    for name, values in sorted(cost.moves.items(), key=lambda item: -cost.lost.get(item[0], 0.0))[:2]:
        text = (
            f"How far {visible(name)} is from what this rule allows, {count_text(len(values), 'row')}: "
            f"{number(float(np.abs(values).mean()))} on average, {number(float(np.abs(values).max()))} at most"
        )
        label = f"nearest allowed − {short(visible(name), 30)}"
        figures.append((text, svg.histogram(values, label, f"Histogram of how far {name} moves")))
    if cost.profile is not None:
        profile = cost.profile
        text = f"Where rows break it: share of the rows, by {visible(profile.input)}"
        parts = [*zip(profile.parts, profile.broken, profile.rows, strict=True)]
        if len(parts) > _BARS:
            text += f"; of {len(parts):,} the {_BARS} with the most such rows"
            parts = sorted(parts, key=lambda part: (-part[1], -part[1] / max(part[2], 1)))[:_BARS]
        shares = [broken / max(rows, 1) for _, broken, rows in parts]
        names, counts = [part[0] for part in parts], [part[2] for part in parts]
        bars = svg.named_bars(names, shares, counts, label=visible(profile.input))
        figures.append((text, bars))
    return figures[:2] if len(figures) < 3 else [figures[0], figures[-1]]


def _matrix(found: Diagnosis) -> dict[str, Any] | None:
    """Return, for each pair of rules, whether they can apply to one input, and whether they then contradict."""
    names = [rule.name for rule in found.spec.rules]
    if not 1 < len(names) <= _MATRIX or not found.cells:
        return None
    place = {name: i for i, name in enumerate(names)}
    meet = np.zeros((len(names), len(names)), dtype=bool)
    for cell in found.cells:
        members = [place[name] for name in cell.rules]
        meet[np.ix_(members, members)] = True
    for name in found.always_on:
        meet[place[name], :] = meet[:, place[name]] = True
    clash: dict[tuple[int, int], str] = {}
    for finding in found.findings:
        if finding.severe:
            for a in finding.rules:
                for b in finding.rules:
                    if a != b:
                        clash[place[a], place[b]] = finding.kind
    rows = []
    for i, name in enumerate(names):
        marks = []
        for j in range(i):
            if (i, j) in clash:
                marks.append(("clash", "✕", clash[i, j]))
            else:
                marks.append(("meets", "●", "meet") if meet[i, j] else ("", "·", "never meet"))
        rows.append({"number": i + 1, "name": visible(name), "marks": marks})
    return {"rows": rows, "clashes": bool(clash), "size": len(names)}


def _cells(found: Diagnosis) -> str:
    bad = [cell for cell in dict.fromkeys(found.cells) if cell.status not in ("fine", "free")]
    count = count_text(len(found.cells), "combination")
    text = f"{count} of conditions can be met by one input" if found.cells else ""
    return f"{text}; {len(bad)} of them cannot be served." if bad else f"{text}." if text else ""


def _outputs(found: Diagnosis) -> PageTable | None:
    data = found.data
    if data is None or data.price is None or data.costs is None:
        return None
    rows = []
    for name, value in list(data.price.items())[:60]:
        dearest = sorted((c for c in data.costs if name in c.lost), key=lambda c: -c.lost[name])[:4]
        metric = typeset(data.metrics[name])
        score = f"{metric} {_best(value)}"
        bar = svg.share_bar(min(max(value, 0.0), 1.0), title=f"{metric} {value:.4f}")
        rules = ", ".join(f"{visible(c.rule)} {score_text(c.lost[name])}" for c in dearest) or "none"
        rows.append((visible(name), score, bar, rules))
    columns = [("Output", ""), ("Best possible", "number"), ("", "share"), ("What each rule costs alone", "long")]
    return PageTable(columns, rows)


def _best(value: float) -> str:
    return f"{value:.4f}" if np.isfinite(value) and value > -10 else "below −10"


def _inputs(spec: Specification, table: Any) -> PageTable:
    """Return every input with its range, and its values and missing values in the table."""
    if table is None:
        return PageTable([("Input", ""), ("Stated", "long")], domain_text(spec))
    rows = []
    read = Reader(spec).read(table)
    for (item, place), stated in zip(spec.input_slices, domain_text(spec), strict=True):
        gone = int(read.missing[item.name].sum()) if item.name in read.missing else 0
        missing = "none" if not gone else f"{gone:,} ({share_text(gone / max(len(read), 1))})"
        rows.append((*stated, *_seen(item, read.encoded[:, place]), missing))
    columns = [("Input", ""), ("Stated", "long"), ("In the table", "long"), ("", "share"), ("Missing", "")]
    return PageTable(columns, rows)


def _seen(item: Any, values: npt.NDArray[Any]) -> tuple[str, Markup | str]:
    """Describe the values of an input in words, and as a bar."""
    if isinstance(item, Categorical):
        shares = sorted(zip(item.categories, values.mean(axis=0).tolist(), strict=True), key=lambda pair: -pair[1])
        parts = [f"{visible(name)} {share_text(part)}" for name, part in shares[:_CATEGORIES]]
        more = f", {len(shares) - _CATEGORIES} more" if len(shares) > _CATEGORIES else ""
        return ", ".join(parts) + more, ""
    low, high = float(values.min()), float(values.max())
    middle = tuple(float(v) for v in np.quantile(values, (0.05, 0.95)))
    stated = (float(item.lower), float(item.upper))
    bar = svg.range_bar((low, high), (middle[0], middle[1]), stated, title=f"values of {item.name}")
    return f"{item.text(low)} to {item.text(high)}", bar
