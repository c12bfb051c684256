"""Whole numbers of steps: which floats stand for them, and how the inputs of a grid head are read (section 14).

An output stands for `k * step`, k whole; the float32 number nearest to it, `float32(k * numerator / denominator)`, is
served. An input with a step is read as a whole number, too:

    kx = floor(x * denominator / numerator + 1/2), clamped to its range

A real input nearer to 0 than 2^-100 is read as 0. Rules, regions and ranges refer to inputs as they are read.
"""

import copy
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from smle_check.floats import BINARY64, FORMATS, TINY, Binary, above, below, coefficient, guard_slack, threshold_above
from smle_check.guard import packed, packed_rows
from smle_check.heads.known import Boxes, Facts, Form, Known, Leaf
from smle_check.reading import Tensor, require
from smle_check.stated import StatedRow, StatedSpecification

EXACT, LARGEST_SUM, LONGEST = 2**53, 2**52, 2**1100
SMALLEST_INPUT = Fraction(1, 2**100)  # a real input nearer to 0 is read as 0
SINGLE = 2**24


class Whole(NamedTuple):
    """Linear forms in whole numbers: times `factor`, the coefficients of steps are whole, with no common divisor."""

    factor: Fraction
    outputs: dict[int, int]
    inputs: dict[int, int]


def require_step(step: Fraction, most: int, what: str) -> None:
    """Require that float32 tells all multiples of a step up to `most` apart, and that float64 computes them.

    If the step is a binary fraction, the float32 number is the multiple itself. Otherwise it is the nearest one, and
    its ulp is below the step.
    """
    require(step > 0, f"{what}: expected a step above 0")
    numerator, denominator = step.numerator, step.denominator
    if denominator & (denominator - 1) == 0:
        odd = numerator // (numerator & -numerator)
        require(max(most, 1) * odd <= SINGLE, f"{what}: float32 cannot tell its multiples apart")
        require(step / odd >= TINY and max(most, 1) * step < 2**128, f"{what}: a step beyond the range of float32")
        return
    require(denominator <= SINGLE, f"{what}: a step of too many digits")
    require(max(most, 1) * numerator <= SINGLE, f"{what}: float32 cannot tell its multiples apart")
    exponent = numerator.bit_length() - denominator.bit_length()
    exponent -= step < Fraction(2) ** exponent
    require(most * step <= SINGLE * Fraction(2) ** exponent, f"{what}: float32 cannot tell its multiples apart")


def whole_range(lower: Fraction, upper: Fraction, step: Fraction, what: str) -> tuple[int, int]:
    """Return the first and last multiple of a step in a range, as whole numbers."""
    require(step > 0 and max(abs(lower), abs(upper)) / step < EXACT, f"{what}: expected a range of few steps")
    low, high = math.ceil(lower / step), math.floor(upper / step)
    require(low <= high, f"{what}: no multiple of the step in the range")
    require_step(step, max(abs(low), abs(high)), what)
    return low, high


def whole_form(outputs: Form, inputs: Form, what: str) -> Whole:
    """Return coefficients of steps as whole numbers without a common divisor; the factor is positive."""
    numbers = [v for form in (outputs, inputs) for v in form.values()]
    if not numbers:
        return Whole(Fraction(1), {}, {})
    scale = 1
    for value in numbers:
        scale = math.lcm(scale, value.denominator)
        require(scale < LONGEST, f"{what}: coefficients of too many digits")
    common = math.gcd(*(int(value * scale) for value in numbers))
    factor = Fraction(scale, common)
    made = [{k: int(v * factor) for k, v in form.items()} for form in (outputs, inputs)]
    require(all(abs(v) < EXACT for form in made for v in form.values()), f"{what}: a coefficient beyond 2^53")
    return Whole(factor, *made)


class ReadRow(NamedTuple):
    """A half-space over inputs as they are read: stored coefficients, and a threshold for each input format.

    It holds if the float64 sum is at most the threshold. `next`: for a row over whole numbers, how far the least sum
    beyond it is above the largest within it, in the units of the stated row; else None.
    """

    coefficients: Form
    thresholds: dict[Binary, Fraction]
    next: Fraction | None


class Lattice(StatedSpecification):
    """A specification with inputs as a grid head reads them; made by `read`, never from a document."""

    reads: list[ReadRow]
    input_ranges: list[tuple[int, int]]  # of whole numbers; (0, 0) for a real input
    output_ranges: list[tuple[int, int]]
    held: list[Fraction]  # bounds of inputs as the program holds them: whole numbers of steps, or numbers

    @classmethod
    def read(cls, spec: StatedSpecification) -> "Lattice":
        """Return the specification with ranges and half-spaces as they are read; nothing else changes."""
        m, d = len(spec.outputs), len(spec.inputs)
        require(len(spec.input_steps) == d, "specification: expected a step, or null, for every input")
        require(len(spec.output_steps) == m, "specification: expected a range and a step for every output")
        made = cls.__new__(cls)
        made.__dict__ = copy.copy(spec.__dict__)
        made.output_ranges = [
            whole_range(*own, f"output {name!r}") for own, name in zip(spec.output_steps, spec.outputs, strict=True)
        ]
        made.input_ranges, made.passed = [], {fmt: ([*low], [*high]) for fmt, (low, high) in spec.passed.items()}
        for j, (step, name) in enumerate(zip(spec.input_steps, spec.inputs, strict=True)):
            own = (0, 0)
            require(step in (None, 1) or j not in spec.group, f"input {name!r}: a step of a category that is not 1")
            if step is None:
                ends = [side[j] for box in spec.passed.values() for side in box]
                usable = all(not end or abs(end) >= SMALLEST_INPUT for end in ends)
                require(usable, f"input {name!r}: an end of its range is too close to 0")
            else:
                own = whole_range(spec.lower[j], spec.upper[j], step, f"input {name!r}")
                for low, high in made.passed.values():
                    low[j], high[j] = (step * end for end in own)
            made.input_ranges.append(own)
        sides = [side for box in made.passed.values() for side in box]
        made.sizes = [max(abs(side[j]) for side in sides) for j in range(d)]
        made.held = [size / (step or 1) for size, step in zip(made.sizes, spec.input_steps, strict=True)]
        made.reads = [made.read_row(row) for row in spec.rows]
        made.rows = [made.known_row(row, own) for row, own in zip(spec.rows, made.reads, strict=True)]
        return made

    def in_steps(self, terms: Form) -> Form:
        """Return the coefficients of a form over inputs as the program holds them."""
        return {j: v * (self.input_steps[j] or 1) for j, v in terms.items()}

    def read_row(self, row: StatedRow) -> ReadRow:
        """Return the deployed numbers of a half-space."""
        terms = self.in_steps(row.terms)
        if all(self.input_steps[j] is not None for j in terms):
            whole = whole_form({}, terms, "gate")
            bound = row.bound * whole.factor
            size = sum(abs(v) * max(map(abs, self.input_ranges[j])) for j, v in whole.inputs.items())
            require(size < LARGEST_SUM, "gate: a sum beyond 2^52")
            limit = math.ceil(bound) - 1 if row.strict else math.floor(bound)
            limit = max(-size - 1, min(size, limit))
            made = {j: Fraction(v) for j, v in whole.inputs.items()}
            return ReadRow(made, dict.fromkeys(FORMATS, Fraction(limit)), 1 / whole.factor)
        if len(terms) == 1:  # a real number is compared exactly, as passed
            limits = {fmt: below_strictly(c, fmt) if strict else c for fmt, (c, strict) in row.compared.items()}
            return ReadRow(terms, limits, None)
        threshold = threshold_above(row.bound + guard_slack(terms, self.held))
        return ReadRow({j: coefficient(v) for j, v in terms.items()}, dict.fromkeys(FORMATS, threshold), None)

    def known_row(self, row: StatedRow, own: ReadRow) -> StatedRow:
        """Return what a half-space says about inputs as they are read: as stated, and as the gate sees it."""
        if own.next is not None:
            bound = own.thresholds[BINARY64] * own.next
            return row._replace(bound=bound, strict=False, compared=dict.fromkeys(FORMATS, (bound, False)))
        if len(row.terms) == 1:
            return row
        enlarged = own.thresholds[BINARY64] + guard_slack(self.in_steps(row.terms), self.held)
        return row._replace(compared=dict.fromkeys(FORMATS, (enlarged, False)))


def below_strictly(bound: Fraction, fmt: Binary) -> Fraction:
    """Return t, 0 or normal, such that x < bound is x <= t for every x of a format that is 0 or at least 2^-100.

    Then no comparison is strict, and no machine reads a constant as 0.
    """
    result = below(bound, fmt)
    if abs(result) >= SMALLEST_INPUT:
        return result
    return Fraction(0) if bound > 0 else -SMALLEST_INPUT


class InputRange(NamedTuple):
    """The range of an input in a leaf, as it is read. The lower end of a real input may be strict."""

    lower: Fraction | None
    upper: Fraction | None
    strict: bool


class ReadBoxes(Boxes):
    """What comparisons leave to inputs as they are read, within the cuts of a leaf."""

    def __init__(
        self, spec: Lattice, cuts: dict[int, InputRange] | None = None, known: "ReadBoxes | None" = None
    ) -> None:
        super().__init__(spec)
        self.lattice, self.cuts = spec, cuts or {}
        if known is not None:
            self.known = known.known

    def meeting(self, regions: Iterable[int], fmt: Binary, outside: Iterable[int] = ()) -> Known | None:
        """Return what is left where some regions meet, outside others and within the cuts; None if no input."""
        known = super().meeting(regions, fmt, outside)
        if known is None:
            return None
        ends, (lower, upper) = dict(known.ends), self.spec.passed[fmt]
        for j, cut in self.cuts.items():
            low, high = ends.get(j, (lower[j], upper[j]))
            if cut.lower is not None:
                low = max(low, above(cut.lower, fmt) if cut.strict else cut.lower)
            if cut.upper is not None:
                high = min(high, cut.upper)
            if low > high:
                return None
            ends[j] = low, high
        return known._replace(ends=ends)

    def beyond(self, region: int, fmt: Binary) -> Known:
        """Return what is left outside a region made of one comparison; for whole numbers, one step further."""
        listed = self.spec.regions[region]
        row = self.spec.rows[listed[0]] if len(listed) == 1 else None
        own = None if row is None else self.lattice.reads[listed[0]]
        if row is None or own is None or len(row.terms) != 1 or own.next is None:
            return super().beyond(region, fmt)
        ((k, sign),) = row.terms.items()
        if k in self.group:
            return super().beyond(region, fmt)
        low, high = (side[k] for side in self.spec.passed[fmt])
        first = row.bound + own.next
        return Known({k: (max(low, first), high) if sign > 0 else (low, min(high, -first))}, {})


class ReadFacts(Facts):
    """What is known about inputs as they are read in a leaf."""

    def __init__(self, boxes: ReadBoxes, leaf: Leaf) -> None:
        super().__init__(boxes, leaf)
        self.lattice = boxes.lattice

    def complement(self, region: int) -> tuple[Form, Fraction] | None:
        """Return a row that holds outside a region made of one oblique row."""
        found = super().complement(region)
        if found is None:
            return None
        more = self.lattice.reads[self.spec.regions[region][0]].next
        return found if more is None else (found[0], found[1] - more)


def reading_tensors(spec: Lattice, gated: list[int]) -> dict[str, Tensor]:
    """Return the constants for reading inputs and comparing half-spaces (section 14)."""
    m, d = len(spec.outputs), len(spec.inputs)
    steps = [step or Fraction(1) for step in spec.input_steps]
    result = {
        "grid.numerator": packed([Fraction(own.step.numerator) for own in spec.output_steps], BINARY64, m),
        "grid.denominator": packed([Fraction(own.step.denominator) for own in spec.output_steps], BINARY64, m),
        "grid.lower": packed([Fraction(low) for low, _ in spec.output_ranges], BINARY64, m),
        "grid.upper": packed([Fraction(high) for _, high in spec.output_ranges], BINARY64, m),
        "grid.input_numerator": packed([Fraction(step.numerator) for step in steps], BINARY64, d),
        "grid.input_denominator": packed([Fraction(step.denominator) for step in steps], BINARY64, d),
        "grid.input_lower": packed([Fraction(low) for low, _ in spec.input_ranges], BINARY64, d),
        "grid.input_upper": packed([Fraction(high) for _, high in spec.input_ranges], BINARY64, d),
    }
    used = rows_of(spec, gated)
    result["gate.rows"] = packed_rows([spec.reads[r].coefficients for r in used], d)
    for fmt in FORMATS:
        limits = [spec.reads[r].thresholds[fmt] for r in used]
        result[f"gate.thresholds_{fmt.name}"] = packed(limits, BINARY64, len(used))
    return result


def rows_of(spec: StatedSpecification, gated: list[int]) -> list[int]:
    """Return the half-spaces of the gate's regions, in order."""
    return sorted({r for g in gated for r in spec.regions[g]})
