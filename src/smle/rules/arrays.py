"""Clauses as float arrays: the one place where exact rules become floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules.formula import Clause, Literal
from smle.rules.specification import Label, Specification

__all__ = ["ClauseArrays", "Literals", "label_columns"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
Pairs = npt.NDArray[np.int32]
Stated = tuple[Mapping[int, Fraction], Mapping[int, Fraction], Fraction, bool]


def label_columns(spec: Specification) -> Mask:
    """Return a mask of the output columns that are labels. Shape (m,)."""
    names = {item.name for item in spec.outputs if isinstance(item, Label)}
    return np.array([name in names for name in spec.targets], dtype=bool)


def _stated(literal: Literal, scale: Fraction | int = 1) -> Stated:
    outputs, inputs = ({i: scale * v for i, v in form} for form in (literal.outputs, literal.inputs))
    return outputs, inputs, scale * literal.bound, literal.strict


@dataclass(frozen=True, eq=False)
class Literals:
    """Literals `g.y + s.x <= h` (`<` if strict): g (L, m), s (L, d), h (L,), strict (L,).

    Coefficients are rounded to the nearest float, so they alone prove nothing.
    """

    g: Array
    s: Array
    h: Array
    strict: Mask

    @staticmethod
    def _arrays(literals: Sequence[Stated], m: int, d: int) -> tuple[Array, Array, Array, Mask]:
        g, s = np.zeros((len(literals), m)), np.zeros((len(literals), d))
        for i, (outputs, inputs, _, _) in enumerate(literals):
            g[i, list(outputs)] = [float(v) for v in outputs.values()]
            s[i, list(inputs)] = [float(v) for v in inputs.values()]
        h = np.array([float(bound) for _, _, bound, _ in literals], dtype=np.float64)
        return g, s, h, np.array([strict for _, _, _, strict in literals], dtype=bool)

    @classmethod
    def of_clauses(cls, clauses: Clause | Sequence[Clause], m: int, d: int, *, stated: bool = False) -> Literals:
        """Return the literals of one or several clauses, one after the other.

        The first coefficient of each is 1 or -1, or as the user wrote it if `stated`.
        """
        several = (clauses,) if isinstance(clauses, Clause) else clauses
        literals = [literal for clause in several for literal in clause.literals]
        arrays = cls._arrays([_stated(literal, literal.scale if stated else 1) for literal in literals], m, d)
        return Literals(*arrays)

    @classmethod
    def of_pairs(cls, pairs: npt.NDArray[np.integer[Any]], m: int, d: int) -> Literals:
        """Return the two literals `y_h < 0`, `y_k < 0` of each pair (h, k)."""
        labels = np.asarray(pairs).reshape(-1)
        g = np.zeros((len(labels), m))
        g[np.arange(len(labels)), labels] = 1.0
        return Literals(g, np.zeros((len(g), d)), np.zeros(len(g)), np.ones(len(g), dtype=bool))

    @staticmethod
    def stacked(parts: Sequence[Literals]) -> Literals:
        """Concatenate the literals of several clauses."""
        return Literals(
            np.concatenate([part.g for part in parts]),
            np.concatenate([part.s for part in parts]),
            np.concatenate([part.h for part in parts]),
            np.concatenate([part.strict for part in parts]),
        )

    def combined(self, weights: Array) -> Literals:
        """Return linear combinations of the literals. Shape: weights (c, L)."""
        return Literals(
            weights @ self.g,
            weights @ self.s,
            weights @ self.h,
            np.asarray((weights > 0) @ self.strict.astype(int) == (weights > 0).sum(axis=1)),
        )

    def bounds(self, X: npt.NDArray[np.floating[Any]]) -> Array:
        """Return h - s.x, the most that g.y may be. Shapes: X (n, d) -> (n, L)."""
        used = self.s.any(axis=0)  # unused columns may be NaN
        moved: Array = self.h - X[:, used].astype(np.float64) @ self.s[:, used].T
        return moved


@dataclass(frozen=True, eq=False)
class ClauseArrays(Literals):
    """Literals grouped into clauses, and lists of exclusions.

    * `clause` (L,): the clause of each literal; a clause holds if one of its literals does.
    * `rule` (C,): the rule of each clause.
    * `exclusions`: (rule, pairs (p, 2)): "not both y_h >= 0 and y_k >= 0".
    * `labels` (m,): which outputs are labels; a label is on if its output is >= 0.
    """

    clause: Numbers
    rule: Numbers
    exclusions: tuple[tuple[int, Pairs], ...]
    labels: Mask

    @property
    def parts(self) -> Numbers:
        """The rule of each clause, then of each list of exclusions: the columns of a mask of binding parts."""
        return np.concatenate([self.rule, np.array([rule for rule, _ in self.exclusions], dtype=np.intp)])

    @classmethod
    def of(cls, spec: Specification) -> ClauseArrays:
        """Return the clauses of all rules, without their regions."""
        stated = [
            [[_stated(literal) for literal in clause.literals] for clause in rule.requirement.clauses]
            for rule in spec.rules
        ]
        clauses = [(r, clause) for r, own in enumerate(stated) for clause in own]
        pairs = [np.asarray(rule.requirement.exclusions, dtype=np.int32).reshape(-1, 2) for rule in spec.rules]
        return cls(
            *cls._arrays(
                [literal for _, clause in clauses for literal in clause], len(spec.targets), len(spec.columns)
            ),
            np.array([c for c, (_, clause) in enumerate(clauses) for _ in clause], dtype=np.intp),
            np.array([r for r, _ in clauses], dtype=np.intp),
            tuple((r, own) for r, own in enumerate(pairs) if len(own)),
            label_columns(spec),
        )

    def with_exclusions(self, limit: int, rng: np.random.Generator) -> ClauseArrays:
        """Return the arrays with exclusions turned into clauses; lists longer than `limit` are sampled."""
        chosen = [
            (rule, pairs if len(pairs) <= limit else pairs[rng.choice(len(pairs), limit, replace=False)])
            for rule, pairs in self.exclusions
        ]
        rules = np.concatenate([self.rule, *(np.full(len(pairs), rule, dtype=np.intp) for rule, pairs in chosen)])
        every = np.concatenate([np.empty((0, 2), dtype=np.int32), *(pairs for _, pairs in chosen)])
        both = Literals.stacked([self, Literals.of_pairs(every, self.g.shape[1], self.s.shape[1])])
        clause = np.concatenate([self.clause, len(self.rule) + np.repeat(np.arange(len(every)), 2)])
        return ClauseArrays(both.g, both.s, both.h, both.strict, clause, rules, (), self.labels)
