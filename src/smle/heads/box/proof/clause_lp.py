"""The best multipliers of a clause with several literals, by one linear program instead of a mixed-integer one.

    M = max_{x in Q, l(x) <= z <= u(x)} min_j ( g_j.(W z + V x + b) + s_j.x - h_j )

with the rounding errors of the deployed program as further box variables. The duals of the rows `t <= literal_j` are
the weights lambda; they are re-evaluated in closed form before anything is concluded.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox
from smle.regions.geometry import TINY, Region, U
from smle.rules import Literals
from smle.solvers import LinearProgram, Solution, Status, solve

__all__ = ["ClauseOptimum", "clause_optimum", "exact_clause_optimum"]

Array = npt.NDArray[np.float64]
_REACHED = 1e-9
"""Treat a unit as below max(l, u) if it exceeds it by less than this share: the LP has a tolerance."""
_MOST_PARTS = 300


@dataclass(frozen=True, eq=False)
class ClauseOptimum:
    """The result of the LP: value M, weights (k,), the point x (d,) and z (n,); NaN and None if it failed."""

    solution: Solution
    value: float = float("nan")
    weights: Array | None = None
    x: Array | None = None
    z: Array | None = None
    exact: bool = True


def exact_clause_optimum(literals: Literals, head: HeadNumbers, envelope: WidenedBox, region: Region) -> ClauseOptimum:
    """Like `clause_optimum`, but settle crossing units until none is above max(l, u) at the optimum.

    Parts of the region are taken best first, so the first attained optimum is the largest. `exact` is False if there
    were too many parts.
    """
    first = clause_optimum(literals, head, envelope, region)
    crossing = envelope.crossing
    if crossing is None or not envelope.crosses:
        return first
    queue = [(-first.value, 0, first, region, dict[int, bool]())]
    count = 0
    while queue:
        _, _, best, place, settled = heapq.heappop(queue)
        if best.x is None or best.z is None:
            return best
        above = (best.z - crossing.top(best.x))[crossing.units]
        above[[i for i, unit in enumerate(crossing.units.tolist()) if unit in settled]] = 0.0
        if not above.max() > _REACHED * (1.0 + np.abs(best.z).max()):
            return best
        if count >= 2 * _MOST_PARTS:
            return replace(best, exact=False)
        unit = int(crossing.units[int(np.argmax(above))])
        for crossed in (False, True):
            part, known = crossing.cut(place, unit, crossed), {**settled, unit: crossed}
            found = clause_optimum(literals, head, envelope.settled(known), part)
            if found.solution.status is Status.INFEASIBLE:
                continue
            if found.x is None:
                return found
            count += 1
            heapq.heappush(queue, (-found.value, count, found, part, known))
    return ClauseOptimum(Solution(Status.INFEASIBLE, message="no part of the region has an input"))


def clause_optimum(literals: Literals, head: HeadNumbers, envelope: WidenedBox, region: Region) -> ClauseOptimum:
    """Solve the LP of a clause; return the weights and the worst point.

    Columns: x = low + span t (d), z = l(x) + widths r (n), errors (m) and casts (d) in [-1, 1], value (1).
    """
    domain = region.domain
    d, n, m, k = len(domain.low), head.W.shape[1], head.W.shape[0], len(literals.h)
    span = domain.high - domain.low
    v = literals.g @ head.W
    slope = literals.s.copy()
    if head.V is not None:
        slope += literals.g @ head.V
    if envelope.lower_slope is not None:
        slope += v @ envelope.lower_slope
    constant = literals.g @ head.b - literals.h + v @ envelope.lower + slope @ domain.low
    widths = envelope.upper - envelope.lower
    if envelope.upper_slope is not None and envelope.lower_slope is not None:
        widths = widths + domain.over(envelope.upper_slope - envelope.lower_slope)
    widths = np.maximum(widths, 0.0)
    errors = np.where(np.abs(literals.g) > 0, literals.g * np.minimum(head.errors, 1e30), 0.0)
    casts = literals.s * (U * domain.sizes + TINY)
    block = np.hstack([slope * span, v * widths, errors, casts])
    scale = float(max(np.abs(block).max(initial=0.0), np.abs(constant).max(initial=0.0), 1e-300))
    rows = np.hstack([-block / scale, np.ones((k, 1))])
    A, sides = [rows], [constant / scale]
    columns = d + n + m + d + 1
    if region.numbers:
        scaled = region.A * span
        norms = np.maximum(np.abs(scaled).max(axis=1), 1e-300)
        A.append(np.hstack([scaled / norms[:, None], np.zeros((len(norms), columns - d))]))
        sides.append((region.a - region.A @ domain.low) / norms)
    if envelope.upper_slope is not None and envelope.lower_slope is not None:
        safe = np.maximum(widths, 1e-300)
        opening = (envelope.upper_slope - envelope.lower_slope) / safe[:, None]
        start = (envelope.upper - envelope.lower) / safe + opening @ domain.low
        widening = np.zeros((n, columns))
        widening[:, :d] = -opening * span
        widening[np.arange(n), d + np.arange(n)] = 1.0
        used = widths > 0
        A.append(widening[used])
        sides.append(start[used])
    objective = np.zeros(columns)
    objective[-1] = -1.0
    low = np.concatenate([np.zeros(d + n), -np.ones(m + d), [-np.inf]])
    high = np.concatenate([np.ones(d + n + m + d), [np.inf]])
    right = np.concatenate(sides)
    found = solve(LinearProgram(objective, np.vstack(A), np.full(len(right), -np.inf), right, low, high))
    if found.status is not Status.OPTIMAL or found.x is None or found.row_duals is None:
        return ClauseOptimum(found)
    weights = np.maximum(0.0, -found.row_duals[:k])
    total = weights.sum()
    if not total > 0:
        return ClauseOptimum(found)
    x = domain.low + span * np.clip(found.x[:d], 0.0, 1.0)
    lower, upper = envelope.at(x)
    z = np.clip(lower + widths * found.x[d : d + n], lower, np.maximum(lower, upper))
    return ClauseOptimum(found, -found.objective * scale, weights / total, x, z)
