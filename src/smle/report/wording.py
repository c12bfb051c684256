"""Names, numbers and ranges for readers. Proved numbers are rounded to the safe side."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import smle_check.digits
from smle.rules import Categorical, Specification, date_text, number_text
from smle.rules.expressions import decimal_text, quote_name
from smle_check.names import visible

__all__ = [
    "count_text",
    "domain_text",
    "exact_text",
    "grouped_text",
    "listed",
    "margin_text",
    "name_text",
    "number",
    "short",
]

_SPOKEN = "above always and at below between exactly false implies in is least most not of one or then true when"
_PHRASES = frozenset(_SPOKEN.split())  # words that sentences use
_RAISED = str.maketrans("+-0123456789", "⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def name_text(name: str) -> str:
    """Write a name as rules do; one that reads as a word of a sentence gets backticks, too."""
    name = visible(name)
    text = quote_name(name)
    return f"`{name}`" if text == name and name.lower() in _PHRASES else text


def exact_text(value: Fraction) -> str:
    """Write a rational exactly: as a decimal if it has one, else as numerator/denominator."""
    return (decimal_text(value) or str(value)).replace("-", "−")


def grouped_text(value: Fraction) -> str:
    """Write a rational exactly, with groups of three digits from 10,000 on."""
    text = decimal_text(value)
    return exact_text(value) if text is None or "e" in text else _typeset(text)


def number(value: float) -> str:
    """Return a measured number with four digits."""
    return _typeset(number_text(value, 4))


def margin_text(margin: Fraction) -> str:
    """Write a margin with three digits, rounded down, so never more than was proved."""
    return _typeset(smle_check.digits.margin_text(margin))


def _typeset(text: str) -> str:
    """Typeset a number: minus sign, groups of three digits from 10,000 on, raised exponent."""
    mantissa, _, exponent = text.partition("e")
    whole, point, decimals = mantissa.partition(".")
    if len(whole.lstrip("-")) > 4 and whole.lstrip("-").isdecimal():
        whole = f"{int(whole):,}"
    raised = f"·10{str(int(exponent)).translate(_RAISED)}" if exponent else ""
    return f"{whole}{point}{decimals}".replace("-", "−") + raised


def count_text(number: int, noun: str) -> str:
    """Return `1 rule` or `12 rules`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def domain_text(spec: Specification) -> list[tuple[str, str]]:
    """Return (input, range or categories and stand-in for missing values) pairs, numbers exactly."""
    rows = []
    for item in spec.inputs:
        if isinstance(item, Categorical):
            shown = ", ".join(f"“{c}”" if "," in c else c for c in item.categories[:12])
            more = f", … ({len(item.categories)} in all)" if len(item.categories) > 12 else ""
            values, missing = f"one of {shown}{more}", item.missing
        else:
            exact = date_text if item.dates else lambda value: _typeset(decimal_text(value) or str(value))
            kind = ", whole numbers" if item.integer and not item.dates else ""
            kind = kind if item.step is None else f", in steps of {exact(item.step)}"
            values = f"{exact(item.lower)} to {exact(item.upper)}{kind}"
            missing = None if item.missing is None else exact(item.missing)
        stands_in = "" if missing is None else f"; a missing value counts as {missing}"
        stands_in += ", and rules ask whether it is missing" if item.name in spec.flag_columns else ""
        rows.append((visible(item.name), values + stands_in))
    return rows


def listed(parts: Iterable[str], size: int, separator: str = ", ") -> str:
    """Join as many whole parts as fit, and add `…` for the others."""
    text = ""
    for part in parts:
        longer = f"{text}{separator}{part}" if text else part
        if len(longer) > size:
            return f"{text}{separator}…" if text else "…"
        text = longer
    return text


def short(text: str, size: int = 40) -> str:
    """Return text cut to a size."""
    return text if len(text) <= size else text[: size - 1] + "…"
