"""Columns of a table as numbers for a network: numbers with stand-ins for missing ones, text one-hot encoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError, ModelFormatError
from smle.rules import Specification
from smle.tables.any_table import column_names, column_of, require_columns
from smle.tables.frames import as_numbers, as_texts, examined_numbers, frame_of, is_text
from smle.tables.values import Fault

__all__ = ["FurtherColumns"]

Array = npt.NDArray[np.float64]
_CATEGORIES = 100  # most values of a text column; one with more is likely an identifier


@dataclass(frozen=True)
class FurtherColumns:
    """Columns that a network reads besides the inputs of the rules, in the order in which it reads them.

    * `numbers`: by name, what replaces a missing value: the mean of the others.
    * `flagged`: those with missing values in training; each gets another column that is 1 where the value is missing.
    * `texts`: by name, the values that have a column. Any other value is 0 in all of them.
    """

    numbers: Mapping[str, float]
    flagged: tuple[str, ...]
    texts: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, table: Any, spec: Specification | None = None, *, without: Collection[str] = ()) -> FurtherColumns:
        """Choose the columns of a table to read: all but outputs of the rules and those in `without`.

        Text columns with more than 100 values, and columns without a value, are left out. Raises DataError if a column
        holds neither numbers nor text, or infinities.
        """
        frame = frame_of(table, spec)
        numbers, flagged, texts = {}, [], {}
        for name in frame.columns:
            missing = frame[name].isna().to_numpy()
            if name in without or missing.all():
                continue
            if is_text(frame[name]):
                known = tuple(sorted(set(as_texts(frame[name]).tolist())))
                if len(known) <= _CATEGORIES:
                    texts[name] = known
                continue
            values = as_numbers(name, frame[name], np.float64, finite=True)
            numbers[name] = float(values[~missing].mean())
            if missing.any():
                flagged.append(name)
        return cls(numbers, tuple(flagged), texts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return (*self.numbers, *self.texts)

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return len(self.numbers) + len(self.flagged) + sum(map(len, self.texts.values()))

    def read(self, table: Any) -> Array:
        """Return the columns of a table as numbers (rows, width).

        Raises DataError if a column differs from training.
        """
        self._require(table)
        parts: list[npt.NDArray[Any]] = []
        absent = {}
        for name, usual in self.numbers.items():
            values = as_numbers(name, column_of(table, name), np.float64, finite=True)
            absent[name] = np.isnan(values)
            parts.append(np.where(absent[name], usual, values)[:, None])
        parts += [absent[name][:, None] for name in self.flagged]
        for name, known in self.texts.items():
            parts.append(as_texts(column_of(table, name))[:, None] == np.array(known, dtype=object))
        if not parts:
            return np.zeros((len(table), 0))
        return np.concatenate(parts, axis=1, dtype=np.float64)

    def faults(self, table: Any) -> list[Fault]:
        """Return what is wrong with rows of a table, column by column. Raises DataError if a column is missing."""
        self._require(table)
        read = (examined_numbers(name, column_of(table, name), np.float64, finite=True) for name in self.numbers)
        return [fault for _, faults in read for fault in faults]

    def _require(self, table: Any) -> None:
        if column_names(table) is None:
            raise DataError(f"Expected a table with the columns {', '.join(self.names)}. Got {type(table).__name__}.")
        require_columns(table, list(self.names), "what the model was trained on (more than the rules name)")

    def to_json(self) -> dict[str, Any]:
        """Return the entry of model.json, as lists: the order counts, and model.json sorts the keys of objects."""
        return {
            "numbers": [[name, usual] for name, usual in self.numbers.items()],
            "flagged": list(self.flagged),
            "texts": [[name, list(values)] for name, values in self.texts.items()],
        }

    @classmethod
    def from_json(cls, value: Any) -> FurtherColumns:
        """Read the result of `to_json`. Raises ModelFormatError if it is malformed."""
        try:
            numbers, flagged, texts = (value[name] for name in ("numbers", "flagged", "texts"))
            found = cls(
                {str(name): float(usual) for name, usual in numbers},
                tuple(str(name) for name in flagged),
                {str(name): tuple(map(str, known)) for name, known in texts},
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            found = None
        if found is None or not set(found.flagged) <= set(found.numbers) or set(found.numbers) & set(found.texts):
            raise ModelFormatError("model.json: expected the columns that the network reads, as `further`.")
        return found
