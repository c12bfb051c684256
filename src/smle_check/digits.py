"""Rationals in few digits, rounded to the stated side, so that a printed proof never claims too much."""

import math
from fractions import Fraction

_PLAIN = range(-5, 9)  # powers of ten of the first digit that are printed without an exponent


def decimal(value: Fraction) -> str:
    """Print a rational as a decimal if that is finite and of moderate length, else as a fraction."""
    for digits in range(13):
        if (value * 10**digits).denominator == 1:
            sign, scaled = "-" if value < 0 else "", str(abs(int(value * 10**digits))).rjust(digits + 1, "0")
            return sign + (scaled[:-digits] + "." + scaled[-digits:] if digits else scaled)
    return str(value)


def margin_text(margin: Fraction) -> str:
    """Print a margin with three digits, rounded down, so never more than was proved."""
    return rounded_text(margin, 3, up=False)


def rounded_text(value: Fraction, digits: int, *, up: bool) -> str:
    """Print a number with few digits, rounded up or down; `Fraction` reads the text.

    Without an exponent, all digits before the point are kept.
    """
    power = _power(value) if value else 0
    places = max(digits - 1 - power, 0) if power in _PLAIN else digits - 1 - power
    scaled = value * Fraction(10) ** places
    whole = math.ceil(scaled) if up else math.floor(scaled)
    sign, text = "-" if whole < 0 else "", str(abs(whole))
    if power in _PLAIN:
        text = text.rjust(places + 1, "0")
        decimals = text[len(text) - places :].rstrip("0")
        return sign + text[: len(text) - places] + (f".{decimals}" if decimals else "")
    first, rest = text[0], text[1:].rstrip("0")
    return f"{sign}{first}{'.' if rest else ''}{rest}e{len(text) - 1 - places:+03d}"


def _power(value: Fraction) -> int:
    """Return the largest k with 10^k <= |value|, for a value other than 0."""
    size = abs(value)
    power = math.floor((size.numerator.bit_length() - size.denominator.bit_length()) * math.log10(2)) - 1
    while Fraction(10) ** (power + 1) <= size:
        power += 1
    return power
