"""Half-spaces and polytopes over the input columns, with exact rational coefficients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Linear", "Polytope", "Row", "dot", "linear"]

Linear = tuple[tuple[int, Fraction], ...]
"""A sparse linear form: (index, coefficient) pairs, sorted by index, without zeros."""


def linear(coefficients: Mapping[int, Fraction] | Iterable[tuple[int, Fraction]]) -> Linear:
    """Collect (index, coefficient) pairs into canonical sparse form, adding up repeated indices."""
    pairs = coefficients.items() if isinstance(coefficients, Mapping) else coefficients
    total: dict[int, Fraction] = {}
    for index, value in pairs:
        total[index] = total.get(index, Fraction(0)) + Fraction(value)
    return tuple(sorted((i, v) for i, v in total.items() if v))


def dot(form: Linear, point: Sequence[Fraction]) -> Fraction:
    """Evaluate a sparse linear form at a point, exactly."""
    return sum((value * point[index] for index, value in form), Fraction(0))


@dataclass(frozen=True)
class Row:
    """One half-space `coefficients . x <= bound` (`<` if strict) over the input columns.

    Rows are stored scaled by a positive factor so that the first coefficient is 1 or -1: equal half-spaces
    compare equal, and a row over one input is a comparison with a constant.
    """

    coefficients: Linear
    bound: Fraction
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.coefficients:
            raise ValueError("Expected a half-space that mentions an input. Got a constant.")
        scale = abs(self.coefficients[0][1])
        if scale != 1:
            object.__setattr__(self, "coefficients", tuple((i, v / scale) for i, v in self.coefficients))
            object.__setattr__(self, "bound", self.bound / scale)

    @property
    def is_comparison(self) -> bool:
        """Whether the row compares one input with a constant."""
        return len(self.coefficients) == 1

    def contains(self, x: Sequence[Fraction]) -> bool:
        """Evaluate the half-space at a point, exactly."""
        value = dot(self.coefficients, x)
        return value < self.bound if self.strict else value <= self.bound


@dataclass(frozen=True)
class Polytope:
    """The intersection of half-spaces with the domain. No rows: the whole domain.

    Rows are sorted and free of repetitions, so equal descriptions compare equal.
    """

    rows: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        unique = sorted(set(self.rows), key=lambda r: (r.coefficients, r.bound, r.strict))
        object.__setattr__(self, "rows", tuple(unique))

    def contains(self, x: Sequence[Fraction]) -> bool:
        """Evaluate membership of a point, exactly."""
        return all(row.contains(x) for row in self.rows)
