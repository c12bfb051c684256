"""Kinds of heads, a folder each: what is stated, proved and run. The first to have one is the grid."""

from __future__ import annotations

import numpy.typing as npt

from smle.certificates.document import Certificate
from smle.certificates.rules import certify_rules
from smle.heads.grid.author import certify_grid
from smle.rules import Specification

__all__ = ["certify_head"]


def certify_head(
    spec: Specification,
    *,
    default: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    files: dict[str, bytes] | None = None,
) -> Certificate:
    """Return the certified head that goes behind any model: the grid for outputs in steps, else the head of rules.

    Arguments and errors are those of `certify_rules`.
    """
    chosen = certify_rules if spec.grid is None else certify_grid
    return chosen(spec, default=default, scale=scale, files=files)
