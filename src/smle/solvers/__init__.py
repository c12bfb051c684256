"""Optimization problems as data, and one adaptor per solver. A solver's answer is evidence, never a proof.

`solve(problem)` picks the back-end for the kind of problem.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from smle.solvers.problems import LinearProgram, Matrix, MixedIntegerProgram, Problem, QuadraticProgram
from smle.solvers.solution import Solution, Status, farkas_gap

if TYPE_CHECKING:
    from smle.solvers.highs import Session

__all__ = [
    "BACKENDS",
    "LinearProgram",
    "Matrix",
    "MixedIntegerProgram",
    "QuadraticProgram",
    "Solution",
    "Status",
    "farkas_gap",
    "open_session",
    "solve",
]

BACKENDS: Mapping[type[Problem], tuple[str, ...]] = MappingProxyType(
    {LinearProgram: ("highs",), MixedIntegerProgram: ("highs",), QuadraticProgram: ("piqp", "highs")}
)
"""Back-ends per kind of problem, the default first. All are dependencies of smle, so none can be missing."""


def open_session(problem: LinearProgram) -> Session:
    """Load a linear program into HiGHS, to solve it repeatedly with other objectives."""
    from smle.solvers.highs import Session

    return Session(problem)


def solve(
    problem: Problem, *, backend: str | None = None, time_limit: float | None = None, node_limit: int | None = None
) -> Solution:
    """Solve a problem once, with a named `backend` or the default for its kind.

    Failures of the back-end are outcomes (`Status.ERROR` with the message), not exceptions. PIQP has only an iteration
    limit and ignores `time_limit`, in seconds. `node_limit` bounds an integer search; unlike seconds, it ends every
    search at the same place. Raises ValueError if the back-end does not solve this kind of problem.
    """
    choices = BACKENDS[type(problem)]
    name = choices[0] if backend is None else backend
    if name not in choices:
        raise ValueError(f"{type(problem).__name__}: expected a back-end among {choices}. Got {name!r}.")
    # Loaded on first use: most of smle needs one back-end, or none.
    module = importlib.import_module(f"smle.solvers.{name}")
    try:
        limits = {"time_limit": time_limit} | ({} if node_limit is None else {"node_limit": node_limit})
        found: Solution = module.solve(problem, **limits)
    except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        return Solution(Status.ERROR, message=f"{type(error).__name__}: {error}", backend=name)
    return found
