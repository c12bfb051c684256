"""The list of things to prove, derived from an cells. The exact checker derives the same list by itself."""

from __future__ import annotations

from collections.abc import Iterator

from smle.guarantees.regions.cells import Cells
from smle.rules import Specification

__all__ = ["binding_rules", "obligation_regions"]


def binding_rules(cells: Cells, spec: Specification, head: int) -> tuple[tuple[int, int | None], ...]:
    """Return the (rule, region) pairs that bind a head.

    `region` is None where a gated region of the cell switches the rule on (proved over the cell); otherwise it
    is an ungated region that switches it on (proved over the cell and that region).
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
    """Yield (region, active regions, rules): the binding rules grouped by the polytope they are proved over."""
    groups: dict[int | None, list[int]] = {}
    for rule, region in binding_rules(cells, spec, head):
        groups.setdefault(region, []).append(rule)
    cell = cells[head]
    for region, rules in groups.items():
        yield region, (cell if region is None else (*cell, region)), tuple(rules)
