"""Bounds computed by small ReLU networks: intervals, affine relaxations and rounding, layer by layer.

A unit whose sign is open on a box of inputs is relaxed by a line below and a line above its ReLU. The result is an
affine function below l and one above u, so everything for affine bounds applies to networks, conservatively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.float_errors import affine_errors
from smle.heads.box.proof.frozen_heads import Layer

__all__ = ["HiddenLayer"]

Array = npt.NDArray[np.float64]
_TINY = 2.0**-126
_UP = 1.0 + 1e-9


def _highest(slope: Array, low: Array, high: Array) -> Array:
    """Return the maximum of slope.x over a box. Shapes: slope (k, d) -> (k,)."""
    top: Array = np.maximum(slope * low, slope * high).sum(axis=1)
    return top


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    """h = relu(p) over a box of inputs, between lines: below * p <= h <= above * p + lift.

    p = A v + a, where v is the input or the hidden layer before this one. Shapes: weight A (k, arguments), bias a (k,);
    slopes (k, 2) float32: below and above, both in [0, 1]; lift (k,); top (k,): the largest h; errors (k,): rounding of
    the float32 program; low, high (d,).
    """

    weight: Array
    bias: Array
    slopes: npt.NDArray[np.float32]
    lift: Array
    top: Array
    errors: Array
    low: Array
    high: Array
    previous: HiddenLayer | None

    @classmethod
    def over(cls, layers: Sequence[Layer], low: Array, high: Array) -> HiddenLayer:
        """Relax hidden layers over a box; return the last one."""
        hidden: HiddenLayer | None = None
        for layer in layers:
            hidden = cls._next(layer, low, high, hidden)
        assert hidden is not None
        return hidden

    @classmethod
    def _next(cls, layer: Layer, low: Array, high: Array, previous: HiddenLayer | None) -> HiddenLayer:
        """Relax one more layer. Slopes are rounded to float32 first, as a certificate stores them."""
        weight, bias = layer.weight.astype(np.float64), layer.bias.astype(np.float64)
        if previous is None:
            sizes, inherited = np.maximum(np.abs(low), np.abs(high)), np.zeros(len(bias))
            tops = [_highest(side, low, high) for side in (weight, -weight)]
        else:
            sizes, inherited = previous.sizes, np.abs(weight) @ previous.errors
            parts = [previous.back(side) for side in (weight, -weight)]
            tops = [offset + _highest(slope, low, high) for offset, slope in parts]
        doubt = 2.0**-48 * (1 + weight.shape[1]) * (np.abs(weight) @ sizes + np.abs(bias))
        lowest, highest = bias - tops[1] - doubt, bias + tops[0] + doubt
        open_ = (lowest < 0) & (highest > 0)
        # The line above is the chord. The slope of the line below goes from 0 to 1 as the chord's goes from 1/4 to 3/4:
        # near the best choice, and without a jump, which would disturb training and which rounding could flip.
        chord = np.where(open_, highest / np.where(open_, highest - lowest, 1.0), lowest >= 0)
        slopes = np.stack([np.clip(2 * chord - 0.5, 0.0, 1.0), chord], axis=1).astype(np.float32)
        above = slopes[:, 1].astype(np.float64)
        # ReLU minus a line is convex, so it is largest at an end.
        ends = [np.maximum(end, 0.0) - above * end for end in (lowest, highest)]
        lift = np.maximum(*ends) * (1 + 1e-12)
        errors = (affine_errors(weight, sizes, bias) + inherited + _TINY) * _UP
        return cls(weight, bias, slopes, lift, np.maximum(highest, 0.0), errors, low, high, previous)

    @property
    def sizes(self) -> Array:
        """The largest |h| of the float32 program, (k,)."""
        return (self.top + self.errors) * _UP

    @property
    def chain(self) -> list[HiddenLayer]:
        """All layers up to this one, in order."""
        return [*([] if self.previous is None else self.previous.chain), self]

    def back(self, q: Array) -> tuple[Array, Array]:
        """Return (offset, slope) with q.h <= offset + slope.x on the box. Shapes: q (r, k) -> (r,), (r, d)."""
        up, down = np.maximum(q, 0.0), np.minimum(q, 0.0)
        through = up * self.slopes[:, 1] + down * self.slopes[:, 0]
        arguments = np.maximum(np.abs(self.low), np.abs(self.high)) if self.previous is None else self.previous.sizes
        sizes = np.abs(self.weight) @ arguments + np.abs(self.bias)
        doubt = 2.0**-50 * sum(self.weight.shape) * (np.abs(q) @ (sizes + self.lift))
        offset: Array = through @ self.bias + up @ self.lift + doubt
        slope = through @ self.weight
        if self.previous is None:
            return offset, slope
        more, slope = self.previous.back(slope)
        return offset + more, slope
