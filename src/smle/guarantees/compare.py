"""Two versions of a rules file: is the new one stricter, weaker, equal, or neither? Exact, with witnesses.

A specification forbids a pair (x, y) if x is in its domain and some rule that is active at x is broken by y.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.errors import RuleError
from smle.guarantees.consistency import rule_clauses
from smle.guarantees.decide import Decider, HalfSpace, OneOf, Undecided, Witness
from smle.guarantees.wording import point_json, point_text
from smle.rules import Clause, Polytope, Rule, Specification

__all__ = ["Comparison", "Difference", "compare"]

ONE = Fraction(1)


@dataclass(frozen=True)
class Difference:
    """A pair (x, y) that one specification forbids by `rule` and the other allows."""

    rule: str
    x: tuple[Fraction, ...]
    y: tuple[Fraction, ...]


@dataclass(frozen=True)
class Comparison:
    """How a new specification relates to an old one.

    * `verdict`: "equal", "stricter", "weaker", "neither", or "unknown" if a search was cut off.
    * `newly_forbidden`: a pair that only the new one forbids; `newly_allowed`: one that only the old one does.
    """

    verdict: str
    newly_forbidden: Difference | None
    newly_allowed: Difference | None
    columns: tuple[str, ...]
    targets: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return plain data; exact numbers are given as text."""
        return {
            "verdict": self.verdict,
            "newly_forbidden": self._json(self.newly_forbidden),
            "newly_allowed": self._json(self.newly_allowed),
        }

    def _json(self, difference: Difference | None) -> dict[str, object] | None:
        if difference is None:
            return None
        return {
            "rule": difference.rule,
            "inputs": point_json(self.columns, difference.x),
            "outputs": point_json(self.targets, difference.y),
        }

    def table(self) -> str:
        """Return the comparison as sentences."""
        heads = {
            "equal": "The rules are equal: they forbid the same pairs of inputs and outputs.",
            "stricter": "The new rules are stricter: they forbid all that the old ones forbid, and more.",
            "weaker": "The new rules are weaker: they allow all that the old ones allow, and more.",
            "neither": "Neither: each version forbids something that the other allows.",
            "unknown": "Not decided: the comparison was cut off.",
        }
        lines = [heads[self.verdict]]
        for title, item in (("newly forbidden", self.newly_forbidden), ("newly allowed", self.newly_allowed)):
            if item is not None:
                inputs, outputs = point_text(self.columns, item.x), point_text(self.targets, item.y)
                lines.append(f"  {title}: {outputs} at {inputs}  (rule '{item.rule}')")
        return "\n".join(lines)


def compare(old: Specification, new: Specification) -> Comparison:
    """Compare two specifications over the same inputs and outputs.

    Raises:
        RuleError: If inputs or outputs differ in their names.
    """
    if old.columns != new.columns or old.targets != new.targets:
        ours, theirs = {*old.columns, *old.targets}, {*new.columns, *new.targets}
        names = ", ".join(sorted(ours ^ theirs)) or "the order"
        raise RuleError(
            f"Expected two rules files about the same inputs and outputs. They differ in: {names}. "
            "Compare files that state the same names."
        )
    allowed, gave_up = _forbidden_by_first_only(old, new)
    forbidden, gave_up_too = _forbidden_by_first_only(new, old)
    if allowed and forbidden:
        verdict = "neither"
    elif (allowed is None and gave_up) or (forbidden is None and gave_up_too):
        verdict = "unknown"
    elif forbidden:
        verdict = "stricter"
    else:
        verdict = "weaker" if allowed else "equal"
    return Comparison(verdict, forbidden, allowed, new.columns, new.targets)


def _forbidden_by_first_only(first: Specification, second: Specification) -> tuple[Difference | None, bool]:
    """Return a pair that the first forbids and the second allows, and whether a search was cut off."""
    decider = Decider(first)
    background = [clause for r, rule in enumerate(second.rules) for clause in rule_clauses(decider, rule, r)]
    shared = {
        (region, clause) for rule in second.rules for region in rule.regions for clause in rule.requirement.clauses
    }
    cut_off = False
    for rule in first.rules:
        for way in _ways(decider, rule, second, shared):
            for allowed in _second_allows(decider, second, background):
                try:
                    found = decider.find([*way, *allowed[0]], allowed[1], pairs=allowed[2])
                except Undecided:
                    cut_off = True
                    continue
                if found is not None and _is_difference(first, second, found):
                    return Difference(rule.name, found.x, found.y), cut_off
    return None, cut_off


def _is_difference(first: Specification, second: Specification, found: Witness) -> bool:
    """Check a witness by the definition of "violated"."""
    inside = all(lo <= v <= hi for lo, v, hi in zip(second.lower, found.x, second.upper, strict=True))
    return bool(first.violated(found.x, found.y)) and not (inside and second.violated(found.x, found.y))


def _ways(
    decider: Decider, rule: Rule, second: Specification, shared: set[tuple[Polytope, Clause]]
) -> Iterator[list[HalfSpace]]:
    """Yield the ways to break a rule; what the second specification states literally is skipped."""
    covered = all(a <= b for a, b in zip(second.lower, decider.spec.lower, strict=True)) and all(
        a >= b for a, b in zip(second.upper, decider.spec.upper, strict=True)
    )
    for region in rule.regions:
        rows = decider.rows(region)
        for clause in rule.requirement.clauses:
            if not (covered and (region, clause) in shared):
                yield [*rows, *(option.negated() for option in decider.clause(clause).options)]
        pairs = rule.requirement.exclusions
        if covered and len(pairs):
            m = len(second.targets)
            known = [
                other.requirement.exclusions
                for other in second.rules
                if region in other.regions or any(not r.rows for r in other.regions)
            ]
            codes = [p[:, 0].astype(np.int64) * m + p[:, 1] for p in known]
            own = pairs[:, 0].astype(np.int64) * m + pairs[:, 1]
            pairs = pairs[~np.isin(own, np.concatenate(codes) if codes else own[:0])]
        for pair in pairs.tolist():
            yield [*rows, *(HalfSpace(((decider.d + k, -ONE),), Fraction(0)) for k in pair)]


def _second_allows(
    decider: Decider, second: Specification, background: list[OneOf]
) -> Iterator[tuple[list[HalfSpace], list[OneOf], list[tuple[npt.NDArray[np.int32], int]]]]:
    """Yield the ways in which the second specification allows a pair: its rules hold, or x is outside."""
    inside, outside = [], []
    for i in range(decider.d):
        for sign, end, own in (
            (ONE, second.upper[i], decider.spec.upper[i]),
            (-ONE, -second.lower[i], -decider.spec.lower[i]),
        ):
            if own > end:
                row = HalfSpace(((i, sign),), end)
                inside.append(row)
                outside.append(row.negated())
    pairs = [
        (rule.requirement.exclusions, r)
        for r, rule in enumerate(second.rules)
        if len(rule.requirement.exclusions) and any(not region.rows for region in rule.regions)
    ]
    yield inside, background, pairs
    for row in outside:
        yield [row], [], []
