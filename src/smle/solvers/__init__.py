"""Optimization problems as data, and one adaptor per solver. A solver's answer is evidence, never a proof."""

from smle.solvers.problems import LinearProgram, Matrix, MixedIntegerProgram, Problem, QuadraticProgram
from smle.solvers.solution import Solution, Status, farkas_gap, infeasibility
from smle.solvers.solve import BACKENDS, open_session, solve

__all__ = [
    "BACKENDS",
    "LinearProgram",
    "Matrix",
    "MixedIntegerProgram",
    "Problem",
    "QuadraticProgram",
    "Solution",
    "Status",
    "farkas_gap",
    "infeasibility",
    "open_session",
    "solve",
]
