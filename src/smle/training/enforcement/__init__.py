"""Enforcements: three ways to keep heads safe during training, one file each."""

from __future__ import annotations

from smle.training.enforcement.base import Enforcement
from smle.training.enforcement.exact_projection import ExactProjection
from smle.training.enforcement.gauge import GaugeEnforcement
from smle.training.enforcement.pdcg import PDCG

__all__ = ["PDCG", "Enforcement", "ExactProjection", "GaugeEnforcement", "enforcement_of"]

_KINDS: dict[str, type[Enforcement]] = {kind.name: kind for kind in (GaugeEnforcement, PDCG, ExactProjection)}


def enforcement_of(choice: str | Enforcement) -> Enforcement:
    """Return an enforcement given by name (`gauge`, `pdcg`, `exact`) or as an object.

    Raises:
        ValueError: If the name is unknown.
    """
    if isinstance(choice, Enforcement):
        return choice
    if choice not in _KINDS:
        raise ValueError(f"Expected an enforcement: {', '.join(map(repr, _KINDS))} or an object. Got {choice!r}.")
    return _KINDS[choice]()
