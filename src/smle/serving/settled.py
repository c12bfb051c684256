"""Finds what the active rules alone decide at an input: options that cannot win, labels that are on or off.

Probabilities follow: such an option gets 0, such a label 1 or 0. The program's own gate decides which rules are active.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.heads.contract import HeadProgram
from smle.rules import Choice, Clause, Specification, label_columns
from smle.rules.membership import active, clause_holds

__all__ = ["Settled", "SettledBy"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
_ROWS = 4096  # rows whose clauses are compared at once


class Settled(NamedTuple):
    """Outputs (n, m) that the rules determine: labels that are on; labels that are off, or options that cannot win."""

    on: Mask
    off: Mask


class SettledBy:
    """Finds what the rules of a certified head determine at encoded inputs (n, d).

    * An option cannot win if a requirement of an active rule has no answer in which it does.
    * A label is determined if an active rule requires it alone, or if it follows from such labels, one requirement
      at a time. Exclusions and other relations between open labels determine nothing.
    """

    def __init__(self, spec: Specification, certificate: Certificate, program: HeadProgram) -> None:
        spec = spec.merged if certificate.document["program"]["head"] == "rules" else spec
        self._spec, self._program = spec, program
        stated = certificate.document["specification"]["rules"]
        place = {region: i for i, region in enumerate(certificate.document["gate"]["regions"])}
        self._bits = [[place[region] for region in rule["regions"] if region in place] for rule in stated]
        self._ungated = [any(region not in place for region in rule["regions"]) for rule in stated]
        self._options = _forbidding(spec)
        self._labels = _LabelClauses(spec)

    def __call__(self, X: Array) -> Settled:
        """Return what is determined at encoded inputs, clamped to the domain."""
        n, m = len(X), len(self._spec.targets)
        found = Settled(np.zeros((n, m), dtype=bool), np.zeros((n, m), dtype=bool))
        if not n or not (self._options or self._labels.any_single):
            return found
        lower, upper = self._spec.ends(X.dtype)
        X = np.fmin(np.fmax(X, lower), upper)  # NaN counts as the lower end, as in the program
        rules = self._rules_on(X)
        zero = np.zeros((_ROWS, m))
        for rule, clause, columns in self._options:
            rows = np.flatnonzero(rules[:, rule])
            for start in range(0, len(rows), _ROWS):
                part = rows[start : start + _ROWS]
                # If the option wins, the left side of each literal is at least 0, so what fails at 0 fails.
                failed = part[~clause_holds(clause, X[part], zero[: len(part)])]
                found.off[np.ix_(failed, columns)] = True
        if self._labels.any_single:
            patterns, row = np.unique(rules, axis=0, return_inverse=True)
            states = np.stack([self._labels.settled(pattern) for pattern in patterns])[row.reshape(-1)]
            found.on[states > 0] = True
            found.off[states < 0] = True
        return found

    def _rules_on(self, X: Array) -> Mask:
        """Return a mask of the active rules (n, rules): by the gate, or by the rule for regions without a bit."""
        rules = np.zeros((len(X), len(self._bits)), dtype=bool)
        bits = self._program.bits_of(X)
        for i, places in enumerate(self._bits):
            rules[:, i] = bits[:, places].any(axis=1)
            if self._ungated[i]:
                rules[:, i] |= active(self._spec.rules[i], X)
        return rules


def _forbidding(spec: Specification) -> list[tuple[int, Clause, Numbers]]:
    """Return the clauses that can forbid options: (rule, clause, the columns of these options)."""
    found = []
    for output, place in spec.output_slices:
        if not isinstance(output, Choice):
            continue
        sign = 1 if output.pick == "max" else -1
        for r, rule in enumerate(spec.rules):
            for clause in rule.requirement.clauses:
                columns = [
                    column
                    for column in range(place.start, place.stop)
                    if all(_is_lead(literal.outputs, column, place, sign) for literal in clause.literals)
                ]
                if columns:
                    found.append((r, clause, np.array(columns)))
    return found


def _is_lead(form: Any, column: int, place: slice, sign: int) -> bool:
    """Return whether a form is at least 0 wherever this option wins: a sum of its leads over others."""
    values = dict(form)
    own = values.pop(column, 0)
    within = all(place.start <= k < place.stop and sign * v < 0 for k, v in values.items())
    return bool(within and own + sum(values.values()) == 0)


class _LabelClauses:
    """Clauses over labels as arrays: `label`, `wanted` (1 on, -1 off) and `start` of clauses; and excluded pairs."""

    def __init__(self, spec: Specification) -> None:
        labels = label_columns(spec)
        self.m = len(labels)
        label: list[int] = []
        wanted: list[int] = []
        start, rules = [], []
        for r, rule in enumerate(spec.rules):
            for clause in rule.requirement.clauses:
                signs = [literal.sign for literal in clause.literals]
                own = [sign for sign in signs if sign is not None and labels[sign[0]]]
                if len(own) == len(signs):
                    start.append(len(label))
                    rules.append(r)
                    label += [i for i, _ in own]
                    wanted += [1 if positive else -1 for _, positive in own]
        self.label, self.start, self.rules = (np.array(v, dtype=np.intp) for v in (label, start, rules))
        self.wanted = np.array(wanted, dtype=np.int8)
        sizes = np.diff([*start, len(label)])
        self.clause = np.repeat(np.arange(len(start)), sizes)
        self.any_single = bool((sizes == 1).any())
        pairs = [(r, rule.requirement.exclusions) for r, rule in enumerate(spec.rules)]
        self.pairs = [(r, own) for r, own in pairs if len(own)]

    def settled(self, rules: Mask) -> npt.NDArray[np.int8]:
        """Return which labels follow if these rules apply: 1 on, -1 off, 0 open. Shape (m,)."""
        state = np.zeros(self.m, dtype=np.int8)
        binds = rules[self.rules]
        while True:
            before = state.copy()
            said = state[self.label] * self.wanted
            met = np.logical_or.reduceat(said > 0, self.start)
            open_ = np.add.reduceat((said == 0).astype(np.intp), self.start)
            single = binds & ~met & (open_ == 1)
            last = single[self.clause] & (said == 0)
            state[self.label[last]] = self.wanted[last]
            for rule, pairs in self.pairs:
                if rules[rule]:
                    on = state > 0
                    others = np.concatenate([pairs[on[pairs[:, 0]], 1], pairs[on[pairs[:, 1]], 0]])
                    state[others[state[others] == 0]] = -1
            if (state == before).all():
                return state
