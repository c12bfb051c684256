"""Rationals and the binary floating-point numbers next to them."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat

__all__ = ["BINARY32", "BINARY64", "Binary", "exact", "is_subnormal", "nearest", "round_down", "round_up"]


@dataclass(frozen=True)
class Binary:
    """An IEEE 754 binary format, by its precision (bits of significand) and its exponent range."""

    name: str
    precision: int
    minimum_exponent: int
    maximum_exponent: int

    @property
    def unit_roundoff(self) -> Fraction:
        """Largest relative error of one rounding to nearest."""
        return Fraction(1, 2**self.precision)

    @property
    def smallest_normal(self) -> Fraction:
        """Smallest positive normal number."""
        return Fraction(2) ** self.minimum_exponent

    @property
    def largest(self) -> Fraction:
        """Largest finite number."""
        return (2 - Fraction(1, 2 ** (self.precision - 1))) * Fraction(2) ** self.maximum_exponent


BINARY32 = Binary("float32", 24, -126, 127)
BINARY64 = Binary("float64", 53, -1022, 1023)


def exact(value: SupportsFloat) -> Fraction:
    """Return the exact value of a finite float.

    Raises:
        ValueError: If the value is NaN or infinite.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"Expected a finite number. Got {number}.")
    return Fraction(number)


def nearest(value: Fraction, fmt: Binary) -> Fraction:
    """Round to the nearest number of the format, ties to even (IEEE 754 default)."""
    grid = _spacing(value, fmt)
    return _finite(Fraction(round(value / grid)) * grid, fmt)


def round_down(value: Fraction, fmt: Binary) -> Fraction:
    """Round to the largest number of the format that is not above the value."""
    grid = _spacing(value, fmt)
    return _finite(Fraction(math.floor(value / grid)) * grid, fmt)


def round_up(value: Fraction, fmt: Binary) -> Fraction:
    """Round to the smallest number of the format that is not below the value."""
    return -round_down(-value, fmt)


def _spacing(value: Fraction, fmt: Binary) -> Fraction:
    """Distance between neighbouring numbers of the format around the value."""
    exponent = fmt.minimum_exponent
    if value:
        magnitude = abs(value)
        exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if magnitude < Fraction(2) ** exponent:
            exponent -= 1
        exponent = max(exponent, fmt.minimum_exponent)
    return Fraction(2) ** (exponent - fmt.precision + 1)


def _finite(value: Fraction, fmt: Binary) -> Fraction:
    if abs(value) > fmt.largest:
        raise OverflowError(f"{float(value):.6g} is beyond the range of {fmt.name}.")
    return value


def is_subnormal(value: Fraction, fmt: Binary) -> bool:
    """Whether a number of the format is one that a runtime may treat as zero."""
    return 0 < abs(value) < fmt.smallest_normal
