"""Outputs of the rules as arrays: targets, and the answers of a model.

Columns are numbers, logits of labels, and for options of a choice 0/1 or scores. A model may also answer decisions
(labels as 0 or 1, options by name); then rules that compare raw scores cannot be judged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Choice, Label, Specification
from smle.tables.any_table import as_table, column_names, column_of, raw_values, require_names
from smle.tables.values import is_missing, read_numbers

__all__ = ["encode_choices", "encode_numbers", "option_of", "option_values", "outputs_of"]

Doubles = npt.NDArray[np.float64]


def encode_numbers(spec: Specification, y: Any) -> Doubles:
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


def encode_choices(choice: Choice, y: Any) -> Doubles:
    """Return the options of a choice as 0/1 columns (rows, options); a table has them in the column of that name.

    Raises:
        DataError: If an option is unknown, a value is missing, or a table lacks the column.
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
    result: Doubles = np.eye(len(known))[[known[text] for text in texts]]
    return result


def option_values(choice: Choice, y: Any) -> npt.NDArray[Any]:
    """Return the options of a choice (options,) in the type of the targets, or as text if it cannot hold them."""
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
    """Return the targets of a choice (rows,); a table has them in the column of that name."""
    y = as_table(y)
    names = column_names(y)
    if names is not None:
        require_names(names, [choice.name], "the outputs of the rules")
        y = column_of(y, choice.name)
    return raw_values(y).reshape(-1)


def option_of(value: Any, options: Collection[str]) -> str:
    """Return the option that a value names: its text, or for a whole float that of the integer."""
    text = str(value)
    if text not in options and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return text


def outputs_of(spec: Specification, found: Any, rows: int) -> Doubles:
    """Return answers as columns (rows, m) in the order of `spec.targets`.

    `found` is a table with a column per output, or an array with a column per target, or per output with decisions.
    Raises DataError if the shape differs, or a rule needs scores and there are only decisions.
    """
    names = column_names(found)
    wanted = [item.name for item in spec.outputs]
    if names is not None and set(wanted) <= set(names):
        return _joined(spec, [np.asarray(column_of(found, name)) for name in wanted], rows)
    array = found.detach().cpu().numpy() if hasattr(found, "detach") else np.asarray(found)
    array = array[:, None] if array.ndim == 1 else array
    if array.shape == (rows, len(spec.targets)) and array.dtype.kind == "f":
        return np.asarray(array, dtype=np.float64)
    if array.shape == (rows, len(wanted)):
        return _joined(spec, list(array.T), rows)
    raise DataError(
        f"Expected answers of shape {(rows, len(spec.targets))}, a column each for {', '.join(spec.targets)}. Got "
        f"{array.shape} of {array.dtype}."
    )


def _joined(spec: Specification, parts: list[npt.NDArray[Any]], rows: int) -> Doubles:
    columns = []
    for item, values in zip(spec.outputs, parts, strict=True):
        if isinstance(item, Choice):
            _require_decisions(spec, item)
            picked = encode_choices(item, values)
            columns.append(picked if item.pick == "max" else 1.0 - picked)
            continue
        try:
            numbers = values.astype(np.float64).reshape(rows, 1)
        except (TypeError, ValueError):
            raise DataError(f"Expected numbers as answers for '{item.name}'. Got {values[:1].tolist()}.") from None
        if isinstance(item, Label) and values.dtype.kind != "f":
            _require_decisions(spec, item)
            numbers = np.where(numbers > 0, 1.0, -1.0)
        columns.append(numbers)
    return np.concatenate(columns, axis=1)


def _require_decisions(spec: Specification, output: Label | Choice) -> None:
    """Raise DataError if a rule needs more of an output than the decision."""
    own = {i for i, name in enumerate(spec.targets) if name in output.columns}
    for rule in spec.rules:
        for literal in (a for clause in rule.requirement.clauses for a in clause.literals):
            used = {i for i, _ in literal.outputs}
            if used.isdisjoint(own):
                continue
            values = sorted(v for _, v in literal.outputs)
            decided = values == [-1, 1] if isinstance(output, Choice) else len(values) == 1
            if not (decided and used <= own and not literal.inputs and not literal.bound):
                raise DataError(
                    f"Rule '{rule.name}' compares raw scores of '{output.name}', and the model answers decisions only. "
                    f"Hand over a function that answers a column each for {', '.join(spec.targets)}."
                )
