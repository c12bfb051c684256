"""Tables of pages, all drawn by the macro `table` in assets/tables.html."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from smle.report import svg
from smle.rules import share_text

__all__ = ["Cell", "Table", "named", "numbers", "share"]

_LONG = 24  # longer tables with a label scroll, and can be filtered if `rows_are` is set

Cell = Markup | str


@dataclass(frozen=True)
class Table:
    """A table for readers. Text that is not markup is escaped.

    * `columns`: title and class of the cells (`number`, `share`, `long`); the first column names the rows.
    * `label`: names the table, for a frame that scrolls; `rows_are`: names its rows, for the filter.
    """

    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Cell]]
    caption: Cell = ""
    label: str = ""
    rows_are: str = ""

    @property
    def is_long(self) -> bool:
        """Whether the table scrolls."""
        return bool(self.label) and (not self.rows_are or len(self.rows) > _LONG)

    @property
    def anchor(self) -> str:
        """The id of the rows, for the filter."""
        return f"{self.rows_are}-list"


def numbers(titles: Sequence[str]) -> list[tuple[str, str]]:
    """Return columns of numbers."""
    return [(title, "number") for title in titles]


def named(name: str, hint: str = "") -> Cell:
    """Return the name of a row, with a hint below."""
    return Markup('{}<span class="hint">{}</span>').format(name, hint) if hint else name


def share(part: float, text: str | None = None, *, title: str = "") -> Cell:
    """Return a bar for a share of a whole, and a text; by default the share in percent."""
    shown = share_text(part)
    return svg.share_bar(part, title=f"{title}: {shown}" if title else shown) + escape(shown if text is None else text)
