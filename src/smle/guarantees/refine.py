"""Second looks at clauses that the affine envelope does not prove: splitting for networks, MILP for crossing bounds.

The envelope of networks, and of affine bounds that cross (l > u), is wider than what the deployed clip reaches. For
networks the domain is split into boxes with tighter envelopes, each proved by itself. What is left open goes to the
MILP: a point it finds is a real corner of the over-approximation; its claim that there is none is no proof, so the
verdict is `Unknown` with the claimed margin.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from smle.guarantees.geometry import Domain, Region
from smle.guarantees.milp import worst_clause_milp
from smle.guarantees.overapproximation import AffineBounds, Bounds, Head, Layer, NetworkBounds
from smle.guarantees.verdict import Holds, Multipliers, NotProved, Unknown, Verdict
from smle.guarantees.worst_case import Envelope, Literals
from smle.rules import Clause
from smle.solvers import Status

__all__ = ["bounds_at", "refine"]

Array = npt.NDArray[np.float64]
Judge = Callable[[Clause, Head, Envelope, Region], Verdict]

_PARTS = 64
_TIME_LIMIT = 30.0


def refine(verdict: NotProved, clause: Clause, head: Head, *, bounds: Bounds, region: Region, judge: Judge) -> Verdict:
    """Look again at a clause that was not proved over the envelope; `judge` verifies one clause over one box."""
    if not (isinstance(bounds, NetworkBounds) or _crossing(bounds, region.domain)):
        return verdict
    literals = Literals.of(clause, len(head.b), len(region.domain.low))
    if isinstance(bounds, NetworkBounds):
        split = _split(clause, literals, head, bounds, region, judge)
        if split is not None:
            return split
    found, x, z = worst_clause_milp(literals, bounds, head, region, time_limit=_TIME_LIMIT)
    if x is None or z is None:
        return Unknown(f"the MILP failed: {found.status} ({found.message})")
    if found.objective >= -1e-6 * (1 + float(np.abs(literals.h).max())):
        return NotProved(x, z, min(0.0, -found.objective))
    if found.status is not Status.OPTIMAL:
        return Unknown(f"the MILP stopped early: {found.status} ({found.message})")
    return Unknown(
        "a MILP solver says that it holds over real numbers, but there are no multipliers that prove it",
        claimed_margin=-found.objective,
    )


def _crossing(bounds: Bounds, domain: Domain) -> bool:
    """Whether affine bounds cross by more than rounding explains (a hair is not worth a MILP)."""
    if not isinstance(bounds, AffineBounds):
        return False
    envelope = Envelope.plain(bounds, domain)
    assert envelope.lower_slope is not None
    assert envelope.upper_slope is not None
    gap = envelope.lower - envelope.upper + domain.over(envelope.lower_slope - envelope.upper_slope)
    return bool((gap > 1e-4 * envelope.sizes).any())


def _evaluate(layers: tuple[Layer, ...], x: Array) -> Array:
    value = x
    for depth, layer in enumerate(layers):
        value = (np.maximum(value, 0.0) if depth else value) @ layer.weight.T.astype(np.float64) + layer.bias
    return value


def bounds_at(bounds: Bounds, x: Array) -> tuple[Array, Array]:
    """Return (l(x), u(x)) in float64 as stated, not widened and perhaps crossing."""
    if isinstance(bounds, NetworkBounds):
        return _evaluate(bounds.lower, x), _evaluate(bounds.upper, x)
    lower, upper = bounds.lower.astype(np.float64), bounds.upper.astype(np.float64)
    if isinstance(bounds, AffineBounds):
        lower, upper = lower + bounds.lower_slope @ x, upper + bounds.upper_slope @ x
    return lower, upper


def _real(literals: Literals, head: Head, bounds: NetworkBounds, x: Array, weights: Array) -> NotProved | None:
    """Return the verdict that x itself justifies: the worst z at x, under the real bounds, breaks the clause."""
    lower, upper = bounds_at(bounds, x)
    v = (weights @ literals.g) @ head.W
    z = np.where(v > 0, upper, np.minimum(lower, upper))
    y = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
    excess = float((literals.g @ y + literals.s @ x - literals.h).min())
    return NotProved(x, z, min(0.0, -excess)) if excess >= 0 else None


def _split(
    clause: Clause, literals: Literals, head: Head, bounds: NetworkBounds, region: Region, judge: Judge
) -> Verdict | None:
    """Prove the clause box by box, widest first; None if the budget ends with boxes left open."""
    domain = region.domain
    span = np.maximum(domain.high - domain.low, 1e-300)
    open_boxes: list[tuple[float, int, Array, Array]] = [(0.0, 0, domain.low, domain.high)]
    proofs: list[Holds] = []
    count = 1
    while open_boxes and count < _PARTS:
        _, _, low, high = heapq.heappop(open_boxes)
        box = Region(Domain(low, high, domain.sizes), region.numbers, region.A, region.a)
        envelope = Envelope.of_networks(bounds, domain, low, high)
        verdict = judge(clause, head, envelope, box)
        if isinstance(verdict, Holds):
            proofs.append(verdict)
            continue
        if isinstance(verdict, NotProved) and verdict.multipliers is not None:
            inside = bool((region.A @ verdict.x <= region.a + 1e-9 * np.abs(region.a)).all())
            real = _real(literals, head, bounds, verdict.x, verdict.multipliers.weights) if inside else None
            if real is not None:
                return real
        i = int(np.argmax((high - low) / span))
        middle = (low[i] + high[i]) / 2
        for side in (0, 1):
            part_low, part_high = low.copy(), high.copy()
            if side:
                part_low[i] = middle
            else:
                part_high[i] = middle
            count += 1
            heapq.heappush(open_boxes, (-float(((part_high - part_low) / span).max()), count, part_low, part_high))
    if open_boxes:
        return None
    worst = min(proofs, key=lambda proof: proof.margin)
    proof = worst.multipliers
    return Holds(worst.margin, Multipliers(proof.weights, proof.rows, proof.empty, parts=len(proofs)))
