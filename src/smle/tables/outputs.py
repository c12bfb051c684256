"""A model's answers as output columns: numbers, logits of labels, scores of options.

Decisions (labels as 0 or 1, options by name) are accepted, too; then rules that compare raw scores cannot be judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smle.errors import DataError
from smle.rules import Choice, Label, Specification
from smle.tables.any_table import column_names, column_of
from smle.tables.target_columns import encode_choices

__all__ = ["outputs_of"]

Doubles = npt.NDArray[np.float64]


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
