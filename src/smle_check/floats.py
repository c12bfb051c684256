"""Binary floating point in exact rationals: rounding, and bounds on the errors of float32 sums (section 2).

All bounds hold for every order of summation, with and without fused multiply-add, with gradual underflow and with
flush-to-zero, for rounding to nearest.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from smle_check.reading import Rejected, require


class Binary(NamedTuple):
    """An IEEE 754 binary format: bits of the significand, and the range of exponents."""

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
FORMATS = (BINARY32, BINARY64)  # formats of inputs; every proof holds in both
U = BINARY32.unit_roundoff
TINY = BINARY32.smallest_normal
LARGEST = BINARY32.largest


class OutOfRange(Rejected, OverflowError):
    """A number that a format cannot hold."""


def spacing(value: Fraction, fmt: Binary) -> Fraction:
    """Return the distance between neighboring numbers of a format around a value."""
    exponent = fmt.minimum_exponent
    if value:
        size = abs(value)
        e = size.numerator.bit_length() - size.denominator.bit_length()
        exponent = max(exponent, e if size >= Fraction(2) ** e else e - 1)
    return Fraction(2) ** (exponent - fmt.precision + 1)


def in_range(value: Fraction, fmt: Binary) -> Fraction:
    """Return the value, or raise OutOfRange if it is beyond the largest number of the format."""
    if abs(value) > fmt.largest:
        raise OutOfRange(f"number beyond the range of {fmt.name}")
    return value


@lru_cache(maxsize=1 << 14)
def nearest(value: Fraction, fmt: Binary) -> Fraction:
    """Round to the nearest number of a format, ties to even."""
    grid = spacing(value, fmt)
    return in_range(round(value / grid) * grid, fmt)


@lru_cache(maxsize=1 << 14)
def round_down(value: Fraction, fmt: Binary) -> Fraction:
    """Round to the largest number of a format that is not above the value."""
    grid = spacing(value, fmt)
    return in_range(math.floor(value / grid) * grid, fmt)


def round_up(value: Fraction, fmt: Binary) -> Fraction:
    """Round to the smallest number of a format that is not below the value."""
    return -round_down(-value, fmt)


def below(value: Fraction, fmt: Binary) -> Fraction:
    """Return the largest number of a format that is less than the value."""
    result = round_down(value, fmt)
    quantum = Fraction(2) ** (fmt.minimum_exponent - fmt.precision + 1)
    return result if result < value else round_down(value - quantum / 2, fmt)


def above(value: Fraction, fmt: Binary) -> Fraction:
    """Return the smallest number of a format that is greater than the value."""
    return -below(-value, fmt)


@lru_cache(maxsize=1 << 10)
def constant(value: Fraction, fmt: Binary) -> Fraction:
    """Round to nearest; refuse subnormal results, which a runtime may treat as zero."""
    result = nearest(value, fmt)
    if value and min(abs(value), abs(result)) < fmt.smallest_normal:
        raise OutOfRange(f"{float(value):.6g} is too close to 0 for {fmt.name}")
    return result


def coefficient(value: Fraction) -> Fraction:
    """Return the stored coefficient of an oblique row: the nearest float64 number, or 0 if that is subnormal."""
    result = nearest(value, BINARY64)
    return result if abs(result) >= BINARY64.smallest_normal else Fraction(0)


def threshold_above(value: Fraction) -> Fraction:
    """Return the smallest float64 number >= value that is 0 or normal."""
    smallest = BINARY64.smallest_normal
    if abs(value) < smallest:
        return smallest if value > 0 else Fraction(0)
    return round_up(value, BINARY64)


def threshold_below(value: Fraction, *, strict: bool) -> Fraction:
    """Return the largest float64 number <= value (< value if strict) that is 0 or normal."""
    result = -threshold_above(-value)
    if strict and result == value:
        result = below(result, BINARY64)
        if abs(result) < BINARY64.smallest_normal:  # subnormal: go on to the next number that is 0 or normal
            result = Fraction(0) if value > 0 else -BINARY64.smallest_normal
    return result


def upward(value: Fraction) -> Fraction:
    """Round up to a multiple of 2^-200, a simpler number that is not smaller."""
    return Fraction(math.ceil(value * 2**200), 2**200)


def on_grid(numbers: Sequence[Fraction]) -> tuple[list[int], int]:
    """Write dyadic numbers as integers times 2^-k; return the integers and k."""
    k = max((v.denominator.bit_length() - 1 for v in numbers), default=0)
    shifts = [k + 1 - v.denominator.bit_length() for v in numbers]
    require(all(v.denominator << shift == 1 << k for v, shift in zip(numbers, shifts, strict=True)), "not dyadic")
    return [v.numerator << shift for v, shift in zip(numbers, shifts, strict=True)], k


def affine_error(
    weights: Sequence[Fraction], sizes: Sequence[Fraction], offset: Fraction, what: str, fmt: Binary = BINARY32
) -> Fraction:
    """Bound |fl(w.v + c) - (w.v + c)| for |v_j| <= sizes_j, in a format; all numbers are dyadic."""
    n, limit = len(weights), 2**fmt.precision
    require(n + 1 < 2**20 and n == len(sizes), f"{what}: sum too long")
    growth = Fraction(n + 1, limit - n - 1)
    (w, i), (s, j) = on_grid([abs(v) for v in weights]), on_grid(sizes)
    total = abs(offset) + Fraction(sum(map(mul, w, s)), 1 << (i + j))
    spread = 2 * n + 1 + Fraction(sum(w), 1 << i) + Fraction(sum(s), 1 << j)
    tiny = fmt.smallest_normal * spread * (1 + growth)
    if (1 + growth) * total + tiny >= fmt.largest:
        raise OutOfRange(f"{what}: may overflow {fmt.name}")
    return growth * total + tiny


def error64(weights: Sequence[Fraction], sizes: Sequence[Fraction], offset: Fraction, what: str) -> Fraction:
    """Bound the error of a float64 sum over inputs of either format: subnormal float32 numbers may count as 0."""
    lost = TINY * sum(map(abs, weights), Fraction(0))
    return affine_error(weights, sizes, offset, what, BINARY64) + 2 * lost


def guard_slack(terms: Mapping[int, Fraction], sizes: Sequence[Fraction]) -> Fraction:
    """Bound |fl(stored . x) - terms . x| for |x_k| <= sizes_k: stored coefficients, products and sums in float64."""
    stored, reach = {k: coefficient(v) for k, v in terms.items()}, [sizes[k] for k in terms]
    rounded = sum((abs(v - stored[k]) * sizes[k] for k, v in terms.items()), Fraction(0))
    return rounded + error64(list(stored.values()), reach, Fraction(0), "guard")


def cast_error(size: Fraction) -> Fraction:
    """Bound |x - float32(x)| for |x| <= size."""
    return U * size + TINY
