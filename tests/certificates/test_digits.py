"""What is printed with few digits lies on the side that was asked for."""

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smle_check.digits import margin_text, rounded_text


@given(st.fractions(), st.integers(-400, 400), st.integers(1, 17))
@example(Fraction(999951, 100), -5, 4)
@example(Fraction(-1), 0, 3)
@example(Fraction(0), 0, 3)
@example(Fraction(1, 7), 5000, 3)
@example(Fraction(1), -5000, 3)
@settings(max_examples=200, deadline=None)
def test_texts_enclose_the_number(number, power, digits):
    value = number * Fraction(10) ** power
    down, up = (Fraction(rounded_text(value, digits, up=up)) for up in (False, True))
    assert down <= value <= up
    assert up - down <= abs(value) * Fraction(10) ** (1 - digits)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0.99996", "0.999"),
        ("12345.6", "12345"),
        ("5e-8", "5e-08"),
        ("0.000123456", "0.000123"),
        ("0.0299999", "0.0299"),
        ("1.2399e12", "1.23e+12"),
        ("-0.50001", "-0.501"),
        ("10", "10"),
        ("0", "0"),
    ],
)
def test_margins(value, text):
    assert margin_text(Fraction(value)) == text
