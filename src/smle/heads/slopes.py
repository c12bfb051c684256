"""Derivatives of what a head serves. Heads are piecewise affine: each row has one derivative, by answers and by inputs.

Derivatives are neither served nor proved. Where two pieces meet, the derivative is that of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Limits", "SlopePart", "Slopes", "changed_bits"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_NUMBER = 0x7FFFFFFF  # all bits of a float32 but its sign


def changed_bits(own: npt.NDArray[Any], final: npt.NDArray[Any]) -> Mask:
    """Return a mask of the float32 numbers that changed, by their bits; the two zeros count as equal.

    Comparing numbers is not enough: a processor that flushes tiny numbers to 0 would call them equal.
    """
    a, b = own.view(np.int32), final.view(np.int32)
    return np.asarray((a != b) & ((a | b) & _NUMBER != 0))


class SlopePart(Protocol):
    """The contribution of some rows and outputs to derivatives."""

    def pull(self, v: Array, by_inputs: Array, by_answers: Array) -> None:
        """Add the gradients of outputs weighted by v (n, m) to `by_inputs` (n, d) and `by_answers` (n, width)."""

    def push(self, inputs: Array, answers: Array, outputs: Array) -> None:
        """Add to outputs (n, m) how they move with inputs and answers."""


@dataclass(frozen=True, eq=False)
class Limits:
    """Outputs that depend on the inputs alone: `slopes` (p, d) of outputs (p,) in rows (p,)."""

    rows: Numbers
    outputs: Numbers
    slopes: Array

    def pull(self, v: Array, by_inputs: Array, by_answers: Array) -> None:
        """See `SlopePart`."""
        np.add.at(by_inputs, self.rows, v[self.rows, self.outputs][:, None] * self.slopes)

    def push(self, inputs: Array, answers: Array, outputs: Array) -> None:
        """See `SlopePart`."""
        np.add.at(outputs, (self.rows, self.outputs), (inputs[self.rows] * self.slopes).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives at n rows.

    * `kept` (n, m): outputs that are the model's own answers, or move one to one with them.
    * `usable` (n, width): answers that are read; others, such as NaN, are replaced by a default.
    * `inside` (n, d): inputs in the domain; others are clamped. None if no output depends on inputs.
    * `parts`: contributions of other outputs.
    """

    kept: Mask
    usable: Mask
    inside: Mask | None
    parts: Sequence[SlopePart] = ()

    def pull(self, v: Array, columns: int) -> tuple[Array, Array]:
        """Return gradients by inputs (n, columns) and by answers (n, width) of outputs weighted by v (n, m)."""
        by_inputs, by_answers = np.zeros((len(v), columns)), np.zeros(self.usable.shape)
        if self.kept.any():
            np.copyto(by_answers, v, where=self.kept)
        for part in self.parts:
            part.pull(v, by_inputs, by_answers)
        by_answers[~self.usable] = 0.0
        if self.inside is not None:
            by_inputs[~self.inside] = 0.0
        return by_inputs, by_answers

    def push(self, inputs: Array | None, answers: Array | None) -> Array:
        """Return how outputs (n, m) move with inputs (n, d) and answers (n, width); None means no movement."""
        dt = np.zeros(self.usable.shape) if answers is None else np.where(self.usable, answers, 0.0)
        if self.inside is None:
            dx = np.zeros((len(dt), 0))
        else:
            dx = np.zeros(self.inside.shape) if inputs is None else np.where(self.inside, inputs, 0.0)
        dy = np.where(self.kept, dt, 0.0) if self.kept.any() else np.zeros(self.kept.shape)
        for part in self.parts:
            part.push(dx, dt, dy)
        return dy
