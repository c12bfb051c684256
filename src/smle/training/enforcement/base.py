"""What every enforcement does: something after each gradient step, and something at the end."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from smle.errors import NotCertifiedError
from smle.guarantees import FrozenHeads, HeadProblem, Holds, NotProved, Unknown, Verdict, Verdicts, verify
from smle.nn.box_network import BoxNetwork

__all__ = ["Enforcement", "Problems", "Report", "require_proved"]


class Report(NamedTuple):
    """What one run on one head did.

    * `step`: the gradient step after which it ran, 0: at the end. `head`: its number.
    * `succeeded`: the last search found no counterexample. `iterations`: projections made.
    * `strength` of the strongest counterexample found, 0: there was none. `seconds` by the clock.
    """

    step: int
    head: int
    succeeded: bool
    iterations: int
    strength: float
    seconds: float


class Enforcement:
    """A way to make the heads of a box network safe. Subclasses are final; `name` is what users choose it by.

    `reports`: what was done since the training loop last took them over into `History.projections`.
    """

    name: ClassVar[str]
    reports: list[Report]

    def start(self, network: BoxNetwork) -> None:
        """Get ready for a network."""
        self.reports = []

    def after_step(self, network: BoxNetwork, step: int) -> None:
        """Act after a gradient step; `step` counts from 1."""

    def after_epoch(self, network: BoxNetwork) -> None:
        """Act at the end of an epoch, before the network is judged."""

    def finish(self, network: BoxNetwork) -> None:
        """Make the heads safe once and for all; the network is left in eval mode.

        Raises:
            NotCertifiedError: If that fails.
        """
        network.eval()

    def margin(self, network: BoxNetwork) -> tuple[str, float]:
        """Return what the progress bar shows about safety, and its name."""
        verdicts = verify(network.frozen_heads(), network.spec, network.cells)
        return "margin", verdicts.margin

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return what a checkpoint must hold besides the network."""
        return {}

    def load_state(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        """Take over the state of a checkpoint, after `start`."""


class Problems:
    """The obligations of every head, kept between steps; only the bounds are taken anew."""

    def __init__(self, network: BoxNetwork) -> None:
        self._spec, self._cells = network.spec, network.cells
        self._known: dict[int, HeadProblem] = {}

    def of(self, over: FrozenHeads, head: int) -> HeadProblem:
        """Return what must hold for a head of an over-approximation."""
        if head not in self._known:
            self._known[head] = HeadProblem.of(over, self._spec, self._cells, head)
        return self._known[head].under(over.bounds)


def require_proved(over: FrozenHeads, network: BoxNetwork, what: str) -> None:
    """Raise NotCertifiedError with the worst failure if some obligation of the heads is not proved."""
    verdicts = verify(over, network.spec, network.cells)
    if not verdicts.hold:
        raise NotCertifiedError(f"{what} did not make the heads safe: {_worst(verdicts, network)}")


def _worst(verdicts: Verdicts, network: BoxNetwork) -> str:
    obligation, verdict = verdicts.failures()[0]
    return f"rule '{network.spec.rules[obligation.rule].name}', clause {obligation.clause + 1}: {_text(verdict)}"


def _text(verdict: Verdict) -> str:
    if isinstance(verdict, NotProved):
        return f"not proved by a margin of {-verdict.margin:.3g}"
    if isinstance(verdict, Unknown):
        return verdict.reason
    return "holds" if isinstance(verdict, Holds) else f"violated by {verdict.excess:.3g}"
