"""Linear programs in rationals, for where a float solver's answer is not a proof.

    maximize c.x   subject to   A x <= a,   lower <= x <= upper

None stands for a missing end. The method is the bounded-variable simplex on a dictionary with sparse rows; Bland's rule
takes over after a while, so it always ends. Meant for small problems (tens of rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from smle.rules.formula import HalfSpace

__all__ = ["ExactInfeasible", "ExactOptimal", "ExactUnbounded", "maximize", "point_or_proof"]

SparseRow = Sequence[tuple[int, Fraction]]
End = Fraction | None
ZERO = Fraction(0)
_GREEDY_PIVOTS = 200


@dataclass(frozen=True)
class ExactOptimal:
    """An optimum `x`, its value, and one multiplier m >= 0 per row that proves it.

    value = m.a + sum_i max over [lower_i, upper_i] of (c - A'm)_i x_i.
    """

    x: tuple[Fraction, ...]
    value: Fraction
    multipliers: tuple[Fraction, ...]


@dataclass(frozen=True)
class ExactInfeasible:
    """No point exists: with c = 0, the multipliers give a negative upper bound on 0."""

    multipliers: tuple[Fraction, ...]


@dataclass(frozen=True)
class ExactUnbounded:
    """The objective is unbounded; `x` is a feasible point."""

    x: tuple[Fraction, ...]


def maximize(
    objective: SparseRow, rows: Sequence[tuple[SparseRow, Fraction]], lower: Sequence[End], upper: Sequence[End]
) -> ExactOptimal | ExactInfeasible | ExactUnbounded:
    """Solve a linear program exactly. `rows` are pairs (form, bound); `lower` and `upper` have an end per variable."""
    n, k = len(lower), len(rows)
    if len(upper) != n:
        raise ValueError(f"Expected as many lower as upper ends. Got {n} and {len(upper)}.")
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if low is not None and high is not None and low > high:
            raise ValueError(f"Expected lower <= upper. Got an empty range for variable {i}.")
    tableau = _Tableau([form for form, _ in rows], [*lower, *[None] * k], [*upper, *(bound for _, bound in rows)], n)
    refutation = tableau.restore()
    if refutation is not None:
        return ExactInfeasible(refutation)
    slopes = tableau.climb(objective)
    x = tuple(tableau.value[:n])
    if slopes is None:
        return ExactUnbounded(x)
    value = sum((c * x[i] for i, c in objective), ZERO)
    return ExactOptimal(x, value, tuple(slopes.get(n + r, ZERO) for r in range(k)))


def point_or_proof(
    rows: Sequence[HalfSpace], lower: Sequence[End], upper: Sequence[End]
) -> dict[int, Fraction] | tuple[Fraction, ...]:
    """Return a point of the half-spaces, or multipliers that prove there is none.

    The point has the variables that the rows mention. Rows that share no variable are solved apart.
    """
    point: dict[int, Fraction] = {}
    for own in _apart(rows):
        found = _point_or_proof([rows[r] for r in own], lower, upper)
        if not isinstance(found, dict):
            multipliers = dict(zip(own, found, strict=True))
            return tuple(multipliers.get(r, ZERO) for r in range(len(rows)))
        point |= found
    return point


def _apart(rows: Sequence[HalfSpace]) -> list[list[int]]:
    """Group the numbers of rows that share variables, directly or through others."""
    parent = list(range(len(rows)))

    def root(r: int) -> int:
        while parent[r] != r:
            parent[r] = r = parent[parent[r]]
        return r

    first: dict[int, int] = {}
    for r, (form, _, _) in enumerate(rows):
        for i, _ in form:
            parent[root(r)] = root(first.setdefault(i, r))
    groups: dict[int, list[int]] = {}
    for r in range(len(rows)):
        groups.setdefault(root(r), []).append(r)
    return list(groups.values())


def _point_or_proof(
    rows: Sequence[HalfSpace], lower: Sequence[End], upper: Sequence[End]
) -> dict[int, Fraction] | tuple[Fraction, ...]:
    """Solve one program. Strict rows share a slack, which is maximized."""
    used = sorted({i for form, _, _ in rows for i, _ in form})
    place = {i: p for p, i in enumerate(used)}
    slack = [(len(used), Fraction(1))]
    any_strict = any(strict for _, _, strict in rows)
    found = maximize(
        slack if any_strict else [],
        [([*((place[i], q) for i, q in form), *(slack if strict else [])], bound) for form, bound, strict in rows],
        [*(lower[i] for i in used), ZERO],
        [*(upper[i] for i in used), Fraction(1)],
    )
    if isinstance(found, ExactInfeasible) or (isinstance(found, ExactOptimal) and any_strict and found.value == 0):
        return found.multipliers
    return {i: found.x[p] for i, p in place.items()}


class _Tableau:
    """Basic variables as sparse linear forms of the nonbasic ones, which sit at their ends.

    Variables 0..n-1 are the problem's, n..n+k-1 the values of its rows.
    """

    def __init__(self, rows: Sequence[SparseRow], lower: list[End], upper: list[End], n: int) -> None:
        self.lower, self.upper, self.n, self.k = lower, upper, n, len(rows)
        self.value = [_start(lower[i], upper[i]) for i in range(n)] + [ZERO] * len(rows)
        self.rows: dict[int, dict[int, Fraction]] = {}
        for r, row in enumerate(rows):
            form: dict[int, Fraction] = {}
            for i, q in row:
                form[i] = form.get(i, ZERO) + q
            self.rows[n + r] = {i: q for i, q in form.items() if q}
            self.value[n + r] = sum((q * self.value[i] for i, q in row), ZERO)

    def restore(self) -> tuple[Fraction, ...] | None:
        """Reach a feasible dictionary, or return multipliers of the rows that prove there is none."""
        pivots = 0
        while True:
            broken = [b for b in self.rows if self._excess(b) != 0]
            if not broken:
                return None
            greedy = pivots < _GREEDY_PIVOTS
            leave = max(broken, key=lambda b: abs(self._excess(b))) if greedy else min(broken)
            excess = self._excess(leave)
            form = self.rows[leave]
            enter = [j for j, q in form.items() if self._can_move(j, q if excess < 0 else -q)]
            if not enter:
                return self._refutation(leave, excess)
            j = max(enter, key=lambda v: (abs(form[v]), -v)) if greedy else min(enter)
            self._move(j, -excess / form[j])
            self._pivot(leave, j)
            pivots += 1

    def climb(self, objective: SparseRow) -> dict[int, Fraction] | None:
        """Maximize from a feasible dictionary; return the objective's final slopes, or None if unbounded."""
        slopes: dict[int, Fraction] = {}
        for i, c in objective:
            for j, q in self.rows.get(i, {i: Fraction(1)}).items():
                slopes[j] = slopes.get(j, ZERO) + c * q
        pivots = 0
        while True:
            enter = [j for j, d in slopes.items() if d and self._can_move(j, d)]
            if not enter:
                return {j: d for j, d in slopes.items() if d}
            greedy = pivots < _GREEDY_PIVOTS
            j = max(enter, key=lambda v: (abs(slopes[v]), -v)) if greedy else min(enter)
            step, leave = self._ratio(j, up=slopes[j] > 0)
            if step is None:
                return None
            self._move(j, step if slopes[j] > 0 else -step)
            if leave is not None:
                self._pivot(leave, j)
                d = slopes.pop(j)
                for v, q in self.rows[j].items():
                    slopes[v] = slopes.get(v, ZERO) + d * q
            pivots += 1

    def _ratio(self, j: int, *, up: bool) -> tuple[Fraction | None, int | None]:
        """Return the longest step of nonbasic j and the basic variable that stops it (None: j's own end)."""
        end = self.upper[j] if up else self.lower[j]
        step = None if end is None else abs(end - self.value[j])
        leave: int | None = None
        for b in sorted(self.rows):
            q = self.rows[b].get(j)
            if not q:
                continue
            stop = self.upper[b] if (q > 0) == up else self.lower[b]
            if stop is None:
                continue
            room = abs((stop - self.value[b]) / q)
            if step is None or room < step:
                step, leave = room, b
        return step, leave

    def _excess(self, b: int) -> Fraction:
        low, high, value = self.lower[b], self.upper[b], self.value[b]
        if low is not None and value < low:
            return value - low
        if high is not None and value > high:
            return value - high
        return ZERO

    def _can_move(self, j: int, direction: Fraction) -> bool:
        end = self.upper[j] if direction > 0 else self.lower[j]
        return end is None or (self.value[j] < end if direction > 0 else self.value[j] > end)

    def _move(self, j: int, step: Fraction) -> None:
        self.value[j] += step
        for b, form in self.rows.items():
            q = form.get(j)
            if q:
                self.value[b] += q * step

    def _pivot(self, leave: int, enter: int) -> None:
        form = self.rows.pop(leave)
        scale = form.pop(enter)
        solved = {v: -q / scale for v, q in form.items()}
        solved[leave] = 1 / scale
        for other in self.rows.values():
            q = other.pop(enter, None)
            if q is None:
                continue
            for v, s in solved.items():
                total = other.get(v, ZERO) + q * s
                if total:
                    other[v] = total
                else:
                    other.pop(v, None)
        self.rows[enter] = solved

    def _refutation(self, leave: int, excess: Fraction) -> tuple[Fraction, ...]:
        """Return multipliers from the broken row: all nonbasic variables already push it as far as it goes."""
        sign = 1 if excess > 0 else -1
        multipliers = [ZERO] * self.k
        for v, q in self.rows[leave].items():
            if v >= self.n:
                multipliers[v - self.n] = -sign * q
        if leave >= self.n:
            multipliers[leave - self.n] = Fraction(sign)
        return tuple(multipliers)


def _start(low: End, high: End) -> Fraction:
    if low is not None:
        return low
    return high if high is not None else ZERO
