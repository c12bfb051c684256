"""Strongest counterexamples by the paper's two objectives, as its MILPs (reference) and faster with the same optimum.

* Linear inequalities (equation polytopes_counter): maximize sum_k max(0, R_k y - r_k). The sum of positive parts is
  the largest sum over a subset of rows, so a few closed forms or LPs, one per subset, find the same optimum.
* Exclusions (equation mutex_counter): maximize I_hk min(y_h, y_k) over pairs. For one pair that is a linear program;
  its dual bound is cheap for all pairs at once, and only pairs whose bound beats the best value so far are solved.
* Per clause: maximize min_j (literal_j), one LP, whose multipliers prove the clause where the maximum is negative.

Where l > u the clip gives u, here as in the deployed program (the paper's formula gives l). No rounding is considered:
these are the paper's problems over real numbers; `margin` adds the tolerance of its supplement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.clause_lp import clause_optimum
from smle.guarantees.proof.exclusions import PairValues, best_weights
from smle.guarantees.proof.milp import ReachModel
from smle.guarantees.proof.overapproximation import Bounds, Head
from smle.guarantees.proof.worst_case import Envelope, HeadNumbers, Literals, slopes_and_offsets
from smle.guarantees.regions.geometry import Region, Support
from smle.solvers import Status

__all__ = [
    "Counterexample",
    "Search",
    "exclusion_counterexample",
    "exclusion_counterexample_milp",
    "linear_counterexample",
    "linear_counterexample_milp",
    "plain_numbers",
]

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int32]

_SUBSET_ROWS = 12
"""Up to this many rows all subsets are tried; beyond it the MILP decides."""


@dataclass(frozen=True, eq=False)
class Counterexample:
    """A point (x, z) of the over-approximation and its strength; `violated` are row numbers, or one pair (h, k)."""

    x: Array
    z: Array
    strength: float
    violated: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Search:
    """The outcome of a search: a counterexample; or none, if `status` is OPTIMAL; or no answer."""

    found: Counterexample | None
    status: Status
    message: str = ""

    @property
    def none_exists(self) -> bool:
        """Whether the search ended and found nothing (a solver's word, not a proof)."""
        return self.found is None and self.status is Status.OPTIMAL


def plain_numbers(head: Head) -> HeadNumbers:
    """Return a head in float64 without rounding errors."""
    m = len(head.b)
    V = None if head.V is None else head.V.astype(np.float64)
    return HeadNumbers(head.W.astype(np.float64), V, head.b.astype(np.float64), np.zeros(m), np.zeros(m))


def linear_counterexample(
    rows: Literals, head: HeadNumbers, envelope: Envelope, support: Support, *, margin: float = 0.0
) -> Search:
    """Maximize the sum of positive violations of single-literal rows by trying subsets of rows.

    Only rows that can be violated at all take part. Up to 12 of them, all subsets are tried and the result is the
    strongest; beyond that subsets are improved step by step, and the result is a counterexample if there is one,
    perhaps not the strongest. A counterexample has a strength > 0.
    """
    single = _maxima(rows, head, envelope, support, margin)
    if np.isnan(single[1]).any():
        return Search(None, Status.ERROR, f"the LP over the region failed: {support.failure}")
    active = np.flatnonzero(single[0] > 0)
    if not len(active):
        return Search(None, Status.OPTIMAL)
    if len(active) > _SUBSET_ROWS:
        return _ascend(rows, head, envelope, support, margin=margin, active=active)
    subsets = (np.arange(1, 2 ** len(active))[:, None] >> np.arange(len(active))) & 1
    weights = np.zeros((len(subsets), len(rows.h)))
    weights[:, active] = subsets
    shifted = Literals(rows.g, rows.s, rows.h - margin, rows.strict)
    value, x, v = _maxima(shifted.combined(weights), head, envelope, support, 0.0)
    if np.isnan(x).any():
        return Search(None, Status.ERROR, f"the LP over the region failed: {support.failure}")
    best = int(np.argmax(value))
    z = envelope.corner(v[best], x[best])
    return Search(_linear_found(rows, head, x[best], z, margin), Status.OPTIMAL)


def _ascend(
    rows: Literals,
    head: HeadNumbers,
    envelope: Envelope,
    support: Support,
    *,
    margin: float,
    active: npt.NDArray[np.intp],
) -> Search:
    """Improve subsets: maximize the sum over a subset, take the rows violated there as the next subset."""
    shifted = Literals(rows.g, rows.s, rows.h - margin, rows.strict)
    best: Counterexample | None = None
    weights = np.vstack([np.eye(len(rows.h))[active], np.isin(np.arange(len(rows.h)), active)[None].astype(float)])
    for _ in range(20):
        _, x, v = _maxima(shifted.combined(weights), head, envelope, support, 0.0)
        if np.isnan(x).any():
            return Search(None, Status.ERROR, f"the LP over the region failed: {support.failure}")
        before = 0.0 if best is None else best.strength
        subsets: dict[tuple[int, ...], float] = {}
        for point, direction in zip(x, v, strict=True):
            found = _linear_found(rows, head, point, envelope.corner(direction, point), margin)
            if found is None:
                continue
            subsets[found.violated] = max(found.strength, subsets.get(found.violated, 0.0))
            if best is None or found.strength > best.strength:
                best = found
        if best is None or best.strength <= before * (1 + 1e-12) or not subsets:
            break
        strongest = sorted(subsets, key=lambda subset: -subsets[subset])[:4]
        weights = np.stack([np.isin(np.arange(len(rows.h)), subset).astype(float) for subset in strongest])
    return Search(best, Status.OPTIMAL)


def _maxima(
    rows: Literals, head: HeadNumbers, envelope: Envelope, support: Support, margin: float
) -> tuple[Array, Array, Array]:
    """Return (maximum of each row's excess, where, direction in z)."""
    v, c, offset = slopes_and_offsets(rows, head, envelope)
    top, _, x = support(c)
    return top + offset + margin, x, v


def _linear_found(rows: Literals, head: HeadNumbers, x: Array, z: Array, margin: float) -> Counterexample | None:
    y = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
    excess = rows.g @ y + rows.s @ x - rows.h + margin
    violated = tuple(int(k) for k in np.flatnonzero(excess > 0))
    strength = float(np.maximum(excess, 0.0).sum())
    return Counterexample(x, z, strength, violated) if violated else None


def linear_counterexample_milp(
    rows: Literals, bounds: Bounds, head: Head, region: Region, *,
    margin: float = 0.0, time_limit: float | None = None, as_printed: bool = False,
) -> Search:  # fmt: skip
    """Maximize the sum of positive violations as the paper's MILP, one binary per row and per unit that may cross.

    With `as_printed` every unit has its binary, as in the paper; otherwise only those where the sign of u - l is open.
    """
    model = ReachModel(bounds, head, region, as_printed=as_printed)
    shifted = Literals(rows.g, rows.s, rows.h - margin, rows.strict)
    low, high = model.literal_range(shifted)
    k = len(rows.h)
    reach, drop = np.maximum(high, 0.0), np.maximum(-low, 0.0)
    part = model.variables(np.zeros(k), reach)
    chosen = model.variables(np.zeros(k), np.ones(k), binary=True)
    eye = np.eye(k)
    model.rows(
        [(part, eye), (model.y, -shifted.g), (model.x, -shifted.s), (chosen, np.diag(drop))], -np.inf, drop - shifted.h
    )
    model.rows([(part, eye), (chosen, np.diag(-reach))], -np.inf, 0.0)
    found = model.solve({int(c): 1.0 for c in part}, time_limit=time_limit)
    if found.x is None:
        return Search(None, found.status if found.status is not Status.OPTIMAL else Status.ERROR, found.message)
    point = _linear_found(rows, plain_numbers(head), found.x[model.x], found.x[model.z], margin)
    # Violations within the solver's tolerance are no counterexamples.
    if point is not None and found.objective <= 1e-9:
        point = None
    return Search(point, found.status, found.message)


def exclusion_counterexample(
    pairs: Pairs, head: HeadNumbers, envelope: Envelope, region: Region, *, margin: float = 0.0
) -> Search:
    """Maximize min(y_h, y_k) over pairs and the over-approximation; a counterexample is a maximum >= -margin."""
    values = PairValues.of(head, envelope, region.domain)
    _, bounds = best_weights(pairs, values)
    best: Counterexample | None = None
    for i in np.argsort(-bounds):
        value = -margin if best is None else best.strength
        if bounds[i] < value - 1e-12:
            break
        h, k = int(pairs[i, 0]), int(pairs[i, 1])
        literals = pair_literals(h, k, head.W.shape[0], len(region.domain.low))
        optimum = clause_optimum(literals, head, envelope, region)
        if optimum.x is None or optimum.z is None:
            return Search(None, Status.ERROR, f"{optimum.solution.status} ({optimum.solution.message})")
        y = head.W @ optimum.z + head.b + (0 if head.V is None else head.V @ optimum.x)
        strength = float(min(y[h], y[k]))
        if strength >= -margin and (best is None or strength > best.strength):
            best = Counterexample(optimum.x, optimum.z, strength, (h, k))
    return Search(best, Status.OPTIMAL)


def pair_literals(h: int, k: int, outputs: int, inputs: int) -> Literals:
    """Return the clause whose excess is min(y_h, y_k): y_h < 0 or y_k < 0."""
    g = np.zeros((2, outputs))
    g[0, h] = g[1, k] = 1.0
    return Literals(g, np.zeros((2, inputs)), np.zeros(2), np.ones(2, dtype=bool))


def exclusion_counterexample_milp(
    pairs: Pairs, bounds: Bounds, head: Head, region: Region, *, margin: float = 0.0, time_limit: float | None = None
) -> Search:
    """Maximize I_hk min(y_h, y_k) as the paper's MILP: `M I - M <= y` (the sign of its main text), one pair chosen."""
    model = ReachModel(bounds, head, region)
    m, f = len(model.y), len(pairs)
    big = max(1.0, float(np.abs(np.concatenate([model.y_low, model.y_high])).max()))
    positive = model.variables(np.zeros(m), np.ones(m), binary=True)
    both = model.variables(np.zeros(f), np.ones(f), binary=True)
    t = model.variables([-big], [big])
    eye = np.eye(m)
    # M I_k - M <= y_k + margin, and I_hk <= (I_h + I_k) / 2.
    model.rows([(model.y, eye), (positive, -(big + margin) * eye)], -(big + margin) - margin, np.inf)
    incidence = np.zeros((f, m))
    incidence[np.arange(f), pairs[:, 0]] = incidence[np.arange(f), pairs[:, 1]] = 0.5
    model.rows([(both, np.eye(f)), (positive, -incidence)], -np.inf, 0.0)
    model.rows([(both, np.ones((1, f)))], 1.0, 1.0)
    for side in (0, 1):
        chosen = np.zeros((f, m))
        chosen[np.arange(f), pairs[:, side]] = 1.0
        model.rows([(t, np.ones((f, 1))), (model.y, -chosen), (both, 2 * big * np.eye(f))], -np.inf, 2 * big)
    found = model.solve({int(t[0]): 1.0}, time_limit=time_limit)
    if found.status is Status.INFEASIBLE:
        # No pair can be positive at once: the requirement that one is chosen has no solution.
        return Search(None, Status.OPTIMAL, found.message)
    if found.x is None:
        return Search(None, found.status if found.status is not Status.OPTIMAL else Status.ERROR, found.message)
    h, k = (int(v) for v in pairs[int(np.argmax(found.x[both]))])
    strength = float(min(found.x[model.y[h]], found.x[model.y[k]]))
    return Search(Counterexample(found.x[model.x], found.x[model.z], strength, (h, k)), found.status, found.message)
