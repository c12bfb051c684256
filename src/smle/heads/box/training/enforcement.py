"""Enforcements, which keep the heads of a box network safe in training; PDCG is the paper's Algorithm 2."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.errors import NotCertifiedError
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.pdcg import COSTS as PDCG_COSTS
from smle.heads.box.algorithms.pdcg import Finder, Memory, Pdcg, Projector, run_pdcg
from smle.heads.box.algorithms.projection import nearest_safe_head
from smle.heads.box.network.box_network import BoxNetwork
from smle.heads.box.proof.frozen_heads import FrozenHeads, Head
from smle.heads.box.proof.issue_box import require_proved
from smle.heads.box.proof.verify import verify

__all__ = ["PDCG", "Enforcement", "ProjectionReport", "enforcement_of"]

Array = npt.NDArray[np.float64]
_LOG = logging.getLogger("smle.training")
_SLOW = 60.0  # seconds of projections before the log mentions them


class ProjectionReport(NamedTuple):
    """The result of one run on one head.

    * `step`: the gradient step after which it ran, or 0 at the end. `head`: its number.
    * `succeeded`: the last search found no counterexample. `iterations`: projections made.
    * `strength`: of the strongest counterexample found, 0 if there was none. `seconds`: wall-clock time.
    """

    step: int
    head: int
    succeeded: bool
    iterations: int
    strength: float
    seconds: float


class Enforcement:
    """A way to make the heads of a box network safe. Subclasses are final; `name` tells them apart in checkpoints.

    `reports` collects runs until the training loop moves them to `History.projections`.
    """

    name: ClassVar[str]
    reports: list[ProjectionReport]

    def start(self, network: BoxNetwork) -> None:
        """Prepare for a network."""
        self.reports = []

    def after_step(self, network: BoxNetwork, step: int) -> None:
        """Act after a gradient step; `step` counts from 1."""

    def after_epoch(self, network: BoxNetwork) -> None:
        """Act at the end of an epoch, before the network is evaluated."""

    def finish(self, network: BoxNetwork) -> None:
        """Make the heads safe; the network is left in eval mode.

        Raises:
            NotCertifiedError: If that fails.
        """
        network.eval()

    def margin(self, network: BoxNetwork) -> tuple[str, float]:
        """Return the name and value that the progress bar shows about safety."""
        verdicts = verify(network.frozen_heads(), network.spec, network.cells)
        return "margin", verdicts.margin

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must store besides the network."""
        return {}

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore the state of a checkpoint, after `start`."""


class PDCG(Enforcement):
    """The paper's Algorithm 2: every `every` steps, find the strongest counterexample, project over the last `memory`.

    The full run at the end continues on each head until no counterexample is left or `iterations` projections were
    made. If one is left, the nearest safe heads are found exactly. `History.projections` has all runs, `final` the runs
    at the end, head by head.

    Args:
        memory: Counterexamples kept per head, first in first out: the paper's n_xs (1 for linear rules, 10 for
            exclusions).
        iterations: Largest number of projections per head at the end: the paper's n_it.
        every: Gradient steps between two iterations.
        tolerance: Slack that a projection keeps in every literal, in its own units.
        keep_memory: Start each run with the counterexamples of the last one, which are still useful while the bounds
            move slowly. False: start with none, as the paper's Algorithm 1 does.
        anchored: Start all projections of one run from the head it was given.
        cost: `squared`, the paper's, or `absolute`: a linear program instead of a quadratic one.
        time_limit: Seconds that all projections may take together. None: no limit, but after a minute the log says how
            long they took so far.
        search: Another way to look for counterexamples (`smle.heads.box.algorithms.Finder`). None: the strongest one.
        projection: Another way to project over the kept counterexamples (`smle.heads.box.algorithms.Projector`).
            Together with `search`, this enforces any predicate of your own; the rules are proved all the same.
    """

    name = "pdcg"

    def __init__(
        self, *, memory: int = 1, iterations: int = 1000, every: int = 1, tolerance: float = 1e-6,
        keep_memory: bool = True, anchored: bool = False, cost: str = "squared",
        time_limit: float | None = None, search: Finder | None = None, projection: Projector | None = None,
    ) -> None:  # fmt: skip
        for name, value in (("memory", memory), ("iterations", iterations), ("every", every)):
            if value < 1:
                raise ValueError(f"Expected {name} >= 1. Got {value}.")
        if time_limit is not None and not time_limit > 0:
            raise ValueError(f"Expected time_limit > 0 or None. Got {time_limit}.")
        if not tolerance > 0:
            raise ValueError(f"Expected tolerance > 0. Got {tolerance}.")
        if cost not in PDCG_COSTS:
            raise ValueError(f"Expected cost to be one of {', '.join(PDCG_COSTS)}. Got {cost!r}.")
        self.memory, self.iterations, self.every, self.tolerance = memory, iterations, every, tolerance
        self.keep_memory, self.anchored, self.cost, self.time_limit = keep_memory, anchored, cost, time_limit
        self.search, self.projection = search, projection
        self.final: tuple[Pdcg, ...] = ()

    def start(self, network: BoxNetwork) -> None:
        """Forget earlier counterexamples."""
        super().start(network)
        self._rules, self._problems = (network.spec, network.cells), dict[int, HeadProblem]()
        self._memories: dict[int, Memory] = {}
        self._seconds, self._steps, self._told = 0.0, 0, False
        self.final = ()

    def after_step(self, network: BoxNetwork, step: int) -> None:
        """Run one iteration on every head; heads without a counterexample stay as they are."""
        if step % self.every:
            return
        over = network.frozen_heads()
        results = self._runs(over, n_it=1, step=step)
        if any(result.iterations for result in results.values()):
            network.load_heads(replace(over, heads=_last(over, results)))

    def finish(self, network: BoxNetwork) -> None:
        """Project until no counterexample is left, prove the heads or the nearest safe ones, deploy them.

        Raises:
            NotCertifiedError: If no safe heads were found. The network keeps the heads of the last projection.
        """
        network.eval()
        over = network.frozen_heads()
        results = self._runs(over, n_it=self.iterations, step=0)
        self.final = tuple(results.values())
        projected = replace(over, heads=_last(over, results))
        network.load_heads(projected)
        if not verify(projected, network.spec, network.cells).hold:
            projected = self._exactly(projected)
            require_proved(verify(projected, network.spec, network.cells), network.spec)
        network.pin(projected)

    def _exactly(self, over: FrozenHeads) -> FrozenHeads:
        """Return the safe heads nearest to the heads that the final run left."""
        heads: list[Head | None] = []
        for number, head in enumerate(over.heads):
            if head is None:
                heads.append(None)
                continue
            found = nearest_safe_head(head, self.problem(over, number))
            if found.head is None:
                raise NotCertifiedError(
                    f"Head {number} is not safe after {self.iterations} projections by counterexamples (pdcg), and the "
                    f"nearest safe head was not found: {found.reason}. Allow more iterations or a larger memory."
                )
            heads.append(found.head)
        return replace(over, heads=tuple(heads))

    def _runs(self, over: FrozenHeads, *, n_it: int, step: int) -> dict[int, Pdcg]:
        """Run Algorithm 1 on every head, and report each run."""
        results = {}
        for number, head in enumerate(over.heads):
            if head is None:
                continue
            started = time.perf_counter()
            results[number] = result = run_pdcg(
                head, self.problem(over, number), n_it=n_it, n_xs=self.memory, tolerance=self.tolerance,
                memory=self._memory(number) if self.keep_memory else None, anchored=self.anchored, cost=self.cost,
                search=self.search, projection=self.projection,
            )  # fmt: skip
            strength, seconds = max(result.strengths, default=0.0), time.perf_counter() - started
            self.reports.append(ProjectionReport(step, number, result.succeeded, result.iterations, strength, seconds))
            self._spend(seconds, len(over.heads))
        self._steps += 1
        return results

    def _spend(self, seconds: float, heads: int) -> None:
        """Add up seconds of projections; log once when they are many.

        Raises:
            NotCertifiedError: If they exceed the time limit.
        """
        self._seconds += seconds
        message = (
            f"pdcg: projections of {heads} heads took {self._seconds:.0f} s in the first {self._steps + 1} steps. "
            "SafeRegressor and SafeClassifier obey the same rules and need none; PDCG(every=10) projects at every "
            "tenth step."
        )
        if self.time_limit is not None and self._seconds > self.time_limit:
            raise NotCertifiedError(f"{message} The time limit of {self.time_limit:g} s is exceeded.")
        if self._seconds > _SLOW and not self._told:
            self._told = True
            _LOG.warning(message)

    def problem(self, over: FrozenHeads, head: int) -> HeadProblem:
        """Return the obligations of a head, cached between steps, under the current bounds."""
        if head not in self._problems:
            self._problems[head] = HeadProblem.of(over, *self._rules, head)
        return self._problems[head].under(over.bounds)

    def _memory(self, head: int) -> Memory:
        return self._memories.setdefault(head, Memory(self.memory))

    def state(self) -> dict[str, Array]:
        """Return the counterexamples of every head: rows (x, z, part)."""
        result = {}
        for head, memory in self._memories.items():
            if memory.points:
                rows = [np.concatenate([x, z, [len(x), part]]) for x, z, part in memory.points]
                result[str(head)] = np.array(rows)
        return result

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore the counterexamples of a checkpoint."""
        self._memories = {}
        for head, rows in state.items():
            memory = self._memory(int(head))
            for row in rows:
                d = int(row[-2])
                memory.append(row[:d].copy(), row[d:-2].copy(), int(row[-1]))


def _last(over: FrozenHeads, results: dict[int, Pdcg]) -> tuple[Head | None, ...]:
    return tuple(results[c].head if c in results else head for c, head in enumerate(over.heads))


def enforcement_of(choice: str | Enforcement) -> Enforcement:
    """Return an enforcement given by name (`pdcg`) or as an object. Raises ValueError for another name."""
    if isinstance(choice, Enforcement):
        return choice
    if choice != PDCG.name:
        raise ValueError(f"Expected an enforcement: {PDCG.name!r} or an object. Got {choice!r}.")
    return PDCG()
