"""The obligations of one head, ready for optimization: its clauses, exclusions and regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from smle.heads.box.proof.cases import Cases, cut_region, unit_pieces
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.heads.box.proof.pairs import verify_exclusions
from smle.heads.box.proof.verdict import Holds
from smle.heads.box.proof.verify import best_combination, fallback_room, judge_clause, judge_literals
from smle.heads.box.proof.worst_case import HeadNumbers, WidenedBox, output_at, rounding_margin, worst_case
from smle.nearest.literals import choose_literals
from smle.regions.cells import Cells, obligation_regions
from smle.regions.geometry import Domain, Region, RegionMaximum, enlarged_rows
from smle.regions.robust import Layout, RobustRow
from smle.rules import Clause, Literals, Specification, exclusion

__all__ = ["HeadProblem", "RegionObligations"]

Array = npt.NDArray[np.float64]

_PAIRS_AT_ONCE = 500
"""Include up to this many exclusions from the start; more are added when found broken."""


@dataclass(frozen=True, eq=False)
class RegionObligations:
    """The clauses and exclusions to prove over one region, with the box of the embedding there.

    `stated` holds the literals as the user stated them; the paper measures counterexamples in these units.
    """

    region: Region
    support: RegionMaximum
    clauses: tuple[Clause, ...]
    literals: tuple[Literals, ...]
    stated: tuple[Literals, ...]
    exclusions: npt.NDArray[np.int32]
    envelope: WidenedBox


@dataclass(eq=False)
class HeadProblem:
    """The obligations of one head. `pairs` collects exclusions found broken so far.

    With bounds by networks, every region is cut into boxes, and exclusions are treated as clauses. Where affine bounds
    cross, `pieces` are the parts of the regions in which each unit crosses or does not.
    """

    bounds: Bounds
    envelope: WidenedBox
    domain: Domain
    parts: tuple[RegionObligations, ...]
    outputs: int
    pairs: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def of(cls, over: FrozenHeads, spec: Specification, cells: Cells, head: int) -> HeadProblem:
        """Collect the obligations of a head, leaving out regions proved empty."""
        domain, rows = Domain.of(spec), enlarged_rows(cells, spec)
        m, d = len(spec.targets), len(spec.columns)
        envelope = WidenedBox.of(over.bounds, domain)
        parts = []
        for _, active, rules in obligation_regions(cells, spec, head):
            region = Region.of(cells, spec, active, domain=domain, rows=rows)
            clauses = tuple(clause for i in rules for clause in spec.rules[i].requirement.clauses)
            exclusions = np.concatenate(
                [*(spec.rules[i].requirement.exclusions for i in rules), np.zeros((0, 2), np.int32)]
            )
            regions = [region]
            if over.bounds.hidden:
                clauses, exclusions = (*clauses, *(exclusion(h, k) for h, k in exclusions.tolist())), exclusions[:0]
                regions = cut_region(region)
            literals, stated = (
                tuple(Literals.of_clauses(clause, m, d, stated=asked) for clause in clauses) for asked in (False, True)
            )
            for place in regions:
                if place.empty() is None:
                    parts.append(
                        RegionObligations(place, RegionMaximum(place), clauses, literals, stated, exclusions, envelope)
                    )
        problem = cls(over.bounds, envelope, domain, tuple(parts), m).under(over.bounds)
        if sum(len(part.exclusions) for part in parts) <= _PAIRS_AT_ONCE:
            problem.note(np.concatenate([part.exclusions for part in parts] or [np.zeros((0, 2), np.int32)]))
        return problem

    def under(self, bounds: Bounds) -> HeadProblem:
        """Return the same obligations under other bounds of the same kind."""
        envelope = WidenedBox.of(bounds, self.domain)
        boxes = [envelope] * len(self.parts)
        if bounds.hidden or envelope.crossing is not None:
            boxes = [WidenedBox.over_region(bounds, part.support, proved=False) for part in self.parts]
        parts = [replace(part, envelope=box) for part, box in zip(self.parts, boxes, strict=True)]
        return replace(self, bounds=bounds, envelope=envelope, parts=tuple(parts))

    @cached_property
    def pieces(self) -> tuple[RegionObligations, ...]:
        """The parts, cut where units cross, each with the box of the embedding there."""
        found: list[RegionObligations] = []
        for part in self.parts:
            if part.envelope.crosses:
                found += [
                    replace(part, region=support.region, support=support, envelope=envelope)
                    for support, envelope in unit_pieces(self.bounds, part.support)
                ]
            else:
                found.append(part)
        return tuple(found)

    @cached_property
    def _pair_places(self) -> list[tuple[RegionMaximum, WidenedBox]]:
        """The places where optimization requires exclusions: everywhere, or each piece if bounds cross."""
        if self.envelope.crossing is None:
            return [(RegionMaximum(Region.whole(self.domain)), self.envelope)]
        return [(part.support, part.envelope) for part in self.pieces if len(part.exclusions)]

    def note(self, pairs: npt.NDArray[np.int32]) -> None:
        """Include these exclusions in the optimization from now on."""
        self.pairs.update((int(h), int(k)) for h, k in pairs)

    @property
    def several(self) -> bool:
        """Whether some clause has more than one literal, so that weights must be chosen."""
        return bool(self.pairs) or any(
            len(part.exclusions) or any(len(c.literals) > 1 for c in part.clauses) for part in self.parts
        )

    def layout(self, head: Head) -> Layout:
        """Return the order of the head's parameters."""
        return Layout(len(head.b), head.W.shape[1], len(self.domain.low), head.V is not None)

    def numbers(self, head: Head) -> HeadNumbers:
        """Return the head in float64 with its rounding errors."""
        return HeadNumbers.of(head, self.envelope, self.domain)

    def safe(self, head: Head, margin: float = 0.0) -> bool:
        """Return whether every obligation is proved by more than this margin, and note the pairs that are not."""
        good = head.fallback is None or self.fallback_safe(head.fallback)
        for part in self.parts:
            verdicts = judge_literals(part.literals, head, part.envelope, part.support)
            open_ = [c for c, v in enumerate(verdicts) if not (isinstance(v, Holds) and v.margin > margin)]
            cases = Cases(self.bounds, part.envelope, part.region, judge_clause)
            crosses = part.envelope.crosses
            good &= all(crosses and cases.proves(part.clauses[c], head, margin) for c in open_)
            if len(part.exclusions):
                _, margins = verify_exclusions(part.exclusions, head, part.envelope, self.domain)
                broken = part.exclusions[~(margins > margin)]
                if crosses or (part.region.numbers and len(broken) <= _PAIRS_AT_ONCE):
                    kept = [not cases.proves(exclusion(*pair), head, margin) for pair in broken.tolist()]
                    broken = broken[np.array(kept, dtype=bool)]
                good &= not len(broken)
                self.note(broken)
        return good

    def _items(self) -> list[tuple[Literals, RegionMaximum, WidenedBox]]:
        """Return the obligations of the optimization: clauses, then the pairs noted so far, over every piece."""
        items = [(literals, part.support, part.envelope) for part in self.pieces for literals in part.literals]
        return items + [(self._pair(*pair), *place) for pair in sorted(self.pairs) for place in self._pair_places]

    def weights(self, head: Head) -> list[Array]:
        """Return the best weights at a head, for each of `_items`."""
        numbers = self.numbers(head)
        crosses = self.envelope.crossing is not None
        clauses = self._items() if crosses else self._items()[: sum(len(part.literals) for part in self.pieces)]
        result = [
            np.ones(1) if len(literals.h) == 1 else best_combination(literals, numbers, box, place)[0]
            for literals, place, box in clauses
        ]
        if self.pairs and not crosses:
            pairs = np.array(sorted(self.pairs), dtype=np.int32)
            found, _ = verify_exclusions(pairs, head, self.envelope, self.domain, best=True)
            result.extend(found.astype(np.float64))
        return result

    def rows(
        self,
        weights: Sequence[Array],
        head: Head,
        *,
        first: Head | None = None,
        margin: float = 0.0,
        share: float = 1e-9,
    ) -> list[RobustRow]:
        """Return the combinations of literals as robust rows, rounding margin included.

        The margin is twice that of `head`, since parameters move, and at least a tenth of that of `first`, plus a share
        of the terms for the solver and for rounding the parameters to float32.
        """
        numbers = self.numbers(head)
        if first is not None:
            start = self.numbers(first)
            numbers = replace(
                numbers,
                errors=np.maximum(numbers.errors, 0.1 * start.errors),
                sizes=np.maximum(numbers.sizes, 0.1 * start.sizes),
            )
        items = self._items()
        mixed = [literals.combined(lam[None] / lam.sum()) for (literals, *_), lam in zip(items, weights, strict=True)]
        sizes = [float((np.abs(one.g) @ np.minimum(numbers.sizes, 1e30))[0]) + abs(float(one.h[0])) for one in mixed]
        largest = max(sizes, default=0.0)
        result = []
        for one, size, (_, support, envelope) in zip(mixed, sizes, items, strict=True):
            rounding = 2 * float(rounding_margin(one, numbers, self.domain)[0])
            room = rounding + share * largest + 2.0**-23 * size + margin
            result.append(RobustRow(one.g[0], one.s[0], float(one.h[0]), support.region, room, envelope))
        return result

    def _pair(self, h: int, k: int) -> Literals:
        return Literals.of_pairs(np.array([h, k]), self.outputs, len(self.domain.low))

    def row_excess(self, rows: Sequence[RobustRow], theta: Array, layout: Layout) -> Array:
        """Return by how much a float64 head exceeds each row (positive: violated), ignoring rounding."""
        W, V, b = layout.unpack(theta)
        plain = HeadNumbers(W, V, b, np.zeros(len(b)), np.zeros(len(b)))
        excess = np.empty(len(rows))
        groups: dict[int, list[int]] = {}
        for k, row in enumerate(rows):
            groups.setdefault(id(row.region), []).append(k)
        supports = {id(place.region): place for _, place, _ in self._items()}
        for key, members in groups.items():
            stack = Literals(
                np.stack([rows[k].g for k in members]),
                np.stack([rows[k].s for k in members]),
                np.array([rows[k].h - rows[k].margin for k in members]),
                np.zeros(len(members), dtype=bool),
            )
            own = rows[members[0]].envelope
            envelope = own if isinstance(own, WidenedBox) else self.envelope
            worst = worst_case(stack, plain, envelope, supports[key])
            scale = np.array([rows[k].margin for k in members])
            # The rest of the row's own margin covers a violation this small.
            excess[members] = worst.bound - 0.01 * scale
        return excess

    def vertex_weights(self, head: Head) -> list[Array] | None:
        """Pick one literal per clause such that some constant output satisfies them all, or return None.

        Stays near the head's output at the center of box and domain, with some room in each chosen literal.
        """
        y = self.central_output(head).astype(np.float64)
        items = [(literals, support) for literals, support, _ in self._items()]
        if not items:
            return []
        g = np.vstack([literals.g for literals, _ in items])
        h = np.concatenate([literals.h - support(literals.s)[0] for literals, support in items])
        owner = np.concatenate([np.full(len(literals.h), i) for i, (literals, _) in enumerate(items)])
        norms = np.abs(g).sum(axis=1)
        reach = float(10 * (np.abs(y).max() + (np.abs(h) / norms).max() + 1))
        found = choose_literals(g, h, owner, near=y, reach=np.full(len(y), reach), room=norms, most=0.01 * reach)
        if found is None:
            return None
        first = np.searchsorted(owner, owner[found])
        return [np.eye(len(literals.h))[c] for c, (literals, _) in zip(found - first, items, strict=True)]

    def fallback_safe(self, fallback: npt.NDArray[np.float32]) -> bool:
        """Return whether a constant output satisfies all rules that bind this head."""
        y = fallback.astype(np.float64)
        for part in self.parts:
            if (fallback[part.exclusions] >= 0).all(axis=1).any():
                return False
            for clause in part.clauses:
                if not fallback_room(clause, y, self.domain)[0] > 0:
                    return False
        return True

    def central_output(self, head: Head) -> npt.NDArray[np.float32]:
        """Return the head's output at the center of box and domain."""
        x = (self.domain.low + self.domain.high) / 2
        lower, upper = self.envelope.at(x)
        return output_at(head, x, (lower + upper) / 2).astype(np.float32)
