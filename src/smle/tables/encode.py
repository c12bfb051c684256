"""Tables to arrays and back: columns matched by name, categories one-hot, clear errors with counts."""

from __future__ import annotations

import difflib
import hashlib
import re
import unicodedata
import warnings
from collections.abc import Collection
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Categorical, Choice, NumericInput, Specification
from smle.tables.days import days_of
from smle.tables.values import (
    WHOLE_FLOAT32,
    as_objects,
    is_missing,
    is_number,
    may_be_rounded,
    plain_array,
    require_exact,
)
from smle_check.floats import BINARY32, BINARY64, nearest

__all__ = [
    "apply_domain_policy",
    "column_names",
    "column_of",
    "encode_choices",
    "encode_inputs",
    "encode_numbers",
    "in_domain",
    "option_of",
    "option_values",
    "require_columns",
    "require_distinct",
    "require_in_domain",
    "table_digest",
]

FloatArray = npt.NDArray[np.floating[Any]]
_SNAPPED = 1e-6  # of a step: what a computed multiple may be off, as in 0.1 + 0.2
_LISTED = 5  # row numbers in a warning
_REMEDY = "Drop these rows, or pass out_of_domain='warn' (or 'clip') to clamp them."


def column_of(table: Any, name: str) -> Any:
    """Return a column of a table by its name as text (pandas also allows numbers as names)."""
    return table[{str(label): label for label in table.columns}[name]]


def column_names(table: Any) -> list[str] | None:
    """Return the column names of a pandas or polars table, or None for plain arrays."""
    columns = getattr(table, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def encode_inputs(spec: Specification, table: Any) -> FloatArray:
    """Return the input columns (rows, d) in the order of `spec.columns`.

    A table with names is matched by name (further columns are ignored); an array by position. float32 stays float32,
    beside whole numbers that it can hold and categories; everything else becomes float64.

    Raises:
        DataError: If columns are missing, values are not numbers, categories are unknown or values are missing, or
            if a whole number would be rounded.
    """
    names = column_names(table)
    wanted = [item.name for item in spec.inputs]
    if names is None:
        array = _values(table)
        if array.ndim != 2 or array.shape[1] != len(wanted):
            raise DataError(
                f"Expected a table with {len(wanted)} input columns ({', '.join(wanted)}). "
                f"Got an array of shape {array.shape}."
            )
        raw = [array[:, i] for i in range(len(wanted))]
    else:
        _require_columns(names, wanted, "inputs")
        dates = {item.name: item for item in spec.inputs if isinstance(item, NumericInput) and item.dates}
        raw = [days_of(dates[n], column_of(table, n)) if n in dates else _column(table, n) for n in wanted]
    parts: list[FloatArray] = []
    for item, values in zip(spec.inputs, raw, strict=True):
        if isinstance(item, Categorical):
            parts.append(_one_hot(item, values))
        else:
            parts.append(_numbers(item, values)[:, None])
    encoded = np.concatenate(parts, axis=1, dtype=_common_format(raw, parts))
    for item, place in spec.input_slices:
        if item.step is not None:  # in the format of the table, whatever format the column came in
            encoded[:, place.start] = _multiples(encoded[:, place.start], item.step)
    return encoded


def _common_format(raw: list[npt.NDArray[Any]], parts: list[FloatArray]) -> type[np.floating[Any]]:
    """Return the format for all columns: a float32 column keeps its meaning beside whole numbers."""
    if all(part.dtype == np.float32 for part in parts):
        return np.float32
    fits = all(
        part.dtype == np.float32 or (values.dtype.kind in "iub" and bool((np.abs(part) <= WHOLE_FLOAT32).all()))
        for values, part in zip(raw, parts, strict=True)
    )
    return np.float32 if fits and any(values.dtype == np.float32 for values in raw) else np.float64


def encode_numbers(spec: Specification, y: Any) -> npt.NDArray[np.float64]:
    """Return number targets (rows, m) in the order of `spec.targets`; names are matched where there are any.

    Raises:
        DataError: If columns are missing or values are missing or not finite.
    """
    names = column_names(y)
    if names is not None:
        _require_columns(names, list(spec.targets), "outputs")
        y = np.stack([_column(y, name) for name in spec.targets], axis=1)
    try:
        array = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        flat = np.asarray(y, dtype=object).reshape(-1).tolist()
        example = next((v for v in flat if not is_number(v)), None)
        listed = ", ".join(spec.targets)
        raise DataError(f"Expected numbers in the outputs ({listed}). Got {example!r:.60}.{_comma(example)}") from None
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[1] != len(spec.targets):
        raise DataError(
            f"Expected {len(spec.targets)} output columns ({', '.join(spec.targets)}). "
            f"Got an array of shape {array.shape}."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        counts = ", ".join(f"'{n}' {c}" for n, c in zip(spec.targets, bad.sum(axis=0), strict=True) if c)
        raise DataError(
            f"Expected finite targets. Got missing or infinite values in: {counts}. Drop or fill these rows."
        )
    return array


def encode_choices(choice: Choice, y: Any) -> npt.NDArray[np.float64]:
    """Return the options of a choice as 0/1 columns (rows, options); a table is read at the choice's name.

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
    """Return the options of a choice in the type of the targets, numbers where these are numbers: (options,)."""
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
    except OverflowError:  # an option that the type of the targets cannot hold
        return texts


def _choices(choice: Choice, y: Any) -> npt.NDArray[Any]:
    """Return the targets of a choice (rows,); a table is read at the choice's name."""
    names = column_names(y)
    if names is not None:
        _require_columns(names, [choice.name], "outputs")
    return (np.asarray(y) if names is None else _column(y, choice.name)).reshape(-1)


def option_of(value: Any, options: Collection[str]) -> str:
    """Return the option that a value names: its text, or for a float that is whole that of the integer."""
    text = str(value)
    if text not in options and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return text


def require_columns(table: Any, wanted: list[str]) -> None:
    """Raise DataError if a table lacks columns of the rules, or has several of one name."""
    _require_columns(column_names(table) or [], wanted, "inputs and outputs")


def in_domain(spec: Specification, X: FloatArray) -> npt.NDArray[np.bool_]:
    """Return which entries of encoded inputs lie in the domain, as their float format reads it: (rows, d)."""
    fmt = BINARY32 if X.dtype == np.float32 else BINARY64
    lower = np.array([float(nearest(v, fmt)) for v in spec.lower], dtype=X.dtype)
    upper = np.array([float(nearest(v, fmt)) for v in spec.upper], dtype=X.dtype)
    return (lower <= X) & (upper >= X)


def require_in_domain(
    spec: Specification,
    X: FloatArray,
    what: str,
    *,
    first: int = 1,
    remedy: str = "Widen the input ranges in the rules file, or drop these rows.",
) -> None:
    """Raise DataError with counts per column if rows lie outside the domain; `first` is the number of the first row."""
    inside = in_domain(spec, X)
    if inside.all():
        return
    outside = (~inside).sum(axis=0)
    parts = []
    for i in np.flatnonzero(outside):
        values = X[~inside[:, i], i]
        low, high, found = (spec.value_text(int(i), v) for v in (spec.lower[i], spec.upper[i], values[0]))
        parts.append(
            f"'{spec.columns[i]}' {outside[i]} rows outside [{low}, {high}] "
            f"(first {found} in row {first + int(np.argmin(inside[:, i]))})"
        )
    raise DataError(
        f"{(~inside.all(axis=1)).sum()} of {len(X)} {what} lie outside the domain of the rules: {'; '.join(parts)}. "
        f"{remedy}"
    )


def apply_domain_policy(spec: Specification, encoded: FloatArray, policy: str) -> None:
    """Raise or warn about rows outside the domain, as the policy asks.

    Raises:
        DataError: If rows lie outside and the policy is `raise`.
        ValueError: If the policy is unknown.
    """
    if policy not in ("raise", "warn", "clip"):
        raise ValueError(f"Expected out_of_domain to be 'raise', 'warn' or 'clip'. Got {policy!r}.")
    if not spec.rules:
        return
    if policy == "raise":
        require_in_domain(spec, encoded, "rows", remedy=_REMEDY)
    elif policy == "warn":
        outside = np.flatnonzero(~in_domain(spec, encoded).all(axis=1))
        if len(outside):
            listed = ", ".join(map(str, (outside[:_LISTED] + 1).tolist())) + (", ..." if len(outside) > _LISTED else "")
            warnings.warn(
                f"{len(outside)} of {len(encoded)} rows lie outside the domain of the rules (rows {listed}). They were "
                "clamped; the rules hold at the clamped input.",
                stacklevel=4,
            )


def table_digest(*arrays: npt.NDArray[Any]) -> str:
    """Return a digest of encoded data, for provenance."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _column(table: Any, name: str) -> npt.NDArray[Any]:
    return _values(column_of(table, name))


def _values(column: Any) -> npt.NDArray[Any]:
    """Return values as an array: as they are, where numpy would make floats of large whole numbers.

    It does so for lists that also hold fractions, and for columns of whole numbers in which some are missing.
    """
    column = plain_array(column)
    array: npt.NDArray[Any] = plain_array(np.asarray(column))
    if isinstance(column, np.ndarray) or array.dtype != np.float64 or not may_be_rounded(array).any():
        return array
    return as_objects(column, array.shape)


def require_distinct(names: list[str], *, where: str = "The table") -> None:
    """Raise DataError if columns share a name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        listed = ", ".join(f"'{name}'" for name in repeated)
        raise DataError(f"{where} has several columns named {listed}. Rename or drop all but one.")


def _require_columns(names: list[str], wanted: list[str], what: str) -> None:
    require_distinct([name for name in names if name in wanted])
    missing = [name for name in wanted if name not in names]
    if missing:
        hints = []
        for name in missing:
            if any(_normal(name) == _normal(other) for other in names):
                hints.append(
                    f"'{name}', which is there in another Unicode form (rename the columns by "
                    "unicodedata.normalize('NFC', name), and the input in the rules)"
                )
                continue
            close = difflib.get_close_matches(name, names, n=1)
            hints.append(f"'{name}'" + (f" (did you mean '{close[0]}'?)" if close else ""))
        raise DataError(
            f"Expected the {what} of the rules as columns. Missing: {', '.join(hints)}. "
            f"The table has: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."
        )


def _numbers(item: NumericInput, values: npt.NDArray[Any]) -> FloatArray:
    if item.dates:
        values = days_of(item, values)
    if values.dtype.kind in "mMc":
        advice = " State its range in dates, as [2010-01-01, 2025-01-01]." if values.dtype.kind == "M" else ""
        raise DataError(f"Input '{item.name}': expected real numbers. Got {values.dtype} values.{advice}")
    if values.dtype == object:
        values = np.array([None if is_missing(v) else v for v in values.tolist()], dtype=object)
    try:
        numbers: FloatArray = values.astype(np.float32 if values.dtype == np.float32 else np.float64)
    except (TypeError, ValueError):
        example = next((v for v in values.tolist() if not is_number(v)), None)
        raise DataError(f"Input '{item.name}': expected numbers. Got {example!r}.{_comma(example)}") from None
    except OverflowError:
        raise DataError(f"Input '{item.name}': expected numbers. Got a whole number too large for a float.") from None
    require_exact(values[:, None], numbers[:, None], [f"Input '{item.name}'"])
    missing = np.isnan(numbers)
    if missing.any():
        if item.missing is None:
            raise DataError(
                f"Input '{item.name}': {int(missing.sum())} of {len(numbers)} values are missing. Fill them, drop the "
                f"rows, or state a stand-in in the rules file ({item.name}: {{range: ..., missing: VALUE}})."
            )
        numbers[missing] = float(item.missing)
        stand_in = np.array([[item.missing]], dtype=object)
        require_exact(stand_in, numbers[missing][:1, None], [f"Input '{item.name}', stand-in for missing values"])
    fractional = np.isfinite(numbers) & (numbers != np.rint(numbers))
    if item.integer and fractional.any():
        raise DataError(f"Input '{item.name}': expected whole numbers. Got {numbers[fractional][0]:g}.")
    if item.step is not None:
        apart = np.abs(numbers - _multiples(numbers, item.step)).astype(np.float64)
        off = np.isfinite(numbers) & (apart > (_SNAPPED * float(item.step) if numbers.dtype == np.float64 else 0.0))
        if off.any():
            raise DataError(
                f"Input '{item.name}': expected multiples of {float(item.step):g}. Got {numbers[off][0]:.9g}."
            )
    return numbers


def _multiples(numbers: FloatArray, step: Fraction) -> FloatArray:
    """Return the nearest multiples of a step, as the nearest numbers of the same format; NaN and infinities stay."""
    wide = numbers.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.rint(wide * step.denominator / step.numerator) * step.numerator / step.denominator
        return np.where(np.isfinite(found), found, wide).astype(numbers.dtype)


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _comma(value: Any) -> str:
    """Return advice about decimal commas, which are not guessed: 1,234 may be either."""
    if not isinstance(value, str) or re.fullmatch(r"\s*[+-]?[\d.\s]*\d,\d+\s*", value) is None:
        return ""
    return (
        " Save the table with decimal points, or read it with pandas.read_csv(..., sep=';', "
        "decimal=',') and pass it in Python."
    )


def _one_hot(item: Categorical, values: npt.NDArray[Any]) -> FloatArray:
    missing = np.array([is_missing(v) for v in values.tolist()], dtype=bool)
    if missing.any() and item.missing is None:
        raise DataError(f"Input '{item.name}': {int(missing.sum())} of {len(values)} values are missing. Fill them.")
    text = np.array(
        # A column of whole numbers with gaps comes from pandas as floats.
        [item.missing if m else option_of(v, item.categories) for v, m in zip(values.tolist(), missing, strict=True)],
        dtype=object,
    )
    result = np.zeros((len(values), len(item.categories)), dtype=np.float32)
    for i, category in enumerate(item.categories):
        result[:, i] = text == category
    unknown = result.sum(axis=1) == 0
    if unknown.any():
        first = str(text[unknown][0])
        hint = ""
        if _normal(first) in map(_normal, item.categories):
            hint = " It is one of them in another Unicode form: normalize the column (pandas: .str.normalize('NFC'))."
        raise DataError(
            f"Input '{item.name}': unknown category {first!r} in {int(unknown.sum())} rows. "
            f"Expected one of {', '.join(item.categories)}.{hint}"
        )
    return result
