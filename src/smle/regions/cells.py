"""The regions of a specification, the cells formed by their overlaps, and proofs for the sets left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smle.regions.conflicts import Multipliers
from smle.rules import Polytope, Row, Specification

__all__ = ["Cells", "Conflict", "Implication", "binding_rules", "obligation_regions", "regions_of"]


@dataclass(frozen=True)
class Conflict:
    """Regions that cannot be active together, with multipliers that prove it."""

    regions: tuple[int, ...]
    multipliers: Multipliers


@dataclass(frozen=True)
class Implication:
    """Wherever all `regions` are active, `implied` is active too.

    For each row of the implied region, multipliers prove its complement (row number -1) empty. They are () for a row
    that one of the regions shares, because the guard computes each row once.
    """

    regions: tuple[int, ...]
    implied: int
    multipliers: tuple[Multipliers, ...]


@dataclass(frozen=True)
class Cells:
    """The regions of a specification and the cells formed by their overlaps.

    Iterates over the active regions of each cell.

    * `rows`: the distinct half-spaces of all regions. After them, proofs may use two rows per one-hot group (`sum <=
      1`, then `-sum <= -1`): group g has numbers len(rows) + 2 g and + 1.
    * `regions`: the distinct polytopes, as tuples of row numbers; () is the whole domain.
    * `rules`: for each region, the indices of the rules it switches on.
    * `gated`: the regions with a bit in the gate, in the order of the depth-first search. The others (the whole domain;
      rules above the cap) bind every head over (cell and region).
    * `active`: for each cell, the sorted gated regions that are active there; () comes last if present.
    """

    rows: tuple[Row, ...]
    regions: tuple[tuple[int, ...], ...]
    rules: tuple[tuple[int, ...], ...]
    gated: tuple[int, ...]
    active: tuple[tuple[int, ...], ...]
    conflicts: tuple[Conflict, ...]
    implications: tuple[Implication, ...]

    def __len__(self) -> int:
        return len(self.active)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.active)

    def __getitem__(self, cell: int) -> tuple[int, ...]:
        return self.active[cell]

    def polytope(self, region: int) -> Polytope:
        """Return a region as a polytope."""
        return Polytope(tuple(self.rows[i] for i in self.regions[region]))

    @property
    def free_cell(self) -> bool:
        """Whether nothing is required in the last cell."""
        return bool(self.active) and self.active[-1] == () and len(self.gated) == len(self.regions)


def regions_of(spec: Specification) -> Cells:
    """Number the distinct rows and regions in the order of the rules. The only cell is ()."""
    rows: dict[Row, int] = {}
    regions: dict[tuple[int, ...], list[int]] = {}
    for index, rule in enumerate(spec.rules):
        for polytope in rule.regions:
            numbers = tuple(sorted(rows.setdefault(row, len(rows)) for row in polytope.rows))
            switched = regions.setdefault(numbers, [])
            if index not in switched:
                switched.append(index)
    return Cells(
        rows=tuple(rows),
        regions=tuple(regions),
        rules=tuple(tuple(switched) for switched in regions.values()),
        gated=(),
        active=((),),
        conflicts=(),
        implications=(),
    )


def binding_rules(cells: Cells, spec: Specification, head: int) -> tuple[tuple[int, int | None], ...]:
    """Return the (rule, region) pairs that bind a head.

    `region` is None if a gated region of the cell switches the rule on (proved over the cell). Otherwise it is the
    ungated region that does (proved over the cell and that region).
    """
    cell, gated = set(cells[head]), set(cells.gated)
    result: list[tuple[int, int | None]] = []
    for rule in range(len(spec.rules)):
        regions = [r for r, rules in enumerate(cells.rules) if rule in rules]
        if any(r in cell for r in regions):
            result.append((rule, None))
        else:
            result.extend((rule, r) for r in regions if r not in gated)
    return tuple(result)


def obligation_regions(
    cells: Cells, spec: Specification, head: int
) -> Iterator[tuple[int | None, tuple[int, ...], tuple[int, ...]]]:
    """Yield (region, active regions, rules): the binding rules, grouped by the polytope they are proved over."""
    groups: dict[int | None, list[int]] = {}
    for rule, region in binding_rules(cells, spec, head):
        groups.setdefault(region, []).append(rule)
    cell = cells[head]
    for region, rules in groups.items():
        yield region, (cell if region is None else (*cell, region)), tuple(rules)
