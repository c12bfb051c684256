"""Sets aside rows that cannot be read, each with a reason; the others are answered as if they came alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smle.tables.any_table import rows_at
from smle.tables.values import Fault

if TYPE_CHECKING:
    from smle.tables.reader import ReadTable

__all__ = ["ASIDE", "BAD_ROWS", "SetAside", "require_bad_rows"]

Array = npt.NDArray[Any]
ASIDE = "set aside"
BAD_ROWS = ("raise", ASIDE)
"""What to do about rows that cannot be read."""
_LISTED = 3  # reasons in a warning


def require_bad_rows(value: str) -> None:
    """Raise ValueError if a value is none of `BAD_ROWS`."""
    if value not in BAD_ROWS:
        raise ValueError(f"Expected bad_rows to be 'raise' or '{ASIDE}'. Got {value!r}.")


@dataclass(frozen=True, eq=False)
class SetAside:
    """Rows of a table that were set aside.

    Attributes:
        rows: How many rows the table has.
        reasons: What is wrong with each row set aside, by its number from 0.
    """

    rows: int
    reasons: dict[int, str]

    @classmethod
    def of(cls, rows: ReadTable, faults: Iterable[Fault]) -> SetAside:
        """Collect what is wrong with rows, naming each value once."""
        found: dict[int, dict[str, str]] = {}
        for fault in faults:
            for row, reason in zip(fault.rows.tolist(), fault.reasons(), strict=True):
                found.setdefault(row, {}).setdefault(fault.column, reason)
        return cls(len(rows), {row: "; ".join(reasons.values()) for row, reasons in sorted(found.items())})

    def __len__(self) -> int:
        return len(self.reasons)

    @property
    def kept(self) -> npt.NDArray[np.intp]:
        """The numbers of the other rows, from 0."""
        return np.delete(np.arange(self.rows), list(self.reasons))

    def others(self, rows: ReadTable) -> Any:
        """Return the other rows as a table of the same kind."""
        return rows_at(rows.table, self.kept)

    def aligned(self, values: Any) -> Any:
        """Put answers to the other rows (k, ...) in place among all rows (n, ...).

        Rows set aside get NaN if answers are floats, else None, so that no label or option is made up.
        """
        if hasattr(values, "columns"):
            import pandas as pd

            return pd.DataFrame({name: self.aligned(values[name].to_numpy()) for name in values.columns})
        values = np.asarray(values)
        return self._filled(values, np.nan) if values.dtype.kind == "f" else self._filled(values.astype(object), None)

    def information(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Put the facts about the other rows in place among all rows, and add the reasons as `set_aside`."""
        empty = {"in_domain": False, "served": ASIDE, "replaced": False}
        result: dict[str, Any] = {}
        for name, values in facts.items():
            if isinstance(values, list):  # names of rules
                result[name] = [()] * self.rows
                for row, value in zip(self.kept.tolist(), values, strict=True):
                    result[name][row] = value
            else:
                result[name] = self._filled(values, empty.get(name, np.nan))
        return {**result, "set_aside": self.reasons}

    def _filled(self, values: Array, empty: Any) -> Array:
        result = np.full((self.rows, *values.shape[1:]), empty, dtype=values.dtype)
        result[self.kept] = values
        return result

    def text(self, more_by: str = "return_info=True") -> str:
        """Say how many rows were set aside, and why the first ones were, counting rows from 1."""
        first = [f"row {row + 1}: {reason}" for row, reason in list(self.reasons.items())[:_LISTED]]
        more = ", ..." if len(self) > _LISTED else ""
        were = "was" if len(self) == 1 else "were"
        return (
            f"{len(self)} of {self.rows} rows {were} set aside ({', '.join(first)}{more}). Answers to them are NaN or "
            f"None; {more_by} gives all reasons."
        )
