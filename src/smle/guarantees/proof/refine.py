"""Second looks at clauses that the affine envelope does not prove, by MILP: bounds by networks, and crossing bounds.

The envelope of networks, and of affine bounds that cross (l > u), is wider than what the deployed clip reaches. A point
that the MILP finds is a real corner of the over-approximation; its claim that there is none is no proof, so the
verdict is `Unknown` with the claimed margin.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.milp import worst_clause_milp
from smle.guarantees.proof.overapproximation import AffineBounds, Bounds, Head, Layer, NetworkBounds
from smle.guarantees.proof.verdict import NotProved, Unknown, Verdict
from smle.guarantees.proof.worst_case import Envelope, Literals
from smle.guarantees.regions.geometry import Domain, Region
from smle.rules import Clause
from smle.solvers import Status

__all__ = ["bounds_at", "refine"]

Array = npt.NDArray[np.float64]

_TIME_LIMIT = 30.0


def refine(verdict: Verdict, clause: Clause, head: Head, *, bounds: Bounds, region: Region) -> Verdict:
    """Look again at a clause that was not proved over the envelope, if the envelope may be at fault."""
    if not isinstance(verdict, NotProved) or verdict.multipliers is None:  # without multipliers: it is real already
        return verdict
    if not (isinstance(bounds, NetworkBounds) or _crossing(bounds, region.domain)):
        return verdict
    literals = Literals.of(clause, len(head.b), len(region.domain.low))
    found, x, z = worst_clause_milp(literals, bounds, head, region, time_limit=_TIME_LIMIT)
    if x is None or z is None:
        return Unknown(f"the MILP failed: {found.status} ({found.message})")
    if found.objective >= -1e-6 * (1 + float(np.abs(literals.h).max())):
        return NotProved(x, z, min(0.0, -found.objective))
    if found.status is not Status.OPTIMAL:
        return Unknown(f"the MILP stopped early: {found.status} ({found.message})")
    return Unknown(
        f"a MILP solver says that it holds over real numbers by {-found.objective:.3g}, but no multipliers "
        "were found that prove it",
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
