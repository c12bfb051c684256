"""Exclusions `y_h < 0 or y_k < 0` at scale: one weight per pair, found for all pairs at once, in chunks.

For constant bounds, with a = half-width x head row and beta = logit at the box center plus rounding error, a pair is
proved by weights (w, 1 - w) if

    || w a_h + (1 - w) a_k ||_1 + w beta_h + (1 - w) beta_k < 0.

The left side is convex and piecewise linear in w. One scale per label (1 / ||a||_1) is tried first; for the rest,
tangents from both sides of the minimum are intersected, which ends after a few steps. Affine bounds and pass-through
add a term that is priced over the domain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.frozen_heads import Head
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox
from smle.regions.geometry import Domain

__all__ = ["PairValues", "best_weights", "verify_exclusions"]

Array = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]
Pairs = npt.NDArray[np.int32]

_CHUNK_NUMBERS = 1 << 19
_STEPS = 40
_GRID = 2.0**23
_GAIN = 1e-7
"""Stop when the bound can improve by less than this share."""


@dataclass(frozen=True, eq=False)
class PairValues:
    """The terms of the bound of a pair. Shapes: rows (m, n), offsets (m,), slopes and half_slopes or None.

    With the box z = center + center_slope x +- (half + half_slope x): rows = W, offsets = W center + b + E.
    """

    rows: Array
    half: Array
    offsets: Array
    slope: Array | None
    half_slope: Array | None
    domain: Domain

    @classmethod
    def of(cls, head: HeadNumbers, envelope: WidenedBox, domain: Domain) -> PairValues:
        """Collect the terms of a head under an envelope."""
        center, half = (envelope.lower + envelope.upper) / 2, (envelope.upper - envelope.lower) / 2
        slope = half_slope = None
        if envelope.upper_slope is not None and envelope.lower_slope is not None:
            half_slope = (envelope.upper_slope - envelope.lower_slope) / 2
            slope = head.W @ ((envelope.upper_slope + envelope.lower_slope) / 2)
        if head.V is not None:
            slope = head.V if slope is None else slope + head.V
        # Covers the float64 errors of the sums below, per label.
        terms = head.W.shape[1] + len(domain.low) + 16
        deduction = 4 * terms * 2.0**-52 * np.minimum(head.sizes, 1e38)
        offsets = head.W @ center + head.b + head.errors * (1 + 1e-9) + deduction
        return cls(head.W, half, offsets, slope, half_slope, domain)

    def scales(self) -> Array:
        """Return one scale per label, 1 / (size of its row over the box), (m,)."""
        size = np.abs(self.rows) @ self.half
        if self.slope is not None:
            size = size + np.abs(self.slope) @ (self.domain.high - self.domain.low)
        return 1.0 / np.maximum(size, 1e-30)

    def bound(self, first: Pairs, second: Pairs, w: Array) -> tuple[Array, Array]:
        """Return (bound, derivative in w) for pairs (first, second) with weights (w, 1 - w). Shapes: (p,)."""
        left, right = self.rows[first], self.rows[second]
        difference = left - right
        v = right + w[:, None] * difference
        change = self.offsets[first] - self.offsets[second]
        value = np.abs(v) @ self.half + self.offsets[second] + w * change
        half = np.broadcast_to(self.half, v.shape)
        if self.slope is not None:
            c = self.slope[second] + w[:, None] * (self.slope[first] - self.slope[second])
            if self.half_slope is not None:
                c = c + np.abs(v) @ self.half_slope
            x = np.where(c > 0, self.domain.high, self.domain.low)
            if self.half_slope is not None:
                half = self.half + x @ self.half_slope.T
            value = value + (c * x).sum(axis=1)
            change = change + ((self.slope[first] - self.slope[second]) * x).sum(axis=1)
        derivative = np.einsum("ij,ij,ij->i", np.sign(v), difference, half) + change
        return value, derivative


def verify_exclusions(
    pairs: Pairs, head: Head, envelope: WidenedBox, domain: Domain, *, best: bool = False
) -> tuple[Weights, Array]:
    """Return float32 weights (p, 2) and margins (p,) for all pairs; a pair is proved if its margin is > 0.

    A pair that one scale per label proves keeps that weight, so its margin is a lower bound; with `best=True` every
    pair is optimized.
    """
    values = PairValues.of(HeadNumbers.of(head, envelope, domain), envelope, domain)
    weights, bounds = best_weights(pairs, values, best=best)
    margins = -bounds
    if head.fallback is not None:
        positive = head.fallback >= 0
        broken = positive[pairs[:, 0]] & positive[pairs[:, 1]]
        margins[broken] = np.minimum(margins[broken], 0.0)
    return weights, margins


def best_weights(pairs: Pairs, values: PairValues, *, best: bool = True) -> tuple[Weights, Array]:
    """Return float32 weights (p, 2) and upper bounds (p,) on min(y_h, y_k), in chunks.

    With `best=False` the search for a pair ends once its bound is negative, or cannot become so.
    """
    scales = values.scales()
    weights = np.empty((len(pairs), 2), dtype=np.float32)
    bounds = np.empty(len(pairs))
    chunk = max(1, _CHUNK_NUMBERS // max(1, values.rows.shape[1]))
    for start in range(0, len(pairs), chunk):
        part = slice(start, start + chunk)
        weights[part], bounds[part] = _chunk(pairs[part], values, scales, best=best)
    return weights, bounds


def _chunk(pairs: Pairs, values: PairValues, scales: Array, *, best: bool) -> tuple[Weights, Array]:
    """Minimize the convex bound of every pair by intersecting tangents from both sides of the minimum."""
    first, second = pairs[:, 0], pairs[:, 1]
    w = _on_grid(scales[first] / (scales[first] + scales[second]))
    bound, slope = values.bound(first, second, w)
    found = w.copy()
    todo = np.arange(len(pairs)) if best else np.flatnonzero(~(bound < 0))
    left = _Tangents.ends(len(todo), 0.0)
    right = _Tangents.ends(len(todo), 1.0)
    trial, value, derivative = w[todo], bound[todo], slope[todo]
    for _ in range(_STEPS):
        up = derivative > 0
        right.update(up, trial, value, derivative)
        left.update(~up, trial, value, derivative)
        cut, floor = _intersection(left, right)
        # The convex bound cannot go below `floor`: give up pairs that fail even there.
        open_ = (floor < bound[todo] - _GAIN * np.abs(bound[todo])) & (left.at < right.at)
        if not best:
            open_ &= ~(bound[todo] < 0) & ~(floor >= 0)
        todo, cut = todo[open_], cut[open_]
        left, right = left.keep(open_), right.keep(open_)
        if not len(todo):
            break
        trial = _on_grid(cut)
        value, derivative = values.bound(first[todo], second[todo], trial)
        better = value < bound[todo]
        bound[todo[better]], found[todo[better]] = value[better], trial[better]
    weights = np.stack([found, 1.0 - found], axis=1).astype(np.float32)
    return weights, bound


def _on_grid(w: Array) -> Array:
    """Round weights to multiples of 2^-23, so that w and 1 - w are float32 numbers that add up to 1."""
    return np.round(w * _GRID) / _GRID


@dataclass(eq=False)
class _Tangents:
    """Points of the convex bound on one side of its minimum, with tangents; slope is NaN until evaluated."""

    at: Array
    value: Array
    slope: Array

    @classmethod
    def ends(cls, size: int, at: float) -> _Tangents:
        return cls(np.full(size, at), np.full(size, np.nan), np.full(size, np.nan))

    def update(self, mask: npt.NDArray[np.bool_], at: Array, value: Array, slope: Array) -> None:
        self.at = np.where(mask, at, self.at)
        self.value = np.where(mask, value, self.value)
        self.slope = np.where(mask, slope, self.slope)

    def keep(self, mask: npt.NDArray[np.bool_]) -> _Tangents:
        return _Tangents(self.at[mask], self.value[mask], self.slope[mask])


def _intersection(left: _Tangents, right: _Tangents) -> tuple[Array, Array]:
    """Return (next trial, lower bound on the minimum): where the tangents meet, or the end not yet evaluated."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cut = (right.value - left.value + left.slope * left.at - right.slope * right.at) / (left.slope - right.slope)
        floor = left.value + left.slope * (cut - left.at)
    cut = np.where(np.isnan(left.slope), left.at, np.where(np.isnan(right.slope), right.at, cut))
    inside = np.clip(cut, left.at, right.at)
    return inside, np.where(np.isnan(floor), -np.inf, floor)
