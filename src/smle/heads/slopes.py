"""Derivatives of what a head serves. Heads are affine on pieces: each row has one derivative, by answers and by inputs.

Nothing here is served, and nothing is proved. At the border of two pieces the derivative is that of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Limits", "Part", "Slopes", "changed_bits"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_NUMBER = 0x7FFFFFFF  # all bits of a float32 but its sign


def changed_bits(own: npt.NDArray[Any], final: npt.NDArray[Any]) -> Mask:
    """Return which float32 numbers were changed, by their bits; the two zeros count as one number.

    Where a processor takes tiny numbers for 0, a comparison of numbers would call them equal.
    """
    a, b = own.view(np.int32), final.view(np.int32)
    return np.asarray((a != b) & ((a | b) & _NUMBER != 0))


class Part(Protocol):
    """What some rows and outputs add to derivatives."""

    def pull(self, v: Array, by_inputs: Array, by_answers: Array) -> None:
        """Add what outputs weighted by v (n, m) pull at inputs (n, d) and at answers (n, width)."""

    def push(self, inputs: Array, answers: Array, outputs: Array) -> None:
        """Add to outputs (n, m) how they move when inputs and answers do."""


@dataclass(frozen=True, eq=False)
class Limits:
    """Outputs that are functions of the inputs alone: `slopes` (p, d) of outputs (p,) in rows (p,)."""

    rows: Numbers
    outputs: Numbers
    slopes: Array

    def pull(self, v: Array, by_inputs: Array, by_answers: Array) -> None:
        """See `Part`."""
        np.add.at(by_inputs, self.rows, v[self.rows, self.outputs][:, None] * self.slopes)

    def push(self, inputs: Array, answers: Array, outputs: Array) -> None:
        """See `Part`."""
        np.add.at(outputs, (self.rows, self.outputs), (inputs[self.rows] * self.slopes).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives at n rows.

    * `kept` (n, m): outputs that are the model's own answers, or move with them alone, one for one.
    * `usable` (n, width): answers that are read; a default takes the place of others, such as NaN.
    * `inside` (n, d): inputs in the domain; others are clamped to it. None: no output moves with inputs.
    * `parts`: what other outputs add.
    """

    kept: Mask
    usable: Mask
    inside: Mask | None
    parts: Sequence[Part] = ()

    def pull(self, v: Array, columns: int) -> tuple[Array, Array]:
        """Return what outputs weighted by v (n, m) pull at inputs (n, columns) and at answers (n, width)."""
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
        """Return how outputs (n, m) move when inputs (n, d) and answers (n, width) do; None: they stay."""
        dt = np.zeros(self.usable.shape) if answers is None else np.where(self.usable, answers, 0.0)
        if self.inside is None:
            dx = np.zeros((len(dt), 0))
        else:
            dx = np.zeros(self.inside.shape) if inputs is None else np.where(self.inside, inputs, 0.0)
        dy = np.where(self.kept, dt, 0.0) if self.kept.any() else np.zeros(self.kept.shape)
        for part in self.parts:
            part.push(dx, dt, dy)
        return dy
