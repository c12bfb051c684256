"""Enforcements: three ways to keep heads safe during training, one file each."""

from __future__ import annotations

from smle.training.enforcement.base import Enforcement
from smle.training.enforcement.pdcg import PDCG

__all__ = ["PDCG", "Enforcement", "enforcement_of"]


def enforcement_of(choice: str | Enforcement) -> Enforcement:
    """Return an enforcement given by name (`pdcg`) or as an object.

    Raises:
        ValueError: If the name is unknown.
    """
    if isinstance(choice, Enforcement):
        return choice
    if choice != PDCG.name:
        raise ValueError(f"Expected an enforcement: {PDCG.name!r} or an object. Got {choice!r}.")
    return PDCG()
