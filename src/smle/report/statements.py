"""What is proved, rule by rule: the worst-case margin, and the corner of the certified box that attains it.

A clause is proved by one combination of its literals over the box of the clipped embedding and the cell. Its largest
value is attained at a corner: an input x of the cell and an embedding z, which give outputs y = W z + V x + b. The
margins are those of the exact checker; the corners are computed in float64 and only show where to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate, Proved
from smle.guarantees import (
    Cells,
    Domain,
    FrozenHeads,
    HeadNumbers,
    NetworkBounds,
    Region,
    RegionMaximum,
    WidenedBox,
    slopes_and_offsets,
    verify_exclusions,
    worst_case,
)
from smle.report.wording import clause_text, exclusion_texts, row_text
from smle.rules import Clause, Literals, Specification

__all__ = ["Corner", "Reader", "RuleVerdict", "Witnesses", "enforced_text", "plain_verdicts", "rule_verdicts"]

Array = npt.NDArray[np.float64]
_LOCATED_RULES = 200  # rules for which the corner is computed
_LOCATED_PAIRS = 200_000
_SHOWN_ROWS = 40
_EPS = 2.0**-52


@dataclass(frozen=True)
class Corner:
    """Where a margin is attained.

    * `x` (d,): the input, or None where the worst case is the same at every input of the region.
    * `outputs`: the outputs that the clause mentions, by column, at the corner.
    * `low`, `high`: the values that the left-hand side can take; `limit`: what it may not pass; `upward`: whether the
      limit is an upper one. For a clause of several literals: of the combination that proves it.
    * `pair`: the labels that come closest to occurring together, for exclusions.
    """

    x: Array | None = None
    outputs: tuple[tuple[int, float], ...] = ()
    low: float = np.nan
    high: float = np.nan
    limit: float = np.nan
    upward: bool = True
    pair: tuple[int, int] | None = None


@dataclass(frozen=True)
class RuleVerdict:
    """One rule: how many statements prove it, the one with the smallest margin, and its corner (None: not computed).

    `where` and `sentence` are the worst statement for readers; `enforced` tells what enforces it in a head of rules.
    """

    rule: int
    statements: int
    worst: Proved | None
    corner: Corner | None
    where: str = ""
    sentence: str = ""
    enforced: str = ""

    @property
    def margin(self) -> float | None:
        """The smallest margin; None if the rule is active nowhere."""
        return None if self.worst is None else float(self.worst.margin)


def rule_verdicts(
    proved: tuple[Proved, ...], certificate: Certificate, spec: Specification, *, cells: Cells, over: FrozenHeads
) -> list[RuleVerdict]:
    """Return one verdict per rule, from what the exact checker proved."""
    grouped: dict[int, list[Proved]] = {}
    for item in proved:
        grouped.setdefault(item.obligation.rule, []).append(item)
    reader = Reader(spec, cells)
    witnesses = Witnesses(certificate, spec, cells=cells, over=over)
    result = []
    for rule in range(len(spec.rules)):
        items = grouped.get(rule, [])
        if not items:
            result.append(RuleVerdict(rule, 0, None, None))
            continue
        worst = min(items, key=lambda item: item.margin)
        corner = witnesses.corner(worst) if rule < _LOCATED_RULES else None
        result.append(RuleVerdict(rule, len(items), worst, corner, reader.where(worst), reader.sentence(worst)))
    return result


def plain_verdicts(proved: Sequence[Proved], spec: Specification) -> list[RuleVerdict]:
    """Return one verdict per rule of a head that has no box, and so no corner that attains a margin."""
    result = []
    for index in range(len(spec.rules)):
        items = [item for item in proved if item.obligation.rule == index]
        worst = min(items, key=lambda item: item.margin, default=None)
        told = ("", "") if worst is None else (worst.where, worst.sentence)
        result.append(RuleVerdict(index, len(items), worst, None, *told, enforced_text(items)))
    return result


def enforced_text(proved: Sequence[Proved]) -> str:
    """Return what enforces statements in a head of rules: `2 clips and 1 check`."""
    counts = [(sum(item.by == kind for item in proved), kind) for kind in ("clip", "check")]
    return " and ".join(f"{count:,} {kind}{'s' if count > 1 else ''}" for count, kind in counts if count)


class Reader:
    """Prints proved statements for readers, from the rules themselves."""

    def __init__(self, spec: Specification, cells: Cells) -> None:
        self._spec, self._cells = spec, cells

    def where(self, item: Proved) -> str:
        """Return the region of a statement as a formula; `everywhere` if there is no condition."""
        rows = [self._cells.rows[row] for row in item.obligation.rows]
        if not rows:
            return item.where
        more = f" ∧ … ({len(rows) - _SHOWN_ROWS:,} more)" if len(rows) > _SHOWN_ROWS else ""
        return "where " + " ∧ ".join(row_text(row, self._spec) for row in rows[:_SHOWN_ROWS]) + more

    def sentence(self, item: Proved) -> str:
        """Return what a statement says as a formula."""
        requirement, clause = self._spec.rules[item.obligation.rule].requirement, item.obligation.clause
        if clause is not None:
            return clause_text(requirement.clauses[clause], self._spec)
        pairs = requirement.exclusions
        more = f" and {len(pairs) - 3:,} more exclusions" if len(pairs) > 3 else ""
        return "; ".join(exclusion_texts(pairs[:3].tolist(), self._spec)) + more


class Witnesses:
    """Finds the corners of one model."""

    def __init__(self, certificate: Certificate, spec: Specification, *, cells: Cells, over: FrozenHeads) -> None:
        self.spec, self.cells, self.over = spec, cells, over
        self.domain = Domain.of(spec)
        self.envelope = WidenedBox.of(over.bounds, self.domain)
        self._weights: dict[tuple[int, int, int | None, int | None], Any] = {
            (p["head"], p["rule"], p["region"], p["clause"]): p["lambda"]
            for p in certificate.document["proof"]["obligations"]
            if "lambda" in p
        }
        self._supports: dict[tuple[int, int | None], RegionMaximum] = {}

    def support(self, head: int, region: int | None) -> RegionMaximum:
        """Return maxima of linear functions over the polytope that an obligation is proved over."""
        place = (head, region)
        if place not in self._supports:
            active = (*self.cells[head], *(() if region is None else (region,)))
            self._supports[place] = RegionMaximum(Region.of(self.cells, self.spec, active, domain=self.domain))
        return self._supports[place]

    def corner(self, item: Proved) -> Corner | None:
        """Return where the margin of a statement is attained; None if that is not known.

        Bounds by a network are proved box by box, without one corner that stands for all.
        """
        if isinstance(self.over.bounds, NetworkBounds):
            return None
        obligation = item.obligation
        head = self.over.heads[obligation.head]
        assert head is not None
        requirement = self.spec.rules[obligation.rule].requirement
        if obligation.clause is None:
            if len(requirement.exclusions) > _LOCATED_PAIRS:
                return None
            _, margins = verify_exclusions(requirement.exclusions, head, self.envelope, self.domain)
            h, k = requirement.exclusions[int(np.argmin(margins))].tolist()
            return Corner(pair=(h, k))
        numbers = HeadNumbers.of(head, self.envelope, self.domain)
        return self._clause_corner(requirement.clauses[obligation.clause], numbers, item)

    def _clause_corner(self, clause: Clause, numbers: HeadNumbers, item: Proved) -> Corner | None:
        key, margin = item.obligation, float(item.margin)
        m, d = len(self.spec.targets), len(self.spec.columns)
        weights = np.array([float.fromhex(w) for w in self._weights[key.head, key.rule, key.region, key.clause]])
        literals = Literals.of_clauses(clause, m, d).combined(weights[None] / weights.sum())
        support = self.support(key.head, key.region)
        both = Literals.stacked([literals, Literals(-literals.g, -literals.s, -literals.h, literals.strict)])
        worst = worst_case(both, numbers, self.envelope, support)
        v, c, _ = slopes_and_offsets(literals, numbers, self.envelope)
        x = worst.x[0]
        if np.isnan(x).any() or not np.isfinite(worst.bound).all():
            return None
        z = self.envelope.corner(v[0], x)
        y = numbers.W @ z + numbers.b + (0.0 if numbers.V is None else numbers.V @ x)
        mentioned = sorted({j for literal in clause.literals for j, _ in literal.outputs})
        limit = float(literals.h[0])
        lowest = limit - float(worst.bound[1])
        slack = 4 * _EPS * (abs(limit) + abs(margin) + abs(lowest))  # the ends are never narrower for being floats
        high = min(limit - margin + slack, limit)
        low = min(lowest - slack, high)
        turned = len(clause.literals) == 1 and clause.literals[0].outputs[0][1] < 0
        ends = (-high, -low, -limit) if turned else (low, high, limit)
        return Corner(x if c.any() else None, tuple((j, float(y[j])) for j in mentioned), *ends, upward=not turned)
