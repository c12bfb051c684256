"""Which rules can be active together: distinct regions, gate, cells, and proofs for what was left out."""

from __future__ import annotations

from dataclasses import replace

from smle.guarantees.regions.arrangement import Arrangement
from smle.guarantees.regions.guard import guard_row
from smle.guarantees.regions.search import CellSearch
from smle.rules import Row, Specification

__all__ = ["arrange", "distinct"]


def arrange(spec: Specification, *, max_cells: int = 256) -> Arrangement:
    """Find the regions of a specification and all sets of them that the guard may report active together.

    A set is left out only with multipliers that prove, in rationals, that it cannot occur. Above `max_cells`
    regions lose their bit in the gate, the one with the largest share of the domain first: their rules then
    bind every head.
    """
    if max_cells < 1:
        raise ValueError(f"Expected max_cells >= 1. Got {max_cells}.")
    bare = distinct(spec)
    search = CellSearch(spec, bare.regions, tuple(guard_row(row, spec) for row in bare.rows))
    everything = [r for r, rows in enumerate(bare.regions) if rows]
    gated, cells = _gate(search, everything, max_cells)
    kept = set(gated)
    return replace(
        bare,
        gated=tuple(gated),
        cells=cells,
        conflicts=tuple(c for c in search.conflicts if kept.issuperset(c.regions)),
        implications=tuple(i for i in search.implications if kept.issuperset((*i.regions, i.implied))),
    )


def _gate(search: CellSearch, regions: list[int], max_cells: int) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Return the regions that keep a bit and their cells; as few as possible lose it, widest first.

    Taking a region out never makes more cells, so the number to take out is found by bisection.
    """
    cells = search.cells(regions, max_cells)
    if cells is not None:
        return regions, cells
    by_coverage = sorted(regions, key=lambda r: (-search.coverage(r), r))
    low, high = 0, len(regions)  # `low` are too few to take out, `high` are enough
    kept: list[int] = []
    cells = ((),)
    while high - low > 1:
        middle = (low + high) // 2
        out = set(by_coverage[:middle])
        fewer = [r for r in regions if r not in out]
        found = search.cells(fewer, max_cells)
        if found is None:
            low = middle
        else:
            high, kept, cells = middle, fewer, found
    return kept, cells


def distinct(spec: Specification) -> Arrangement:
    """Number the distinct rows and regions in the order in which the rules state them; no cells yet but ()."""
    rows: dict[Row, int] = {}
    regions: dict[tuple[int, ...], list[int]] = {}
    for index, rule in enumerate(spec.rules):
        for polytope in rule.regions:
            numbers = tuple(sorted(rows.setdefault(row, len(rows)) for row in polytope.rows))
            switched = regions.setdefault(numbers, [])
            if index not in switched:
                switched.append(index)
    return Arrangement(
        rows=tuple(rows),
        regions=tuple(regions),
        rules=tuple(tuple(switched) for switched in regions.values()),
        gated=(),
        cells=((),),
        conflicts=(),
        implications=(),
    )
