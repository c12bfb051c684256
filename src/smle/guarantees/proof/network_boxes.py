"""Bounds by networks: clauses are proved box by box, until the boxes of a binary tree of cuts cover the region.

On each box the networks are relaxed to affine functions (`relaxation`), so that a box is the case of
affine bounds over a polytope. The root is the smallest box that rows over one input prescribe; a box that is not
proved is cut in two across its widest side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from smle.guarantees.proof.frozen_heads import Head, NetworkBounds
from smle.guarantees.proof.relaxation import bisect, bisected, halves
from smle.guarantees.proof.verdict import Cut, Holds, Leaf, NotProved, Verdict
from smle.guarantees.proof.worst_case import HiddenWidenedBox, WidenedBox
from smle.guarantees.regions.geometry import Domain, Region
from smle.rules import Clause, Literals, exclusion

__all__ = ["CUTS", "Boxes", "cut_region"]

Array = npt.NDArray[np.float64]
Tree = tuple[Cut | Leaf, ...]
Judge = Callable[[Clause, Head, WidenedBox, Region], Verdict]

CUTS = 2
"""How often training and projection cut a region's box in two, each part in turn."""
_MOST_BOXES = 128
"""Boxes looked at per clause before the proof is given up."""


class Boxes:
    """The boxes of one region, relaxed when they are first needed and shared by all clauses."""

    def __init__(self, bounds: NetworkBounds, region: Region) -> None:
        """Start with the box that rows over one input prescribe."""
        self._bounds, self._region = bounds, region
        self._known: dict[bytes, tuple[WidenedBox, Region]] = {}
        low, high, _ = region.tight_box()
        self._root = low, high

    def _at(self, low: Array, high: Array) -> tuple[WidenedBox, Region]:
        key = low.tobytes() + high.tobytes()
        if key not in self._known:
            domain = Domain(low, high, self._region.domain.sizes)
            envelope = HiddenWidenedBox.over(self._bounds, low, high)
            self._known[key] = envelope, replace(self._region, domain=domain)
        return self._known[key]

    def verify(self, clause: Clause, head: Head, *, judge: Judge) -> Verdict:
        """Judge a clause; `judge` does so over one box. What stays open is not proved at a point of the widest box."""
        span = self._region.domain.high - self._region.domain.low
        tree: dict[int, Cut | Leaf] = {}  # node n has the children 2 n and 2 n + 1
        proofs: list[Holds] = []
        queue = deque([(1, *self._root)])
        looked = 0
        while queue:
            number, low, high = queue.popleft()
            envelope, region = self._at(low, high)
            verdict = judge(clause, head, envelope, region)
            looked += 1
            if isinstance(verdict, Holds):
                proofs.append(verdict)
                tree[number] = Leaf(verdict.multipliers, _slopes(envelope))
                continue
            if isinstance(verdict, NotProved):
                verdict = self._real(verdict, clause, head)
            cut = bisect(low, high, span)
            if self._settled(verdict) or cut is None or looked + len(queue) + 2 > _MOST_BOXES:
                return verdict
            tree[number] = Cut(*cut)
            queue.extend((2 * number + side, *box) for side, box in enumerate(halves(low, high, cut)))
        worst = min(proofs, key=lambda proof: proof.margin)
        return Holds(worst.margin, replace(worst.multipliers, boxes=tuple(_preorder(tree))))

    def verify_exclusions(
        self, pairs: npt.NDArray[np.int32], head: Head, *, judge: Judge
    ) -> tuple[npt.NDArray[np.float32], Array, tuple[Tree, ...]]:
        """Judge `y_h < 0 or y_k < 0` pair by pair; return (weights, margins, boxes) of `ExclusionVerdicts`."""
        weights, margins = np.zeros((len(pairs), 2), np.float32), np.full(len(pairs), -np.inf)
        boxes: list[Tree] = []
        for i, pair in enumerate(pairs.tolist()):
            verdict = self.verify(exclusion(*pair), head, judge=judge)
            if isinstance(verdict, Holds | NotProved):
                margins[i] = verdict.margin
            if isinstance(verdict, Holds):
                weights[i] = verdict.multipliers.weights
            boxes.append(verdict.multipliers.boxes if isinstance(verdict, Holds) else ())
        return weights, margins, tuple(boxes)

    @staticmethod
    def _settled(verdict: Verdict) -> bool:
        """Whether smaller boxes cannot change the verdict: a real corner, or what the backbone's NaN leads to."""
        return isinstance(verdict, NotProved) and verdict.multipliers is None

    def _real(self, verdict: NotProved, clause: Clause, head: Head) -> NotProved:
        """Return the verdict without multipliers if the real bounds reach a broken clause at its input."""
        x, region = verdict.x, self._region
        if verdict.multipliers is None or not (region.A @ x <= region.a + 1e-9 * np.abs(region.a)).all():
            return verdict
        literals = Literals.of_clauses(clause, len(head.b), len(x))
        lower, upper = self._bounds.at(x)
        v = (verdict.multipliers.weights @ literals.g) @ head.W
        z = np.where(v > 0, upper, np.minimum(lower, upper))
        y = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
        excess = float((literals.g @ y + literals.s @ x - literals.h).min())
        return NotProved(x, z, min(0.0, -excess)) if excess >= 0 else verdict


def cut_region(region: Region) -> list[Region]:
    """Return a region cut into boxes, those that training prices a clause over; they cover it."""
    low, high, _ = region.tight_box()
    boxes = bisected(low, high, region.domain.high - region.domain.low, depth=CUTS)
    return [replace(region, domain=Domain(*box, region.domain.sizes)) for box in boxes]


def _slopes(envelope: WidenedBox) -> npt.NDArray[np.float32] | None:
    if not isinstance(envelope, HiddenWidenedBox):
        return None
    return np.concatenate([layer.slopes for layer in envelope.hidden.chain])


def _preorder(tree: dict[int, Cut | Leaf]) -> list[Cut | Leaf]:
    result, stack = [], [1]
    while stack:
        number = stack.pop()
        result.append(tree[number])
        if isinstance(tree[number], Cut):
            stack += [2 * number + 1, 2 * number]
    return result
