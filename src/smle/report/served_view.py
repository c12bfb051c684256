"""What a head of rules did to answers, for the page: kept, moved, replaced, and which alternative each met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from smle.monitor.corrections import Corrections, Moves, Parts, alternatives_of
from smle.report import svg
from smle.report.measured import Measured
from smle.report.tables import Cell, PageTable, named, numbers, share
from smle.report.wording import name_text, number
from smle.rules import Choice, Clause, Label, Literal, Specification, clause_text, label_columns, share_text
from smle_check.names import visible

__all__ = ["served_facts", "served_view"]

_WAYS = {
    "kept": ("kept", "the model's own answer, on its step if it has one: the rules allow it"),
    "moved": ("moved", "to the nearest allowed answer"),
    "near": ("near", "moved to an allowed answer; the search for the nearest was cut short"),
    "replaced": ("replaced", "the model answered NaN, infinity or beyond 1e30: a stored default took its place"),
    "safe": ("stored safe answer", "nothing nearer passed the check"),
}
_FIGURES, _TABLES, _ENTRIES = 6, 24, 12


def served_view(spec: Specification, trained: Corrections | None, measured: Measured | None) -> dict[str, Any] | None:
    """Return how rows were served: those of training, as recorded, and those of the given table."""
    found: list[tuple[str, Corrections]] = []
    if trained is not None and trained.rows:
        found.append(("training rows", trained))
    if measured is not None and measured.usage.head is not None:
        found.append(("rows of the table", measured.usage.head))
    if not found:
        return None
    parts = _parts(spec, found)
    counted = max(len(counts.parts) for _, counts in found)
    ways = [
        (named(name, hint), *(_share(counts.ways[way], counts.rows) for _, counts in found))
        for way, (name, hint) in _WAYS.items()
    ]
    titles = [(f"{where}: {counts.rows:,}".capitalize(), "share") for where, counts in found]
    return {
        "ways": PageTable([("Answers", ""), *titles], ways),
        "concerns": [f"{where.capitalize()}: {counts.concern}" for where, counts in found if counts.concern],
        **_moves(spec, found),
        "entries": _entries(found),
        "figures": [] if measured is None else _figures(spec, measured),
        "parts": parts[:_TABLES],
        "parts_left_out": counted - len(parts[:_TABLES]),
    }


def served_facts(trained: Corrections | None, measured: Measured | None) -> list[tuple[str, str, str]]:
    """Return the fact for the first screen: how many answers were kept."""
    table = None if measured is None else measured.usage.head
    counts, where = (table, "rows of the table") if table is not None else (trained, "training rows")
    if counts is None or not counts.rows:
        return []
    ways = counts.ways
    others = [f"{ways['moved']:,} moved to obey"]
    others += [f"{ways['near']:,} by a search that was cut short"] if ways["near"] else []
    others += [f"{ways['replaced']:,} replaced (NaN or infinite)"] if ways["replaced"] else []
    others.append(f"{ways['safe'] or 'none'} served by the stored safe answer")
    more = f"of {counts.rows:,} {where}; {', '.join(others)}"
    return [("Answers kept", share_text(ways["kept"] / counts.rows), more)]


def _share(count: int, rows: int) -> Cell:
    part = count / rows if rows else 0.0
    return share(part, f"{count:,} ({share_text(part)})" if rows else "–")


def _moves(spec: Specification, found: Sequence[tuple[str, Corrections]]) -> dict[str, Any]:
    """Return which outputs changed and by how much, if any did; for labels and choices, by score."""
    if not any(moves.rows for _, counts in found for moves in counts.moves.values()):
        return {"moves": None}
    measured = any(not isinstance(output, Label | Choice) for output in spec.outputs)
    rows = []
    for output in spec.outputs:
        cells = []
        for _, counts in found:
            moves = counts.moves.get(output.name, Moves(0, 0.0, 0.0))
            far = [moves.total / moves.rows, moves.largest] if moves.rows and moves.largest else []
            cells += [f"{moves.rows:,}", *(([number(v) for v in far] or ["–", "–"]) if measured else [])]
        rows.append((visible(output.name), *cells))
    what = ("Rows changed", "Mean distance", "Largest") if measured else ("Rows changed",)
    titles = [f"{title}, {where}" for where, _ in found for title in what]
    title = "By how much" if measured else "Which outputs"
    return {"moves_title": title, "moves": PageTable([("Output", ""), *numbers(titles)], rows)}


def _entries(found: Sequence[tuple[str, Corrections]]) -> PageTable | None:
    """Return the table entries that most rows broke, or None."""
    most = sorted({name for _, counts in found for name in counts.entries})
    most.sort(key=lambda name: -max(counts.entries.get(name, 0) for _, counts in found))
    rows = [(visible(name), *(f"{counts.entries.get(name, 0):,}" for _, counts in found)) for name in most[:_ENTRIES]]
    if not rows:
        return None
    more = f"The first {_ENTRIES} of {len(most):,}." if len(most) > _ENTRIES else ""
    return PageTable([("Entry", ""), *numbers([where for where, _ in found])], rows, more)


def _figures(spec: Specification, measured: Measured) -> list[tuple[str, Markup]]:
    """Draw how far numbers were moved in the given table."""
    if measured.own is None:
        return []
    figures = []
    for output, place in spec.output_slices:
        if not isinstance(output, Label | Choice):
            distance = measured.outputs[:, place.start] - measured.own[:, place.start]
            distance = distance[np.isfinite(distance) & (distance != 0)]
            if len(distance) >= 5:
                name = visible(output.name)
                caption = f"{name}: {len(distance):,} answers that were moved; half of them by at most "
                caption += number(float(np.median(np.abs(distance))))
                figures.append((caption, svg.histogram(distance, f"served − answered {name}", f"Moves of {name}")))
    return figures[:_FIGURES]


def _parts(spec: Specification, found: Sequence[tuple[str, Corrections]]) -> list[PageTable]:
    """Return a table for each clause with alternatives; for overlapping ones, only if some answer met none."""
    known: list[Mapping[tuple[str, int], Parts]] = [
        {(parts.rule, parts.clause): parts for parts in counts.parts} for _, counts in found
    ]
    titles = [(title, "share") for where, _ in found for title in (f"Served, {where}", f"Model alone, {where}")]
    result = []
    for rule, place, clause in alternatives_of(spec):
        size = len(clause.literals)
        counted = [entries.get((spec.rules[rule].name, place)) for entries in known]
        counted = [p if p is not None and len(p.served) == len(p.own) == size else None for p in counted]
        there = [(where, p) for (where, _), p in zip(found, counted, strict=True) if p is not None]
        if not any(p.outside or sum(p.served) == p.on for _, p in there):
            continue
        rows = []
        names = [_part(literal, spec) for literal in clause.literals]
        for k, name in enumerate([*names, "in none of them"]):
            cells: list[Cell] = []
            for p in counted:
                if p is None:
                    cells += ["–", "–"]
                elif k == size:
                    cells += ["0", _share(p.outside, p.on)]
                else:
                    cells += [_share(p.served[k], p.on), _share(p.own[k], p.on)]
            rows.append((name, *cells))
        overlap = " A row may lie in several parts." if any(sum(p.served) > p.on for _, p in there) else ""
        on = ", ".join(f"{p.on:,} {where}" for where, p in there)
        text = f"{' or '.join(names)}. The rule is active in {on}.{overlap}"
        caption = Markup("<b>{}</b>: {}").format(visible(spec.rules[rule].name), text)
        result.append(PageTable([("Part", ""), *titles], rows, caption))
    return result


def _part(literal: Literal, spec: Specification) -> str:
    """Write an alternative as a formula, or in words if it says that a label is on or off."""
    if literal.sign is not None and label_columns(spec)[literal.sign[0]]:
        return f"{name_text(spec.targets[literal.sign[0]])} is {'on' if literal.sign[1] else 'off'}"
    return clause_text(spec, Clause((literal,)))
