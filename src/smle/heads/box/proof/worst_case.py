"""Closed forms: the largest value of a combination of literals over a head's reachable outputs.

For weights lambda on the literals of a clause and v = sum_j lambda_j g_j W, the worst z is u(x) where v > 0 and l(x)
where v < 0. What remains is an affine function c.x + d over the region, plus the rounding margin

    |sum_j lambda_j g_j| . E + |sum_j lambda_j s_j| . (2^-24 |x|)

of the deployed float32 program (`smle_check.floats`). Everything is float64 with a deduction for its own errors; the
exact checker decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.crossing import Crossing
from smle.heads.box.proof.float_errors import LARGEST, affine_errors
from smle.heads.box.proof.frozen_heads import Bounds, Head
from smle.heads.box.proof.relaxation import HiddenLayer
from smle.regions.geometry import TINY, Domain, Region, RegionMaximum, U
from smle.rules import Literals

__all__ = ["HeadNumbers", "WidenedBox", "Worst", "output_at", "worst_case"]

Array = npt.NDArray[np.float64]

_UP = 1.0 + 1e-9
_EPS = 2.0**-52


@dataclass(frozen=True, eq=False)
class WidenedBox:
    """The box of the clipped embedding over a region, affine in x, widened by the rounding of computed bounds.

    Every clipped float32 value lies in [lower + lower_slope x, upper + upper_slope x] for x in the region.
    Shapes: lower (n,), upper (n,), slopes (n, d) or None for constant bounds, sizes (n,) = max |z| over the domain.
    `crossing`: where affine bounds cross, `upper` is a line above max(l, u).
    """

    lower: Array
    upper: Array
    lower_slope: Array | None
    upper_slope: Array | None
    sizes: Array
    crossing: Crossing | None = field(default=None, kw_only=True)

    @property
    def crosses(self) -> bool:
        """Whether affine bounds cross only in part of the region."""
        return self.crossing is not None and len(self.crossing.open) > 0

    @property
    def by_network(self) -> HiddenWidenedBox | None:
        """The box in terms of hidden units, if bounds are networks, else None."""
        return self if isinstance(self, HiddenWidenedBox) else None

    @classmethod
    def of(cls, bounds: Bounds, domain: Domain) -> WidenedBox:
        """Return the widened box over the whole domain; for networks, an affine box around it."""
        return cls.over_region(bounds, RegionMaximum(Region.whole(domain)))

    @classmethod
    def over_region(cls, bounds: Bounds, support: RegionMaximum, *, proved: bool = True) -> WidenedBox:
        """Return the widened box over a region, where the clip gives l if l > u.

        If not `proved`, the vertices of the region may tell how far bounds cross, which is faster but gives no
        multipliers.
        """
        domain = support.region.domain
        if bounds.hidden:
            return HiddenWidenedBox.over(bounds, domain.low, domain.high)
        lower, upper = bounds.lower.astype(np.float64), bounds.upper.astype(np.float64)
        if bounds.slopes is None:
            near_zero = np.minimum(np.abs(lower), np.abs(upper)) < TINY
            extra = np.where(near_zero, TINY, 0.0)
            sizes = np.maximum(np.abs(lower), np.abs(upper)) + extra
            return cls(lower - extra, upper + extra, None, None, sizes * _UP)
        low_slope, high_slope = bounds.slopes
        rounding = np.maximum(
            affine_errors(low_slope, domain.sizes, lower), affine_errors(high_slope, domain.sizes, upper)
        )
        extra = (TINY + rounding) * _UP
        ends = upper + domain.over(high_slope), lower + domain.over(low_slope), -lower + domain.over(-low_slope)
        sizes = (np.maximum.reduce(ends) + extra) * _UP
        crossing = Crossing.of((lower, low_slope), (upper, high_slope), extra, support, proved=proved)
        box = cls(lower - extra, upper + extra, low_slope, high_slope, sizes, crossing=crossing)
        return box if crossing is None else box.settled({})

    def settled(self, crossed: Mapping[int, bool]) -> WidenedBox:
        """Return the box, given units known to cross (True) or not to cross."""
        if self.crossing is None:
            return self
        upper, slope = self.crossing.tops(crossed)
        return replace(self, upper=upper, upper_slope=slope)

    def worst(self, v: Array) -> tuple[Array, Array | None]:
        """Return (d, c) with max v.z <= d + c.x over the box. Shapes: v (k, n) -> (k,), (k, inputs) or None."""
        up, down = np.maximum(v, 0.0), np.minimum(v, 0.0)
        offset = up @ self.upper + down @ self.lower
        if self.upper_slope is None or self.lower_slope is None:
            return offset, None
        return offset, up @ self.upper_slope + down @ self.lower_slope

    def corner(self, v: Array, x: Array) -> Array:
        """Return the worst z reached at x for the direction v. Shapes: v (n,), x (d,) -> (n,)."""
        lower, upper = self.at(x)
        return np.where(v > 0, upper if self.crossing is None else self.crossing.top(x), lower)

    def at(self, x: Array) -> tuple[Array, Array]:
        """Return the box at x: (lower, upper), each (n,)."""
        if self.upper_slope is None or self.lower_slope is None:
            return self.lower, self.upper
        return self.lower + self.lower_slope @ x, self.upper + self.upper_slope @ x


@dataclass(frozen=True, eq=False)
class HiddenWidenedBox(WidenedBox):
    """The box of bounds by a network, affine in its last hidden layer h, with a box affine in x around it.

    The worst case of a combination v of units is found in h first, where units add up and cancel, and then brought back
    to x: never worse than the box in x. Shapes: base_lower, base_upper (n,), maps (n, k).
    """

    hidden: HiddenLayer
    base_lower: Array
    base_upper: Array
    lower_map: Array
    upper_map: Array

    @classmethod
    def over(cls, bounds: Bounds, low: Array, high: Array) -> HiddenWidenedBox:
        """Return the box for x in [low, high], widened by the rounding of the deployed networks."""
        hidden = HiddenLayer.over(bounds.hidden, low, high)
        assert bounds.slopes is not None
        lower_map, upper_map = bounds.slopes
        lower, upper = bounds.lower.astype(np.float64), bounds.upper.astype(np.float64)
        rounding = np.maximum(
            affine_errors(lower_map, hidden.sizes, lower) + np.abs(lower_map) @ hidden.errors,
            affine_errors(upper_map, hidden.sizes, upper) + np.abs(upper_map) @ hidden.errors,
        )
        extra = (TINY + rounding) * _UP
        # Where l > u the clip gives l, so u is raised by the largest l - u over the box.
        gap = np.maximum(lower - upper + np.maximum(lower_map - upper_map, 0.0) @ hidden.top, 0.0) * _UP
        ends = (
            upper + np.maximum(upper_map, 0.0) @ hidden.top,
            lower + np.maximum(lower_map, 0.0) @ hidden.top,
            -lower - np.minimum(lower_map, 0.0) @ hidden.top,
        )
        sizes = (np.maximum.reduce(ends) + extra) * _UP
        base_lower, base_upper = lower - extra, upper + gap + extra
        below, below_slope = hidden.back(-lower_map)
        above, above_slope = hidden.back(upper_map)
        return cls(
            base_lower - below, base_upper + above, -below_slope, above_slope, sizes,
            hidden, base_lower, base_upper, lower_map, upper_map,
        )  # fmt: skip

    def worst(self, v: Array) -> tuple[Array, Array | None]:
        """Return (d, c) with max v.z <= d + c.x over the box. Shapes: v (k, n) -> (k,), (k, inputs)."""
        up, down = np.maximum(v, 0.0), np.minimum(v, 0.0)
        offset, slope = self.hidden.back(up @ self.upper_map + down @ self.lower_map)
        return up @ self.base_upper + down @ self.base_lower + offset, slope


@dataclass(frozen=True, eq=False)
class HeadNumbers:
    """A head in float64 with the rounding error E of every output and the size of its terms.

    Shapes: W (m, n), V (m, d) or None, b (m,), errors (m,), sizes (m,).
    """

    W: Array
    V: Array | None
    b: Array
    errors: Array
    sizes: Array

    @classmethod
    def of(cls, head: Head, envelope: WidenedBox, domain: Domain) -> HeadNumbers:
        """Return the numbers of a head under an envelope."""
        numbers = cls.exact(head)
        weights = numbers.W if numbers.V is None else np.hstack([numbers.W, numbers.V])
        sizes = envelope.sizes if numbers.V is None else np.concatenate([envelope.sizes, domain.sizes])
        errors = affine_errors(weights, sizes, numbers.b)
        return replace(numbers, errors=errors, sizes=np.abs(weights) @ sizes + np.abs(numbers.b))

    @classmethod
    def exact(cls, head: Head | HeadNumbers) -> HeadNumbers:
        """Return the numbers of a head without rounding."""
        V, none = None if head.V is None else head.V.astype(np.float64), np.zeros(len(head.b))
        return cls(head.W.astype(np.float64), V, head.b.astype(np.float64), none, none)


def output_at(head: Head | HeadNumbers, x: Array, z: Array) -> Array:
    """Return W z + V x + b in float64, without rounding. Shapes: x (d,), z (n,) -> (m,)."""
    y: Array = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
    return y


@dataclass(frozen=True, eq=False)
class Worst:
    """Bounds on plain inequalities over a region, with what proves them and where they are attained.

    Shapes: bound (k,), mu (k, r), x (k, d), v (k, n). `bound` includes the rounding margin and the float64 deduction.
    If x is NaN, the LP over the region failed, and the bound is the one over the whole domain.
    """

    bound: Array
    mu: Array
    x: Array
    v: Array


def slopes_and_offsets(literals: Literals, head: HeadNumbers, envelope: WidenedBox) -> tuple[Array, Array, Array]:
    """Return (v, c, d): each literal is at most c.x + d over the box, before rounding.

    Shapes: v (k, n), c (k, inputs), d (k,).
    """
    v = literals.g @ head.W
    offset, slope = envelope.worst(v)
    offset = offset + literals.g @ head.b - literals.h
    c = literals.s if slope is None else slope + literals.s
    if head.V is not None:
        c = c + literals.g @ head.V
    return v, c, offset


def rounding_margin(literals: Literals, head: HeadNumbers, domain: Domain) -> Array:
    """Return |g|.E + |s|.(2^-24 |x| + 2^-126) for every literal, (k,)."""
    magnitude = np.abs(literals.g)
    if np.isfinite(head.errors).all():
        errors = magnitude @ head.errors
    else:
        # 0 * inf is NaN: skip outputs that a literal does not mention.
        errors = np.where(magnitude > 0, magnitude * np.where(magnitude > 0, head.errors, 0.0), 0.0).sum(axis=1)
    if literals.s.any():
        errors = errors + np.abs(literals.s) @ (U * domain.sizes + TINY)
    total: Array = errors * _UP
    return total


def worst_case(literals: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum) -> Worst:
    """Bound every literal (a plain inequality) over the region of `support`, all at once."""
    region = support.region
    v, c, offset = slopes_and_offsets(literals, head, envelope)
    top, mu, x = support(c)
    margin = rounding_margin(literals, head, region.domain)
    bound = top + offset + margin + float_deduction(literals, head, region, mu=mu, c=c)
    return Worst(bound, mu, x, v)


def float_deduction(literals: Literals, head: HeadNumbers, region: Region, *, mu: Array, c: Array) -> Array:
    """Bound the error of computing a worst case in float64, (k,)."""
    terms = head.W.shape[1] + 2 * len(region.domain.low) + len(region.numbers) + literals.g.shape[1] + 16
    size = np.abs(literals.g) @ np.minimum(head.sizes, LARGEST) + np.abs(literals.h)
    if c.any() or mu.any():
        size = size + region.price(c, mu)[1]
    total: Array = 2 * terms * _EPS * size
    return total
