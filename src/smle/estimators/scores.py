"""How good answers are, output by output: R2 of numbers, accuracy of labels and choices, recall where a side is rare.

Answers are columns as in `spec.targets`: numbers, labels as 0 or 1, scores of options. Every score is one minus a mean
of losses by row, so that two models are compared row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules import Choice, Label, Number, Specification, label_columns

__all__ = ["columns_of", "decided", "losses", "metric_of", "output_entries", "scale_of", "sides_of", "total_score"]

Array = npt.NDArray[np.float64]
_RARE = 0.4  # a side is rare below this share, divided by the number of sides
_LISTED = 100  # outputs that an entry is kept of


@dataclass(frozen=True, eq=False)
class _Output:
    """An output and its columns."""

    item: Any
    columns: slice

    @property
    def sign(self) -> float:
        return 1.0 if self.item.pick == "max" else -1.0


def _outputs(spec: Specification) -> list[_Output]:
    result, start = [], 0
    for item in spec.outputs:
        end = start + (len(item.options) if isinstance(item, Choice) else 1)
        result.append(_Output(item, slice(start, end)))
        start = end
    return result


def columns_of(spec: Specification) -> list[list[int]]:
    """Return the columns of each output."""
    return [list(range(output.columns.start, output.columns.stop)) for output in _outputs(spec)]


def metric_of(spec: Specification) -> str:
    """Return the name of what is averaged over the outputs."""
    return "R2" if all(isinstance(item, Number) for item in spec.outputs) else "accuracy"


def decided(spec: Specification, outputs: Array) -> Array:
    """Return what a network computes as answers: logits of labels become 0 or 1."""
    return np.where(label_columns(spec), (outputs >= 0).astype(np.float64), outputs)


def scale_of(spec: Specification, truth: Array, weight: Array | None = None) -> Array:
    """Return the unit (m,) of each column in which squared errors add up to the loss of `losses`; 1 for others."""
    scale = np.ones(truth.shape[1])
    for output in _outputs(spec):
        if isinstance(output.item, Number):
            column = truth[:, output.columns]
            spread = float(np.sqrt(np.average((column - _mean(column, weight)) ** 2, weights=weight, axis=0)[0]))
            scale[output.columns] = spread if spread > 0 else 1.0
    return scale


def losses(spec: Specification, truth: Array, answers: Array, weight: Array | None = None) -> Array:
    """Return the loss of each row and output: squared error over the variance of the truth, or 1 where it is wrong."""
    scale = scale_of(spec, truth, weight)
    result = np.empty((len(truth), len(spec.outputs)))
    for j, output in enumerate(_outputs(spec)):
        true, found = truth[:, output.columns], answers[:, output.columns]
        if isinstance(output.item, Choice):
            result[:, j] = (output.sign * true).argmax(axis=1) != (output.sign * found).argmax(axis=1)
        elif isinstance(output.item, Number):
            error = ((true - found)[:, 0] / scale[output.columns]) ** 2
            flat = (true == true[0]).all()  # no variance to explain: as scikit-learn has it, 1 if exact and else 0
            result[:, j] = float(error.any()) if flat else error
        else:
            result[:, j] = true[:, 0] != found[:, 0]
    return result


def total_score(loss: Array, weight: Array | None = None) -> float:
    """Return the mean score of all outputs."""
    return 1.0 - float(np.average(loss.mean(axis=1), weights=weight))


def sides_of(spec: Specification, truth: Array) -> list[tuple[npt.NDArray[np.int64], tuple[str, ...]] | None]:
    """Return for each label and choice the true side of each row (n,) and the names of all sides; None for numbers."""
    result: list[tuple[npt.NDArray[np.int64], tuple[str, ...]] | None] = []
    for output in _outputs(spec):
        true = truth[:, output.columns]
        if isinstance(output.item, Number):
            result.append(None)
        elif isinstance(output.item, Choice):
            result.append(((output.sign * true).argmax(axis=1), tuple(output.item.options)))
        else:
            name = output.item.name
            result.append(((true[:, 0] >= 0.5).astype(np.int64), (f"not {name}", name)))
    return result


def output_entries(
    spec: Specification, truth: Array, loss: Mapping[str, Array], weight: Array | None = None
) -> list[dict[str, Any]]:
    """Return a plain entry per output: its `score` by method and, where a side is rare, `rare` with two more scores.

    Of very many outputs those are kept on which the safe model does worst.
    """
    entries = []
    items, sides = spec.outputs, sides_of(spec, truth)
    shown = np.arange(len(items))
    if len(shown) > _LISTED:
        shown = np.sort(np.argsort(-loss["safe"].mean(axis=0), kind="stable")[:_LISTED])
    for j in shown:
        entry: dict[str, Any] = {
            "name": items[j].name,
            "metric": "accuracy" if isinstance(items[j], Choice | Label) else "R2",
            "score": {name: 1.0 - float(np.average(rows[:, j], weights=weight)) for name, rows in loss.items()},
        }
        side = sides[j]
        if side is not None:
            rare = _rare(*side, {name: rows[:, j] for name, rows in loss.items()}, weight)
            entry |= {} if rare is None else {"rare": rare}
        entries.append(entry)
    return entries


def _rare(
    side: npt.NDArray[np.int64], names: tuple[str, ...], loss: Mapping[str, Array], weight: Array | None
) -> dict[str, Any] | None:
    """Return recall and balanced accuracy if a side that occurs is rare."""
    counts = np.bincount(side, minlength=len(names))
    there = np.flatnonzero(counts)
    rarest = int(there[counts[there].argmin()])
    share = float(counts[rarest] / len(side))
    if len(there) < 2 or share >= _RARE / len(names):
        return None

    def recall(rows: Array, which: int) -> float:
        mask = side == which
        return 1.0 - float(np.average(rows[mask], weights=None if weight is None else weight[mask]))

    return {
        "side": names[rarest],
        "rows": int(counts[rarest]),
        "recall": {name: recall(rows, rarest) for name, rows in loss.items()},
        "balanced_accuracy": {
            name: float(np.mean([recall(rows, int(k)) for k in there])) for name, rows in loss.items()
        },
    }


def _mean(column: Array, weight: Array | None) -> Any:
    return np.average(column, weights=weight, axis=0)
