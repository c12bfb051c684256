"""The paper's Algorithm 2: one iteration of PDCG after every gradient step, and a full run at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from smle.errors import NotCertifiedError
from smle.guarantees import FrozenHeads, Head, HeadProblem, Memory, memory_projection, strongest_counterexample
from smle.nn.box_network import BoxNetwork
from smle.training.enforcement.base import Enforcement, Problems, require_proved

__all__ = ["PDCG"]

Array = npt.NDArray[np.float64]


class PDCG(Enforcement):
    """Strongest counterexample, nearest head over the last `memory` of them, after every `every`-th step.

    The full run at the end goes on from head to head, keeping the memory, until no counterexample is left or
    `iterations` projections were made. Each head has a memory of its own, which lasts over the steps: with the
    bounds moving slowly, yesterday's counterexamples are still good ones.

    Args:
        memory: Counterexamples kept per head, first in first out (the paper: 1 for linear rules, 10 for exclusions).
        iterations: Largest number of projections per head at the end.
        every: Gradient steps between two iterations.
        tolerance: What a projection leaves free in every literal, in its own units.
    """

    name = "pdcg"

    def __init__(self, *, memory: int = 1, iterations: int = 1000, every: int = 1, tolerance: float = 1e-6) -> None:
        for name, value in (("memory", memory), ("iterations", iterations), ("every", every)):
            if value < 1:
                raise ValueError(f"Expected {name} >= 1. Got {value}.")
        if not tolerance > 0:
            raise ValueError(f"Expected tolerance > 0. Got {tolerance}.")
        self.memory, self.iterations, self.every, self.tolerance = memory, iterations, every, tolerance

    def start(self, network: BoxNetwork) -> None:
        """Forget earlier counterexamples."""
        super().start(network)
        self._problems = Problems(network)
        self._memories: dict[int, Memory] = {}

    def after_step(self, network: BoxNetwork, step: int) -> None:
        """Run one iteration on every head; heads without a counterexample stay as they are."""
        if step % self.every:
            return
        over = network.frozen_heads()
        heads = []
        for c, head in enumerate(over.heads):
            moved = None
            if head is not None:
                # A projection that fails leaves the head alone; the run at the end decides.
                moved, _ = self.iterate(head, self._problems.of(over, c), self._memory(c))
            heads.append(moved)
        if any(head is not None for head in heads):
            kept = tuple(old if new is None else new for old, new in zip(over.heads, heads, strict=True))
            network.load_heads(replace(over, heads=kept))

    def finish(self, network: BoxNetwork) -> None:
        """Project until no counterexample is left, and deploy the result."""
        network.eval()
        over = network.frozen_heads()
        heads = tuple(None if head is None else self._run(head, over, c, network) for c, head in enumerate(over.heads))
        projected = replace(over, heads=heads)
        require_proved(projected, network, "The projection by counterexamples (pdcg)")
        network.pin(projected)

    def _run(self, head: Head, over: FrozenHeads, number: int, network: BoxNetwork) -> Head:
        problem, memory = self._problems.of(over, number), self._memory(number)
        if head.fallback is not None and not problem.fallback_safe(head.fallback):
            raise NotCertifiedError(f"Head {number}: the constant that stands in for NaN breaks the rules.")
        for _ in range(self.iterations):
            moved, reason = self.iterate(head, problem, memory)
            if moved is None:
                if reason:
                    raise NotCertifiedError(f"The projection of head {number} failed: {reason}.")
                return head
            head = moved
        raise NotCertifiedError(
            f"A counterexample for head {number} is left after {self.iterations} projections. Allow more iterations "
            "or a larger memory."
        )

    def iterate(self, head: Head, problem: HeadProblem, memory: Memory) -> tuple[Head | None, str]:
        """Return (projected head, ""), (None, "") if there is no counterexample, or (None, why it failed)."""
        search, part = strongest_counterexample(head, problem)
        if search.found is None:
            return None, "" if search.none_exists else f"the search ended with {search.status} {search.message}"
        memory.append(search.found.x, search.found.z, part)
        layout = problem.layout(head)
        V = None if head.V is None else head.V.astype(np.float64)
        theta = layout.pack(head.W.astype(np.float64), V, head.b.astype(np.float64))
        found = memory_projection(theta, memory, problem, layout=layout, like=head, tolerance=self.tolerance)
        if found.x is None:
            return None, f"{found.status} ({found.message})"
        W, slope, b = layout.unpack(found.x)
        return (
            Head(
                W.astype(np.float32),
                b.astype(np.float32),
                V=None if slope is None else slope.astype(np.float32),
                fallback=head.fallback,
            ),
            "",
        )

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
        """Take over the counterexamples of a checkpoint."""
        self._memories = {}
        for head, rows in state.items():
            memory = self._memory(int(head))
            for row in rows:
                d = int(row[-2])
                memory.append(row[:d].copy(), row[d:-2].copy(), int(row[-1]))
