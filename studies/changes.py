"""What differs between two folders of pages: requirements that are met no longer, and numbers that moved."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from studies.harness import Table

_MOVED = 0.1  # numbers that moved by less of themselves are not listed
_NUMBER = re.compile(r"-?[\d,]*\.?\d+(e[+-]?\d+)?(?=$|x$|%$| %$| ± )")

Pages = dict[str, dict[str, Any]]


def changes_of(before: str | Path, after: str | Path) -> str:
    """Return a Markdown page about the benches that both folders hold: first what got worse, then what moved."""
    old, new = _read(before), _read(after)
    shared = sorted(old.keys() & new.keys())
    told: dict[str, list[str]] = {"Met no longer": [], "Still not met": [], "Met now": []}
    for name in shared:
        for what, is_met in new[name]["passed"].items():
            was_met = old[name]["passed"].get(what, is_met)
            if not (is_met and was_met):
                kind = "Met now" if is_met else "Met no longer" if was_met else "Still not met"
                told[kind].append(f"* {name}: {what}")
    moved = [(name, *cell) for name in shared for cell in _moved(old[name]["tables"], new[name]["tables"])]
    columns = ("page", "table", "row", "column", "before", "now", "ratio")
    note = f"Numbers that moved by more than {_MOVED:.0%}. Times are those of a shared machine."
    parts = [f"# What changed\n\nBenches in both folders: {', '.join(shared)}."]
    for title, lines in told.items():
        parts.append(f"## {title}\n\n" + ("\n".join(lines) or "None."))
    return "\n\n".join([*parts, Table("Moved", columns, tuple(moved), note).markdown()]) + "\n"


def _read(folder: str | Path) -> Pages:
    found = {}
    for path in sorted(Path(folder).glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and "tables" in document:
            found[path.stem] = document
    return found


def _moved(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield table, row, column, both numbers and their ratio; rows are those of the same words, in order."""
    known = {table["title"]: table for table in old}
    for table in new:
        before = known.get(table["title"], {"rows": [], "columns": None})
        if before["columns"] != table["columns"]:
            continue
        rows = defaultdict(list)
        for row in before["rows"]:
            rows[_words(row)].append(row)
        for row in table["rows"]:
            same = rows[_words(row)]
            for column, was, now in zip(table["columns"], same.pop(0) if same else (), row, strict=False):
                a, b = _number(was), _number(now)
                if a is not None and b is not None and abs(b - a) > _MOVED * abs(a):
                    ratio = f"{b / a:.2f}" if a else "-"
                    yield table["title"], " ".join(_words(row)), column, str(was), str(now), ratio


def _words(row: list[Any]) -> tuple[str, ...]:
    return tuple(cell for cell in row if isinstance(cell, str) and _number(cell) is None)


def _number(cell: Any) -> float | None:
    """Return the number that a cell begins with, if it shows one: 3.2, `1.25x`, `14.45%`, `0.79 ± 0.01`."""
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return float(cell)
    found = _NUMBER.match(cell) if isinstance(cell, str) else None
    return None if found is None else float(found.group().replace(",", ""))
