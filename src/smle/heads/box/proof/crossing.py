"""Crossing bounds: the clip gives l where l > u, so a unit lies in [l(x), max(l(x), u(x))].

    max(l, u) = u + relu(l - u) <= u + share (l - u) + lift        for every share in [0, 1]

With l - u in [low, high] over a region, lift is the larger of relu(low) - share low and relu(high) - share high: convex
functions are largest at an end. Units that never cross there have share 0, units that always cross have share 1, both
with lift 0. A cut l <= u or l >= u settles a unit in the same way, exactly, and is one more row of the region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from smle.regions.geometry import Region, RegionMaximum

__all__ = ["Crossing"]

Array = npt.NDArray[np.float64]
_DOUBT = 2.0**-46
"""Share of the terms of l - u that covers the float64 errors in its range."""


@dataclass(frozen=True, eq=False)
class Crossing:
    """Units whose bounds may cross in the domain, and how far they cross in a region.

    Shapes: units (k,); offset (k,) and slope (k, d) of l - u; low, high (k,): its range over the region, proved by the
    multipliers lower_mu, upper_mu (k, r); share, lift (k,). upper (n,) and upper_slope (n, d) state u, widened.
    """

    units: npt.NDArray[np.intp]
    offset: Array
    slope: Array
    low: Array
    high: Array
    lower_mu: Array
    upper_mu: Array
    share: Array
    lift: Array
    upper: Array
    upper_slope: Array

    @classmethod
    def of(
        cls, lower: tuple[Array, Array], upper: tuple[Array, Array], extra: Array, support: RegionMaximum, *,
        proved: bool = True,
    ) -> Crossing | None:  # fmt: skip
        """Find the units that cross in the region of `support`; None if no unit crosses anywhere in the domain.

        `lower` and `upper` are offset (n,) and slope (n, d) of the bounds; `extra` (n,) widens u. If not `proved`, the
        range may come from the vertices of the region, without multipliers.
        """
        region = support.region
        offset, slope = lower[0] - upper[0], lower[1] - upper[1]
        units = np.flatnonzero(offset + region.domain.over(slope) > 0)
        if not len(units):
            return None
        offset, slope, k = offset[units], slope[units], len(units)
        both = np.vstack([-slope, slope])
        if proved or support.vertices is None:
            tops, mu, _ = support(both)
        else:
            tops, mu = (both @ support.vertices.T).max(axis=1), np.zeros((2 * k, len(region.numbers)))
        sizes = _DOUBT * (np.abs(offset) + region.price(both, mu)[1].reshape(2, k).max(axis=0))
        low, high = offset - tops[:k], offset + tops[k:]
        open_ = (low < 0) & (high > 0)
        share = np.where(open_, high / np.where(open_, high - low, 1.0), low >= 0).astype(np.float32).astype(np.float64)
        lift = np.maximum(*(np.maximum(end, 0.0) - share * end for end in (low, high))) + sizes
        return cls(
            units, offset, slope, low, high, mu[:k], mu[k:], share, lift, upper[0] + extra, upper[1]
        )  # fmt: skip

    @cached_property
    def open(self) -> npt.NDArray[np.intp]:
        """Positions in `units` of the units that cross only in part of the region."""
        return np.flatnonzero((self.low < 0) & (self.high > 0))

    def tops(self, settled: Mapping[int, bool]) -> tuple[Array, Array]:
        """Return an affine function above max(l, u), widened, given the units already settled: (n,), (n, d).

        A settled unit is True if l >= u.
        """
        share, lift = self.share.copy(), self.lift.copy()
        for place, unit in enumerate(self.units.tolist()):
            if unit in settled:
                share[place], lift[place] = float(settled[unit]), 0.0
        upper, slope = self.upper.copy(), self.upper_slope.copy()
        upper[self.units] += share * self.offset + lift
        slope[self.units] += share[:, None] * self.slope
        return upper, slope

    def beyond(self, x: Array) -> Array:
        """Return max(l - u, 0) at the inputs. Shapes: x (..., d) -> (..., k)."""
        return np.maximum(x @ self.slope.T + self.offset, 0.0)

    def top(self, x: Array) -> Array:
        """Return max(l, u), widened, at x (d,) -> (n,)."""
        result: Array = self.upper + self.upper_slope @ x
        result[self.units] += self.beyond(x)
        return result

    def cut(self, region: Region, unit: int, crossed: bool) -> Region:
        """Return the part of a region where l >= u for a unit (if `crossed`), else l <= u."""
        (place,) = np.flatnonzero(self.units == unit)
        sign = -1.0 if crossed else 1.0
        return replace(
            region,
            numbers=(*region.numbers, region.total + unit),
            A=np.vstack([region.A, sign * self.slope[place]]),
            a=np.append(region.a, -sign * self.offset[place]),
        )
