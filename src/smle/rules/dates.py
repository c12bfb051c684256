"""Dates in rules: whole days, counted from 1970-01-01, so that they are exact numbers for every proof."""

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
"""What people write for a date, without spaces. Only 2020-01-31 is read; the rest is refused, never computed."""
_LIKE = re.compile(DATE_LIKE)


def is_date(value: object) -> bool:
    """Whether a value that someone stated is meant as a date: a date object, or a text that looks like one."""
    return isinstance(value, date) or (isinstance(value, str) and _LIKE.fullmatch(value.strip()) is not None)


def day_of(value: object) -> int:
    """Return the number of days from 1970-01-01 to a date, or to the text of one.

    Raises:
        RuleError: If it is something else, has a time of day, or does not exist.
    """
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
    """Return the date of a number of days, `2020-01-31`; the number itself if it is no day that a calendar has."""
    try:
        return (_EPOCH + timedelta(days=round(days))).isoformat() if days == round(days) else f"day {float(days):g}"
    except (OverflowError, ValueError):
        return f"day {float(days):g}"
