"""Numbers and points as short text, marked with `~` where rounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from smle.rules import Categorical, NumericInput, Rule, Specification, date_text, number_text
from smle_check.digits import decimal

__all__ = ["mentioned", "number_json", "point_json", "point_text", "quoted", "short_number", "value_text"]


def short_number(value: Fraction) -> str:
    """Format a number as a short decimal; `~` marks a rounded one."""
    text = decimal(value)
    return text if "/" not in text and len(text) <= 15 else f"~{number_text(value)}"


def quoted(names: Sequence[str], most: int = 5) -> str:
    """Join names in quotes as in a sentence, cutting long lists."""
    parts = [f"'{name}'" for name in names[:most]] + ([f"{len(names) - most} more"] if len(names) > most else [])
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def value_text(item: NumericInput, value: Fraction) -> str:
    """Format the value of an input: a date, or a short decimal."""
    return date_text(value) if item.dates else short_number(value)


def point_text(spec: Specification, values: Sequence[Fraction], rules: Iterable[int]) -> str:
    """Format a point as `name=value, ...`, with only the inputs that the given rules mention.

    If they mention none, return "every input". Of a category, only the column that is on is shown.
    """
    matters = {column for rule in rules for column in mentioned(spec.rules[rule])}
    parts = []
    for item, place in spec.input_slices:
        columns = range(place.start, place.stop)
        if matters.isdisjoint(columns):
            continue
        if isinstance(item, Categorical):
            parts += [f"{item.name}={c}" for c, i in zip(item.categories, columns, strict=True) if values[i] == 1]
        else:
            parts.append(f"{item.name}={value_text(item, values[columns[0]])}")
    flags = [(name, column) for name, column in spec.flag_columns.items() if column in matters]
    parts += [f"{name} {'missing' if values[column] == 1 else 'known'}" for name, column in flags]
    return ", ".join(parts) or "every input"


def mentioned(rule: Rule) -> Iterator[int]:
    """Yield the columns that the conditions and requirements of a rule read."""
    for region in rule.regions:
        for row in region.rows:
            yield from (column for column, _ in row.coefficients)
    for clause in rule.requirement.clauses:
        for literal in clause.literals:
            yield from (column for column, _ in literal.inputs)


def number_json(value: Fraction) -> dict[str, object]:
    """Return a number as its nearest float and its exact text."""
    return {"value": float(value), "exact": str(value)}


def point_json(names: Sequence[str], values: Sequence[Fraction]) -> dict[str, object]:
    """Return a point as plain data."""
    return {name: number_json(value) for name, value in zip(names, values, strict=True)}
