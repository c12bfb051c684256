"""Proofs by cases: a clause not proved over a region at once is proved over the parts of a tree of cuts.

* Bounds by networks (`BoxCases`): boxes of inputs, cut in two across their widest side. On each box the networks are
  relaxed to affine functions (`relaxation`), so a box is the case of affine bounds over a polytope.
* Affine bounds that cross (`UnitCases`): l_i <= u_i on one side, l_i >= u_i on the other. Each cut settles what the
  clip does to a unit, and is a row of the region. With all units settled, nothing is relaxed any more.

Bounds that do not cross are a single case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.frozen_heads import Bounds, Head, NetworkBounds
from smle.heads.box.proof.relaxation import bisect, bisected, halves
from smle.heads.box.proof.verdict import Cut, Holds, Leaf, NotProved, Tree, UnitCut, Verdict
from smle.heads.box.proof.worst_case import HiddenWidenedBox, WidenedBox
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Clause, Literals

__all__ = ["CUTS", "BoxCases", "Cases", "UnitCases", "cases_of", "cut_region", "unit_pieces"]

Array = npt.NDArray[np.float64]
Judge = Callable[[Clause, Head, WidenedBox, Region], Verdict]
Settled = dict[int, bool]
Part = TypeVar("Part")

CUTS = 2
"""Times that training and projection bisect a region's box."""
_MOST_CASES = 128
"""Most cases per clause before giving up."""
_MOST_PIECES = 32
"""Most parts into which crossing units divide a region for a projection."""


class Cases(ABC, Generic[Part]):
    """The parts of one region over which clauses are proved, created on demand and shared by clauses."""

    def __init__(self, region: Region, root: Part) -> None:
        self.region, self._root = region, root
        self._known: dict[bytes, tuple[WidenedBox, Region]] = {}

    @abstractmethod
    def _key(self, part: Part) -> bytes:
        """Return a key for a part."""

    @abstractmethod
    def _made(self, part: Part) -> tuple[WidenedBox, Region]:
        """Return the box of the embedding over a part, and the part as a region."""

    @abstractmethod
    def _halves(self, part: Part, verdict: Verdict, v: Array | None) -> tuple[Cut | UnitCut, list[Part]] | None:
        """Return a cut and the two parts, or None if nothing can be cut; v (n,) is the direction that fails."""

    @abstractmethod
    def _reached(self, x: Array) -> tuple[Array, Array]:
        """Return the lower and upper end of what the clip reaches at x."""

    def at(self, part: Part) -> tuple[WidenedBox, Region]:
        """Return the box of the embedding over a part, and the part as a region; cached."""
        key = self._key(part)
        if key not in self._known:
            self._known[key] = self._made(part)
        return self._known[key]

    def verify(self, clause: Clause, head: Head, *, judge: Judge, margin: float = 0.0) -> Verdict:
        """Judge a clause, case by case if needed; `judge` does so over one part.

        A case is proved if it holds by more than `margin`. If a case stays open, return the verdict of the last part
        tried.
        """
        literals = Literals.of_clauses(clause, len(head.b), len(self.region.domain.low))
        tree: dict[int, Cut | UnitCut | Leaf] = {}  # node n has children 2 n and 2 n + 1
        proofs: list[Holds] = []
        queue = deque([(1, self._root)])
        looked = 0
        while queue:
            number, part = queue.popleft()
            envelope, region = self.at(part)
            verdict = judge(clause, head, envelope, region)
            looked += 1
            if isinstance(verdict, Holds) and verdict.margin > margin:
                proofs.append(verdict)
                tree[number] = Leaf(verdict.multipliers, _slopes(envelope))
                continue
            v = None
            if isinstance(verdict, NotProved) and verdict.multipliers is not None:
                v = (verdict.multipliers.weights @ literals.g) @ head.W
                verdict = self._real(verdict, literals, head, v)
            if isinstance(verdict, NotProved) and verdict.multipliers is None:
                return verdict  # a real corner, or a NaN of the backbone: smaller parts do not help
            found = self._halves(part, verdict, v)
            if found is None or looked + len(queue) + 2 > _MOST_CASES:
                return verdict
            tree[number], parts = found
            queue.extend((2 * number + side, part) for side, part in enumerate(parts))
        worst = min(proofs, key=lambda proof: proof.margin)
        return Holds(worst.margin, replace(worst.multipliers, cases=_preorder(tree)))

    def _real(self, verdict: NotProved, literals: Literals, head: Head, v: Array) -> NotProved:
        """Drop the multipliers of a verdict if the real bounds break the clause at its input."""
        x, region = verdict.x, self.region
        if np.isnan(x).any() or not (region.A @ x <= region.a + 1e-9 * np.abs(region.a)).all():
            return verdict
        lower, upper = self._reached(x)
        z = np.where(v > 0, upper, lower)
        y = head.W @ z + head.b + (0 if head.V is None else head.V @ x)
        excess = float((literals.g @ y + literals.s @ x - literals.h).min())
        return NotProved(x, z, min(0.0, -excess)) if excess >= 0 else verdict


class BoxCases(Cases[tuple[Array, Array]]):
    """Boxes of inputs (low, high), for bounds by a network."""

    def __init__(self, bounds: NetworkBounds, region: Region) -> None:
        """Start with the box given by rows over one input."""
        low, high, _ = region.tight_box()
        super().__init__(region, (low, high))
        self._bounds = bounds

    def _key(self, part: tuple[Array, Array]) -> bytes:
        return part[0].tobytes() + part[1].tobytes()

    def _made(self, part: tuple[Array, Array]) -> tuple[WidenedBox, Region]:
        domain = Domain(*part, self.region.domain.sizes)
        return HiddenWidenedBox.over(self._bounds, *part), replace(self.region, domain=domain)

    def _halves(
        self, part: tuple[Array, Array], verdict: Verdict, v: Array | None
    ) -> tuple[Cut | UnitCut, list[tuple[Array, Array]]] | None:
        cut = bisect(*part, self.region.domain.high - self.region.domain.low)
        return None if cut is None else (Cut(*cut), list(halves(*part, cut)))

    def _reached(self, x: Array) -> tuple[Array, Array]:
        lower, upper = self._bounds.at(x)
        return lower, np.maximum(lower, upper)


class UnitCases(Cases[Settled]):
    """Which units cross and which do not, for affine bounds."""

    def __init__(self, envelope: WidenedBox, region: Region) -> None:
        super().__init__(region, {})
        self._envelope = envelope

    def _key(self, part: Settled) -> bytes:
        return repr(sorted(part.items())).encode()

    def _made(self, part: Settled) -> tuple[WidenedBox, Region]:
        region = self.region
        if part:
            *before, last = part.items()
            region = self.at(dict(before))[1]
            assert self._envelope.crossing is not None
            region = self._envelope.crossing.cut(region, *last)
        return self._envelope.settled(part), region

    def _halves(self, part: Settled, verdict: Verdict, v: Array | None) -> tuple[Cut | UnitCut, list[Settled]] | None:
        """Cut the unit for which the line above max(l, u) costs most."""
        crossing = self._envelope.crossing
        if crossing is None:
            return None
        places = [place for place in crossing.open.tolist() if int(crossing.units[place]) not in part]
        cost = crossing.lift[places]
        if isinstance(verdict, NotProved) and v is not None and not np.isnan(verdict.x).any():
            gap = crossing.slope[places] @ verdict.x + crossing.offset[places]
            cost = crossing.share[places] * gap + cost - np.maximum(gap, 0.0)
        if v is not None:
            cost = cost * np.maximum(v[crossing.units[places]], 0.0)
        if not cost.max(initial=0.0) > 0:
            return None
        unit = int(crossing.units[places[int(np.argmax(cost))]])
        return UnitCut(unit), [{**part, unit: False}, {**part, unit: True}]

    def _reached(self, x: Array) -> tuple[Array, Array]:
        """Return the ends at x, without the widening for rounding."""
        lower, upper = self._envelope.at(x)
        if self._envelope.crossing is not None:
            upper = self._envelope.crossing.top(x)
        return lower + self._envelope.extra, upper - self._envelope.extra


def cases_of(bounds: Bounds | NetworkBounds, envelope: WidenedBox, region: Region) -> BoxCases | UnitCases:
    """Return the cases of a region."""
    return BoxCases(bounds, region) if isinstance(bounds, NetworkBounds) else UnitCases(envelope, region)


def cut_region(region: Region) -> list[Region]:
    """Cut a region into the boxes over which training prices a clause; they cover it."""
    low, high, _ = region.tight_box()
    boxes = bisected(low, high, region.domain.high - region.domain.low, depth=CUTS)
    return [replace(region, domain=Domain(*box, region.domain.sizes)) for box in boxes]


def unit_pieces(bounds: Bounds | NetworkBounds, support: RegionMaximum) -> list[tuple[RegionMaximum, WidenedBox]]:
    """Return the parts of a region in which crossing units are settled, up to the largest number of parts.

    The units that cross most are cut first. Parts proved empty are left out.
    """
    first = WidenedBox.over_region(bounds, support)
    done: list[tuple[RegionMaximum, WidenedBox]] = []
    queue = deque([(support, first, Settled())])
    while queue:
        place, envelope, settled = queue.popleft()
        crossing = envelope.crossing
        left = [] if crossing is None else [i for i in crossing.open if int(crossing.units[i]) not in settled]
        if crossing is None or not left or len(done) + len(queue) + 2 > _MOST_PIECES:
            done.append((place, envelope.settled(settled)))
            continue
        unit = int(crossing.units[max(left, key=lambda i: crossing.lift[i])])
        for crossed in (False, True):
            part = RegionMaximum(crossing.cut(place.region, unit, crossed))
            if part.located[1] is None:
                queue.append((part, WidenedBox.over_region(bounds, part), {**settled, unit: crossed}))
    return done


def _slopes(envelope: WidenedBox) -> npt.NDArray[np.float32] | None:
    if not isinstance(envelope, HiddenWidenedBox):
        return None
    return np.concatenate([layer.slopes for layer in envelope.hidden.chain])


def _preorder(tree: dict[int, Cut | UnitCut | Leaf]) -> Tree:
    result, stack = [], [1]
    while stack:
        number = stack.pop()
        result.append(tree[number])
        if not isinstance(tree[number], Leaf):
            stack += [2 * number + 1, 2 * number]
    return tuple(result)
