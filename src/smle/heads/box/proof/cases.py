"""Proofs by cases: a clause not proved over a region at once is proved over the parts of a tree of cuts.

* Bounds by networks: boxes of inputs, cut in two across their widest side. On each box the networks are relaxed to
  affine functions (`relaxation`), so a box is the case of affine bounds over a polytope.
* Affine bounds that cross: l_i <= u_i on one side, l_i >= u_i on the other. Each cut settles what the clip does to a
  unit, and is a row of the region. With all units settled, nothing is relaxed any more.

Bounds that do not cross are a single case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.frozen_heads import Bounds, Head
from smle.heads.box.proof.verdict import Cut, Holds, NotProved, ProvedCase, Tree, UnitCut, Verdict
from smle.heads.box.proof.worst_case import HiddenWidenedBox, WidenedBox, output_at
from smle.regions.geometry import Domain, Region, RegionMaximum
from smle.rules import Clause, Literals

__all__ = ["CUTS", "Cases", "cut_region", "unit_pieces"]

Array = npt.NDArray[np.float64]
Judge = Callable[[Clause, Head, WidenedBox, Region], Verdict]

CUTS = 2
"""Times that training and projection bisect a region's box."""
_MOST_CASES = 128
"""Most cases per clause before giving up."""
_MOST_PIECES = 32
"""Most parts into which crossing units divide a region for a projection."""


@dataclass(eq=False)
class _Part:
    """One part of a region, with the box of the embedding there, the units settled, and its halves by cut."""

    region: Region
    envelope: WidenedBox
    settled: Mapping[int, bool] = field(default_factory=dict)
    halves: dict[Cut | UnitCut, tuple[_Part, _Part]] = field(default_factory=dict)


class Cases:
    """The parts of one region over which clauses are proved, created on demand and shared by clauses.

    `judge` judges a clause over one part.
    """

    def __init__(self, bounds: Bounds, envelope: WidenedBox, region: Region, judge: Judge) -> None:
        self.region, self._bounds, self._envelope, self._judge = region, bounds, envelope, judge

    @cached_property
    def _whole(self) -> _Part:
        return self._box(_tight(self.region)) if self._bounds.hidden else _Part(self.region, self._envelope)

    def _box(self, region: Region) -> _Part:
        return _Part(region, WidenedBox.over_region(self._bounds, RegionMaximum(region)))

    def proves(self, clause: Clause, head: Head, margin: float) -> bool:
        """Return whether a clause holds by more than a margin."""
        verdict = self.verify(clause, head, margin=margin)
        return isinstance(verdict, Holds) and verdict.margin > margin

    def verify(self, clause: Clause, head: Head, *, margin: float = 0.0) -> Verdict:
        """Judge a clause, case by case if needed.

        A case is proved if it holds by more than `margin`. If a case stays open, return the verdict of the last part
        tried.
        """
        literals = Literals.of_clauses(clause, len(head.b), len(self.region.domain.low))
        directions = literals.g @ head.W
        tree: dict[int, Cut | UnitCut | ProvedCase] = {}  # node n has children 2 n and 2 n + 1
        proofs: list[Holds] = []
        queue = deque([(1, self._whole)])
        looked = 0
        while queue:
            number, part = queue.popleft()
            verdict = self._judge(clause, head, part.envelope, part.region)
            looked += 1
            if isinstance(verdict, Holds) and verdict.margin > margin:
                proofs.append(verdict)
                tree[number] = ProvedCase(verdict.multipliers, _slopes(part.envelope))
                continue
            v = None
            if isinstance(verdict, NotProved) and verdict.multipliers is not None:
                v = verdict.multipliers.weights @ directions
                verdict = self._real(verdict, literals, head, v)
            if isinstance(verdict, NotProved) and verdict.multipliers is None:
                return verdict  # a real corner, or a NaN of the backbone: smaller parts do not help
            cut = self._cut(part, verdict, [] if v is None else [v, directions.max(axis=0)])
            if cut is None or looked + len(queue) + 2 > _MOST_CASES:
                return verdict
            tree[number] = cut
            queue.extend((2 * number + side, half) for side, half in enumerate(self._halves(part, cut)))
        worst = min(proofs, key=lambda proof: proof.margin)
        return Holds(worst.margin, replace(worst.multipliers, cases=_preorder(tree)))

    def _real(self, verdict: NotProved, literals: Literals, head: Head, v: Array) -> NotProved:
        """Drop the multipliers of a verdict if the real bounds break the clause at its input."""
        x, region = verdict.x, self.region
        if np.isnan(x).any() or not (region.A @ x <= region.a + 1e-9 * np.abs(region.a)).all():
            return verdict
        lower, upper = self._bounds.at(x)
        z = np.where(v > 0, np.maximum(lower, upper), lower)
        excess = float((literals.g @ output_at(head, x, z) + literals.s @ x - literals.h).min())
        return NotProved(x, z, min(0.0, -excess)) if excess >= 0 else verdict

    def _cut(self, part: _Part, verdict: Verdict, directions: Sequence[Array]) -> Cut | UnitCut | None:
        """Return where to cut a part, or None if nothing can be cut.

        Bounds by networks: bisect the box. Affine bounds: cut the unit for which the line above max(l, u) costs most in
        a direction (n,) of the embedding. Try the direction that fails first, then the directions of all literals,
        which other weights would use.
        """
        crossing = self._envelope.crossing
        if self._bounds.hidden:
            return _bisection(part.region, self.region.domain)
        if crossing is None:
            return None
        places = [place for place in crossing.open.tolist() if int(crossing.units[place]) not in part.settled]
        cost = crossing.lift[places]
        if isinstance(verdict, NotProved) and directions and not np.isnan(verdict.x).any():
            gap = crossing.slope[places] @ verdict.x + crossing.offset[places]
            cost = crossing.share[places] * gap + cost - np.maximum(gap, 0.0)
        units = crossing.units[places]
        for costs in [cost * np.maximum(v[units], 0.0) for v in directions] or [cost]:
            if costs.max(initial=0.0) > 0:
                return UnitCut(int(units[int(np.argmax(costs))]))
        return None

    def _halves(self, part: _Part, cut: Cut | UnitCut) -> tuple[_Part, _Part]:
        if cut not in part.halves:
            part.halves[cut] = self._half(part, cut, False), self._half(part, cut, True)
        return part.halves[cut]

    def _half(self, part: _Part, cut: Cut | UnitCut, beyond: bool) -> _Part:
        if isinstance(cut, Cut):
            return self._box(_half(part.region, cut, beyond))
        assert self._envelope.crossing is not None
        settled = {**part.settled, cut.unit: beyond}
        return _Part(
            self._envelope.crossing.cut(part.region, cut.unit, beyond), self._envelope.settled(settled), settled
        )


def cut_region(region: Region) -> list[Region]:
    """Cut a region into the boxes over which training prices a clause; they cover it. Some may be repeated."""
    parts = [_tight(region)]
    for _ in range(CUTS):
        cuts = [(part, _bisection(part, region.domain)) for part in parts]
        parts = [part if cut is None else _half(part, cut, beyond) for part, cut in cuts for beyond in (False, True)]
    return parts


def _tight(region: Region) -> Region:
    """Return the region with the box given by its rows over one input."""
    low, high, _ = region.tight_box()
    return replace(region, domain=Domain(low, high, region.domain.sizes))


def _bisection(region: Region, whole: Domain) -> Cut | None:
    """Return a cut across the widest side of a region's box, relative to `whole`, or None if it cannot be cut."""
    low, high = region.domain.low, region.domain.high
    k = int(np.argmax((high - low) / np.maximum(whole.high - whole.low, 1e-300)))
    at = float(np.float32((low[k] + high[k]) / 2))
    return Cut(k, at) if low[k] < at < high[k] else None


def _half(region: Region, cut: Cut, beyond: bool) -> Region:
    low, high = region.domain.low.copy(), region.domain.high.copy()
    (low if beyond else high)[cut.input] = cut.at
    return replace(region, domain=Domain(low, high, region.domain.sizes))


def unit_pieces(bounds: Bounds, support: RegionMaximum) -> list[tuple[RegionMaximum, WidenedBox]]:
    """Return the parts of a region in which crossing units are settled, up to the largest number of parts.

    The units that cross most are cut first. Parts proved empty are left out.
    """
    first = WidenedBox.over_region(bounds, support)
    done: list[tuple[RegionMaximum, WidenedBox]] = []
    queue = deque([(support, first, dict[int, bool]())])
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


def _preorder(tree: dict[int, Cut | UnitCut | ProvedCase]) -> Tree:
    result, stack = [], [1]
    while stack:
        number = stack.pop()
        result.append(tree[number])
        if not isinstance(tree[number], ProvedCase):
            stack += [2 * number + 1, 2 * number]
    return tuple(result)
