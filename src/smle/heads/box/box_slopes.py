"""Derivatives of the paper's head: units within their bounds pass derivatives on, others move with their bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ClippedUnits"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ClippedUnits:
    """The values of a program at some rows, and its tensors.

    `inside`, `low`, `high` (n, units): units within their bounds, at the lower bound, at the upper bound. `served`
    (n,): rows answered by the head of their cell rather than its fallback.
    """

    values: Mapping[str, Array]
    tensors: Mapping[str, Array]
    inside: Mask
    low: Mask
    high: Mask
    served: Mask

    @classmethod
    def of(cls, values: Mapping[str, Array], tensors: Mapping[str, Array], answer: Array) -> ClippedUnits:
        """Read the parts from the value of each operation."""
        lower, upper = (values.get(end, tensors[f"bounds.{end}"]) for end in ("lower", "upper"))
        inside = np.asarray((answer >= lower) & (answer <= upper))
        low = np.asarray(~inside & ((answer < lower) | (upper < lower)))
        served = np.asarray(~np.isnan(values["y"]).any(axis=1))
        return cls(values, tensors, inside, low, ~inside & ~low, served)

    def _heads(self) -> Iterator[tuple[Any, Array, Array | None, bool]]:
        """Yield for each head its rows, weight (m, units), passthrough (m, d), and whether it is the free one."""
        weight, passed = self.tensors["heads.weight"], self.tensors.get("heads.passthrough")
        cell = self.values.get("cell", np.zeros(len(self.inside), dtype=np.intp))
        for head in np.unique(cell[self.served]):
            rows, free = np.flatnonzero((cell == head) & self.served), bool(head == len(weight))
            yield (
                rows,
                *(
                    (self.tensors["free.weight"], None)
                    if free
                    else (weight[head], None if passed is None else passed[head])
                ),
                free,
            )

    @property
    def _layers(self) -> list[tuple[Array, Array]]:
        """Weights of the hidden layers of bounds by a network, and masks of the units that are on."""
        found: list[tuple[Array, Array]] = []
        while (name := f"bounds.hidden.{len(found)}.weight") in self.tensors:
            found.append((self.tensors[name].astype(np.float64), self.values[f"h{len(found)}"] > 0))
        return found

    def pull(self, v: Array, by_inputs: Array, by_answers: Array) -> None:
        """Add the gradients of outputs weighted by v (n, m) to `by_inputs` (n, d) and `by_answers` (n, units)."""
        units = np.zeros(self.inside.shape)  # gradient behind the clip
        for rows, weight, passed, free in self._heads():
            w = v[rows] @ weight.astype(np.float64)
            if free:
                by_answers[rows] += w
                continue
            units[rows] = w
            if passed is not None:
                by_inputs[rows] += v[rows] @ passed.astype(np.float64)
        by_answers += np.where(self.inside, units, 0.0)
        if "lower" in self.values:
            slopes = [self.tensors[f"bounds.{end}_slope"].astype(np.float64) for end in ("lower", "upper")]
            g = np.where(self.low, units, 0.0) @ slopes[0] + np.where(self.high, units, 0.0) @ slopes[1]
            for weight, on in reversed(self._layers):
                g = np.where(on, g, 0.0) @ weight
            by_inputs += g

    def push(self, inputs: Array, answers: Array, outputs: Array) -> None:
        """Add to outputs (n, m) how they move with inputs (n, d) and embeddings (n, units)."""
        units = np.where(self.inside, answers, 0.0)
        if "lower" in self.values:
            g = inputs
            for weight, on in self._layers:
                g = np.where(on, g @ weight.T, 0.0)
            slopes = [self.tensors[f"bounds.{end}_slope"].astype(np.float64) for end in ("lower", "upper")]
            units += np.where(self.low, g @ slopes[0].T, 0.0) + np.where(self.high, g @ slopes[1].T, 0.0)
        for rows, weight, passed, free in self._heads():
            outputs[rows] += (answers if free else units)[rows] @ weight.T.astype(np.float64)
            if passed is not None:
                outputs[rows] += inputs[rows] @ passed.T.astype(np.float64)
