"""Tables for people: aligned text for terminals, plain HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["html_table", "text_table"]


def text_table(rows: Sequence[Sequence[str]], *, limit: int = 60) -> str:
    """Return rows as aligned columns; long entries are cut. The first row is underlined."""
    cut = [[cell if len(cell) <= limit else cell[: limit - 3] + "..." for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cut) for i in range(len(cut[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def html_table(title: str, rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Return a title, rows as a table whose first row is its head, and notes below; everything is escaped."""
    head, *body = (["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag in ("th", "td")] for row in rows)
    lines = "".join(f"<tr>{row[1]}</tr>" for row in body)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head[0]}</tr></thead><tbody>{lines}</tbody></table>{below}"
