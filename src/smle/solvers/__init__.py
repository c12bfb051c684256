"""Optimization problems as data and one adaptor per solver. A solver's word is evidence, never a proof."""

from smle.solvers.door import available_backends, open_session, solve
from smle.solvers.problems import (
    LinearProgram,
    MixedIntegerProgram,
    MixedIntegerQuadraticProgram,
    Problem,
    QuadraticProgram,
    Sparse,
)
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status, farkas_gap, infeasibility

__all__ = [
    "LinearProgram",
    "MixedIntegerProgram",
    "MixedIntegerQuadraticProgram",
    "Problem",
    "QuadraticProgram",
    "Session",
    "Solution",
    "Sparse",
    "Status",
    "available_backends",
    "farkas_gap",
    "infeasibility",
    "open_session",
    "solve",
]
