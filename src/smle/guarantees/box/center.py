"""A safe affine choice y0 + Y x for a cell, and the weights of literals under which every clause holds there.

For given weights lambda the room of the center in clause c is

    slack_c = min over x in Q_c of  -sum_j lambda_j (g_j.(y0 + Y x) + s_j.x - h_j)

With weights on one literal each, the center with the largest room is one linear program (its robust
counterpart over Q_c). Which literals: depth-first, only for clauses that do not hold by themselves. If no
choice of single literals works, weights and center alternate, each by a linear program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from smle.errors import ContradictionError
from smle.guarantees.box.affine_center import AffineSearch, evaluate_affine
from smle.guarantees.box.center_search import MINIMUM_ROOM, CandidateCenter, CenterSearch, evaluate
from smle.guarantees.regions.cell_rules import CellRules, Polytopes, cell_rules_of
from smle.guarantees.regions.cells import Cells
from smle.guarantees.regions.obligations import binding_rules
from smle.rules import Specification

__all__ = ["Center", "find_center"]

Array = npt.NDArray[np.float64]
_BAND = 20 * MINIMUM_ROOM  # width that is enough, in the units of the limits: a center near a wish keeps a tenth of it


@dataclass(frozen=True, eq=False)
class Center:
    """y0 + Y x and the room that it leaves in every clause, exclusions last. Shapes: y0 (m,), Y (m, d) or None."""

    y0: Array
    Y: Array | None
    slacks: Array


def find_center(
    spec: Specification,
    cells: Cells,
    cell_index: int,
    *,
    prefer: npt.ArrayLike | None = None,
    share: float = 0.8,
    polytopes: Polytopes | None = None,
) -> Center:
    """Find a center of a cell that leaves positive room in every clause that binds its head.

    The center is the point nearest to `share * prefer + (1 - share) * (center with the most room)` that keeps a
    share of that room. Without x-terms in the rules Y is None.

    Args:
        spec: The specification.
        cells: Its cells.
        cell_index: Position in `cells`.
        prefer: A point (m,) to stay near, such as the mean of the training targets (logits for labels).
        share: How near, in [0, 1).
        polytopes: The regions in floats, if several centers are asked for: computed once then.

    Raises:
        ContradictionError: If no center was found, or if it leaves no room for rounding.
    """
    m = len(spec.targets)
    wish = None if prefer is None else np.asarray(prefer, dtype=np.float64).reshape(m)
    if wish is not None and not np.isfinite(wish).all():
        raise ValueError("Expected finite numbers in prefer. Got NaN or infinity.")
    if not 0 <= share < 1:
        raise ValueError(f"Expected 0 <= share < 1. Got {share}.")
    need = cell_rules_of(polytopes or Polytopes(spec, cells), cell_index)
    if need.has_x_terms:
        need = need.without_pairs()
    found = _search_center(need, wish, share=share)
    if found is None or found.room < MINIMUM_ROOM * need.scale:
        _refuse(spec, cells, cell_index, width=None if found is None else _BAND * need.scale)
    assert found is not None
    slacks = evaluate(need, found.y0) if found.Y is None else evaluate_affine(need, found)
    slacks = np.concatenate([slacks, _pair_slacks(found.y0, need.pairs)])
    if slacks.min(initial=np.inf) <= 0:
        _refuse(spec, cells, cell_index, width=_BAND * need.scale)
    return Center(found.y0, found.Y, slacks)


def _search_center(need: CellRules, prefer: Array | None = None, *, share: float = 0.8) -> CandidateCenter | None:
    """Return the center with its room, or None if none was found. Affine if the rules have x-terms.

    Outputs of very different sizes are measured each in its own; the room is then given as a share of the rules' scale.
    """
    units = need.units
    if (units != 1).any():
        scaled = need.in_units(units)
        found = _search(scaled, None if prefer is None else prefer / units, share=share)
        if found is None:
            return None
        Y = None if found.Y is None else found.Y * units[:, None]
        return replace(found, y0=found.y0 * units, Y=Y, room=found.room / scaled.scale * need.scale)
    return _search(need, prefer, share=share)


def _search(need: CellRules, prefer: Array | None, *, share: float) -> CandidateCenter | None:
    target = np.zeros(len(need.polytopes.spec.targets)) if prefer is None else prefer
    if need.has_x_terms:
        return AffineSearch(need.without_pairs(), target, prefers=prefer is not None, share=share).run()
    return CenterSearch(need, target, prefers=prefer is not None, share=share).run()


def _pair_slacks(y: Array, pairs: npt.NDArray[np.int32]) -> Array:
    """Return the room of each exclusion, its two labels weighted by how far below zero they are: (p, 2) -> (p,)."""
    below = np.maximum(-y[pairs], 0.0)
    total = below.sum(axis=1)
    weighted = -(below * y[pairs]).sum(axis=1) / np.where(total > 0, total, 1.0)
    return np.where(total > 0, weighted, -1.0)


def _refuse(spec: Specification, cells: Cells, cell_index: int, *, width: float | None) -> None:
    """Raise, with the width that rules should leave to an output; None: no answer was found at all."""
    rules: Sequence[int] = sorted({rule for rule, _ in binding_rules(cells, spec, cell_index)})
    listed = ", ".join(f"'{spec.rules[r].name}'" for r in rules)
    everywhere = _without_bits(spec, cells)
    if width is not None:
        raise ContradictionError(
            f"The rules {listed} leave no room together. They contradict each other (`smle rules` shows where), or "
            "some combination of outputs is pinned to one value, or so nearly that rounded numbers find no place. "
            f"Leave a band of at least {width:.1g}.{everywhere}"
        )
    raise ContradictionError(
        f"No single affine answer satisfies the rules {listed} where they are active together. "
        f"Relax one of them; `smle rules` shows the smallest conflicting set and an example.{everywhere}"
    )


def _without_bits(spec: Specification, cells: Cells) -> str:
    """Name the rules that bind every head because the regions overlap in more ways than there may be heads."""
    regions = [r for r, rows in enumerate(cells.regions) if rows and r not in cells.gated]
    if not regions or not cells.gated:  # no gate at all is what was asked for
        return ""
    names = sorted({spec.rules[rule].name for r in regions for rule in cells.rules[r]})
    listed = ", ".join(f"'{name}'" for name in names)
    return (
        f" The rules overlap in more ways than a network has heads, so every head obeys {listed}: merge or relax some "
        "of them."
    )
