"""Finds the nearest allowed answers, which a head proposes for answers that break rules. Nothing here is proved."""

from smle.nearest.clauses import Clauses
from smle.nearest.proposals import BlockPoints, Proposals

__all__ = ["BlockPoints", "Clauses", "Proposals"]
