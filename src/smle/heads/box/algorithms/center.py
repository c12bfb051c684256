"""Find a safe affine answer y0 + Y x for a cell, with room around it. Heads start there, and it is served for NaN.

It is the center of the safe heads without an embedding (`projection.safe_center`): choose literals, find the answer
with the most room by a linear program, then the one nearest to a wish that keeps half of that room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from smle.errors import NotCertifiedError
from smle.heads.box.algorithms.head_problem import HeadProblem
from smle.heads.box.algorithms.projection import safe_center
from smle.heads.box.proof.frozen_heads import Bounds, FrozenHeads, Head
from smle.nearest.oracle import most_likely_labels
from smle.regions.cells import Cells, binding_rules
from smle.rules import CNF, Specification, label_columns
from smle.rules.formula import unique_pairs

__all__ = ["find_center"]

Array = npt.NDArray[np.float64]


def find_center(
    spec: Specification, cells: Cells, cell: int, *, prefer: npt.ArrayLike | None = None
) -> tuple[Array, Array | None]:
    """Return an affine answer (y0, Y), proved in float32 to obey the rules of a cell with room.

    Shapes: y0 (m,), Y (m, d); Y is None where the rules mention no inputs. `prefer` (m,) is a point to stay near, such
    as the mean of the training targets (logits for labels). Raises NotCertifiedError if none was found.
    """
    m, d = len(spec.targets), len(spec.columns)
    wish = np.zeros(m) if prefer is None else np.asarray(prefer, dtype=np.float64).reshape(m)
    if not np.isfinite(wish).all():
        raise ValueError("Expected finite numbers in prefer. Got NaN or infinity.")
    rules = [spec.rules[rule].requirement for rule, _ in binding_rules(cells, spec, cell)]
    moving = any(literal.inputs for own in rules for clause in own.clauses for literal in clause.literals)
    wish = _with_signs(spec, rules, wish, prefers=prefer is not None)
    head = Head(_zeros(m, 0), wish.astype(np.float32), V=_zeros(m, d) if moving else None)
    heads = FrozenHeads(Bounds(_zeros(0), _zeros(0)), (head,) * len(cells))
    found = safe_center(head, HeadProblem.of(heads, spec, cells, cell))
    if found is None:
        _refuse(spec, cells, cell)
    return found.b.astype(np.float64), None if found.V is None else found.V.astype(np.float64)


def _zeros(*shape: int) -> npt.NDArray[np.float32]:
    return np.zeros(shape, dtype=np.float32)


def _with_signs(spec: Specification, rules: Sequence[CNF], wish: Array, *, prefers: bool) -> Array:
    """Give labels signs that satisfy all clauses and exclusions among labels, as near to the wish as possible.

    Labels that no clause mentions stay off unless they are wanted and compatible with the labels wanted more.
    """
    labels = label_columns(spec)
    clauses = []
    for clause in dict.fromkeys(clause for own in rules for clause in own.clauses):
        signs = [sign for literal in clause.literals if (sign := literal.sign) is not None and labels[sign[0]]]
        if len(signs) == len(clause.literals):
            clauses.append(signs)
    pairs = unique_pairs(np.concatenate([np.empty((0, 2), dtype=np.int32), *(own.exclusions for own in rules)]))
    mentioned = np.zeros(len(wish), dtype=bool)
    mentioned[[label for clause in clauses for label, _ in clause]] = True
    chosen = mentioned.copy()
    mentioned[np.unique(pairs)] = True
    if prefers:
        chosen |= _compatible(np.flatnonzero(mentioned & ~chosen & (wish > 0)), wish, pairs)
    place = np.cumsum(chosen) - 1
    wanted = wish[chosen] if prefers else np.full(int(chosen.sum()), -1.0)
    pattern = most_likely_labels(
        1 / (1 + np.exp(-np.clip(wanted, -12, 12)))[None],
        place[pairs[chosen[pairs].all(axis=1)]].astype(np.int32).reshape(-1, 2),
        [[(int(place[label]), on) for label, on in clause] for clause in clauses],
    )[0]
    sides = np.full(len(wish), -1.0)
    sides[chosen] = np.where(pattern > 0.5, 1.0, -1.0)  # NaN means that no pattern exists; count it as off
    return np.where(mentioned, sides * np.maximum(sides * wish, 1.0), wish)


def _compatible(wanted: npt.NDArray[np.intp], weights: Array, pairs: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return a mask (m,) of wanted labels that do not exclude each other, picked heaviest first."""
    keep = np.zeros(len(weights), dtype=bool)
    candidate = np.zeros(len(weights), dtype=bool)
    candidate[wanted] = True
    inner = pairs[candidate[pairs].all(axis=1)]
    neighbors: dict[int, list[int]] = {}
    for h, k in inner.tolist():
        neighbors.setdefault(h, []).append(k)
        neighbors.setdefault(k, []).append(h)
    for label in wanted[np.argsort(-weights[wanted], kind="stable")].tolist():
        keep[label] = not keep[neighbors.get(label, [])].any()
    return keep


def _refuse(spec: Specification, cells: Cells, cell: int) -> NoReturn:
    rules: Sequence[int] = sorted({rule for rule, _ in binding_rules(cells, spec, cell)})
    listed = ", ".join(f"'{spec.rules[r].name}'" for r in rules)
    raise NotCertifiedError(
        "A learned box needs one affine answer per cell, with room for rounding. None was found under the rules "
        f"{listed} where they are active together.{_without_bits(spec, cells)} Use SafeRegressor or "
        "SafeClassifier, which need no such answer; or relax a rule, or leave a wider band between limits."
    )


def _without_bits(spec: Specification, cells: Cells) -> str:
    """Name the rules that bind every head because the regions overlap in more ways than heads are allowed."""
    regions = [r for r, rows in enumerate(cells.regions) if rows and r not in cells.gated]
    if not regions or not cells.gated:  # there was no gate from the start
        return ""
    names = sorted({spec.rules[rule].name for r in regions for rule in cells.rules[r]})
    listed = ", ".join(f"'{name}'" for name in names)
    return (
        f" The rules overlap in more ways than a network has heads, so every head obeys {listed}: merge or relax some "
        "of them."
    )
