"""For people: numbers, rows and clauses in the rules language, tables as aligned text or as plain HTML."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING

from smle.rules.dates import date_text
from smle.rules.expressions import quote_name
from smle_check.names import visible
from smle_check.words import comparison_text

if TYPE_CHECKING:
    from smle.rules.formula import Clause, Polytope, Row
    from smle.rules.specification import Specification

__all__ = ["clause_text", "html_table", "number_text", "region_text", "row_text", "share_text", "text_table"]

_LITERALS = 8  # of a clause that are shown
_CELL = 60  # characters of a cell


def number_text(value: Fraction | float, digits: int = 6, *, grouped: bool = False) -> str:
    """Return a number rounded to a few significant digits, with an exponent only if it is very large or very small.

    All digits before the point are shown. `grouped`: `12,345` instead of `12345`.
    """
    text = f"{float(value):.{digits}g}"
    if "e" in text and 0 < int(text.split("e")[1]) < 9:
        text = f"{float(value):.0f}"
    whole, point, decimals = text.partition(".")
    if grouped and len(whole.lstrip("-")) > 4 and whole.lstrip("-").isdecimal():
        whole = f"{int(whole):,}"
    return whole + point + decimals


def share_text(share: float) -> str:
    """Return a share in percent; 0% and 100% are said only of exactly none and exactly all."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    for digits in range(1, 6):
        text = f"{share * 100:.{digits}f}"
        if 0 < float(text) < 100:
            return text + "%"
    return "below 0.00001%" if share < 0.5 else "above 99.99999%"


def row_text(spec: Specification, row: Row) -> str:
    """Return a half-space over inputs as a rule would state it; `road == icy` where it says just that."""
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
    """Return a condition in the words of the rules: `score < 480 and work == none`; without one, nothing.

    Where an input is missing, that it has its stand-in is not said.
    """
    asked = {column for row in region.rows for column, value in row.coefficients if value < 0}
    implied = {i for _, place, flag in spec.flagged if flag in asked for i in range(place.start, place.stop)}
    rows = [row for row in region.rows if not (row.is_comparison and row.coefficients[0][0] in implied)]
    return " and ".join(row_text(spec, row) for row in rows)


def clause_text(spec: Specification, clause: Clause) -> str:
    """Return a clause as a rule would state it; of a long one the first literals."""
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
    """Return the categorical input and the category of a 0/1 column; None for a number."""
    item, place = next(found for found in spec.column_slices if column < found[1].stop)
    return (item.name, item.categories[column - place.start]) if hasattr(item, "categories") else None


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns; long entries are cut. The first row is underlined."""
    cut = [[cell if len(cell) <= _CELL else cell[: _CELL - 3] + "..." for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cut) for i in range(len(cut[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def html_table(title: str, rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Return a title, rows as a table whose first row is its head, and notes below; everything is escaped."""
    head, *body = (["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag in ("th", "td")] for row in rows)
    lines = "".join(f"<tr>{row[1]}</tr>" for row in body)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head[0]}</tr></thead><tbody>{lines}</tbody></table>{below}"
