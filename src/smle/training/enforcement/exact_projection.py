"""Exact projection: the nearest safe heads, now and then and at the end."""

from __future__ import annotations

from dataclasses import replace

from smle.errors import NotCertifiedError
from smle.guarantees import Head, HeadResult, nearest_safe_head
from smle.nn.network import SafeNetwork
from smle.training.enforcement.base import Enforcement, Problems, require_proved

__all__ = ["ExactProjection"]


class ExactProjection(Enforcement):
    """One convex program per head (`smle.guarantees.project`) after every `every`-th step and at the end.

    Args:
        every: Gradient steps between two projections.
        rounds: Programs per head at the end while weights and head take turns (clauses with several literals);
            within training one is enough.
    """

    name = "exact"
    gauge = False

    def __init__(self, *, every: int = 20, rounds: int = 8) -> None:
        for name, value in (("every", every), ("rounds", rounds)):
            if value < 1:
                raise ValueError(f"Expected {name} >= 1. Got {value}.")
        self.every, self.rounds = every, rounds

    def start(self, network: SafeNetwork) -> None:
        """Collect what must hold."""
        super().start(network)
        self._problems = Problems(network)

    def after_step(self, network: SafeNetwork, step: int) -> None:
        """Project the heads; one for which that fails stays as it is, the end decides."""
        if not step % self.every:
            self.after_epoch(network)

    def after_epoch(self, network: SafeNetwork) -> None:
        """Project the heads, so that safe ones are judged."""
        over = network.frozen_heads()
        results = self._project(network, rounds=1)
        if any(result is not None and result.rounds for result in results):
            network.load_heads(replace(over, heads=_taken(over.heads, results)))

    def finish(self, network: SafeNetwork) -> None:
        """Project the heads and deploy the result."""
        network.eval()
        over = network.frozen_heads()
        results = self._project(network, rounds=self.rounds)
        for number, result in enumerate(results):
            if result is not None and result.head is None:
                raise NotCertifiedError(f"The exact projection of head {number} failed: {result.reason}.")
        projected = replace(over, heads=_taken(over.heads, results))
        require_proved(projected, network, "The exact projection")
        network.pin(projected)

    def _project(self, network: SafeNetwork, *, rounds: int) -> list[HeadResult | None]:
        over = network.frozen_heads()
        return [
            None if head is None else nearest_safe_head(head, self._problems.of(over, c), rounds=rounds)
            for c, head in enumerate(over.heads)
        ]


def _taken(heads: tuple[Head | None, ...], results: list[HeadResult | None]) -> tuple[Head | None, ...]:
    return tuple(
        head if result is None or result.head is None else result.head
        for head, result in zip(heads, results, strict=True)
    )
