"""What every adaptor offers: a problem that stays loaded and can be solved again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from smle.solvers.solution import Solution

__all__ = ["Session"]


class Session(ABC):
    """A problem loaded into one back-end. Solving again reuses what the back-end can reuse.

    Each adaptor's docstring says what that is: a basis (HiGHS), a symbolic factorization (PIQP), nothing.
    """

    @abstractmethod
    def __init__(self, problem: Any, *, time_limit: float | None = None) -> None: ...

    @abstractmethod
    def solve(self, objective: npt.NDArray[np.float64] | None = None) -> Solution:
        """Solve; with `objective` (n,), replace the linear part of the objective first."""
