"""Exact arithmetic: rationals, directed rounding to binary formats, bounds on rounding errors."""

from smle.exact.decimals import margin_text, rounded_text
from smle.exact.floats import BINARY32, BINARY64, Binary, exact, nearest, previous, round_down, round_up
from smle.exact.rounding import affine_error, gamma, guard_slack

__all__ = [
    "BINARY32",
    "BINARY64",
    "Binary",
    "affine_error",
    "exact",
    "gamma",
    "guard_slack",
    "margin_text",
    "nearest",
    "previous",
    "round_down",
    "round_up",
    "rounded_text",
]
