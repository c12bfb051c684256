"""Strongest counterexamples by the paper's two objectives, faster than its MILPs and with the same optimum.

* Linear inequalities (equation polytopes_counter): maximize sum_k max(0, R_k y - r_k), rows as the user stated them.
  The sum of positive parts is the largest sum over a subset of rows, so a few closed forms or LPs, one per subset, find
  the same optimum. Many rows are left to the MILP.
* Exclusions (equation mutex_counter): maximize I_hk min(y_h, y_k) over pairs. For one pair that is a linear program;
  its dual bound is cheap for all pairs at once, and only pairs whose bound beats the best value so far are solved.
* Per clause: maximize min_j (literal_j), one LP, whose multipliers prove the clause where the maximum is negative.

Where l > u the clip gives u, here as in the deployed program (the paper's formula gives l). No rounding is considered:
these are the paper's problems over real numbers; callers put the tolerance of its supplement into h. The MILPs are
in studies/formulations.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.clause_lp import clause_optimum
from smle.guarantees.proof.exclusions import PairValues, best_weights
from smle.guarantees.proof.worst_case import HeadNumbers, HiddenWidenedBox, WidenedBox, slopes_and_offsets
from smle.guarantees.regions.geometry import Region, RegionMaximum
from smle.rules import Literals
from smle.solvers import MixedIntegerProgram, Status, solve

__all__ = ["Counterexample", "Search", "counterexample_at", "exclusion_counterexample", "linear_counterexample"]

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int32]

_SUBSET_ROWS = 12
"""Up to this many rows all subsets are tried."""

_MILP_SECONDS = 30.0


@dataclass(frozen=True, eq=False)
class Counterexample:
    """A point (x, z) of the over-approximation and its strength; `violated` are row numbers, or one pair (h, k)."""

    x: Array
    z: Array
    strength: float
    violated: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Search:
    """The outcome of a search: a counterexample; or none, if `status` is OPTIMAL; or no answer.

    `strongest` is False where a stronger one may exist: the MILP ran out of time, or bounds by a network were relaxed.
    """

    found: Counterexample | None
    status: Status
    message: str = ""
    strongest: bool = True

    @property
    def none_exists(self) -> bool:
        """Whether the search ended and found nothing (a solver's word, not a proof)."""
        return self.found is None and self.status is Status.OPTIMAL


def linear_counterexample(rows: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum) -> Search:
    """Maximize the sum of positive violations of single-literal rows.

    Only rows that can be violated at all take part. Up to 12 of them all subsets are tried; beyond that HiGHS solves
    the paper's MILP. A counterexample has a strength > 0.
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
    value, x, v = _maxima(rows.combined(weights), head, envelope, support)
    if np.isnan(x).any():
        return _failed(support)
    best = int(np.argmax(value))
    found = counterexample_at(rows, head, x[best], envelope.corner(v[best], x[best]))
    return Search(found, Status.OPTIMAL, strongest=not isinstance(envelope, HiddenWidenedBox))


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

    Its violated rows are then summed and maximized in closed form: what is returned has no solver's tolerance in it.
    """
    lowest, x, _ = _maxima(Literals(-rows.g, -rows.s, -rows.h, rows.strict), head, envelope, support)
    if np.isnan(x).any():
        return _failed(support)
    k, (n, d) = len(active), (head.W.shape[1], support.region.A.shape[1])
    reach, drop = reach[active], np.maximum(lowest[active], 0.0)
    g, eye, units, none = rows.g[active], np.eye(k), np.eye(n), np.zeros((n, k))
    direct = rows.s[active] + (0 if head.V is None else g @ head.V)
    L, U = (np.zeros((n, d)) if slope is None else slope for slope in (envelope.lower_slope, envelope.upper_slope))
    low, high, oblique = support.region.tight_box()
    A, a = support.region.A[oblique], support.region.a[oblique]
    # Columns: x, z, violations, whether they count. Violations are measured in what the row can reach.
    blocks = [
        (np.hstack([A, np.zeros((len(a), n + 2 * k))]), a),
        (np.hstack([-U, units, none, none]), envelope.upper),
        (np.hstack([L, -units, none, none]), -envelope.lower),
        (
            np.hstack([-direct / reach[:, None], -g @ head.W / reach[:, None], eye, np.diag(drop / reach)]),
            (drop + g @ head.b - rows.h[active]) / reach,
        ),
        (np.hstack([np.zeros((k, d + n)), eye, -eye]), np.zeros(k)),
    ]
    matrix, right = np.vstack([block for block, _ in blocks]), np.concatenate([side for _, side in blocks])
    program = MixedIntegerProgram(
        np.concatenate([np.zeros(d + n), -reach / reach.max(), np.zeros(k)]),
        matrix,
        np.full(len(right), -np.inf),
        right,
        np.concatenate([low, -envelope.sizes, np.zeros(2 * k)]),
        np.concatenate([high, envelope.sizes, np.ones(2 * k)]),
        np.arange(d + n + 2 * k) >= d + n + k,
    )
    solved = solve(program, time_limit=_MILP_SECONDS)
    if solved.x is None:
        return Search(None, Status.ERROR, f"the MILP ended with {solved.status} ({solved.message})")
    weights = np.zeros((1, len(rows.h)))
    weights[0, active] = solved.x[-k:] > 0.5
    _, x, v = _maxima(rows.combined(weights), head, envelope, support)
    if np.isnan(x).any():
        return _failed(support)
    found = [
        counterexample_at(rows, head, x[0], envelope.corner(v[0], x[0])),
        counterexample_at(rows, head, solved.x[:d], solved.x[d : d + n]),
    ]
    best = max((one for one in found if one is not None), key=lambda one: one.strength, default=None)
    if best is None:
        return Search(None, Status.ERROR, "the MILP gave a point that breaks no row")
    certain = solved.status is Status.OPTIMAL and not isinstance(envelope, HiddenWidenedBox)
    return Search(best, Status.OPTIMAL, solved.message, strongest=certain)


def _maxima(
    rows: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum
) -> tuple[Array, Array, Array]:
    """Return (maximum of each row's excess, where, direction in z)."""
    v, c, offset = slopes_and_offsets(rows, head, envelope)
    top, _, x = support(c)
    return top + offset, x, v


def counterexample_at(rows: Literals, head: HeadNumbers, x: Array, z: Array) -> Counterexample | None:
    """Return the point (x, z) with its strength as the paper measures it, None if it breaks no row."""
    y = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
    excess = rows.g @ y + rows.s @ x - rows.h
    violated = tuple(int(k) for k in np.flatnonzero(excess > 0))
    strength = float(np.maximum(excess, 0.0).sum())
    return Counterexample(x, z, strength, violated) if violated else None


def exclusion_counterexample(pairs: Pairs, head: HeadNumbers, envelope: WidenedBox, region: Region) -> Search:
    """Maximize min(y_h, y_k) over pairs and the over-approximation; a counterexample is a maximum >= 0."""
    values = PairValues.of(head, envelope, region.domain)
    _, bounds = best_weights(pairs, values)
    best: Counterexample | None = None
    for i in np.argsort(-bounds):
        value = 0.0 if best is None else best.strength
        if bounds[i] < value - 1e-12:
            break
        h, k = int(pairs[i, 0]), int(pairs[i, 1])
        literals = Literals.of_pairs(pairs[i], head.W.shape[0], len(region.domain.low))
        optimum = clause_optimum(literals, head, envelope, region)
        if optimum.x is None or optimum.z is None:
            return Search(None, Status.ERROR, f"{optimum.solution.status} ({optimum.solution.message})")
        y = head.W @ optimum.z + head.b + (0 if head.V is None else head.V @ optimum.x)
        strength = float(min(y[h], y[k]))
        if strength >= 0 and (best is None or strength > best.strength):
            best = Counterexample(optimum.x, optimum.z, strength, (h, k))
    return Search(best, Status.OPTIMAL)
