"""What the certified heads can output, cell by cell, against what the rules allow there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.guarantees import HeadNumbers, NetworkBounds, RegionMaximum, binding_rules, worst_case
from smle.report.statements import Witnesses
from smle.rules import Literal, Literals, Specification

__all__ = ["Limit", "OutputRanges", "Range", "output_ranges"]

Array = npt.NDArray[np.float64]
_OUTPUTS, _CELLS = 12, 16  # panels and bars that are shown; the others are counted


@dataclass(frozen=True)
class Limit:
    """A limit on one output over a cell: between `low` and `high`, which differ where it depends on the input."""

    low: float
    high: float
    upward: bool


@dataclass(frozen=True)
class Range:
    """The values that one output can take in one cell; None and no limits in the free cell."""

    cell: int
    reach: tuple[float, float] | None
    limits: tuple[Limit, ...]

    @property
    def least(self) -> float:
        """The largest lower limit that is the same for all inputs."""
        return max(
            (limit.low for limit in self.limits if limit.low == limit.high and not limit.upward), default=-np.inf
        )

    @property
    def most(self) -> float:
        """The smallest upper limit that is the same for all inputs."""
        return min((limit.low for limit in self.limits if limit.low == limit.high and limit.upward), default=np.inf)

    @property
    def room(self) -> float:
        """The distance to the nearest limit as a share of the reach; infinite without limits."""
        if self.reach is None or not self.limits:
            return np.inf
        low, high = self.reach
        gaps = [limit.high - high if limit.upward else low - limit.low for limit in self.limits]
        return min(gaps) / max(high - low, 1e-300)


@dataclass(frozen=True)
class OutputRanges:
    """One output: its cells, tightest first if there are too many, and how many were left out."""

    output: int
    ranges: tuple[Range, ...]
    left_out: int

    @property
    def span(self) -> tuple[float, float]:
        """The least and largest number that a drawing has to show."""
        numbers = [v for r in self.ranges for v in r.reach or ()]
        numbers += [v for r in self.ranges for limit in r.limits for v in (limit.low, limit.high)]
        return (min(numbers), max(numbers)) if numbers else (0.0, 1.0)


def output_ranges(witnesses: Witnesses) -> tuple[list[OutputRanges], int]:
    """Return the ranges of the outputs that rules mention, and how many outputs were left out.

    There are none for bounds by a network: over a whole cell only a loose box is known.
    """
    spec = witnesses.spec
    if isinstance(witnesses.over.bounds, NetworkBounds):
        return [], 0
    mentioned: dict[int, None] = {}
    for rule in spec.rules:
        for clause in rule.requirement.clauses:
            mentioned.update((j, None) for literal in clause.literals for j, _ in literal.outputs)
        if len(mentioned) <= _OUTPUTS:
            mentioned.update((int(j), None) for j in np.unique(rule.requirement.exclusions)[:_OUTPUTS])
    shown = sorted(mentioned)[:_OUTPUTS]
    cells = [_cell_ranges(witnesses, cell, shown) for cell in range(len(witnesses.cells))]
    result = []
    for position, output in enumerate(shown):
        ranges = [cell[position] for cell in cells]
        if len(ranges) > _CELLS:
            tightest = sorted(ranges, key=lambda r: r.room)[:_CELLS]
            ranges = sorted(tightest, key=lambda r: r.cell)
        result.append(OutputRanges(output, tuple(ranges), len(cells) - len(ranges)))
    scores = {name for name in spec.targets if name not in {item.name for item in spec.outputs}}
    # The score of an option says nothing alone; it is shown only if a rule limits it.
    kept = [r for r in result if spec.targets[r.output] not in scores or any(part.limits for part in r.ranges)]
    return kept, len(spec.targets) - len(scores) - len(kept)


def _cell_ranges(witnesses: Witnesses, cell: int, outputs: list[int]) -> list[Range]:
    head = witnesses.over.heads[cell] if cell < len(witnesses.over.heads) else None
    if head is None:
        return [Range(cell, None, ()) for _ in outputs]
    m, d = len(witnesses.spec.targets), len(witnesses.spec.columns)
    numbers = HeadNumbers.of(head, witnesses.envelope, witnesses.domain)
    support = witnesses.support(cell, None)
    g = np.zeros((2 * len(outputs), m))
    for position, output in enumerate(outputs):
        g[position, output], g[len(outputs) + position, output] = 1.0, -1.0
    k = len(g)
    literals = Literals(g, np.zeros((k, d)), np.zeros(k), np.zeros(k, dtype=bool))
    bounds = worst_case(literals, numbers, witnesses.envelope, support).bound
    limits = _limits(witnesses, cell, outputs)
    result = []
    for position, output in enumerate(outputs):
        high, low = float(bounds[position]), -float(bounds[len(outputs) + position])
        known = np.isfinite([low, high]).all()
        result.append(Range(cell, (low, high) if known else None, tuple(limits[output])))
    return result


def _limits(witnesses: Witnesses, cell: int, outputs: list[int]) -> dict[int, list[Limit]]:
    """Return what single inequalities over one output allow; other clauses have no such picture."""
    spec = witnesses.spec
    found: dict[int, list[Limit]] = {output: [] for output in outputs}
    for rule, region in binding_rules(witnesses.cells, spec, cell):
        if region is not None and witnesses.cells.regions[region]:
            continue  # binds in a part of the cell only
        for clause in spec.rules[rule].requirement.clauses:
            literal = clause.literals[0]
            if len(clause.literals) == 1 and len(literal.outputs) == 1 and literal.outputs[0][0] in found:
                limit = _limit(literal, spec, witnesses.support(cell, None))
                if limit is not None:
                    found[literal.outputs[0][0]].append(limit)
    return {output: _tightest(limits) for output, limits in found.items()}


def _limit(literal: Literal, spec: Specification, support: RegionMaximum) -> Limit | None:
    (_, g), *_ = literal.outputs
    ends = (0.0, 0.0)
    if literal.inputs:
        slope = np.zeros((2, len(spec.columns)))
        for k, value in literal.inputs:
            slope[0, k], slope[1, k] = -float(value / g), float(value / g)
        top = support(slope)[0]
        if not np.isfinite(top).all():
            return None
        ends = (-float(top[1]), float(top[0]))
    base = float(literal.bound / g)
    return Limit(base + ends[0], base + ends[1], upward=g > 0)


def _tightest(limits: list[Limit]) -> list[Limit]:
    """Keep one constant limit per side, and all that depend on inputs."""
    fixed = [limit for limit in limits if limit.low == limit.high]
    kept = [limit for limit in limits if limit.low != limit.high]
    for upward in (False, True):
        side = [limit for limit in fixed if limit.upward is upward]
        if side:
            kept.append(min(side, key=lambda v: v.high) if upward else max(side, key=lambda v: v.low))
    return kept
