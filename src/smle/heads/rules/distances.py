"""Units for distances between answers if there are no data: read off the rules, never off a row.

What a rule allows an output to reach tells its size; a tolerance does not. In `abs(total - (a + b)) <= 0.01`, 0.01 says
nothing about how large totals are, and in `price >= 0.01` only that prices are no smaller.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

import smle_check
from smle_check.heads.candidates import Checked
from smle_check.heads.clips import Limit
from smle_check.heads.sums import WIDE
from smle_check.stated import StatedLiteral

__all__ = ["stated_units"]

Array = npt.NDArray[np.float64]


def stated_units(spec: smle_check.StatedSpecification, limits: Iterable[Limit], checked: Checked) -> Array:
    """Return a unit for each output (m,).

    The unit is the largest number that a limit on the output alone lets it reach. Outputs without such a limit get
    theirs from outputs beside them in sums, by the sizes of coefficients. If no output of a sum has one, the largest
    number that sums are compared with sets it; failing that, it is 1.
    """
    m = len(spec.outputs)
    outer, inner = np.zeros(m), np.zeros(m)  # what outputs may reach, and their least size

    def note(output: int, is_upper: bool, value: float) -> None:
        side = outer if (value > 0) == is_upper else inner
        side[output] = max(side[output], abs(value))

    for limit in limits:
        reach = float(min(spec.largest(limit.slope, limit.offset), WIDE))
        note(limit.output, limit.side < 0, reach if limit.slope else _float(limit.offset))
        if limit.slope:  # it may have either sign
            outer[limit.output] = max(outer[limit.output], reach)
    coupled = [literal for literal in checked.literals if len(literal.y) > 1]
    for literal in checked.literals:
        if len(literal.y) == 1:
            ((i, g),) = literal.y.items()
            note(i, g > 0, _float(literal.bound / g))
            if literal.x:
                outer[i] = max(outer[i], float(min(spec.largest(literal.x, literal.bound) / abs(g), WIDE)))
    return _shared(outer, inner, coupled, _sizes(spec, coupled))


def _float(value: object) -> float:
    return float(np.clip(float(value), -float(WIDE), float(WIDE)))  # type: ignore[arg-type]


def _sizes(spec: smle_check.StatedSpecification, literals: list[StatedLiteral]) -> list[float]:
    """Return what each sum of outputs is compared with; 0 for the two ends of a tolerance."""
    ends = {_direction(literal): literal for literal in literals}
    found = []
    for literal in literals:
        other = ends.get(_direction(literal, -1))
        if other is not None and abs(literal.bound - other.bound) <= 2 * abs(literal.bound + other.bound):
            found.append(0.0)  # the middle is no farther from 0 than the width: -t <= sum <= t, or nearly so
        else:
            found.append(float(min(spec.largest(literal.x, literal.bound), WIDE)))
    return found


def _direction(literal: StatedLiteral, sign: int = 1) -> tuple[object, ...]:
    return tuple((i, sign * v) for i, v in literal.y.items()), tuple((k, sign * v) for k, v in literal.x.items())


def _shared(outer: Array, inner: Array, coupled: list[StatedLiteral], sizes: list[float]) -> Array:
    """Return units, shared among outputs that occur in sums together."""
    units = np.where(outer > 0, outer, 0.0)
    group, relative = _groups(len(outer), coupled)
    for number in np.unique(group):
        own = np.flatnonzero(group == number)
        known = own[units[own] > 0]
        members = set(own.tolist())
        sums = [(k, size) for k, size in enumerate(sizes) if members.intersection(coupled[k].y)]
        if len(known):
            factor = float(np.exp(np.median(np.log(units[known] / relative[known]))))
        else:
            listed = [
                size / max(abs(float(g)) * relative[i] for i, g in coupled[k].y.items()) for k, size in sums if size
            ]
            listed += (inner[own] / relative[own]).tolist()
            factor = max(listed, default=0.0) or 1.0 / float(relative[own].max())
        missing = own[units[own] == 0]
        units[missing] = np.maximum(factor * relative[missing], inner[missing])
    return np.clip(units, float(1 / WIDE), float(WIDE))


def _groups(m: int, literals: list[StatedLiteral]) -> tuple[npt.NDArray[np.intp], Array]:
    """Return a number for each output, the same for outputs tied by sums, and their sizes in these sums.

    A large coefficient means small numbers. Of several sums the median counts, since coefficients may be anything.
    """
    group = np.arange(m)
    shares: list[list[float]] = [[] for _ in range(m)]
    for literal in literals:
        own = list(literal.y)
        group[np.isin(group, group[own])] = group[own].min()
        size = np.array([abs(float(g)) for g in literal.y.values()])
        for i, share in zip(own, size / np.sqrt((size**2).mean()), strict=True):
            shares[i].append(share)
    relative = np.array([1.0 / max(float(np.median(own)), 1e-30) if own else 1.0 for own in shares])
    return group, relative
