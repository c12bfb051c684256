"""The rules' clauses in floats, literal by literal, and the outputs they tie together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

import smle_check
from smle_check.heads.candidates import without_zeros
from smle_check.stated import StatedLiteral

__all__ = ["Clauses", "Sign", "sign_of", "tied_together"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]
Pairs = npt.NDArray[np.int32]
Form = Mapping[int, float]
Sign = tuple[int, bool]  # a label, and whether it is on


@dataclass(frozen=True, eq=False)
class Clauses:
    """Literals `y.outputs + x.inputs <= h`, the clause of each, and lists of exclusions.

    * `outputs`, `inputs`: coefficients by column for each literal, rounded to the nearest float.
    * `h` (L,); `signs`: what each literal says if its output is a label (`sign_of`).
    * `clause` (L,): a clause holds if one of its literals does.
    * `rule` (C,): the rule of each clause. `always` (rules,): which rules apply at every input.
    * `exclusions`: (rule, pairs (p, 2)); "not both y_h >= 0 and y_k >= 0".
    * `labels` (m,): which outputs are labels; a label is on if its output is >= 0.
    * `group` (d,): the one-hot group of each input column, -1 for a number.
    """

    outputs: Sequence[Form]
    inputs: Sequence[Form]
    h: Array
    signs: Sequence[Sign | None]
    clause: Numbers
    rule: Numbers
    always: Mask
    exclusions: tuple[tuple[int, Pairs], ...]
    labels: Mask
    group: Numbers

    @property
    def width(self) -> int:
        """Number of input columns."""
        return len(self.group)

    @classmethod
    def of(cls, spec: smle_check.StatedSpecification, labels: Iterable[int]) -> Clauses:
        """Return the clauses of the rules; the checker's specification does not say which columns are `labels`."""
        group = np.full(len(spec.inputs), -1, dtype=np.intp)
        for number, members in enumerate(spec.groups):
            group[list(members)] = number
        clauses = [(r, clause) for r, rule in enumerate(spec.rules) for clause in rule.clauses]
        literals = [without_zeros(literal) for _, clause in clauses for literal in clause]
        pairs = [np.array(rule.exclusions.flat, dtype=np.int32).reshape(-1, 2) for rule in spec.rules]
        return cls(
            [{i: float(v) for i, v in literal.y.items()} for literal in literals],
            [{i: float(v) for i, v in literal.x.items()} for literal in literals],
            np.array([float(literal.bound) for literal in literals], dtype=np.float64),
            [sign_of(literal) for literal in literals],
            np.array([c for c, (_, clause) in enumerate(clauses) for _ in clause], dtype=np.intp),
            np.array([r for r, _ in clauses], dtype=np.intp),
            np.array([any(not spec.regions[g] for g in rule.regions) for rule in spec.rules], dtype=bool),
            tuple((r, own) for r, own in enumerate(pairs) if len(own)),
            np.isin(np.arange(len(spec.outputs)), list(labels)),
            group,
        )

    @property
    def parts(self) -> Numbers:
        """The rule of each clause, then of each list of exclusions: the columns of a mask of binding parts."""
        return np.concatenate([self.rule, np.array([rule for rule, _ in self.exclusions], dtype=np.intp)])


def sign_of(literal: StatedLiteral) -> Sign | None:
    """Return what a literal says about a label, or None if it says something else."""
    if literal.x or literal.bound or len(literal.y) != 1:
        return None
    ((i, g),) = literal.y.items()
    return (i, g < 0) if literal.strict == (g > 0) else None


def tied_together(
    ties: Iterable[Collection[int]], pairs: Sequence[npt.NDArray[np.integer[Any]]], m: int
) -> list[Numbers]:
    """Group the outputs that something ties together, ordered by the smallest of each group."""
    chained = [(own[0], other) for own in map(sorted, ties) for other in own]
    edges = np.concatenate([np.array(chained, dtype=np.intp).reshape(-1, 2), *(own.astype(np.intp) for own in pairs)])
    graph = sparse.csr_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), (m, m))
    _, group = csgraph.connected_components(graph, directed=False)
    tied = np.zeros(m, dtype=bool)
    tied[edges.reshape(-1)] = True
    order = np.flatnonzero(tied)[np.argsort(group[tied], kind="stable")]
    found = np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []
    return sorted(found, key=lambda own: int(own[0]))
