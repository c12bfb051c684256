"""Exact arithmetic: rationals, directed rounding to binary formats, bounds on rounding errors."""

from smle.exact.decimals import margin_text, rounded_text
from smle.exact.floats import BINARY32, BINARY64, Binary, exact, is_subnormal, nearest, round_down, round_up
from smle.exact.rounding import affine_error, gamma, guard_slack, head_error

__all__ = [
    "BINARY32",
    "BINARY64",
    "Binary",
    "affine_error",
    "exact",
    "gamma",
    "guard_slack",
    "head_error",
    "is_subnormal",
    "margin_text",
    "nearest",
    "round_down",
    "round_up",
    "rounded_text",
]
