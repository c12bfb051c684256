"""Strongest counterexamples by the paper's two objectives, faster than its MILPs and with the same optimum.

* Linear inequalities (equation polytopes_counter): maximize sum_k max(0, R_k y - r_k). The sum of positive parts is
  the largest sum over a subset of rows, so a few closed forms or LPs, one per subset, find the same optimum.
* Exclusions (equation mutex_counter): maximize I_hk min(y_h, y_k) over pairs. For one pair that is a linear program;
  its dual bound is cheap for all pairs at once, and only pairs whose bound beats the best value so far are solved.
* Per clause: maximize min_j (literal_j), one LP, whose multipliers prove the clause where the maximum is negative.

Where l > u the clip gives u, here as in the deployed program (the paper's formula gives l). No rounding is considered:
these are the paper's problems over real numbers; `margin` adds the tolerance of its supplement. The MILPs are
in studies/formulations.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.clause_lp import clause_optimum
from smle.guarantees.proof.exclusions import PairValues, best_weights
from smle.guarantees.proof.worst_case import HeadNumbers, Literals, WidenedBox, slopes_and_offsets
from smle.guarantees.regions.geometry import Region, RegionMaximum
from smle.solvers import Status

__all__ = ["Counterexample", "Search", "counterexample_at", "exclusion_counterexample", "linear_counterexample"]

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int32]

_SUBSET_ROWS = 12
"""Up to this many rows all subsets are tried."""


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


def linear_counterexample(
    rows: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum, *, margin: float = 0.0
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
    return Search(counterexample_at(rows, head, x[best], z, margin), Status.OPTIMAL)


def _ascend(
    rows: Literals,
    head: HeadNumbers,
    envelope: WidenedBox,
    support: RegionMaximum,
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
            found = counterexample_at(rows, head, point, envelope.corner(direction, point), margin)
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
    rows: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum, margin: float
) -> tuple[Array, Array, Array]:
    """Return (maximum of each row's excess, where, direction in z)."""
    v, c, offset = slopes_and_offsets(rows, head, envelope)
    top, _, x = support(c)
    return top + offset + margin, x, v


def counterexample_at(rows: Literals, head: HeadNumbers, x: Array, z: Array, margin: float) -> Counterexample | None:
    """Return the point (x, z) with its strength as the paper measures it, None if it breaks no row."""
    y = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
    excess = rows.g @ y + rows.s @ x - rows.h + margin
    violated = tuple(int(k) for k in np.flatnonzero(excess > 0))
    strength = float(np.maximum(excess, 0.0).sum())
    return Counterexample(x, z, strength, violated) if violated else None


def exclusion_counterexample(
    pairs: Pairs, head: HeadNumbers, envelope: WidenedBox, region: Region, *, margin: float = 0.0
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
