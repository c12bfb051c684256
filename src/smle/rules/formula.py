"""Half-spaces of inputs where a rule applies, and the CNF of linear literals it requires there, in exact rationals.

"Violated" is defined here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smle_check.floats import BINARY32, LARGEST, TINY, nearest

__all__ = [
    "CNF",
    "Clause",
    "HalfSpace",
    "Linear",
    "Literal",
    "Polytope",
    "Row",
    "dot",
    "exclusion",
    "is_float32",
    "linear",
    "unique_pairs",
]

Linear = tuple[tuple[int, Fraction], ...]
"""A sparse linear form: (index, coefficient) pairs, sorted by index, without zeros."""


def linear(coefficients: Mapping[int, Fraction] | Iterable[tuple[int, Fraction]]) -> Linear:
    """Convert (index, coefficient) pairs to canonical sparse form, adding up repeated indices."""
    pairs = coefficients.items() if isinstance(coefficients, Mapping) else coefficients
    total: dict[int, Fraction] = {}
    for index, value in pairs:
        total[index] = total.get(index, Fraction(0)) + Fraction(value)
    return tuple(sorted((i, v) for i, v in total.items() if v))


def is_float32(value: Fraction) -> bool:
    """Return whether a number is 0 or a normal float32 number, exactly."""
    return not value or (TINY <= abs(value) <= LARGEST and nearest(value, BINARY32) == value)


def dot(form: Linear, point: Sequence[Fraction]) -> Fraction:
    """Evaluate a sparse linear form at a point, exactly."""
    return sum((value * point[index] for index, value in form), Fraction(0))


class HalfSpace(NamedTuple):
    """`coefficients . x <= bound` (`<` if strict)."""

    coefficients: Linear
    bound: Fraction
    strict: bool = False

    @property
    def is_comparison(self) -> bool:
        """Whether it compares one variable with a constant."""
        return len(self.coefficients) == 1

    @property
    def member(self) -> int:
        """The column of a category that it requires to be 1 (`-x <= -1`), or -1 if it says something else."""
        if not self.is_comparison or self.strict:
            return -1
        ((column, value),) = self.coefficients
        return column if value == self.bound == -1 else -1

    def holds(self, point: Sequence[Fraction]) -> bool:
        """Return whether it holds at a point, exactly."""
        value = dot(self.coefficients, point)
        return value < self.bound if self.strict else value <= self.bound

    def negated(self) -> HalfSpace:
        """Return the complement."""
        return HalfSpace(tuple((i, -v) for i, v in self.coefficients), -self.bound, not self.strict)

    def scaled(self) -> HalfSpace:
        """Return the half-space scaled so that its first coefficient, if any, is 1 or -1."""
        if not self.coefficients or abs(self.coefficients[0][1]) == 1:
            return self
        scale = abs(self.coefficients[0][1])
        return HalfSpace(tuple((i, v / scale) for i, v in self.coefficients), self.bound / scale, self.strict)


class Row(HalfSpace):
    """A half-space over the input columns, scaled so that the first coefficient is 1 or -1.

    So equal half-spaces compare equal, and a row over one input compares that input with a constant.
    """

    __slots__ = ()

    def __new__(cls, coefficients: Linear, bound: Fraction, strict: bool = False) -> Row:
        """Scale the half-space. Raises ValueError for a constant."""
        if not coefficients:
            raise ValueError("Expected a half-space that mentions an input. Got a constant.")
        return super().__new__(cls, *HalfSpace(coefficients, bound, strict).scaled())


@dataclass(frozen=True)
class Polytope:
    """The intersection of half-spaces with the domain; without rows, the whole domain.

    Rows are sorted and distinct, so equal descriptions compare equal.
    """

    rows: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(sorted(set(self.rows))))

    def contains(self, x: Sequence[Fraction]) -> bool:
        """Return whether a point lies in the polytope, exactly."""
        return all(row.holds(x) for row in self.rows)


@dataclass(frozen=True)
class Literal:
    """`outputs . y + inputs . x <= bound` (`<` if strict), with exact rational coefficients.

    Multiplied by `scale`, it is the row that the user stated; `equal` marks one side of an equality. Both are ignored
    in comparisons. A literal over inputs only says where a rule applies; in a clause, every literal mentions an output.
    """

    outputs: Linear
    inputs: Linear
    bound: Fraction
    strict: bool = False
    scale: Fraction = field(default=Fraction(1), compare=False)
    equal: bool = field(default=False, compare=False)

    @classmethod
    def of_sign(cls, output: int, positive: bool) -> Literal:
        """Return `y >= 0` (a label is on) or, if not `positive`, `y < 0` (it is off)."""
        return cls(((output, Fraction(-1 if positive else 1)),), (), Fraction(0), not positive)

    @property
    def negated(self) -> Literal:
        """The literal that holds where this one does not."""
        outputs, inputs = (tuple((i, -v) for i, v in form) for form in (self.outputs, self.inputs))
        return Literal(outputs, inputs, -self.bound, not self.strict, self.scale)

    @property
    def opposite(self) -> Literal:
        """The literal that holds on the other side of the border: `>=` for `<=`. Both together state an equality."""
        return replace(self.negated, strict=self.strict)

    @property
    def sign(self) -> tuple[int, bool] | None:
        """(output, whether it is >= 0) if the literal is about the sign of one output, else None."""
        if len(self.outputs) != 1 or self.inputs or self.bound != 0 or self.strict != (self.outputs[0][1] > 0):
            return None
        return self.outputs[0][0], self.outputs[0][1] < 0

    def excess(self, y: Sequence[Fraction], x: Sequence[Fraction]) -> Fraction:
        """Return g.y + s.x - h. The literal is violated if this is positive, or zero if strict."""
        return dot(self.outputs, y) + dot(self.inputs, x) - self.bound

    def holds(self, y: Sequence[Fraction], x: Sequence[Fraction]) -> bool:
        """Return whether the literal holds, exactly."""
        value = self.excess(y, x)
        return value < 0 if self.strict else value <= 0


def is_held(literal: Literal) -> bool:
    """Return whether a literal compares one output with a float32 number, so that every head can serve equality."""
    return len(literal.outputs) == 1 and not literal.inputs and is_float32(literal.bound / literal.outputs[0][1])


@dataclass(frozen=True)
class Clause:
    """An OR of literals."""

    literals: tuple[Literal, ...]

    def __post_init__(self) -> None:
        if not self.literals or not all(literal.outputs for literal in self.literals):
            raise ValueError("Expected a clause of literals that mention outputs. Got none, or one over inputs only.")

    def holds(self, y: Sequence[Fraction], x: Sequence[Fraction]) -> bool:
        """Return whether the clause holds, exactly."""
        return any(literal.holds(y, x) for literal in self.literals)


def exclusion(h: int, k: int) -> Clause:
    """Return the clause that two labels are not both on: `y_h < 0 or y_k < 0`."""
    return Clause((Literal.of_sign(h, False), Literal.of_sign(k, False)))


def unique_pairs(pairs: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return distinct pairs (h, k) of column numbers, h <= k, in ascending order; shape (n, 2)."""
    ordered = np.sort(pairs.reshape(-1, 2).astype(np.int64), axis=1)
    if not ordered.size:
        return _no_pairs()
    if ordered.min() < 0:
        raise ValueError(f"Expected column numbers from 0. Got {ordered.min()}.")
    width = int(ordered.max()) + 1
    codes = np.unique(ordered[:, 0] * width + ordered[:, 1])  # one key per pair is much faster than rows
    return np.stack([codes // width, codes % width], axis=1).astype(np.int32)


def _no_pairs() -> npt.NDArray[np.int32]:
    return np.empty((0, 2), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class CNF:
    """An AND of clauses and of exclusions `y_h < 0 or y_k < 0`, kept as an array of pairs (h, k), h < k."""

    clauses: tuple[Clause, ...] = ()
    exclusions: npt.NDArray[np.int32] = field(default_factory=_no_pairs)

    def __post_init__(self) -> None:
        pairs = np.array(self.exclusions, dtype=np.int32).reshape(-1, 2)
        if pairs.size:
            pairs = unique_pairs(pairs)
            if (pairs[:, 0] == pairs[:, 1]).any():
                raise ValueError("Expected exclusions between different labels. Got a label with itself.")
        pairs.setflags(write=False)
        object.__setattr__(self, "exclusions", pairs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CNF):
            return NotImplemented
        return self.clauses == other.clauses and np.array_equal(self.exclusions, other.exclusions)

    def __hash__(self) -> int:
        return hash((self.clauses, self.exclusions.tobytes()))

    def __len__(self) -> int:
        return len(self.clauses) + len(self.exclusions)

    def holds(self, y: Sequence[Fraction], x: Sequence[Fraction]) -> bool:
        """Return whether the formula holds, exactly."""
        if not all(clause.holds(y, x) for clause in self.clauses):
            return False
        if not len(self.exclusions):
            return True
        positive = np.array([v >= 0 for v in y], dtype=bool)
        return not bool((positive[self.exclusions[:, 0]] & positive[self.exclusions[:, 1]]).any())

    def expanded(self) -> tuple[Clause, ...]:
        """Return all clauses as objects, exclusions included. For small formulas."""
        return self.clauses + tuple(exclusion(h, k) for h, k in self.exclusions.tolist())
