"""The one door to all solvers: `solve(problem)` picks the back-end for the kind of problem."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from smle.solvers.problems import LinearProgram, MixedIntegerProgram, Problem, QuadraticProgram
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["BACKENDS", "open_session", "solve"]

BACKENDS: Mapping[type[Problem], tuple[str, ...]] = MappingProxyType(
    {LinearProgram: ("highs",), MixedIntegerProgram: ("highs",), QuadraticProgram: ("piqp", "clarabel", "highs")}
)
"""Back-ends per kind of problem, the default first. All of them are dependencies of smle, so none can be missing."""


def _adaptor(problem: Problem, backend: str | None) -> tuple[str, type[Session]]:
    choices = BACKENDS[type(problem)]
    name = choices[0] if backend is None else backend
    if name not in choices:
        raise ValueError(f"{type(problem).__name__}: expected a back-end among {choices}. Got {name!r}.")
    # Loaded on first use: most of what smle does needs one of them, or none.
    session: type[Session] = importlib.import_module(f"smle.solvers.{name}").Adaptor
    return name, session


def open_session(problem: Problem, *, backend: str | None = None, time_limit: float | None = None) -> Session:
    """Load a problem into a back-end and keep it there, for solving again with another objective.

    Raises:
        ValueError: If the back-end does not solve this kind of problem.

    """
    _, adaptor = _adaptor(problem, backend)
    return adaptor(problem, time_limit=time_limit)


def solve(problem: Problem, *, backend: str | None = None, time_limit: float | None = None) -> Solution:
    """Solve a problem once.

    Failures of the back-end are outcomes (`Status.ERROR` with the message), not exceptions.

    Args:
        problem: What to minimize over what.
        backend: Name of a back-end; None picks the default for the kind of problem.
        time_limit: Seconds, or None. PIQP has an iteration limit only and ignores it.

    Raises:
        ValueError: If the back-end does not solve this kind of problem.

    """
    name, adaptor = _adaptor(problem, backend)
    try:
        return adaptor(problem, time_limit=time_limit).solve()
    except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        return Solution(Status.ERROR, message=f"{type(error).__name__}: {error}", backend=name)
