"""Clauses as arrays of floats: one form for everything that computes with rules in floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

import smle_check
from smle.rules.specification import Label, Specification

__all__ = ["ClauseArrays"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
Pairs = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class ClauseArrays:
    """Literals `g.y + s.x <= h` (`<` if strict), the clause of each, and lists of exclusions.

    Coefficients are the floats nearest to the exact ones: nothing is proved with them.

    * `g` (L, m), `s` (L, d), `h` (L,), `strict` (L,): the literals, clause by clause.
    * `clause` (L,): the clause of each literal; a clause holds if one of its literals does.
    * `rule` (C,): the rule of each clause.
    * `exclusions`: (rule, pairs (p, 2)); "not both y_h >= 0 and y_k >= 0".
    * `labels` (m,): which outputs are labels, on if they are >= 0.
    """

    g: Array
    s: Array
    h: Array
    strict: Mask
    clause: Numbers
    rule: Numbers
    exclusions: tuple[tuple[int, Pairs], ...]
    labels: Mask

    @property
    def parts(self) -> Numbers:
        """The rule of each clause, then of each list of exclusions: the columns of a mask of what binds."""
        return np.concatenate([self.rule, np.array([rule for rule, _ in self.exclusions], dtype=np.intp)])

    @classmethod
    def of(cls, spec: Specification | smle_check.Specification, labels: Iterable[int] | None = None) -> ClauseArrays:
        """Return the clauses of a specification, of the rules or of the checker.

        Args:
            spec: The rules. Their regions are not part of the arrays.
            labels: Columns of the outputs that are labels, for the checker's specification, which does not know them.
        """
        stated: list[list[list[tuple[Mapping[int, Fraction], Mapping[int, Fraction], Fraction, bool]]]]
        if isinstance(spec, Specification):
            stated = [
                [[(dict(a.outputs), dict(a.inputs), a.bound, a.strict) for a in clause.literals] for clause in clauses]
                for clauses in (rule.requirement.clauses for rule in spec.rules)
            ]
            lists: list[npt.ArrayLike] = [rule.requirement.exclusions for rule in spec.rules]
            d, m = len(spec.columns), len(spec.targets)
            named = {item.name for item in spec.outputs if isinstance(item, Label)}
            labels = [i for i, name in enumerate(spec.targets) if name in named] if labels is None else labels
        else:
            stated = [[[tuple(a) for a in clause] for clause in rule.clauses] for rule in spec.rules]  # type: ignore[misc]
            lists = [rule.exclusions for rule in spec.rules]
            d, m = len(spec.inputs), len(spec.outputs)
        flat = [
            (r, c, literal)
            for c, (r, clause) in enumerate((r, clause) for r, own in enumerate(stated) for clause in own)
            for literal in clause
        ]
        g, s = np.zeros((len(flat), m)), np.zeros((len(flat), d))
        for i, (_, _, (outputs, inputs, _, _)) in enumerate(flat):
            g[i, list(outputs)] = [float(v) for v in outputs.values()]
            s[i, list(inputs)] = [float(v) for v in inputs.values()]
        is_label = np.zeros(m, dtype=bool)
        is_label[list(labels or ())] = True
        pairs = [np.asarray(own, dtype=np.int32).reshape(-1, 2) for own in lists]
        return cls(
            g,
            s,
            np.array([float(literal[2]) for _, _, literal in flat]),
            np.array([literal[3] for _, _, literal in flat], dtype=bool),
            np.array([c for _, c, _ in flat], dtype=np.intp),
            np.array([r for r, own in enumerate(stated) for _ in own], dtype=np.intp),
            tuple((r, own) for r, own in enumerate(pairs) if len(own)),
            is_label,
        )
