"""The rows of regions as the deployed guard evaluates them, in floats.

* A row over one input is compared exactly, strictly or not, in the format F of the input as passed, with nearest_F(t).
* A row over several inputs is computed in float64 and enlarged: the guard says inside iff fl(qf.x) <= threshold,
  threshold = round_up(t + slack). So "inside" implies q.x <= threshold + slack, and "outside" implies q.x > t.
* No stored constant is subnormal: a runtime may treat such a number as zero.

Proofs about cells use these forms, because they must be true of what the guard reports, not of the rule's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from smle.errors import RuleError
from smle.rules import Linear, Row, Specification
from smle.rules.formula import HalfSpace
from smle_check.floats import FORMATS, Binary, coefficient, constant, guard_slack, nearest, threshold_above

if TYPE_CHECKING:
    from smle.regions.cells import Cells

__all__ = ["FORMATS", "GuardRow", "domain_box", "guard_row", "guard_rows"]


@dataclass(frozen=True)
class GuardRow:
    """One half-space `coefficients . x <= bound` and what the guard stores for it.

    * `constants`: for a comparison, nearest_F(bound) per format of `FORMATS`; for an oblique row ().
    * `stored`: for an oblique row its float64 coefficients, in the order of `coefficients`; otherwise ().
    * `threshold`: for an oblique row the float64 constant that fl(stored . x) is compared with; otherwise None.
    * `slack`: for an oblique row the bound on |fl(stored . x) - coefficients . x|; otherwise 0.
    """

    coefficients: Linear
    bound: Fraction
    strict: bool
    constants: tuple[Fraction, ...] = ()
    stored: tuple[Fraction, ...] = ()
    threshold: Fraction | None = None
    slack: Fraction = Fraction(0)

    @property
    def is_comparison(self) -> bool:
        """Whether the guard compares one input with a constant, exactly."""
        return self.threshold is None

    def inside(self, fmt: Binary) -> HalfSpace:
        """Return the half-space that "the guard says inside" implies."""
        if self.threshold is None:
            return HalfSpace(self.coefficients, self.constants[FORMATS.index(fmt)], self.strict)
        return HalfSpace(self.coefficients, self.threshold + self.slack)

    def outside(self, fmt: Binary) -> HalfSpace:
        """Return the half-space that "the guard says outside" implies."""
        stated = self.inside(fmt) if self.threshold is None else HalfSpace(self.coefficients, self.bound)
        return stated.negated()


def domain_box(spec: Specification, fmt: Binary) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """Return the domain for inputs of a format, its ends rounded to nearest."""
    return _rounded(spec.lower, fmt), _rounded(spec.upper, fmt)


def guard_row(row: Row, spec: Specification) -> GuardRow:
    """Return the guard form of a row. Raises RuleError if a constant or the computed sum is beyond float32."""
    try:
        if row.is_comparison:
            constants = tuple(constant(row.bound, fmt) for fmt in FORMATS)
            return GuardRow(row.coefficients, row.bound, row.strict, constants=constants)
        stored = tuple(coefficient(q) for _, q in row.coefficients)
        ends = zip(spec.lower, spec.upper, strict=True)
        sizes = [max(abs(nearest(end, fmt)) for fmt in FORMATS for end in pair) for pair in ends]
        slack = guard_slack(dict(row.coefficients), sizes)
        threshold = threshold_above(row.bound + slack)
    except OverflowError as error:
        names = ", ".join(spec.columns[i] for i, _ in row.coefficients)
        raise RuleError(
            f"A condition on {names} needs numbers beyond the range of float32 ({error}). "
            "Expected 0, or constants and ranges between 1.2e-38 and 3e38 in size. State the input in another unit."
        ) from error
    return GuardRow(row.coefficients, row.bound, row.strict, stored=stored, threshold=threshold, slack=slack)


def guard_rows(cells: Cells, spec: Specification) -> tuple[GuardRow, ...]:
    """Return the guard forms of all rows, in their order."""
    return tuple(guard_row(row, spec) for row in cells.rows)


def _rounded(values: Sequence[Fraction], fmt: Binary) -> tuple[Fraction, ...]:
    try:
        return tuple(constant(value, fmt) for value in values)
    except OverflowError as error:
        raise RuleError(
            f"The range of an input is beyond float32 ({error}). State the input in another unit."
        ) from error
