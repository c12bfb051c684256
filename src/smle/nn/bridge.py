"""Between torch and mathematics: what the rules ask of the heads, and heads as plain arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from smle.guarantees import (
    Bounds,
    CellRules,
    Cells,
    Center,
    FrozenHeads,
    Head,
    NetworkBounds,
    Polytopes,
    Region,
    RegionMaximum,
    cell_rules_of,
    find_center,
)
from smle.nn.bounds import Box
from smle.nn.exclusion_gauge import MANY_PAIRS
from smle.nn.head_parameters import CellConstraints, FreeTensors, HeadParameters
from smle.rules import Specification

__all__ = ["cell_needs", "frozen", "ungated"]

Array = npt.NDArray[np.float64]


def ungated(cells: Cells) -> Cells:
    """Return the cells with one head for the whole domain: no gate, each rule proved over its own region."""
    return Cells(cells.rows, cells.regions, cells.rules, (), ((),), (), ())


def cell_needs(
    spec: Specification, cells: Cells, *, prefer: Array | None, outer: bool = False
) -> list[CellConstraints]:
    """Return what each certified cell asks of its head. `prefer` (cells, m): outputs to stay near; NaN rows: none.

    `outer`: the box of a region is what its rows over one input say, as for bounds that are relaxed over boxes.

    Raises:
        ContradictionError: If a cell's requirement has no safe center.
    """
    polytopes = Polytopes(spec, cells)
    result = []
    for index in range(len(cells) - cells.free_cell):
        wish = None if prefer is None or not np.isfinite(prefer[index]).all() else prefer[index]
        center = find_center(spec, cells, index, prefer=wish, polytopes=polytopes)
        result.append(_needs(cell_rules_of(polytopes, index), center, len(spec.columns), outer=outer))
    return result


def _needs(need: CellRules, center: Center, d: int, *, outer: bool) -> CellConstraints:
    m = len(center.y0)
    Y = np.zeros((m, d)) if center.Y is None else center.Y
    # Affine centers have exclusions among their clauses, and so have bounds that are relaxed over boxes.
    apart = len(need.pairs) > MANY_PAIRS and not need.has_x_terms and not outer
    if apart:
        clauses, weights, slacks, pairs = need.clauses, list(center.lambdas), center.clause_slacks, need.pairs
    else:
        clauses, weights = need.without_pairs().clauses, [*center.lambdas, *center.pair_lambdas]
        slacks, pairs = np.concatenate([center.clause_slacks, center.pair_slacks]), need.pairs[:0]
    boxes = [_RegionBox(need.polytopes.intersection(active), outer=outer) for active in need.regions]
    j = max((len(clause.literals) for clause in clauses), default=1)
    r = max((len(box.A) for box in boxes), default=0)
    k = len(clauses)
    g, lam, slack = np.zeros((k, j, m)), np.zeros((k, j)), np.zeros((k, j))
    room, room_slope = np.zeros((k, j)), np.zeros((k, j, d))
    lower, upper, A, a = np.zeros((k, d)), np.zeros((k, d)), np.zeros((k, r, d)), np.zeros((k, r))
    for i, clause in enumerate(clauses):
        box = boxes[clause.region]
        lower[i], upper[i] = box.lower, box.upper
        A[i, : len(box.A)], a[i, : len(box.A)] = box.A, box.a
        lam[i, : len(weights[i])] = weights[i]
        slopes, offsets = np.zeros((len(clause.literals), d)), np.zeros(len(clause.literals))
        for position, literal in enumerate(clause.literals):
            g[i, position, literal.outputs] = literal.g
            slopes[position] = literal.g @ Y[literal.outputs]
            slopes[position, literal.inputs] += literal.s
            offsets[position] = literal.g @ center.y0[literal.outputs] - literal.h
        slack[i, : len(offsets)] = -(offsets + box.highest(slopes))
        room[i, : len(offsets)], room_slope[i, : len(offsets)] = -offsets, -slopes
    return CellConstraints(g, lam, slack, slacks, room, room_slope, center.y0, Y, lower, upper, A, a, pairs)


class _RegionBox:
    """Bounding box (d,), (d,) and oblique rows A (r, d), a (r,) of a region; maxima of linear functions over it."""

    def __init__(self, region: Region, *, outer: bool) -> None:
        self._support = RegionMaximum(region)
        identity = np.eye(len(region.domain.low))
        if outer:
            self.lower, self.upper, _ = region.tight_box()
        else:
            self.upper = np.minimum(self._support(identity)[0], region.domain.high)
            self.lower = np.maximum(-self._support(-identity)[0], region.domain.low)
        oblique = np.flatnonzero((region.A != 0).sum(axis=1) > 1)
        self.A, self.a = region.A[oblique], region.a[oblique]

    def highest(self, slopes: Array) -> Array:
        """Return max slopes.x over the region. Shapes: (k, d) -> (k,)."""
        return self._support(slopes)[0] if slopes.any() else np.zeros(len(slopes))


@torch.no_grad()
def frozen(parameters: HeadParameters, box: Box, *, fallback: bool) -> tuple[FrozenHeads, FreeTensors | None]:
    """Compute heads and bounds in float64: rounded to float32 what will be deployed, and the free head."""
    certified, free = parameters(box.envelope(torch.float64))
    weight, slope, bias = (None if part is None else part.cpu().numpy() for part in certified)
    safe = parameters.fallback().cpu().numpy()
    assert weight is not None
    assert bias is not None
    heads: list[Head | None] = [
        Head(weight[c], bias[c], V=None if slope is None else slope[c], fallback=safe[c] if fallback else None)
        for c in range(len(weight))
    ]
    numbers = box.deployed(parameters.x_shift, parameters.x_scale, torch.float64)
    arrays = {name: value.cpu().numpy().astype(np.float32) for name, value in numbers.items()}
    bounds = NetworkBounds.of_stored(arrays) if "hidden.0.weight" in arrays else Bounds(**arrays)
    return FrozenHeads(bounds, tuple(heads + ([] if free is None else [None]))), free
