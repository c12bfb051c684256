"""Numbers of tables that differ between two versions of rules, by the name of the entry: `cap[art017]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from smle.rules import Categorical, Specification
from smle.rules.lookups import entry_text
from smle.rules.shown import short_number

__all__ = ["EntryChange", "entries_text", "table_changes"]

_SHOWN = 10  # entries that are named


class EntryChange(NamedTuple):
    """A number of a table, before and now; None if there is none."""

    entry: str
    old: Fraction | None
    new: Fraction | None

    @property
    def text(self) -> str:
        """The change in words."""
        if self.old is None and self.new is not None:
            return f"{self.entry}: added, {short_number(self.new)}"
        if self.new is None and self.old is not None:
            return f"{self.entry}: removed, {short_number(self.old)}"
        return f"{self.entry}: {short_number(self.old or Fraction(0))} -> {short_number(self.new or Fraction(0))}"

    def to_json(self) -> dict[str, str | None]:
        """Return plain data, with exact numbers as text."""
        return {"entry": self.entry, "old": _plain(self.old), "new": _plain(self.new)}


def _plain(value: Fraction | None) -> str | None:
    return None if value is None else str(value)


def table_changes(old: Specification, new: Specification) -> tuple[EntryChange, ...]:
    """Return the numbers of tables that differ, in the order of the old file, then those added."""
    before, after = dict(_entries(old)), dict(_entries(new))
    names = dict.fromkeys([*before, *after])
    return tuple(EntryChange(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n))


def _entries(spec: Specification) -> Iterator[tuple[str, Fraction]]:
    categories = {item.name: item.categories for item in spec.inputs if isinstance(item, Categorical)}
    for table in spec.tables:
        cells = product(*(categories[key] for key in table.keys))
        for cell, value in zip(cells, table.values, strict=True):
            yield entry_text(table.name, cell), value


def entries_text(changes: Sequence[EntryChange]) -> list[str]:
    """Say how many numbers differ, and list the first ones, one per line."""
    if not changes:
        return []
    counts = [
        (sum(c.old is not None and c.new is not None for c in changes), "changed"),
        (sum(c.old is None for c in changes), "added"),
        (sum(c.new is None for c in changes), "removed"),
    ]
    head = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    more = [f"... and {len(changes) - _SHOWN:,} more"] if len(changes) > _SHOWN else []
    return [f"in tables: {head}", *(f"  {change.text}" for change in changes[:_SHOWN]), *(f"  {line}" for line in more)]
