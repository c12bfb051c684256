"""The one door to all solvers: `solve(problem)` picks the back-end for the kind of problem."""

from __future__ import annotations

import importlib
from types import MappingProxyType

from smle.errors import MissingDependencyError
from smle.solvers.problems import (
    LinearProgram,
    MixedIntegerProgram,
    MixedIntegerQuadraticProgram,
    Problem,
    QuadraticProgram,
)
from smle.solvers.session import Session
from smle.solvers.solution import Solution, Status

__all__ = ["BACKENDS", "available_backends", "open_session", "solve"]

BACKENDS = MappingProxyType(
    {
        LinearProgram: ("highs", "gurobi"),
        MixedIntegerProgram: ("highs", "scip", "gurobi"),
        QuadraticProgram: ("piqp", "clarabel", "daqp", "osqp", "highs", "gurobi"),
        MixedIntegerQuadraticProgram: ("scip", "daqp", "gurobi"),
    }
)
"""Back-ends per kind of problem; the first one is the default."""

_INSTALL = MappingProxyType(
    {
        "highs": "pip install highspy",
        "piqp": "pip install piqp",
        "clarabel": "pip install clarabel",
        "daqp": "pip install daqp",
        "osqp": "pip install osqp",
        "scip": "pip install pyscipopt",
        "gurobi": "pip install gurobipy (a license is needed)",
    }
)


def _adaptor(problem: Problem, backend: str | None) -> tuple[str, type[Session]]:
    choices = BACKENDS[type(problem)]
    name = choices[0] if backend is None else backend
    if name not in choices:
        raise ValueError(f"{type(problem).__name__}: expected a back-end among {choices}. Got {name!r}.")
    try:
        module = importlib.import_module(f"smle.solvers.{name}")
    except ImportError as error:
        raise MissingDependencyError(
            f"Back-end '{name}' is not installed. Install it with: {_INSTALL[name]}"
        ) from error
    session: type[Session] = module.Adaptor
    return name, session


def available_backends(kind: type[Problem]) -> tuple[str, ...]:
    """Return the installed back-ends for a kind of problem, the default first."""
    found = []
    for name in BACKENDS[kind]:
        try:
            importlib.import_module(f"smle.solvers.{name}")
        except ImportError:
            continue
        found.append(name)
    return tuple(found)


def open_session(problem: Problem, *, backend: str | None = None, time_limit: float | None = None) -> Session:
    """Load a problem into a back-end and keep it there, for solving again with another objective.

    Raises:
        ValueError: If the back-end does not solve this kind of problem.
        MissingDependencyError: If the back-end is not installed.

    """
    _, adaptor = _adaptor(problem, backend)
    return adaptor(problem, time_limit=time_limit)


def solve(problem: Problem, *, backend: str | None = None, time_limit: float | None = None) -> Solution:
    """Solve a problem once.

    Failures of the back-end are outcomes (`Status.ERROR` with the message), not exceptions.

    Args:
        problem: What to minimize over what.
        backend: Name of a back-end; None picks the default for the kind of problem.
        time_limit: Seconds, or None. PIQP and DAQP have iteration limits only and ignore it.

    Raises:
        ValueError: If the back-end does not solve this kind of problem.
        MissingDependencyError: If the back-end is not installed.

    """
    name, adaptor = _adaptor(problem, backend)
    try:
        return adaptor(problem, time_limit=time_limit).solve()
    except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        return Solution(Status.ERROR, message=f"{type(error).__name__}: {error}", backend=name)
