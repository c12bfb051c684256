"""Run the deployed program where a clause is not proved; if it breaks the clause, the verdict becomes `Violated`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.verdict import NotProved, Obligation, Verdict, Verdicts, Violated
from smle.rules import CNF, Clause, Specification, exclusion
from smle.rules.membership import active, clause_holds
from smle.violations.search import Subject, excess_of, hunt

__all__ = ["replayed"]

Doubles = npt.NDArray[np.float64]
Points = npt.NDArray[np.floating[Any]]
_RULES = 8  # rules for which a violation is searched
_TRIES = 3000


def replayed(
    verdicts: Verdicts,
    spec: Specification,
    subject: Subject,
    *,
    cell_of: Callable[[Points], npt.NDArray[np.int64]] | None = None,
) -> Verdicts:
    """Run the program at and near the inputs of all `NotProved` verdicts; return `Violated` where it breaks the rule.

    At most eight rules are searched. `cell_of` maps inputs (n, d) to the head that serves each (n,); None if there is
    only one.
    """
    open_ = [(o, v) for o, v in verdicts.failures() if isinstance(v, NotProved) and np.isfinite(v.x).all()]
    if not open_:
        return verdicts
    starts = np.array([v.x for _, v in open_]).astype(subject.dtype)
    asked = [subject.ask(starts)]
    rules = list(dict.fromkeys(o.rule for o, _ in open_))[:_RULES]
    for rule in rules:
        own = starts[[o.rule == rule for o, _ in open_]]
        found, *_ = hunt(
            subject, spec.with_rules((spec.rules[rule],)), tries=_TRIES, rng=np.random.default_rng(0), starts=own
        )
        if found is not None:
            asked.append((found.x[None], found.y[None]))
    X, Y = (np.concatenate(part) for part in zip(*asked, strict=True))
    cells = np.zeros(len(X), dtype=np.int64) if cell_of is None else cell_of(X)

    def judged(obligation: Obligation, verdict: Verdict) -> Verdict:
        if not isinstance(verdict, NotProved):
            return verdict
        rows = np.flatnonzero((cells == obligation.head) | (cell_of is None))
        worst = _worst(spec, obligation, X[rows], Y[rows])
        return verdict if worst is None else worst

    blocks = []
    for block in verdicts.exclusions:
        pairs = ((c, judged(Obligation(block.head, block.rule, c, block.region), v)) for c, v in block.unproved)
        blocks.append(replace(block, unproved=tuple(pairs)))
    return replace(verdicts, items=tuple((o, judged(o, v)) for o, v in verdicts.items), exclusions=tuple(blocks))


def _worst(spec: Specification, obligation: Obligation, X: Points, Y: Doubles) -> Violated | None:
    """Return the worst violation of a clause among rows (n, d), (n, m), judged exactly, or None."""
    rule = spec.rules[obligation.rule]
    clause = _clause(rule.requirement, obligation.clause)
    wrong = np.flatnonzero(active(rule, X) & ~clause_holds(clause, X, Y) & np.isfinite(Y).all(axis=1))
    excess = [float(excess_of(CNF((clause,)), X[i], Y[i])[0] or 0) for i in wrong]
    if not excess:
        return None
    worst = wrong[int(np.argmax(excess))]
    return Violated(X[worst].astype(np.float64), Y[worst].astype(np.float64), max(excess))


def _clause(requirement: CNF, number: int) -> Clause:
    """Return a clause by its number in `requirement.expanded()`."""
    pair = number - len(requirement.clauses)
    return requirement.clauses[number] if pair < 0 else exclusion(*requirement.exclusions[pair].tolist())
