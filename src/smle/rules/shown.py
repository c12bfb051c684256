"""Numbers, points, rows and clauses in words, and tables as aligned text or HTML; `~` marks a rounded number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING

from smle.rules.dates import date_text
from smle.rules.expressions import quote_name
from smle_check.digits import decimal
from smle_check.names import visible
from smle_check.words import comparison_text

if TYPE_CHECKING:
    from smle.rules.formula import Clause, Polytope, Row
    from smle.rules.specification import NumericInput, Rule, Specification

__all__ = [
    "clause_text",
    "html_table",
    "mentioned",
    "number_json",
    "number_text",
    "point_json",
    "point_text",
    "quoted",
    "region_text",
    "row_text",
    "share_text",
    "short_number",
    "text_table",
    "value_text",
]

_LITERALS = 8  # literals shown of one clause
_CELL = 60  # characters of a cell


def number_text(value: Fraction | float, digits: int = 6, *, grouped: bool = False) -> str:
    """Format a number with a few significant digits; only very large or small ones get an exponent.

    All digits before the point are shown. `grouped` writes `12,345` instead of `12345`.
    """
    text = f"{float(value):.{digits}g}"
    if "e" in text and 0 < int(text.split("e")[1]) < 9:
        text = f"{float(value):.0f}"
    whole, point, decimals = text.partition(".")
    if grouped and len(whole.lstrip("-")) > 4 and whole.lstrip("-").isdecimal():
        whole = f"{int(whole):,}"
    return whole + point + decimals


def share_text(share: float) -> str:
    """Format a share in percent; 0% and 100% mean exactly none and exactly all."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    for digits in range(1, 6):
        text = f"{share * 100:.{digits}f}"
        if 0 < float(text) < 100:
            return text + "%"
    return "below 0.00001%" if share < 0.5 else "above 99.99999%"


def row_text(spec: Specification, row: Row) -> str:
    """Write a half-space over inputs as a rule would, as `road == icy` if it says just that."""
    if len(row.coefficients) == 1 and not row.strict:
        ((column, value),) = row.coefficients
        flag = next((name for name, own in spec.flag_columns.items() if own == column), None)
        if flag is not None and row.bound in (0, -1):
            return f"{_name(flag)} is {'missing' if value < 0 else 'known'}"
        category = _category(spec, column)
        if column in spec.dates and abs(value) == 1:
            return f"{_name(spec.columns[column])} {'<=' if value > 0 else '>='} {date_text(row.bound * value)}"
        if category is not None and ((value == 1 and row.bound == 0) or value == row.bound == -1):
            return f"{_name(category[0])} {'==' if value < 0 else '!='} {_name(category[1])}"
    return comparison_text(dict(row.coefficients), row.bound, row.strict, [_name(name) for name in spec.columns])


def region_text(spec: Specification, region: Polytope) -> str:
    """Write a condition as a rule would: `score < 480 and work == none`; "" for the whole domain.

    It leaves out that a missing input has its stand-in value.
    """
    asked = {column for row in region.rows for column, value in row.coefficients if value < 0}
    implied = {i for _, place, flag in spec.flagged if flag in asked for i in range(place.start, place.stop)}
    rows = [row for row in region.rows if not (row.is_comparison and row.coefficients[0][0] in implied)]
    return " and ".join(row_text(spec, row) for row in rows)


def clause_text(spec: Specification, clause: Clause) -> str:
    """Write a clause as a rule would; long ones are cut."""
    names = [_name(name) for name in (*spec.targets, *spec.columns)]
    parts = []
    for literal in clause.literals[:_LITERALS]:
        terms = {**dict(literal.outputs), **{len(spec.targets) + k: v for k, v in literal.inputs}}
        parts.append(comparison_text(terms, literal.bound, literal.strict, names))
    more = f" or ... ({len(clause.literals) - _LITERALS:,} more)" if len(clause.literals) > _LITERALS else ""
    return " or ".join(parts) + more


def _name(name: str) -> str:
    return quote_name(visible(name))


def _category(spec: Specification, column: int) -> tuple[str, str] | None:
    """Return (input, category) of a 0/1 column, or None for a number."""
    item, place = next(found for found in spec.column_slices if column < found[1].stop)
    return (item.name, item.categories[column - place.start]) if hasattr(item, "categories") else None


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

    If they mention none, return "every input". A categorical input shows only its category.
    """
    matters = {column for rule in rules for column in mentioned(spec.rules[rule])}
    parts = []
    for item, place in spec.input_slices:
        columns = range(place.start, place.stop)
        if matters.isdisjoint(columns):
            continue
        if hasattr(item, "categories"):
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


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, cut long cells, and underline the first row."""
    cut = [[cell if len(cell) <= _CELL else cell[: _CELL - 3] + "..." for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cut) for i in range(len(cut[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def html_table(title: str, rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Return a title, a table whose first row is the head, and notes, all escaped."""
    head, *body = (["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag in ("th", "td")] for row in rows)
    lines = "".join(f"<tr>{row[1]}</tr>" for row in body)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head[0]}</tr></thead><tbody>{lines}</tbody></table>{below}"
