"""Verification: (over-approximation, specification, cells) -> one verdict per obligation.

A clause is proved by one convex combination lambda of its literals that holds as a plain inequality over the
region (theory: section "Verification"): closed form for single literals, one LP for the weights of several.
Exclusions are handled as arrays. A solver's answer only ever suggests multipliers; the verdict comes from
pricing them in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.clause_lp import ClauseOptimum, clause_optimum
from smle.guarantees.proof.closed_form import ClosedForm
from smle.guarantees.proof.exclusions import verify_exclusions
from smle.guarantees.proof.frozen_heads import FrozenHeads, Head, NetworkBounds
from smle.guarantees.proof.network_boxes import Boxes
from smle.guarantees.proof.verdict import (
    ExclusionVerdicts,
    Holds,
    Multipliers,
    NotProved,
    Obligation,
    Unknown,
    Verdict,
    Verdicts,
)
from smle.guarantees.proof.worst_case import HeadNumbers, WidenedBox, worst_case
from smle.guarantees.regions.cells import Cells, obligation_regions
from smle.guarantees.regions.geometry import Domain, Region, RegionMaximum, enlarged_rows
from smle.rules import CNF, Clause, Literals, Specification

__all__ = ["ClauseVerifier", "verify", "verify_clauses"]

Array = npt.NDArray[np.float64]

_TINY_SHARE = 1e-13
"""A margin below this share of the clause's own terms is not trusted in float64."""
_WITNESSES = 20
"""Pairs that are not proved for which an input is looked for."""
_ALONE = Multipliers(np.ones(1))
"""One literal that needs no rows of the region. Shared by many verdicts, so read only."""
_ALONE.weights.setflags(write=False)


def verify(over: FrozenHeads, spec: Specification, cells: Cells) -> Verdicts:
    """Judge every obligation of every head.

    Raises:
        ValueError: If heads and cells do not match, or a cell with obligations has no head.

    """
    if len(over.heads) != len(cells):
        raise ValueError(f"Expected one head per cell ({len(cells)}). Got {len(over.heads)} heads.")
    domain, rows = Domain.of(spec), enlarged_rows(cells, spec)
    envelope = WidenedBox.of(over.bounds, domain)
    items: list[tuple[Obligation, Verdict]] = []
    blocks: list[ExclusionVerdicts] = []
    for c, head in enumerate(over.heads):
        for region, active, rules in obligation_regions(cells, spec, c):
            if head is None:
                raise ValueError(f"Expected a head for cell {c}, where rules bind. Got None.")
            polytope = Region.of(cells, spec, active, domain=domain, rows=rows)
            clauses = [(i, j, clause) for i in rules for j, clause in enumerate(spec.rules[i].requirement.clauses)]
            over_region = [clause for *_, clause in clauses]
            boxes = Boxes(over.bounds, polytope) if isinstance(over.bounds, NetworkBounds) else None
            if boxes is None:
                verdicts = verify_clauses(over_region, head, envelope, polytope)
            else:
                verdicts = [boxes.verify(clause, head, judge=_judge) for clause in over_region]
            items.extend(
                (Obligation(c, i, j, region), verdict) for (i, j, _), verdict in zip(clauses, verdicts, strict=True)
            )
            for i in rules:
                pairs = spec.rules[i].requirement.exclusions
                if not len(pairs):
                    continue
                if boxes is None:
                    found = ExclusionVerdicts(c, i, region, pairs, *verify_exclusions(pairs, head, envelope, domain))
                else:
                    proofs = boxes.verify_exclusions(pairs, head, judge=_judge)
                    found = ExclusionVerdicts(c, i, region, pairs, *proofs)
                if not found.proved.all():
                    judged = partial(_judge_pair, head=head, envelope=envelope, region=polytope, boxes=boxes)
                    found = replace(found, unproved=_unproved(found, len(spec.rules[i].requirement.clauses), judged))
                blocks.append(found)
    return Verdicts(tuple(items), tuple(blocks))


def _judge(clause: Clause, head: Head, envelope: WidenedBox, region: Region) -> Verdict:
    return verify_clauses([clause], head, envelope, region)[0]


def _unproved(
    block: ExclusionVerdicts, clauses: int, judged: Callable[[Clause], Verdict]
) -> tuple[tuple[int, Verdict], ...]:
    """Return verdicts with inputs for the worst pairs that are not proved; `clauses` come before them."""
    worst = np.argsort(block.margins, kind="stable")[: min(_WITNESSES, int((~block.proved).sum()))]
    found: list[tuple[int, Verdict]] = []
    for p in worst.tolist():
        (clause,) = CNF((), block.pairs[p : p + 1]).expanded()
        verdict = judged(clause)
        if isinstance(verdict, Holds):
            verdict = Unknown("it holds over its region, but exclusions are proved over the whole domain")
        found.append((clauses + p, verdict))
    return tuple(found)


def _judge_pair(clause: Clause, *, head: Head, envelope: WidenedBox, region: Region, boxes: Boxes | None) -> Verdict:
    return _judge(clause, head, envelope, region) if boxes is None else boxes.verify(clause, head, judge=_judge)


def verify_clauses(clauses: Sequence[Clause], head: Head, envelope: WidenedBox, region: Region) -> list[Verdict]:
    """Judge clauses over one region, the fallback included."""
    m, d = len(head.b), len(region.domain.low)
    literals = [Literals.of_clauses(clause, m, d) for clause in clauses]
    result = ClauseVerifier(literals, envelope, RegionMaximum(region, points=False))(head)
    if head.fallback is not None:
        y = head.fallback.astype(np.float64)
        for i, clause in enumerate(clauses):
            verdict = result[i]
            if isinstance(verdict, Holds) and verdict.multipliers.empty:
                continue  # no input gets there
            room, x = fallback_room(clause, y, region.domain)
            if not room > 0:
                # No number leads there: the backbone gives NaN.
                result[i] = NotProved(x, np.full(head.W.shape[1], np.nan), room)
    return result


class ClauseVerifier:
    """Clauses over one region, prepared once and judged for head after head.

    Single literals are priced all at once, in closed form under constant bounds; several literals take one LP each.
    """

    def __init__(self, clauses: Sequence[Literals], envelope: WidenedBox, support: RegionMaximum) -> None:
        """Prepare clauses over the region of `support` for heads under `envelope`."""
        self.clauses, self.envelope, self.support = clauses, envelope, support
        self._single = [i for i, literals in enumerate(clauses) if len(literals.h) == 1]
        self._several = [i for i, literals in enumerate(clauses) if len(literals.h) != 1]
        self._rows = Literals.stacked([clauses[i] for i in self._single]) if self._single else None
        self._closed = None if self._rows is None else ClosedForm.of(self._rows, envelope, support.region)

    def __call__(self, head: Head) -> list[Verdict]:
        """Judge the clauses for a head; its fallback is left aside."""
        self.support.failure = None
        result = self._by_closed_form(head)
        if result is None:
            result = self._in_general(head)
        if all(type(verdict) is Holds for verdict in result):
            return result
        return _located(result, self.clauses, self.envelope, self.support)

    def _by_closed_form(self, head: Head) -> list[Verdict] | None:
        """Judge single literals where nothing depends on x; None if that is not the case."""
        if self._closed is None or self._several or head.V is not None:
            return None
        priced = self._closed(head)
        if priced is None:
            return None
        bounds, sizes, v = priced
        result: list[Verdict] = []
        for row, (bound, size) in enumerate(zip(bounds.tolist(), sizes.tolist(), strict=True)):
            if -bound > _TINY_SHARE * size:
                result.append(Holds(-bound, _ALONE))
            else:
                # No input plays a part: `_located` adds one.
                x = np.full(len(self.support.region.domain.low), np.nan)
                result.append(NotProved(x, np.where(v[row] > 0, 1.0, 0.0), min(-bound, 0.0), _ALONE))
        return result

    def _in_general(self, head: Head) -> list[Verdict]:
        numbers = HeadNumbers.of(head, self.envelope, self.support.region.domain)
        verdicts: dict[int, Verdict] = {}
        if self._rows is not None:
            single = _single(self._rows, numbers, self.envelope, self.support)
            verdicts.update(zip(self._single, single, strict=True))
        for i in self._several:
            verdicts[i] = _several(self.clauses[i], numbers, self.envelope, self.support)
        return [verdicts[i] for i in range(len(self.clauses))]


def _single(literals: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum) -> list[Verdict]:
    worst = worst_case(literals, head, envelope, support)
    trust = _TINY_SHARE * _sizes(literals, head, support.region.domain)
    result: list[Verdict] = []
    for row, margin in enumerate(-worst.bound):
        rows = support.region.pairs(worst.mu[row])
        multipliers = Multipliers(np.ones(1), rows) if rows else _ALONE
        if margin > trust[row]:
            result.append(Holds(float(margin), multipliers))
        elif not np.isfinite(margin):
            result.append(Unknown("the head may overflow float32, so its rounding has no bound"))
        else:
            # x is NaN where it plays no part, or where the LP failed; `_located` tells these apart.
            x = worst.x[row]
            z = np.where(worst.v[row] > 0, 1.0, 0.0) if np.isnan(x).any() else envelope.corner(worst.v[row], x)
            result.append(NotProved(x, z, min(float(margin), 0.0), multipliers))
    return result


def _located(
    result: list[Verdict], clauses: Sequence[Literals], envelope: WidenedBox, support: RegionMaximum
) -> list[Verdict]:
    """Give witnesses without an input one inside the region; if the region is proved empty, nothing has to hold."""
    region = support.region
    point, empty, reason = support.located
    if empty is not None:
        proof = region.pairs(empty)
        return [Holds(np.inf, Multipliers(np.zeros(len(c.h)), proof, empty=True)) for c in clauses]
    for i, verdict in enumerate(result):
        if not isinstance(verdict, NotProved):
            continue
        if point is None:
            result[i] = Unknown(f"no input of the region was found: {reason}")
        elif np.isnan(verdict.x).any() and support.failure is not None:
            result[i] = Unknown(f"the LP over the region failed: {support.failure}")
        elif np.isnan(verdict.x).any():
            lower, upper = envelope.at(point)
            z = np.where(verdict.z > 0, upper, lower)
            result[i] = NotProved(point, z, verdict.margin, verdict.multipliers)
    return result


def _sizes(literals: Literals, head: HeadNumbers, domain: Domain) -> Array:
    total: Array = (
        np.abs(literals.g) @ np.minimum(head.sizes, 1e30) + np.abs(literals.h) + np.abs(literals.s) @ domain.sizes
    )
    return total


def _several(literals: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum) -> Verdict:
    """Judge a clause of several literals: candidates are the LP's weights and each literal alone."""
    region = support.region
    optimum: ClauseOptimum = clause_optimum(literals, head, envelope, region)
    candidates = np.eye(len(literals.h))
    if optimum.weights is not None:
        candidates = np.vstack([optimum.weights, candidates])
    worst = worst_case(literals.combined(candidates), head, envelope, support)
    best = int(np.argmin(worst.bound))
    margin = -float(worst.bound[best])
    multipliers = Multipliers(candidates[best], region.pairs(worst.mu[best]))
    trust = _TINY_SHARE * float(_sizes(literals, head, region.domain).max())
    if margin > trust:
        return Holds(margin, multipliers)
    if not np.isfinite(margin):
        return Unknown("the head may overflow float32, so its rounding has no bound")
    if optimum.x is None or optimum.z is None:
        return Unknown(f"the LP failed: {optimum.solution.status} ({optimum.solution.message})")
    if optimum.value < -1e3 * trust - 1e-7 * abs(margin):
        return Unknown("the solver's optimum could not be reproduced by its multipliers")
    return NotProved(optimum.x, optimum.z, min(margin, 0.0), multipliers)


def fallback_room(clause: Clause, y: Array, domain: Domain) -> tuple[float, Array]:
    """Return (room, x): positive room means that one literal holds for the constant y at every input.

    Literals without inputs are evaluated exactly; x is where the best literal has the least room.
    """
    literals = Literals.of_clauses(clause, len(y), len(domain.low))
    cast = np.abs(literals.s) @ (domain.sizes * 2.0**-24 + 2.0**-126) * (1 + 1e-9)
    excess = literals.g @ y - literals.h + domain.over(literals.s) + cast
    sizes = np.abs(literals.g) @ np.abs(y) + np.abs(literals.h) + np.abs(literals.s) @ domain.sizes
    room = -(excess + _TINY_SHARE * sizes)
    best = int(np.argmax(room))
    x = np.where(literals.s[best] > 0, domain.high, domain.low)
    point = [Fraction(float(value)) for value in y]
    if any(not literal.inputs and literal.holds(point, ()) for literal in clause.literals):
        return max(float(room[best]), 5e-324), x
    return float(room[best]), x
