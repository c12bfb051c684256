"""The paper's Algorithm 2 with its counts, and a proof at the end in any case."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from smle.errors import NotCertifiedError
from smle.guarantees.box.head_problem import HeadProblem
from smle.guarantees.box.pdcg import Memory, strongest_counterexample
from smle.guarantees.box.projection import nearest_safe_head
from smle.guarantees.proof.frozen_heads import Head
from smle.nn.box_network import BoxNetwork
from smle.training.enforcement import PDCG
from smle.training.enforcement.base import require_proved

__all__ = ["CountedPDCG", "PdcgCounts"]


@dataclass
class PdcgCounts:
    """What the final run of PDCG did, over all heads.

    `success`: no counterexample was left, and what it left is proved. `iterations`: projections.
    `counterexamples`: all that were found, training included. `final_violation`: strength of the one that was left.
    """

    success: bool = True
    iterations: int = 0
    counterexamples: int = 0
    final_violation: float = 0.0

    def as_row(self) -> dict[str, Any]:
        """Return the counts as fields of a result."""
        return {
            "pdcg_success": self.success,
            "pdcg_iterations": self.iterations,
            "pdcg_counterexamples": self.counterexamples,
            "pdcg_final_violation": self.final_violation,
        }


class CountedPDCG(PDCG):
    """PDCG that counts; where its final run leaves a counterexample, the exact projection has the last word."""

    def start(self, network: BoxNetwork) -> None:
        """Forget earlier counterexamples and counts."""
        super().start(network)
        self.counts = PdcgCounts()

    def iterate(self, head: Head, problem: HeadProblem, memory: Memory) -> tuple[Head | None, str]:
        """Count counterexamples on the way."""
        before = len(memory.points), memory.points[-1] if memory.points else None
        moved, reason = super().iterate(head, problem, memory)
        after = len(memory.points), memory.points[-1] if memory.points else None
        self.counts.counterexamples += before[0] != after[0] or before[1] is not after[1]
        return moved, reason

    def finish(self, network: BoxNetwork) -> None:
        """Project until no counterexample is left; should one be left, project exactly. Deploy what is proved."""
        network.eval()
        over = network.frozen_heads()
        heads: list[Head | None] = []
        for number, head in enumerate(over.heads):
            if head is None:
                heads.append(None)
                continue
            problem = self._problems.of(over, number)
            heads.append(self._last_run(head, problem, self._memory(number)))
        projected = replace(over, heads=tuple(heads))
        try:
            require_proved(projected, network, "The projection by counterexamples (pdcg)")
        except NotCertifiedError:
            self.counts.success = False
        if not self.counts.success:
            projected = replace(projected, heads=tuple(
                None if head is None else self._exactly(head, self._problems.of(over, number), number)
                for number, head in enumerate(heads)
            ))  # fmt: skip
            require_proved(projected, network, "The exact projection after pdcg")
        network.pin(projected)

    def _last_run(self, head: Head, problem: HeadProblem, memory: Memory) -> Head:
        """Return the head that the final run leaves, and note how it ended."""
        for _ in range(self.iterations):
            moved, reason = self.iterate(head, problem, memory)
            if moved is None:
                self.counts.success &= not reason
                return head
            head = moved
            self.counts.iterations += 1
        search, _ = strongest_counterexample(head, problem)
        if not search.none_exists:
            self.counts.success = False
            left = 0.0 if search.found is None else float(search.found.strength)
            self.counts.final_violation = max(self.counts.final_violation, left)
        return head

    @staticmethod
    def _exactly(head: Head, problem: HeadProblem, number: int) -> Head:
        result = nearest_safe_head(head, problem, rounds=8)
        if result.head is None:
            raise NotCertifiedError(f"The exact projection of head {number} failed: {result.reason}.")
        return result.head
