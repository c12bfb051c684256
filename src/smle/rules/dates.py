"""Dates in rules, as whole days since 1970-01-01, so that proofs can treat them as exact numbers."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from fractions import Fraction

from smle.errors import RuleError

__all__ = ["DATE_LIKE", "date_text", "day_of", "is_date"]

_EPOCH = date(1970, 1, 1)
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHAPES = "|".join(
    rf"[0-9]{{{first}}}{sign}[0-9]{{1,2}}{sign}[0-9]{{{last}}}"
    for first, last in (("4", "1,2"), ("1,2", "4"))
    for sign in "-/"
)
DATE_LIKE = rf"(?:{_SHAPES})(?:T[0-9:.]+Z?)?(?![\w.])"
"""Texts that look like a date, without spaces. Only 2020-01-31 is read; the others are refused."""
_LIKE = re.compile(DATE_LIKE)


def is_date(value: object) -> bool:
    """Return whether a value is meant as a date: a date object, or text that looks like one."""
    return isinstance(value, date) or (isinstance(value, str) and _LIKE.fullmatch(value.strip()) is not None)


def day_of(value: object) -> int:
    """Return the days from 1970-01-01 to a date or the text of a date. Raises RuleError for anything else."""
    if isinstance(value, datetime):
        raise RuleError(f"Expected a date without a time of day. Got {value}. Write {value.date()}.")
    if isinstance(value, date):
        return (value - _EPOCH).days
    text = str(value).strip()
    if _ISO.fullmatch(text):
        try:
            return (date.fromisoformat(text) - _EPOCH).days
        except ValueError:
            raise RuleError(f"'{text}' is not a day of the calendar.") from None
    raise RuleError(
        f"'{text[:40]}' looks like a date. Write dates as 2020-01-31 (year, month, day, no time); to subtract or "
        "divide, put spaces around the sign."
    )


def date_text(days: Fraction | float) -> str:
    """Return a number of days as `2020-01-31`, or as `day 1.5` if no calendar day matches."""
    try:
        return (_EPOCH + timedelta(days=round(days))).isoformat() if days == round(days) else f"day {float(days):g}"
    except (OverflowError, ValueError):
        return f"day {float(days):g}"
