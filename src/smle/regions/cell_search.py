"""Depth-first search over regions for the sets that the guard may report active together.

A set is left out only with a proof. Sampled points save work: a set that contains one needs no proof attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from smle.regions.cells import Cells, Conflict, Implication, regions_of
from smle.regions.conflicts import COMPLEMENT, Multipliers, Point, Prover, Refutation
from smle.regions.guard_rows import GuardRow, guard_row
from smle.rules import Specification
from smle_check.floats import BINARY64

__all__ = ["find_cells"]

_UNIFORM_SAMPLES = 2048
_SAMPLES_PER_REGION = 32


class _Search:
    """A search that remembers conflicts, implications and sampled points for the next one."""

    def __init__(self, spec: Specification, regions: Sequence[tuple[int, ...]], rows: Sequence[GuardRow]) -> None:
        self.regions = regions
        self.rows = rows
        self.prover = Prover(spec, rows)
        self.conflicts: list[Conflict] = []
        self.implications: list[Implication] = []
        self._enemies = [0] * len(regions)  # conflicting pairs, as bit masks
        self._larger: list[list[int]] = [[] for _ in regions]  # larger conflicts, by member
        self._forced: list[list[int]] = [[] for _ in regions]  # implications of each region
        self._open: set[tuple[int, int]] = set()  # (active, region) pairs without an implication
        self._pool = _Pool(spec, regions, rows)

    def gate(self, regions: list[int], max_cells: int) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        """Return the regions that keep a bit, and their cells; as few as possible lose it, widest first.

        Taking a region out never makes more cells, so bisection finds how many to take out.
        """
        cells = self.cells(regions, max_cells)
        if cells is not None:
            return regions, cells
        by_coverage = sorted(regions, key=lambda r: (-self._pool.coverage(r), r))
        low, high = 0, len(regions)  # taking out `low` is too few, `high` is enough
        kept: list[int] = []
        cells = ((),)
        while high - low > 1:
            middle = (low + high) // 2
            out = set(by_coverage[:middle])
            fewer = [r for r in regions if r not in out]
            found = self.cells(fewer, max_cells)
            if found is None:
                low = middle
            else:
                high, kept, cells = middle, fewer, found
        return kept, cells

    def cells(self, gated: Sequence[int], limit: int) -> tuple[tuple[int, ...], ...] | None:
        """Return all signatures that were not refuted, or None if there are more than `limit`."""
        found: list[tuple[int, ...]] = []
        stack: list[tuple[int, tuple[int, ...], int]] = [(0, (), 0)]
        while stack:
            position, active, excluded = stack.pop()
            if position == len(gated):
                if self._admit(active, gated):
                    found.append(active)
                    if len(found) > limit:
                        return None
                continue
            k = gated[position]
            if not self._is_forced(k, _mask(active)):
                stack.append((position + 1, active, excluded | 1 << k))
            grown = (*active, k)
            if not self._breaks_implication(_mask(grown), excluded) and self._possible(grown):
                stack.append((position + 1, grown, excluded))
        return tuple(found)

    def _is_forced(self, region: int, active: int) -> bool:
        return any(m & active == m for m in self._forced[region])

    def _breaks_implication(self, active: int, excluded: int) -> bool:
        return any(self._is_forced(r, active) for r in _members(excluded) if self._forced[r])

    def _possible(self, active: tuple[int, ...]) -> bool:
        """Return whether the newest region may be active together with the others; remember new conflicts."""
        newest, mask = active[-1], _mask(active)
        if self._enemies[newest] & mask or any(m & mask == m for m in self._larger[newest]):
            return False
        if self._pool.holds(active):
            return True
        for other in active[:-1]:  # small conflicts first: they prune most
            if not self._pool.holds((other, newest)) and self._refute((other, newest)):
                return False
        return not self._refute(active)

    def _refute(self, active: tuple[int, ...]) -> bool:
        outcome = self.prover.decide(_rows_of(self.regions, active))
        if isinstance(outcome, Point):
            self._pool.add(outcome.x)
        if not isinstance(outcome, Refutation):
            return False
        members = self._cover(active, outcome.multipliers)
        multipliers = outcome.multipliers
        for region in members if len(members) > 2 else ():
            fewer = tuple(r for r in members if r != region)
            again = self.prover.decide(_rows_of(self.regions, fewer))
            if isinstance(again, Refutation):
                members, multipliers = fewer, again.multipliers
        self._remember(Conflict(members, multipliers))
        return True

    def _remember(self, conflict: Conflict) -> None:
        self.conflicts.append(conflict)
        if len(conflict.regions) <= 2:
            first, last = conflict.regions[0], conflict.regions[-1]
            self._enemies[first] |= 1 << last
            self._enemies[last] |= 1 << first
            return
        for region in conflict.regions:
            self._larger[region].append(_mask(conflict.regions))

    def _cover(self, active: Sequence[int], multipliers: Iterable[tuple[int, Fraction]]) -> tuple[int, ...]:
        """Choose few of the active regions that together have all rows of a proof."""
        missing = {r for r, _ in multipliers if 0 <= r < len(self.rows)}
        chosen: list[int] = []
        while missing:
            best = max(active, key=lambda region: len(missing.intersection(self.regions[region])))
            chosen.append(best)
            missing.difference_update(self.regions[best])
        return tuple(sorted(chosen))

    def _admit(self, active: tuple[int, ...], gated: Sequence[int]) -> bool:
        """Return whether no known or new implication forbids the signature."""
        mask = _mask(active)
        others = [k for k in gated if not mask >> k & 1]
        if any(self._is_forced(k, mask) for k in others):
            return False
        if self._pool.matches(active, others):
            return True
        for k in others:
            if (mask, k) in self._open or self._pool.holds(active, without=k):
                continue
            if self._imply(active, k):
                return False
            self._open.add((mask, k))
        return True

    def _imply(self, active: tuple[int, ...], implied: int) -> bool:
        """Try to prove that a region is active wherever the given ones are."""
        proofs: list[Multipliers] = []
        numbers = _rows_of(self.regions, active)
        for r in self.regions[implied]:
            if r in numbers:  # the guard computes it once: the same bit
                proofs.append(())
                continue
            outcome = self.prover.decide(numbers, self.rows[r])
            if not isinstance(outcome, Refutation):
                if isinstance(outcome, Point):
                    self._pool.add(outcome.x)
                return False
            proofs.append(outcome.multipliers)
        shared = [(r, Fraction(1)) for r, proof in zip(self.regions[implied], proofs, strict=True) if not proof]
        used = self._cover(active, [*shared, *(p for proof in proofs for p in proof if p[0] != COMPLEMENT)])
        self.implications.append(Implication(used, implied, tuple(proofs)))
        self._forced[implied].append(_mask(used))
        return True


class _Pool:
    """Sampled points of the domain and the regions they lie in, in floats. They prove nothing."""

    def __init__(self, spec: Specification, regions: Sequence[tuple[int, ...]], rows: Sequence[GuardRow]) -> None:
        self._regions = regions
        self._matrix = np.zeros((len(rows), len(spec.columns)))
        for r, row in enumerate(rows):
            for i, q in row.coefficients:
                self._matrix[r, i] = float(q)
        spaces = [row.inside(BINARY64) for row in rows]
        self._bounds = np.array([float(a) for _, a, _ in spaces])
        self._strict = np.array([strict for _, _, strict in spaces], dtype=bool)
        generator = np.random.default_rng(0)
        lower, upper = spec.ends()
        blocks = [generator.uniform(lower, upper, (_UNIFORM_SAMPLES, len(lower)))]
        for numbers in regions:
            low, high = lower.copy(), upper.copy()
            for r in numbers:
                if rows[r].is_comparison:
                    ((i, q),) = rows[r].coefficients
                    if q > 0:
                        high[i] = min(high[i], self._bounds[r])
                    else:
                        low[i] = max(low[i], -self._bounds[r])
            if (low <= high).all():
                blocks.append(generator.uniform(low, high, (_SAMPLES_PER_REGION, len(low))))
        points = np.concatenate(blocks)
        for group in spec.one_hot:
            # keep what a region's own box says: the largest draw wins
            columns = np.array(group)
            winner = points[:, columns].argmax(axis=1)
            points[:, columns] = np.eye(len(group))[winner]
        self._inside = self._signatures(points)

    def _signatures(self, points: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        values = points @ self._matrix.T
        holds = np.where(self._strict, values < self._bounds, values <= self._bounds)
        columns = [holds[:, list(numbers)].all(axis=1) for numbers in self._regions]
        return np.stack(columns, axis=1) if columns else np.zeros((len(points), 0), dtype=bool)

    def coverage(self, region: int) -> float:
        return float(self._inside[:_UNIFORM_SAMPLES, region].mean())

    def add(self, x: Sequence[Fraction]) -> None:
        point = np.array([[float(v) for v in x]])
        self._inside = np.concatenate([self._inside, self._signatures(point)])

    def holds(self, active: Sequence[int], without: int | None = None) -> bool:
        """Return whether some point lies in all active regions, and outside the given one."""
        rows = self._inside[:, list(active)].all(axis=1)
        if without is not None:
            rows &= ~self._inside[:, without]
        return bool(rows.any())

    def matches(self, active: Sequence[int], others: Sequence[int]) -> bool:
        """Return whether some point lies in the active regions and in none of the others."""
        inside = self._inside[:, list(active)].all(axis=1)
        return bool((inside & ~self._inside[:, list(others)].any(axis=1)).any())


def _mask(regions: Iterable[int]) -> int:
    mask = 0
    for r in regions:
        mask |= 1 << r
    return mask


def _members(mask: int) -> list[int]:
    return [r for r in range(mask.bit_length()) if mask >> r & 1]


def _rows_of(regions: Sequence[tuple[int, ...]], active: Sequence[int]) -> list[int]:
    return sorted({r for region in active for r in regions[region]})


def find_cells(spec: Specification, *, max_cells: int = 256) -> Cells:
    """Find the regions of a specification and all sets of them that the guard may report active together.

    A set is left out only with multipliers that prove, in rationals, that it cannot occur. Above `max_cells`, regions
    lose their bit in the gate, the one with the largest share of the domain first: their rules then bind every head.
    """
    if max_cells < 1:
        raise ValueError(f"Expected max_cells >= 1. Got {max_cells}.")
    bare = regions_of(spec)
    search = _Search(spec, bare.regions, tuple(guard_row(row, spec) for row in bare.rows))
    everything = [r for r, rows in enumerate(bare.regions) if rows]
    gated, active = search.gate(everything, max_cells)
    kept = set(gated)
    return replace(
        bare,
        gated=tuple(gated),
        active=active,
        conflicts=tuple(c for c in search.conflicts if kept.issuperset(c.regions)),
        implications=tuple(i for i in search.implications if kept.issuperset((*i.regions, i.implied))),
    )
