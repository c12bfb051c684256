"""Finds the nearest allowed answers, which a head proposes for answers that break rules. Nothing here is proved."""

from smle.nearest.clauses import Clauses
from smle.nearest.proposals import Found, Proposals

__all__ = ["Clauses", "Found", "Proposals"]
