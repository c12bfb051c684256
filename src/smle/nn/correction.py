"""What a correction does to its examples: which answers that the rules allow it moves, and how far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smle.guarantees import binding_rules, broken
from smle.nn.network import SafeNetwork
from smle.rules import Choice, Label, Specification

__all__ = ["Correction", "Place", "measured"]

Array = npt.NDArray[np.float64]
_FEW = 30  # examples: with one, some region of an ACAS Xu network kept 4 % of its advice, with ten or more all of it
_HIGH = 0.05  # share of allowed answers
_ROUNDING = 1e-5  # share of the largest output; corrected answers are rounded, and keep a margin for it


@dataclass(frozen=True)
class Place:
    """The examples to which the same rules apply.

    * `examples`; `allowed`: those for which the model's answer obeys the rules; `moved`: how many of these have
      another answer now: a number that differs by more than rounding, another label, another choice.
    * `farthest`: the largest change of a number or score among allowed answers.
    """

    rules: tuple[str, ...]
    examples: int
    allowed: int
    moved: int
    farthest: float


@dataclass(frozen=True)
class Correction:
    """How a correction does on its examples. `outside`: examples to which no rule applies, whose answers stay."""

    places: tuple[Place, ...]
    outside: int

    @property
    def share(self) -> float:
        """Of the answers that the rules allow, where rules apply, the share that moved all the same."""
        return sum(place.moved for place in self.places) / max(1, sum(place.allowed for place in self.places))

    def __str__(self) -> str:
        counts = (sum(getattr(place, name) for place in self.places) for name in ("examples", "allowed", "moved"))
        examples, allowed, moved = counts
        farthest = max((place.farthest for place in self.places), default=0.0)
        return (
            f"corrected: rules apply to {examples} of {examples + self.outside} examples, {examples - allowed} answers "
            f"broke them; of {allowed} that obeyed {moved} moved ({self.share:.1%}), numbers by up to {farthest:.3g}"
        )

    def warnings(self) -> list[str]:
        """Return what is to be said aloud: places with few examples, and those where many allowed answers moved."""
        result = []
        few = [place for place in self.places if place.examples < _FEW]
        if few:
            least = min(few, key=lambda place: place.examples)
            result.append(
                f"Few examples ({least.examples}) lie where {_named(least.rules)}{_others(len(few) - 1)}. The "
                "correction is fitted to them, so that answers to other inputs may move although they are allowed. "
                f"Give at least {_FEW} there; inputs drawn from the region will do."
            )
        high = [place for place in self.places if place.moved > _HIGH * place.allowed]
        if high:
            worst = max(high, key=lambda place: place.moved / place.allowed)
            result.append(
                f"Where {_named(worst.rules)}, {worst.moved} of {worst.allowed} answers to the examples moved although "
                f"they are allowed{_others(len(high) - 1)}: of alternatives one convex part is kept. Train under these "
                "rules instead (SafeNetwork.from_model), or state fewer alternatives."
            )
        return result


def _named(rules: tuple[str, ...]) -> str:
    listed = ", ".join(f"'{name}'" for name in rules)
    return f"{listed} alone applies" if len(rules) == 1 else f"{listed} apply together"


def _others(count: int) -> str:
    return f" (and {count} more such place{'s' if count > 1 else ''})" if count else ""


@torch.no_grad()
def measured(network: SafeNetwork, features: Tensor, before: Array) -> Correction:
    """Return what a corrected network does to a model's answers (N, m) to examples (N, d)."""
    spec, head, arrangement = network.spec, network.deployed, network.arrangement
    after = network(features).numpy().astype(np.float64)
    obeys = ~broken(spec, features.numpy(), before).any(axis=1)
    cells = head.cells(features).numpy()
    moved, change = _changes(spec, before, after)
    places = []
    for cell in range(len(arrangement.cells) - arrangement.free_cell):
        own = cells == cell
        if not own.any():  # where regions merely touch
            continue
        allowed = own & obeys
        names = dict.fromkeys(spec.rules[rule].name for rule, _ in binding_rules(arrangement, spec, cell))
        others, farthest = int((allowed & moved).sum()), float(change[allowed].max(initial=0.0))
        places.append(Place(tuple(names), int(own.sum()), int(allowed.sum()), others, farthest))
    return Correction(tuple(places), len(features) - sum(place.examples for place in places))


def _changes(spec: Specification, before: Array, after: Array) -> tuple[npt.NDArray[np.bool_], Array]:
    """Return which rows have another answer, and how far their numbers and scores moved: (N, m), (N, m) -> (N,), (N,).

    Logits of labels are left out of the second: those that lose a conflict are pushed far away on purpose.
    """
    moved, farthest, first = np.zeros(len(before), dtype=bool), np.zeros(len(before)), 0
    rounding = _ROUNDING * float(np.abs(before).max(initial=0.0))
    for item in spec.outputs:
        width = len(item.options) if isinstance(item, Choice) else 1
        old, new = (y[:, first : first + width] for y in (before, after))
        first += width
        if isinstance(item, Label):
            moved |= (old[:, 0] >= 0) != (new[:, 0] >= 0)
            continue
        change = np.abs(new - old).max(axis=1)
        farthest = np.maximum(farthest, change)
        if isinstance(item, Choice):
            sign = 1.0 if item.pick == "max" else -1.0
            moved |= (sign * old).argmax(axis=1) != (sign * new).argmax(axis=1)
        else:
            moved |= change > rounding
    return moved, farthest
