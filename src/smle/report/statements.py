"""What is proved, rule by rule: the worst-case margin, and the corner of the certified box that attains it.

A clause is proved by one combination of its literals over the box of the clipped embedding and the cell. Its largest
value is attained at a corner: an input x of the cell and an embedding z, which give outputs y = W z + V x + b. The
margins are those of the exact checker; the corners are computed in float64 and only show where to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    Literals,
    NetworkBounds,
    Region,
    RegionMaximum,
    WidenedBox,
    binding_rules,
    slopes_and_offsets,
    verify_exclusions,
    worst_case,
)
from smle.report.wording import clause_text, exclusion_texts, row_text
from smle.rules import Clause, Specification
from smle_check.names import term, visible
from smle_check.words import comparison_text

__all__ = [
    "Corner",
    "Key",
    "Reader",
    "RuleVerdict",
    "Witnesses",
    "enforced_text",
    "keyed",
    "keys_of",
    "plain_verdicts",
    "rule_verdicts",
]

Array = npt.NDArray[np.float64]
_LOCATED_RULES = 200  # rules for which the corner is computed
_LOCATED_PAIRS = 200_000
_SHOWN_ROWS = 40
_EPS = 2.0**-52


@dataclass(frozen=True)
class Key:
    """Which obligation a proved statement is about; `clause` is -1 for a block of exclusions."""

    head: int
    rule: int
    region: int | None
    clause: int


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


def keys_of(certificate: Certificate, spec: Specification, cells: Cells) -> Iterator[Key]:
    """Yield the obligations in the order in which the checker states them."""
    empty = {
        (proof["head"], proof["region"]) for proof in certificate.document["proof"]["obligations"] if "empty" in proof
    }
    for head in range(len(cells) - cells.free_cell):
        for rule, region in binding_rules(cells, spec, head):
            if (head, region) in empty:
                continue
            requirement = spec.rules[rule].requirement
            yield from (Key(head, rule, region, clause) for clause in range(len(requirement.clauses)))
            if len(requirement.exclusions):
                yield Key(head, rule, region, -1)


def rule_verdicts(
    proved: tuple[Proved, ...], certificate: Certificate, spec: Specification, *, cells: Cells, over: FrozenHeads
) -> list[RuleVerdict]:
    """Return one verdict per rule, from what the exact checker proved."""
    grouped: dict[int, list[tuple[Key, Proved]]] = {}
    for key, item in keyed(proved, certificate, spec, cells=cells):
        grouped.setdefault(key.rule, []).append((key, item))
    reader = Reader(spec, cells)
    witnesses = Witnesses(certificate, spec, cells=cells, over=over)
    result = []
    for rule in range(len(spec.rules)):
        items = grouped.get(rule, [])
        if not items:
            result.append(RuleVerdict(rule, 0, None, None))
            continue
        key, worst = min(items, key=lambda pair: pair[1].margin)
        corner = witnesses.corner(key, float(worst.margin)) if rule < _LOCATED_RULES else None
        told = reader.where(key, worst), reader.sentence(key, worst)
        result.append(RuleVerdict(rule, len(items), worst, corner, *told))
    return result


def plain_verdicts(proved: Sequence[Proved], spec: Specification) -> list[RuleVerdict]:
    """Return one verdict per rule of a head that has no box, and so no corner that attains a margin."""
    result = []
    for index, rule in enumerate(spec.rules):
        items = [item for item in proved if item.rule == visible(rule.name)]
        worst = min(items, key=lambda item: item.margin, default=None)
        told = ("", "") if worst is None else (worst.where, worst.sentence)
        result.append(RuleVerdict(index, len(items), worst, None, *told, enforced_text(items)))
    return result


def enforced_text(proved: Sequence[Proved]) -> str:
    """Return what enforces statements in a head of rules: `2 clips and 1 check`."""
    counts = [(sum(item.by == kind for item in proved), kind) for kind in ("clip", "check")]
    return " and ".join(f"{count:,} {kind}{'s' if count > 1 else ''}" for count, kind in counts if count)


def keyed(
    proved: Sequence[Proved], certificate: Certificate, spec: Specification, *, cells: Cells
) -> Iterator[tuple[Key, Proved]]:
    """Yield what the checker proved, each statement with its obligation."""
    for key, item in zip(keys_of(certificate, spec, cells), proved, strict=True):
        if visible(spec.rules[key.rule].name) != item.rule:
            raise RuntimeError(f"Expected a statement about rule '{spec.rules[key.rule].name}'. Got '{item.rule}'.")
        yield key, item


class Reader:
    """Prints proved statements for readers, from the rules themselves.

    The text of the checker is printed anew from the same rows and literals; where it is not the same, it is shown as
    the checker prints it.
    """

    def __init__(self, spec: Specification, cells: Cells) -> None:
        self._spec, self._cells = spec, cells

    def where(self, key: Key, item: Proved) -> str:
        """Return the region of a statement as a formula; `everywhere` if there is no condition."""
        regions = (*self._cells[key.head], *(() if key.region is None else (key.region,)))
        active = sorted({row for region in regions for row in self._cells.regions[region]})
        rows = [self._cells.rows[row] for row in active]
        names = [term(name) for name in self._spec.columns]
        plain = [comparison_text(dict(row.coefficients), row.bound, row.strict, names) for row in rows]
        if not rows or item.where != "where " + " and ".join(plain):
            return item.where
        more = f" ∧ … ({len(rows) - _SHOWN_ROWS:,} more)" if len(rows) > _SHOWN_ROWS else ""
        return "where " + " ∧ ".join(row_text(row, self._spec) for row in rows[:_SHOWN_ROWS]) + more

    def sentence(self, key: Key, item: Proved) -> str:
        """Return what a statement says as a formula."""
        requirement = self._spec.rules[key.rule].requirement
        if key.clause < 0:
            pairs = requirement.exclusions
            more = f" and {len(pairs) - 3:,} more exclusions" if len(pairs) > 3 else ""
            return "; ".join(exclusion_texts(pairs[:3].tolist(), self._spec)) + more
        clause = requirement.clauses[key.clause]
        m, names = len(self._spec.targets), [term(name) for name in (*self._spec.targets, *self._spec.columns)]
        plain = [
            comparison_text({**dict(v.outputs), **{m + k: s for k, s in v.inputs}}, v.bound, v.strict, names)
            for v in clause.literals
        ]
        return clause_text(clause, self._spec) if item.sentence == " or ".join(plain) else item.sentence


class Witnesses:
    """Finds the corners of one model."""

    def __init__(self, certificate: Certificate, spec: Specification, *, cells: Cells, over: FrozenHeads) -> None:
        self.spec, self.cells, self.over = spec, cells, over
        self.domain = Domain.of(spec)
        self.envelope = WidenedBox.of(over.bounds, self.domain)
        self._weights: dict[Key, Any] = {
            Key(p["head"], p["rule"], p["region"], p["clause"]): p["lambda"]
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

    def corner(self, key: Key, margin: float) -> Corner | None:
        """Return where the margin of an obligation is attained; None if that is not known.

        Bounds by a network are proved box by box, without one corner that stands for all.
        """
        if isinstance(self.over.bounds, NetworkBounds):
            return None
        head = self.over.heads[key.head]
        assert head is not None
        requirement = self.spec.rules[key.rule].requirement
        if key.clause < 0:
            if len(requirement.exclusions) > _LOCATED_PAIRS:
                return None
            _, margins = verify_exclusions(requirement.exclusions, head, self.envelope, self.domain)
            h, k = requirement.exclusions[int(np.argmin(margins))].tolist()
            return Corner(pair=(h, k))
        numbers = HeadNumbers.of(head, self.envelope, self.domain)
        clause = requirement.clauses[key.clause]
        return self._clause_corner(clause, numbers, key, margin)

    def _clause_corner(self, clause: Clause, numbers: HeadNumbers, key: Key, margin: float) -> Corner | None:
        m, d = len(self.spec.targets), len(self.spec.columns)
        weights = np.array([float.fromhex(w) for w in self._weights[key]])
        literals = Literals.of(clause, m, d).combined(weights[None] / weights.sum())
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
