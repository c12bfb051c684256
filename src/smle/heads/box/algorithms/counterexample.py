"""Strongest counterexamples by the paper's two objectives: the same optimum as its MILPs, found faster.

* Linear inequalities (equation polytopes_counter): maximize sum_k max(0, R_k y - r_k), rows as the user stated them.
  The sum of positive parts is the largest sum over a subset of rows, so one closed form or LP per subset finds the same
  optimum. Many rows are left to the MILP.
* Exclusions (equation mutex_counter): maximize I_hk min(y_h, y_k) over pairs. For one pair this is a linear program.
  Its dual bound is cheap for all pairs at once, and only pairs whose bound beats the best value so far are solved.
* Per clause: maximize min_j (literal_j) by one LP, whose multipliers prove the clause if the maximum is negative.

Where affine bounds cross, a unit lies in [l, max(l, u)], so the excess of a row is convex in x and largest at a vertex
of the region. If there are too many vertices, branch and bound settles units one by one, at l or below u, until the
line above max(l, u) costs nothing at the maximum. Either way the optimum is that of the paper's MILP with its B_i.

Rounding is ignored: these are the paper's problems over real numbers, and callers put the tolerance of its supplement
into h. The MILPs are in studies/formulations.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.clause_lp import exact_clause_optimum
from smle.heads.box.proof.pairs import PairValues, best_weights
from smle.heads.box.proof.worst_case import HeadNumbers, HiddenWidenedBox, WidenedBox, output_at, slopes_and_offsets
from smle.regions.geometry import Region, RegionMaximum
from smle.rules import Literals
from smle.solvers import MixedIntegerProgram, Status, solve

__all__ = ["Counterexample", "Search", "counterexample_at", "exclusion_counterexample", "linear_counterexample"]

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int32]

_SUBSET_ROWS = 12
"""Try all subsets of up to this many rows."""

_MILP_SECONDS = 30.0
_MOST_CASES = 5_000
"""Use the MILP beyond this many cases of crossing units."""
_GAIN = 1e-10
"""Close a case that could gain less than this share."""


@dataclass(frozen=True, eq=False)
class Counterexample:
    """A point (x, z) of the over-approximation with its strength; `violated` has row numbers, or one pair (h, k)."""

    x: Array
    z: Array
    strength: float
    violated: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Search:
    """The outcome of a search: a counterexample, none (if `status` is OPTIMAL), or no answer.

    `strongest` is False where a stronger one may exist: the MILP ran out of time, or bounds by a network were relaxed.
    """

    found: Counterexample | None
    status: Status
    message: str = ""
    strongest: bool = True

    @property
    def none_exists(self) -> bool:
        """Whether the search finished and found nothing. This is a solver's claim, not a proof."""
        return self.found is None and self.status is Status.OPTIMAL


def linear_counterexample(rows: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum) -> Search:
    """Maximize the sum of positive violations of single-literal rows.

    Only rows that can be violated take part. All subsets of up to 12 of them are tried; beyond that HiGHS solves the
    paper's MILP. A counterexample has a strength > 0.
    """
    top, x, _ = _maxima(rows, head, envelope, support)
    if np.isnan(x).any():
        return _failed(support)
    active = np.flatnonzero(top > 0)
    if not len(active):
        return Search(None, Status.OPTIMAL)
    if len(active) > _SUBSET_ROWS:
        return _by_milp(rows, head, envelope, support, active=active, reach=top)
    subsets = (np.arange(1, 2 ** len(active))[:, None] >> np.arange(len(active))) & 1
    weights = np.zeros((len(subsets), len(rows.h)))
    weights[:, active] = subsets
    sums = rows.combined(weights)
    if envelope.crossing is not None and support.vertices is None:
        settled = _settling(rows, sums, head, envelope, support)
        return _by_milp(rows, head, envelope, support, active=active, reach=top) if settled is None else settled
    values, x, directions = _maxima(sums, head, envelope, support)
    if np.isnan(x).any():
        return _failed(support)
    best = int(np.argmax(values))
    found = counterexample_at(rows, head, x[best], envelope.corner(directions[best], x[best]))
    return Search(found, Status.OPTIMAL, strongest=not isinstance(envelope, HiddenWidenedBox))


def _vertex_values(sums: Literals, head: HeadNumbers, envelope: WidenedBox, points: Array) -> Array:
    """Return the largest excess of each row at each point, where units cross. Shapes: rows (k), points (v, d): (k, v).

    It is convex in x, so its maximum over a region is at a vertex.
    """
    crossing = envelope.crossing
    assert crossing is not None
    assert envelope.lower_slope is not None
    lower, upper = points @ envelope.lower_slope.T + envelope.lower, points @ crossing.upper_slope.T + crossing.upper
    upper[:, crossing.units] += crossing.beyond(points)
    v = sums.g @ head.W
    direct = sums.s if head.V is None else sums.s + sums.g @ head.V
    value = np.maximum(v, 0.0) @ upper.T + np.minimum(v, 0.0) @ lower.T + direct @ points.T
    total: Array = value + (sums.g @ head.b - sums.h)[:, None]
    return total


def _settling(
    rows: Literals, sums: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum
) -> Search | None:
    """Maximize sums of rows where units cross, or return None if there are too many cases.

    The points (x, z) of all cases are candidates; a case is closed once its bound does not exceed the best candidate.
    """
    crossing = envelope.crossing
    assert crossing is not None
    plain = replace(envelope, upper=crossing.upper, upper_slope=crossing.upper_slope)
    v, c, offset = slopes_and_offsets(sums, head, plain)
    up = np.maximum(v[:, crossing.units], 0.0)
    share, lift = np.tile(crossing.share, (len(v), 1)), np.tile(crossing.lift, (len(v), 1))
    number, best = np.arange(len(v)), Counterexample(np.zeros(0), np.zeros(0), 0.0, ())
    cases = 0
    while len(number):
        cases += len(number)
        if cases > _MOST_CASES:
            return None
        own, steep = up[number], share * up[number]
        top, _, x = support(c[number] + steep @ crossing.slope)
        if np.isnan(x).any():
            return _failed(support)
        bound = top + offset[number] + steep @ crossing.offset + (own * lift).sum(axis=1)
        for i in np.argsort(-bound):
            if bound[i] <= best.strength:
                break
            at = counterexample_at(rows, head, x[i], envelope.corner(v[number[i]], x[i]))
            best = at if at is not None and at.strength > best.strength else best
        gap = x @ crossing.slope.T + crossing.offset
        cost = own * (share * gap + lift - np.maximum(gap, 0.0))
        cost[(lift == 0) & ((share == 0) | (share == 1))] = 0.0
        left = np.flatnonzero((bound > best.strength * (1 + _GAIN)) & (cost.max(axis=1) > 0))
        place = cost[left].argmax(axis=1)
        number = np.tile(number[left], 2)
        share, lift = np.tile(share[left], (2, 1)), np.tile(lift[left], (2, 1))
        both = np.arange(len(number)), np.tile(place, 2)
        share[both], lift[both] = np.repeat([0.0, 1.0], len(left)), 0.0
    return Search(best if best.violated else None, Status.OPTIMAL)


def _failed(support: RegionMaximum) -> Search:
    return Search(None, Status.ERROR, f"the LP over the region failed: {support.failure}")


def _by_milp(
    rows: Literals,
    head: HeadNumbers,
    envelope: WidenedBox,
    support: RegionMaximum,
    *,
    active: npt.NDArray[np.intp],
    reach: Array,
) -> Search:
    """Solve the paper's MILP over x, z, the violation of every row that can be broken, and whether it is.

    The rows it finds violated are then summed and maximized in closed form, so the result is free of the solver's
    tolerance.
    """
    lowest, x, _ = _maxima(Literals(-rows.g, -rows.s, -rows.h, rows.strict), head, envelope, support)
    if np.isnan(x).any():
        return _failed(support)
    k, (n, d) = len(active), (head.W.shape[1], support.region.A.shape[1])
    reach, drop = reach[active], np.maximum(lowest[active], 0.0)
    g, eye, units, none = rows.g[active], np.eye(k), np.eye(n), np.zeros((n, k))
    tops, big = _milp_tops(envelope, d)
    b = big.shape[1]
    direct = rows.s[active] + (0 if head.V is None else g @ head.V)
    L = np.zeros((n, d)) if envelope.lower_slope is None else envelope.lower_slope
    low, high, oblique = support.region.tight_box()
    A, a = support.region.A[oblique], support.region.a[oblique]
    # Columns: x, z, B_i, violations, whether they count. Violations are measured relative to what the row can reach.
    blocks = [
        (np.hstack([A, np.zeros((len(a), n + b + 2 * k))]), a),
        *((np.hstack([-slope, units[at], sides, none[at], none[at]]), offset) for at, slope, sides, offset in tops),
        (np.hstack([L, -units, np.zeros((n, b)), none, none]), -envelope.lower),
        (
            np.hstack([
                -direct / reach[:, None], -g @ head.W / reach[:, None], np.zeros((k, b)), eye, np.diag(drop / reach)
            ]),
            (drop + g @ head.b - rows.h[active]) / reach,
        ),
        (np.hstack([np.zeros((k, d + n + b)), eye, -eye]), np.zeros(k)),
    ]  # fmt: skip
    matrix, right = np.vstack([block for block, _ in blocks]), np.concatenate([side for _, side in blocks])
    program = MixedIntegerProgram(
        np.concatenate([np.zeros(d + n + b), -reach / reach.max(), np.zeros(k)]),
        matrix,
        np.full(len(right), -np.inf),
        right,
        np.concatenate([low, -envelope.sizes, np.zeros(b + 2 * k)]),
        np.concatenate([high, envelope.sizes, np.ones(b + 2 * k)]),
        np.concatenate([np.zeros(d + n, bool), np.ones(b, bool), np.zeros(k, bool), np.ones(k, bool)]),
    )
    solved = solve(program, time_limit=_MILP_SECONDS)
    if solved.x is None:
        return Search(None, Status.ERROR, f"the MILP ended with {solved.status} ({solved.message})")
    weights = np.zeros((1, len(rows.h)))
    weights[0, active] = solved.x[-k:] > 0.5
    _, x, v = _maxima(rows.combined(weights), head, envelope, support)
    if np.isnan(x).any():
        return _failed(support)
    points = [x[0], solved.x[:d]]
    found = [counterexample_at(rows, head, point, envelope.corner(v[0], point)) for point in points]
    best = max((one for one in found if one is not None), key=lambda one: one.strength, default=None)
    if best is None:
        return Search(None, Status.ERROR, "the MILP gave a point that breaks no row")
    certain = solved.status is Status.OPTIMAL and not isinstance(envelope, HiddenWidenedBox)
    return Search(best, Status.OPTIMAL, solved.message, strongest=certain)


def _milp_tops(envelope: WidenedBox, d: int) -> tuple[list[tuple[npt.NDArray[np.intp], Array, Array, Array]], Array]:
    """Return the rows `z <= max(l, u)` as (units, slope, columns of B, offset), and the columns of B.

    For units that cross in part of the region, z <= u + high B and z <= l - low (1 - B); B = 0 leaves l <= z <= u.
    """
    n, crossing = len(envelope.upper), envelope.crossing
    slope = np.zeros((n, d)) if envelope.upper_slope is None else envelope.upper_slope
    if crossing is None or not envelope.crosses:
        none = np.zeros((n, 0))
        return [(np.arange(n), slope, none, envelope.upper)], none
    places = crossing.open
    units, offset = crossing.units[places], envelope.upper.copy()
    slope, big, low = slope.copy(), np.zeros((n, len(places))), np.diag(-crossing.low[places])
    offset[units], slope[units] = crossing.upper[units], crossing.upper_slope[units]
    big[units, np.arange(len(places))] = -crossing.high[places]
    lower = slope[units] + crossing.slope[places]
    right = offset[units] + crossing.offset[places] - crossing.low[places]
    return [(np.arange(n), slope, big, offset), (units, lower, low, right)], big


def _maxima(
    rows: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum
) -> tuple[Array, Array, Array]:
    """Return each row's largest excess, the point where it occurs, and the direction in z.

    Where units cross in a region with many vertices, the excess is an upper bound.
    """
    if envelope.crossing is not None and support.vertices is not None:
        value = _vertex_values(rows, head, envelope, support.vertices)
        best = value.argmax(axis=1)
        return value[np.arange(len(best)), best], support.vertices[best], rows.g @ head.W
    v, c, offset = slopes_and_offsets(rows, head, envelope)
    top, x = support.largest(c)
    return top + offset, x, v


def counterexample_at(rows: Literals, head: HeadNumbers, x: Array, z: Array) -> Counterexample | None:
    """Return the point (x, z) with its strength as the paper measures it, or None if it breaks no row."""
    excess = rows.g @ output_at(head, x, z) + rows.s @ x - rows.h
    violated = tuple(int(k) for k in np.flatnonzero(excess > 0))
    strength = float(np.maximum(excess, 0.0).sum())
    return Counterexample(x, z, strength, violated) if violated else None


def exclusion_counterexample(pairs: Pairs, head: HeadNumbers, envelope: WidenedBox, region: Region) -> Search:
    """Maximize min(y_h, y_k) over pairs and the over-approximation; a counterexample is a maximum >= 0."""
    values = PairValues.of(head, envelope, region.domain)
    _, bounds = best_weights(pairs, values)
    best: Counterexample | None = None
    exact = True
    for i in np.argsort(-bounds):
        value = 0.0 if best is None else best.strength
        if bounds[i] < value - 1e-12:
            break
        h, k = int(pairs[i, 0]), int(pairs[i, 1])
        literals = Literals.of_pairs(pairs[i], head.W.shape[0], len(region.domain.low))
        optimum = exact_clause_optimum(literals, head, envelope, region)
        if optimum.x is None or optimum.z is None:
            return Search(None, Status.ERROR, f"{optimum.solution.status} ({optimum.solution.message})")
        exact = exact and optimum.exact
        strength = float(output_at(head, optimum.x, optimum.z)[[h, k]].min())
        if strength >= 0 and (best is None or strength > best.strength):
            best = Counterexample(optimum.x, optimum.z, strength, (h, k))
    return Search(best, Status.OPTIMAL, strongest=exact)
