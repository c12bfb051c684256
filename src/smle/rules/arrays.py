"""Clauses as float arrays: the one place where exact rules become floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.rules.formula import Clause
from smle.rules.specification import Label, Specification

__all__ = ["Literals", "label_columns"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def label_columns(spec: Specification) -> Mask:
    """Return a mask of the output columns that are labels. Shape (m,)."""
    names = {item.name for item in spec.outputs if isinstance(item, Label)}
    return np.array([name in names for name in spec.targets], dtype=bool)


@dataclass(frozen=True, eq=False)
class Literals:
    """Literals `g.y + s.x <= h` (`<` if strict): g (L, m), s (L, d), h (L,), strict (L,).

    Coefficients are rounded to the nearest float, so they alone prove nothing.
    """

    g: Array
    s: Array
    h: Array
    strict: Mask

    @classmethod
    def of_clauses(cls, clauses: Clause | Sequence[Clause], m: int, d: int, *, stated: bool = False) -> Literals:
        """Return the literals of one or several clauses, one after the other.

        The first coefficient of each is 1 or -1, or as the user wrote it if `stated`.
        """
        several = (clauses,) if isinstance(clauses, Clause) else clauses
        literals = [literal for clause in several for literal in clause.literals]
        g, s, h = np.zeros((len(literals), m)), np.zeros((len(literals), d)), np.zeros(len(literals))
        for i, literal in enumerate(literals):
            scale = literal.scale if stated else 1
            for row, form in ((g[i], literal.outputs), (s[i], literal.inputs)):
                row[[k for k, _ in form]] = [float(scale * v) for _, v in form]
            h[i] = float(scale * literal.bound)
        return Literals(g, s, h, np.array([literal.strict for literal in literals], dtype=bool))

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
        arrays = ((part.g, part.s, part.h, part.strict) for part in parts)
        return Literals(*map(np.concatenate, zip(*arrays, strict=True)))

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
