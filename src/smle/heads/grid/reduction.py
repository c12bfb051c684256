"""Solves equalities once: k = B u + T kx + t, in whole numbers, for any whole numbers u of the free outputs.

Targets that miss equalities are moved before anything is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.rules import Specification
from smle_check.heads.candidates import Checked
from smle_check.heads.grid import DeployedComparison, comparison_of
from smle_check.heads.steps import Lattice

__all__ = ["NotSolved", "Reduction", "reconciled", "reduce"]

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
_CLOSE = 1e-6  # spreads of targets by which sums of decimal numbers may be off


class NotSolved(Exception):  # noqa: N818 - an outcome that the author explains
    """An equality cannot be solved for one of its outputs; `rule` states it, `why` says which case it is."""

    def __init__(self, rule: int, why: str) -> None:
        super().__init__(why)
        self.rule, self.why = rule, why


@dataclass(frozen=True)
class Reduction:
    """`k = B u + T kx + t`: `free` (f,) are the outputs that u stands for. Shapes B (m, f), T (m, d), t (m,)."""

    free: Whole
    B: Whole
    T: Whole
    t: Whole

    @property
    def derived(self) -> list[int]:
        """Outputs that are computed from others."""
        return sorted(set(range(len(self.t))) - set(self.free.tolist()))


def equalities(spec: Lattice, listed: Checked) -> list[tuple[int, DeployedComparison]]:
    """Return the rules that state equalities everywhere, alone or with an earlier rule, and one inequality of each."""
    made: dict[int, DeployedComparison] = {}
    found, known = [], set()
    for r, rule in enumerate(spec.rules):
        if not any(not spec.regions[g] for g in rule.regions):
            continue
        singles = [own[0] for rule_, _, own in listed.clauses if rule_ == r and len(own) == 1]
        for k in singles:
            if k < listed.moving or len(listed.literals[k].y) < 2:
                continue
            one = made.setdefault(k, comparison_of(spec, listed.literals[k]))
            opposite = _key({i: -v for i, v in one.outputs.items()}, {j: -v for j, v in one.steps.items()})
            if (opposite, -one.threshold) in known:
                found.append((r, one))
            known.add((_key(one.outputs, one.steps), one.threshold))
    return found


def _key(outputs: dict[int, int], steps: dict[int, int]) -> tuple[object, ...]:
    return tuple(sorted(outputs.items())), tuple(sorted(steps.items()))


def reduce(spec: Lattice, listed: Checked) -> Reduction:
    """Solve all equalities that hold everywhere, each for an output with the coefficient 1 or -1.

    Raises NotSolved if one has no such output, or if they contradict each other.
    """
    m, d = len(spec.outputs), len(spec.inputs)
    solved: dict[int, tuple[dict[int, int], dict[int, int], int]] = {}  # output -> others, steps, constant
    for rule, one in sorted(equalities(spec, listed), key=lambda item: len(item[1].outputs)):
        a, b, c = dict(one.outputs), dict(one.steps), one.threshold  # a.k + b.kx == c
        for i in [i for i in a if i in solved]:
            weight = a.pop(i)
            others, steps, constant = solved[i]
            for k, v in others.items():
                a[k] = a.get(k, 0) + weight * v
            for j, v in steps.items():
                b[j] = b.get(j, 0) + weight * v
            c -= weight * constant
        a, b = {k: v for k, v in a.items() if v}, {j: v for j, v in b.items() if v}
        if not a:
            if b or c:
                raise NotSolved(rule, "contradiction")
            continue
        units = [k for k, v in a.items() if abs(v) == 1]
        if not units:
            raise NotSolved(rule, "no unit")
        pivot = _pivot(a, units)
        sign = a.pop(pivot)
        own = {k: -sign * v for k, v in a.items()}, {j: -sign * v for j, v in b.items()}, sign * c
        for other, (others, steps, constant) in list(solved.items()):
            if pivot in others:
                weight = others.pop(pivot)
                for k, v in own[0].items():
                    others[k] = others.get(k, 0) + weight * v
                for j, v in own[1].items():
                    steps[j] = steps.get(j, 0) + weight * v
                solved[other] = {k: v for k, v in others.items() if v}, steps, constant + weight * own[2]
        solved[pivot] = own
    free = [i for i in range(m) if i not in solved]
    place = {i: f for f, i in enumerate(free)}
    B, T, t = np.zeros((m, len(free)), np.int64), np.zeros((m, d), np.int64), np.zeros(m, np.int64)
    B[free, range(len(free))] = 1
    for i, (others, steps, constant) in solved.items():
        for k, v in others.items():
            B[i, place[k]] = v
        for j, v in steps.items():
            T[i, j] = v
        t[i] = constant
    return Reduction(np.array(free, dtype=np.int64), B, T, t)


def _pivot(a: dict[int, int], units: list[int]) -> int:
    """Return the output to solve for: a total, whose sign no other has; else the last one."""
    signs = {k: np.sign(v) for k, v in a.items()}
    totals = [k for k in units if sum(signs[k] == s for s in signs.values()) == 1]
    return totals[0] if len(a) > 2 and totals else units[-1]


def reconciled(spec: Specification, X: npt.NDArray[np.floating], targets: Array) -> tuple[Array, int, float]:
    """Return targets (n, m) that satisfy the equalities of the rules, how many rows moved, and the largest change.

    Each row moves as little as possible, measured in the spread of the outputs: all outputs of an equality share the
    difference, and the outputs that vary most take most of it. Limits are ignored.
    """
    grid = spec.grid
    equalities = [] if grid is None else [e.literal for e in grid.equalities if e.everywhere]
    if not equalities or not len(targets):
        return targets, 0, 0.0
    E, right = np.zeros((len(equalities), targets.shape[1])), np.empty((len(targets), len(equalities)))
    for row, literal in enumerate(equalities):
        for i, g in literal.outputs:
            E[row, i] = float(g)
        moved = sum((float(v) * X[:, j].astype(np.float64) for j, v in literal.inputs), np.zeros(len(targets)))
        right[:, row] = float(literal.bound) - moved
    spread = targets.std(axis=0)
    spread = np.where(spread > 0, spread, max(float(spread.max()), 1.0) * 1e-3)
    missing = right - targets @ E.T
    share = (E * spread**2) @ E.T
    step = missing @ np.linalg.pinv(share) @ (E * spread**2)
    far = np.abs(step / spread).max(axis=1)
    rows = np.flatnonzero(far > _CLOSE)
    if not len(rows):
        return targets, 0, 0.0
    result = targets.copy()
    result[rows] += step[rows]
    return result, len(rows), float(np.abs(step[rows]).max())
