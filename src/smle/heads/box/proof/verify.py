"""Verification: (over-approximation, specification, cells) -> one verdict per obligation.

A clause is proved by one convex combination lambda of its literals that holds as a plain inequality over the
region (theory: section "Verification"): closed form for single literals, one LP for the weights of several.
Exclusions are handled as arrays. A solver's answer only ever suggests multipliers; the verdict comes from
pricing them in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.cases import Cases
from smle.heads.box.proof.clause_lp import ClauseOptimum, clause_optimum
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.pairs import verify_exclusions
from smle.heads.box.proof.verdict import (
    ExclusionVerdicts,
    Holds,
    Multipliers,
    NotProved,
    Obligation,
    ProvedCase,
    RegionGaps,
    Tree,
    Unknown,
    Verdict,
    Verdicts,
)
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox, worst_case
from smle.regions.cells import Cells, obligation_regions
from smle.regions.geometry import Domain, Region, RegionMaximum, enlarged_rows
from smle.rules import Clause, Literals, Specification, exclusion

__all__ = ["best_combination", "judge_clause", "judge_literals", "verify", "verify_clauses"]

Array = npt.NDArray[np.float64]

_TINY_SHARE = 1e-13
"""A margin below this share of the clause's own terms is not trusted in float64."""
_WITNESSES = 20
"""Keep an input for up to this many unproved pairs."""
_MOST_PAIRS = 500
"""Try up to this many pairs as clauses if weights do not prove them."""


def verify(over: FrozenHeads, spec: Specification, cells: Cells) -> Verdicts:
    """Judge every obligation of every head.

    Raises:
        ValueError: If heads and cells do not match, or a cell with obligations has no head.

    """
    if len(over.heads) != len(cells):
        raise ValueError(f"Expected one head per cell ({len(cells)}). Got {len(over.heads)} heads.")
    domain, rows = Domain.of(spec), enlarged_rows(cells, spec)
    items: list[tuple[Obligation, Verdict]] = []
    blocks: list[ExclusionVerdicts] = []
    gaps: list[RegionGaps] = []
    for c, head in enumerate(over.heads):
        for region, active, rules in obligation_regions(cells, spec, c):
            if head is None:
                raise ValueError(f"Expected a head for cell {c}, where rules bind. Got None.")
            place = _Place(over.bounds, head, Region.of(cells, spec, active, domain=domain, rows=rows))
            clauses = [(i, j, clause) for i in rules for j, clause in enumerate(spec.rules[i].requirement.clauses)]
            verdicts = place.verdicts([clause for *_, clause in clauses])
            items.extend((Obligation(c, i, j, region), v) for (i, j, _), v in zip(clauses, verdicts, strict=True))
            for i in rules:
                pairs = spec.rules[i].requirement.exclusions
                if len(pairs):
                    before = len(spec.rules[i].requirement.clauses)
                    blocks.append(ExclusionVerdicts(c, i, region, pairs, *place.exclusions(pairs, before)))
            gaps.extend(place.gaps(c, region))
    return Verdicts(tuple(items), tuple(blocks), tuple(rule.name for rule in spec.rules), tuple(gaps))


class _Place:
    """One head over one region, to be judged as a whole or case by case."""

    def __init__(self, bounds: Bounds, head: Head, region: Region) -> None:
        self.head, self.support, self.is_relaxed = head, RegionMaximum(region), bool(bounds.hidden)
        self.envelope = WidenedBox.over_region(bounds, self.support)
        self.cases = Cases(bounds, self.envelope, region, judge_clause)
        self.has_cases = self.is_relaxed or self.envelope.crosses

    def verdicts(self, clauses: Sequence[Clause]) -> list[Verdict]:
        if self.is_relaxed:
            return [self.cases.verify(clause, self.head) for clause in clauses]
        found = verify_clauses(clauses, self.head, self.envelope, self.support.region)
        if not self.has_cases:
            return found
        return [
            v if isinstance(v, Holds) else self.cases.verify(clause, self.head)
            for clause, v in zip(clauses, found, strict=True)
        ]

    def exclusions(
        self, pairs: npt.NDArray[np.int32], before: int
    ) -> tuple[npt.NDArray[np.float32], Array, dict[int, Tree], tuple[tuple[int, Verdict], ...]]:
        """Return weights, margins, cases and `unproved` of `ExclusionVerdicts`; `before` clauses precede the pairs.

        Weights prove most pairs over the whole domain. The others are judged as clauses over the region.
        """
        weights, margins = np.zeros((len(pairs), 2), np.float32), np.full(len(pairs), -np.inf)
        if not self.is_relaxed:
            weights, margins = verify_exclusions(pairs, self.head, self.envelope, self.support.region.domain)
        worst = np.argsort(margins, kind="stable")[: int((~(margins > 0)).sum())]
        if not self.has_cases and len(worst) > _MOST_PAIRS:
            worst = worst[:_WITNESSES]
        cases: dict[int, Tree] = {}
        unproved: list[tuple[int, Verdict]] = []
        for p in worst.tolist():
            (verdict,) = self.verdicts([exclusion(*pairs[p].tolist())])
            if isinstance(verdict, Holds):
                cases[p] = verdict.multipliers.cases or (ProvedCase(verdict.multipliers, None),)
                weights[p] = verdict.multipliers.weights
            elif len(unproved) < _WITNESSES:
                unproved.append((before + p, verdict))
            if isinstance(verdict, Holds | NotProved):
                margins[p] = verdict.margin
        return weights, margins, cases, tuple(unproved)

    def gaps(self, head: int, region: int | None) -> list[RegionGaps]:
        crossing = self.envelope.crossing
        if crossing is None:
            return []
        place = self.support.region
        units = zip(crossing.units.tolist(), crossing.share.tolist(), crossing.lower_mu, crossing.upper_mu, strict=True)
        return [RegionGaps(head, region, tuple((i, s, place.pairs(a), place.pairs(b)) for i, s, a, b in units))]


def judge_clause(clause: Clause, head: Head, envelope: WidenedBox, region: Region) -> Verdict:
    """Judge one clause over one region."""
    return verify_clauses([clause], head, envelope, region)[0]


def verify_clauses(clauses: Sequence[Clause], head: Head, envelope: WidenedBox, region: Region) -> list[Verdict]:
    """Judge clauses over one region, including the fallback."""
    m, d = len(head.b), len(region.domain.low)
    literals = [Literals.of_clauses(clause, m, d) for clause in clauses]
    result = judge_literals(literals, head, envelope, RegionMaximum(region))
    if head.fallback is not None:
        y = head.fallback.astype(np.float64)
        for i, clause in enumerate(clauses):
            verdict = result[i]
            if isinstance(verdict, Holds) and verdict.multipliers.empty:
                continue  # no input reaches it
            room, x = fallback_room(clause, y, region.domain)
            if not room > 0:
                # The fallback is served only if the backbone gives NaN.
                result[i] = NotProved(x, np.full(head.W.shape[1], np.nan), room)
    return result


def judge_literals(
    clauses: Sequence[Literals], head: Head, envelope: WidenedBox, support: RegionMaximum
) -> list[Verdict]:
    """Judge clauses over the region of `support`, ignoring the fallback.

    Single literals are priced all at once; several literals take one LP each.
    """
    support.failure = None
    numbers = HeadNumbers.of(head, envelope, support.region.domain)
    single = [i for i, literals in enumerate(clauses) if len(literals.h) == 1]
    verdicts: dict[int, Verdict] = {}
    if single:
        rows = Literals.stacked([clauses[i] for i in single])
        verdicts.update(zip(single, _single(rows, numbers, envelope, support), strict=True))
    for i, literals in enumerate(clauses):
        if i not in verdicts:
            verdicts[i] = _several(literals, numbers, envelope, support)
    result = [verdicts[i] for i in range(len(clauses))]
    return result if all(isinstance(verdict, Holds) for verdict in result) else _located(result, clauses, support)


def _single(literals: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum) -> list[Verdict]:
    worst = worst_case(literals, head, envelope, support)
    trust = _TINY_SHARE * _sizes(literals, head, support.region.domain)
    result: list[Verdict] = []
    for row, margin in enumerate(-worst.bound):
        multipliers = Multipliers(np.ones(1), support.region.pairs(worst.mu[row]))
        if margin > trust[row]:
            result.append(Holds(float(margin), multipliers))
        elif not np.isfinite(margin):
            result.append(Unknown("the head may overflow float32, so its rounding has no bound"))
        else:
            x = worst.x[row]
            result.append(NotProved(x, envelope.corner(worst.v[row], x), min(float(margin), 0.0), multipliers))
    return result


def _located(result: list[Verdict], clauses: Sequence[Literals], support: RegionMaximum) -> list[Verdict]:
    """Return `Unknown` where no input is known; in a region proved empty, everything holds."""
    point, empty, reason = support.located
    if empty is not None:
        proof = support.region.pairs(empty)
        return [Holds(np.inf, Multipliers(np.zeros(len(c.h)), proof, empty=True)) for c in clauses]
    for i, verdict in enumerate(result):
        if isinstance(verdict, NotProved) and point is None:
            result[i] = Unknown(f"no input of the region was found: {reason}")
        elif isinstance(verdict, NotProved) and np.isnan(verdict.x).any():
            result[i] = Unknown(f"the LP over the region failed: {support.failure}")
    return result


def _sizes(literals: Literals, head: HeadNumbers, domain: Domain) -> Array:
    total: Array = (
        np.abs(literals.g) @ np.minimum(head.sizes, 1e30) + np.abs(literals.h) + np.abs(literals.s) @ domain.sizes
    )
    return total


def _several(literals: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum) -> Verdict:
    """Judge a clause of several literals."""
    region = support.region
    weights, bound, mu, optimum = best_combination(literals, head, envelope, support)
    margin, multipliers = -bound, Multipliers(weights, region.pairs(mu))
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


def best_combination(
    literals: Literals, head: HeadNumbers, envelope: WidenedBox, support: RegionMaximum
) -> tuple[Array, float, Array, ClauseOptimum]:
    """Return the best weights among the LP's and each literal alone, their bound and multipliers, and the optimum."""
    optimum = clause_optimum(literals, head, envelope, support.region)
    candidates = np.eye(len(literals.h))
    if optimum.weights is not None:
        candidates = np.vstack([optimum.weights, candidates])
    worst = worst_case(literals.combined(candidates), head, envelope, support)
    best = int(np.argmin(worst.bound))
    return candidates[best], float(worst.bound[best]), worst.mu[best], optimum


def fallback_room(clause: Clause, y: Array, domain: Domain) -> tuple[float, Array]:
    """Return (room, x); if room is positive, one literal holds for the constant y at every input.

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
