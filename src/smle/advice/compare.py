"""Compares two versions of a rules file, exactly and with witnesses: stricter, weaker, equal or neither.

A specification forbids an output y for a row of inputs if the row is in its domain and y breaks a rule that applies
there. In the domain, values lie in their ranges, `integer` inputs are whole numbers, and values are missing only where
a stand-in is stated, which the rules then read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from smle.advice.compare_search import Difference, forbidden_by_first_only
from smle.errors import RuleError
from smle.rules import ABOUT, NOTHING, Categorical, Choice, Label, Number, NumericInput, Specification, date_text
from smle.rules.lookups import entry_text
from smle.rules.shown import number_json, short_number, value_text

__all__ = ["Difference", "RuleChange", "RulesComparison", "compare"]

_SHOWN, _ENTRIES = 5, 10  # differences between files that an error names, and numbers of tables that are named


@dataclass(frozen=True)
class RuleChange:
    """An input that the versions read differently.

    * `what` is "integer": `old` and `new` say whether it must be a whole number.
    * `what` is "missing": `old` and `new` are the stand-ins for a missing value, or None if it is refused.
    """

    input: str
    what: str
    old: bool | Fraction | str | None
    new: bool | Fraction | str | None

    def __str__(self) -> str:
        if self.what == "integer":
            after, before = ("whole numbers only" if value else "any number" for value in (self.new, self.old))
            return f"input '{self.input}' takes {after} (before: {before})"
        after, before = ("refused" if v is None else f"read as {_value_text(v)}" for v in (self.new, self.old))
        return f"a missing value of input '{self.input}' is {after} (before: {before})"

    def to_json(self) -> dict[str, object]:
        """Return plain data, with exact numbers as text."""
        old, new = (str(v) if isinstance(v, Fraction) else v for v in (self.old, self.new))
        return {"input": self.input, "what": self.what, "old": old, "new": new}


class Said(NamedTuple):
    """Changed metadata of a rule, or of the file if `rule` is None; a value is None if not stated."""

    rule: str | None
    what: str
    old: str | None
    new: str | None

    @property
    def text(self) -> str:
        """The change in words."""
        whose = "the file" if self.rule is None else f"rule '{self.rule}'"
        now, before = ("nothing" if value is None else f"'{value}'" for value in (self.new, self.old))
        return f"{self.what} of {whose}: {now} (before: {before})"


class EntryChange(NamedTuple):
    """A number of a table, before and now; None if there is none."""

    entry: str
    old: Fraction | None
    new: Fraction | None

    @property
    def text(self) -> str:
        """The change in words."""
        old, new = (None if value is None else short_number(value) for value in (self.old, self.new))
        if old is None:
            return f"{self.entry}: added, {new}"
        return f"{self.entry}: removed, {old}" if new is None else f"{self.entry}: {old} -> {new}"

    def to_json(self) -> dict[str, str | None]:
        """Return plain data, with exact numbers as text."""
        old, new = (None if value is None else str(value) for value in (self.old, self.new))
        return {"entry": self.entry, "old": old, "new": new}


@dataclass(frozen=True)
class RulesComparison:
    """How a new specification relates to an old one.

    * `verdict`: "equal", "stricter", "weaker", "neither", or "unknown" if a search was cut off.
    * `newly_forbidden`: what only the new one forbids; `newly_allowed`: what only the old one forbids.
    * `changes`: inputs that are read differently. The verdict takes them into account.
    * `said`: changed metadata. It does not affect the verdict.
    * `entries`: numbers of tables that differ, by name.
    """

    verdict: str
    newly_forbidden: Difference | None
    newly_allowed: Difference | None
    changes: tuple[RuleChange, ...]
    spec: Specification
    said: tuple[Said, ...] = ()
    entries: tuple[EntryChange, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain data, with exact numbers as text and missing values as null."""
        return {
            "verdict": self.verdict,
            "newly_forbidden": self._json(self.newly_forbidden),
            "newly_allowed": self._json(self.newly_allowed),
            "changes": [change.to_json() for change in self.changes],
            "about": [said._asdict() for said in self.said],
            "entries": [entry.to_json() for entry in self.entries],
        }

    def _json(self, difference: Difference | None) -> dict[str, object] | None:
        if difference is None:
            return None
        inputs: dict[str, object] = {}
        for item, place in self.spec.input_slices:
            for i in range(place.start, place.stop):
                gone = item.name in difference.missing
                inputs[self.spec.columns[i]] = None if gone else number_json(difference.x[i])
        outputs = {name: number_json(value) for name, value in zip(self.spec.targets, difference.y, strict=True)}
        return {"rule": difference.rule, "inputs": inputs, "outputs": outputs}

    def table(self) -> str:
        """Return the comparison as sentences."""
        heads = {
            "equal": "The rules are equal: they forbid the same pairs of inputs and outputs.",
            "stricter": "The new rules are stricter: they forbid all that the old ones forbid, and more.",
            "weaker": "The new rules are weaker: they allow all that the old ones allow, and more.",
            "neither": "Neither: each version forbids something that the other allows.",
            "unknown": "Not decided: the comparison was cut off.",
        }
        lines = [heads[self.verdict], *(f"  changed: {change}" for change in self.changes)]
        for title, item in (("newly forbidden", self.newly_forbidden), ("newly allowed", self.newly_allowed)):
            if item is not None:
                lines.append(f"  {title}: {self._outputs(item)} at {self._inputs(item)}  (rule '{item.rule}')")
        lines += [f"  {line}" for line in _entries_text(self.entries)]
        lines += [f"  stated differently: {said.text}" for said in self.said]
        return "\n".join(lines)

    def _inputs(self, difference: Difference) -> str:
        parts = []
        for item, place in self.spec.input_slices:
            if item.name in difference.missing:
                value = "missing"
            elif isinstance(item, Categorical):
                value = next(c for c, v in zip(item.categories, difference.x[place], strict=True) if v == 1)
            else:
                value = value_text(item, difference.x[place.start])
            parts.append(f"{item.name}={value}")
        return ", ".join(parts)

    def _outputs(self, difference: Difference) -> str:
        names: list[str] = []
        for item in self.spec.outputs:
            names += [f"score({item.name}, {o})" for o in item.options] if isinstance(item, Choice) else [item.name]
        return ", ".join(f"{name}={short_number(value)}" for name, value in zip(names, difference.y, strict=True))


def compare(old: Specification, new: Specification) -> RulesComparison:
    """Compare two specifications over the same inputs and outputs.

    Raises RuleError if inputs or outputs differ in name, order or kind, since equal numbers would not mean the same.
    """
    obstacles, entries = _obstacles(old, new), _table_changes(old, new)
    if obstacles:
        rest = len(obstacles) - _SHOWN
        listed = "; ".join(obstacles[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
        raise RuleError(
            f"Expected two rules files with the same inputs and outputs. They differ: {listed}. "
            "The same number would mean different things in them. Compare files that state the same names and kinds."
            + _in_tables(entries)
        )
    flags = {*old.flags, *new.flags}
    old, new = old.with_flags(flags), new.with_flags(flags)
    allowed, gave_up = forbidden_by_first_only(old, new)
    forbidden, gave_up_too = forbidden_by_first_only(new, old)
    if allowed and forbidden:
        verdict = "neither"
    elif (allowed is None and gave_up) or (forbidden is None and gave_up_too):
        verdict = "unknown"
    elif forbidden:
        verdict = "stricter"
    else:
        verdict = "weaker" if allowed else "equal"
    return RulesComparison(verdict, forbidden, allowed, tuple(_changes(old, new)), new, tuple(_said(old, new)), entries)


def _in_tables(entries: Sequence[EntryChange]) -> str:
    head, *lines = _entries_text(entries) or [""]
    return f" Differences {head}: {'; '.join(map(str.strip, lines))}." if lines else ""


def _obstacles(old: Specification, new: Specification) -> list[str]:
    """Return why the same numbers do not mean the same in two files."""
    found: list[str] = []
    for what, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        first, second = ({item.name: item for item in items} for items in (before, after))
        for name in dict.fromkeys([*first, *second]):
            if name not in first or name not in second:
                found.append(f"{what} '{name}' is in the {'old' if name in first else 'new'} file only")
            else:
                found += _obstacle(first[name], second[name])
        if not found and list(first) != list(second):
            found.append(f"the order of the {what}s")
    return found


def _obstacle(
    old: NumericInput | Categorical | Number | Label | Choice, new: NumericInput | Categorical | Number | Label | Choice
) -> Iterator[str]:
    kinds = {NumericInput: "a number", Categorical: "a category", Number: "a number", Label: "a label"}
    before, after = (
        "a date" if isinstance(item, NumericInput) and item.dates else kinds.get(type(item), "a choice")
        for item in (old, new)
    )
    if before != after:
        yield f"'{old.name}' is {before} in the old file and {after} in the new one"
    for word, kind in (("categories", Categorical), ("options", Choice)):
        if isinstance(old, kind) and isinstance(new, kind) and getattr(old, word) != getattr(new, word):
            names = ", ".join(sorted({*getattr(old, word)} ^ {*getattr(new, word)})) or "their order"
            yield f"the {word} of '{old.name}' differ in {names}"
    if isinstance(old, Choice) and isinstance(new, Choice) and old.pick != new.pick:
        ends = {"max": "largest", "min": "smallest"}
        yield f"'{old.name}' picks the {ends[old.pick]} score in the old file and the {ends[new.pick]} in the new one"


def _changes(old: Specification, new: Specification) -> Iterator[RuleChange]:
    for before, after in zip(old.inputs, new.inputs, strict=True):
        if before.integer != after.integer:
            yield RuleChange(before.name, "integer", before.integer, after.integer)
        if before.missing != after.missing:
            old_value, new_value = (
                date_text(item.missing) if isinstance(item, NumericInput) and item.dates and item.missing is not None
                else item.missing
                for item in (before, after)
            )  # fmt: skip
            yield RuleChange(before.name, "missing", old_value, new_value)


def _said(old: Specification, new: Specification) -> Iterator[Said]:
    """Yield changed metadata: of the file, then of each rule in either file."""
    before, after = ({None: spec.about, **{rule.name: rule.about for rule in spec.rules}} for spec in (old, new))
    for name in dict.fromkeys([*before, *after]):
        one, two = dict(before.get(name, NOTHING)), dict(after.get(name, NOTHING))
        for what in ABOUT:
            if one.get(what) != two.get(what):
                yield Said(name, what, one.get(what), two.get(what))


def _value_text(value: bool | Fraction | str) -> str:
    return short_number(value) if isinstance(value, Fraction) else f"'{value}'"


def _table_changes(old: Specification, new: Specification) -> tuple[EntryChange, ...]:
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


def _entries_text(changes: Sequence[EntryChange]) -> list[str]:
    """Return lines that count the numbers that differ and list the first ones."""
    if not changes:
        return []
    counts = [
        (sum(c.old is not None and c.new is not None for c in changes), "changed"),
        (sum(c.old is None for c in changes), "added"),
        (sum(c.new is None for c in changes), "removed"),
    ]
    head = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    lines = [change.text for change in changes[:_ENTRIES]]
    if len(changes) > _ENTRIES:
        lines.append(f"... and {len(changes) - _ENTRIES:,} more")
    return [f"in tables: {head}", *(f"  {line}" for line in lines)]
