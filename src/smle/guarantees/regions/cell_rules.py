"""What the rules ask of one head, in float64: clauses over regions of inputs, and exclusions as pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from smle.guarantees.regions.cells import Cells
from smle.guarantees.regions.geometry import Domain, Region, enlarged_rows
from smle.guarantees.regions.obligations import obligation_regions
from smle.rules import Clause, Specification

__all__ = ["CellRules", "PlainClause", "PlainLiteral", "Polytopes", "cell_rules_of", "negative", "plain_clause"]

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
_ALIKE = 1e3  # sizes of outputs that differ by more are measured each in its own unit


@dataclass(frozen=True, eq=False)
class PlainLiteral:
    """g.y + s.x <= h in float64, sparse; `norm` is ||g||_2."""

    outputs: Index
    g: Array
    inputs: Index
    s: Array
    h: float
    norm: float

    def room(self, y: Array) -> float:
        """Return (h - g.y) / ||g||: the distance to the border, positive inside (without x-terms)."""
        return float((self.h - self.g @ y[self.outputs]) / self.norm)


@dataclass(frozen=True, eq=False)
class PlainClause:
    """An OR of literals that binds over the region with the given position in `Requirement.regions`."""

    literals: tuple[PlainLiteral, ...]
    rule: int
    region: int

    def rooms(self, y: Array) -> Array:
        """Return the room of each literal at a point."""
        return np.array([literal.room(y) for literal in self.literals])


@dataclass(frozen=True, eq=False)
class CellRules:
    """The clauses and exclusions that bind a head, and the polytopes of inputs that they bind over.

    * `regions`: for each polytope the tuple of regions of the cells that it is the intersection of.
    * `pairs` (p, 2): labels that exclude each other.
    * `scale`: the typical size of the rules' constants, at least tiny and 1 if they are all zero.
    """

    polytopes: Polytopes
    clauses: tuple[PlainClause, ...]
    regions: tuple[tuple[int, ...], ...]
    pairs: npt.NDArray[np.int32]

    @property
    def has_x_terms(self) -> bool:
        """Whether some clause mentions an input."""
        return any(len(lit.inputs) for clause in self.clauses for lit in clause.literals)

    @property
    def scale(self) -> float:
        """The largest |h| / ||g||, or 1 if there is none."""
        sizes = [abs(lit.h) / lit.norm for clause in self.clauses for lit in clause.literals]
        return max(sizes, default=0.0) or 1.0

    @cached_property
    def units(self) -> Array:
        """The size of each output (m,) that limits on it alone speak of, where sizes differ too much for one metric.

        Ones elsewhere: for labels, for outputs without such limits, and where sizes are alike.
        """
        sizes = np.zeros(len(self.polytopes.spec.targets))
        domain = self.polytopes.domain
        reach = np.maximum(np.abs(domain.low), np.abs(domain.high))
        for clause in self.clauses:
            for lit in clause.literals:
                if len(lit.outputs) == 1:
                    size = (abs(lit.h) + np.abs(lit.s) @ reach[lit.inputs]) / lit.norm
                    sizes[lit.outputs] = np.maximum(sizes[lit.outputs], size)
        known = sizes > 0
        if not known.any() or sizes[known].max() <= _ALIKE * sizes[known].min():
            return np.ones(len(sizes))
        return np.where(known, sizes, 1.0)

    def in_units(self, units: Array) -> CellRules:
        """Return the same requirement of outputs that are measured in other units."""
        clauses = []
        for clause in self.clauses:
            literals = []
            for lit in clause.literals:
                g = lit.g * units[lit.outputs]
                literals.append(replace(lit, g=g, norm=float(np.sqrt(g @ g))))
            clauses.append(replace(clause, literals=tuple(literals)))
        return replace(self, clauses=tuple(clauses))

    def without_pairs(self) -> CellRules:
        """Return the same requirement with exclusions as clauses (for affine centers; small formulas)."""
        extra = tuple(PlainClause((negative(h), negative(k)), -1, 0) for h, k in self.pairs.tolist())
        return replace(self, clauses=self.clauses + extra, pairs=self.pairs[:0])


def negative(label: int) -> PlainLiteral:
    """Return the literal y_label <= 0 (for room; strictness is paid by it)."""
    none = np.zeros(0, dtype=np.intp)
    return PlainLiteral(np.array([label]), np.ones(1), none, np.zeros(0), 0.0, 1.0)


def plain_clause(clause: Clause, rule: int, region: int) -> PlainClause:
    """Return a clause in floats."""
    literals = []
    for literal in clause.literals:
        g = np.array([float(v) for _, v in literal.outputs])
        literals.append(
            PlainLiteral(
                outputs=np.array([i for i, _ in literal.outputs], dtype=np.intp),
                g=g,
                inputs=np.array([i for i, _ in literal.inputs], dtype=np.intp),
                s=np.array([float(v) for _, v in literal.inputs]),
                h=float(literal.bound),
                norm=float(np.sqrt(g @ g)),
            )
        )
    return PlainClause(tuple(literals), rule, region)


class Polytopes:
    """The regions of an cells in float64; what they share is computed once."""

    def __init__(self, spec: Specification, cells: Cells) -> None:
        self.spec, self.cells = spec, cells

    @cached_property
    def domain(self) -> Domain:
        """The box of inputs."""
        return Domain.of(self.spec)

    @cached_property
    def _rows(self) -> tuple[Array, Array]:
        return enlarged_rows(self.cells, self.spec)

    def intersection(self, regions: Iterable[int]) -> Region:
        """Return the intersection of regions, as the proof sees it."""
        return Region.of(self.cells, self.spec, regions, domain=self.domain, rows=self._rows)

    @cached_property
    def _samples(self) -> Array:
        return np.random.default_rng(0).uniform(size=(128, len(self.domain.low)))

    def proved_empty(self, regions: Iterable[int]) -> bool:
        """Whether the intersection was proved empty; a sampled point in it saves the attempt."""
        region = self.intersection(regions)
        low, high, _ = region.tight_box()
        points = low + self._samples * (high - low)
        if (points @ region.A.T <= region.a).all(axis=1).any():
            return False
        return region.empty() is not None


def cell_rules_of(polytopes: Polytopes, cell_index: int) -> CellRules:
    """Collect what binds the head of a cell; ungated regions that cannot meet the cell are left out."""
    spec, cells = polytopes.spec, polytopes.cells
    clauses: list[PlainClause] = []
    regions: list[tuple[int, ...]] = []
    pairs = [np.empty((0, 2), dtype=np.int32)]
    for region, active, rules in obligation_regions(cells, spec, cell_index):
        ungated = region is not None and bool(cells.regions[region])
        if ungated and polytopes.proved_empty(active):
            continue
        position = len(regions)
        regions.append(active)
        for rule in rules:
            requirement = spec.rules[rule].requirement
            clauses.extend(plain_clause(clause, rule, position) for clause in requirement.clauses)
            pairs.append(requirement.exclusions)
    stacked = np.concatenate(pairs)
    if len(pairs) > 2:
        stacked = np.unique(stacked, axis=0)
    return CellRules(polytopes, tuple(clauses), tuple(regions), stacked)
