"""Targets to numbers: outputs of the rules by name, options of a choice as 0/1 columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Choice, Label, Specification
from smle.tables.any_table import as_table, column_names, column_of, raw_values, require_names
from smle.tables.values import is_missing, read_numbers

__all__ = ["encode_choices", "encode_numbers", "option_of", "option_values"]


def encode_numbers(spec: Specification, y: Any) -> npt.NDArray[np.float64]:
    """Return number targets (rows, m) in the order of `spec.targets`, matched by name if there are names.

    Raises:
        DataError: If columns or values are missing, or values are not finite.
    """
    y, targets = as_table(y), list(spec.targets)
    names = column_names(y)
    if names is not None:
        require_names(names, targets, "the outputs of the rules")
        columns = [raw_values(column_of(y, name)) for name in targets]
    else:
        array = raw_values(y)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2 or array.shape[1] != len(targets):
            raise DataError(
                f"Expected {len(targets)} output columns ({', '.join(targets)}). Got an array of shape {array.shape}."
            )
        columns = list(array.T)
    labels = {item.name for item in spec.outputs if isinstance(item, Label)}
    array = np.empty((len(columns[0]), len(targets)))
    for place, (name, values) in enumerate(zip(targets, columns, strict=True)):
        array[:, place], faults = read_numbers(name, values, truth=name in labels, noun="Output")
        if faults:
            raise DataError(faults[0].message)
    bad = ~np.isfinite(array)
    if bad.any():
        counts = ", ".join(f"'{n}' {c}" for n, c in zip(spec.targets, bad.sum(axis=0), strict=True) if c)
        raise DataError(
            f"Expected finite targets. Got missing or infinite values in: {counts}. Drop or fill these rows."
        )
    return array


def encode_choices(choice: Choice, y: Any) -> npt.NDArray[np.float64]:
    """Return the options of a choice as 0/1 columns (rows, options); of a table, the column of that name is read.

    Raises:
        DataError: If an option is unknown.
    """
    known = {option: i for i, option in enumerate(choice.options)}
    flat = _choices(choice, y).tolist()
    missing = sum(is_missing(value) for value in flat)
    if missing:
        raise DataError(f"Choice '{choice.name}': {missing} of {len(flat)} values are missing. Drop these rows.")
    texts = [option_of(value, known) for value in flat]
    unknown = sorted(set(texts) - set(known))
    if unknown:
        raise DataError(
            f"Choice '{choice.name}': unknown option {unknown[0]!r}. Expected one of {', '.join(choice.options)}."
        )
    result: npt.NDArray[np.float64] = np.eye(len(known))[[known[text] for text in texts]]
    return result


def option_values(choice: Choice, y: Any) -> npt.NDArray[Any]:
    """Return the options of a choice (options,) in the type of the targets."""
    texts: npt.NDArray[Any] = np.asarray(choice.options, dtype=object)
    if y is None:
        return texts
    flat = _choices(choice, y)
    if flat.dtype.kind not in "iufb":
        return texts
    seen = {option_of(value, choice.options): value for value in np.unique(flat).tolist()}
    for option in choice.options:
        if option not in seen and flat.dtype.kind != "b":
            try:
                value = int(option) if flat.dtype.kind in "iu" else float(option)
            except ValueError:
                return texts
            seen[option] = value
    values = [seen.get(option) for option in choice.options]
    if [option_of(value, choice.options) for value in values] != list(choice.options):
        return texts
    try:
        return np.array(values, dtype=flat.dtype)
    except OverflowError:  # the type of the targets cannot hold an option
        return texts


def _choices(choice: Choice, y: Any) -> npt.NDArray[Any]:
    """Return the targets of a choice (rows,); of a table, the column of that name is read."""
    y = as_table(y)
    names = column_names(y)
    if names is not None:
        require_names(names, [choice.name], "the outputs of the rules")
        y = column_of(y, choice.name)
    return raw_values(y).reshape(-1)


def option_of(value: Any, options: Collection[str]) -> str:
    """Return the option that a value names: its text, or that of the integer for a whole float."""
    text = str(value)
    if text not in options and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return text
