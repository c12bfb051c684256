"""Linear programs in rationals: the judge where a float solver's word is not a proof.

    maximize c.x   subject to   row_lower <= A x <= row_upper,   lower <= x <= upper

None stands for an end that is not there. The method is the bounded-variable simplex on a dictionary whose rows
are sparse; Bland's rule takes over after a while, so it always ends. Meant for small problems (tens of rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["ExactInfeasible", "ExactOptimal", "ExactUnbounded", "maximize", "priced_bound"]

SparseRow = Sequence[tuple[int, Fraction]]
End = Fraction | None
ZERO = Fraction(0)
_GREEDY_PIVOTS = 200


@dataclass(frozen=True)
class ExactOptimal:
    """An optimum `x`, its value, and one multiplier per row (>= 0: upper end, <= 0: lower end) that proves it.

    value = sum_r max(m_r upper_r, m_r lower_r) + sum_i max over [lower_i, upper_i] of (c - A'm)_i x_i.
    """

    x: tuple[Fraction, ...]
    value: Fraction
    multipliers: tuple[Fraction, ...]


@dataclass(frozen=True)
class ExactInfeasible:
    """No point exists: with c = 0 the multipliers give an upper bound on 0 that is negative."""

    multipliers: tuple[Fraction, ...]


@dataclass(frozen=True)
class ExactUnbounded:
    """The objective has no upper end; `x` is a feasible point."""

    x: tuple[Fraction, ...]


def maximize(
    objective: SparseRow,
    rows: Sequence[SparseRow],
    *,
    row_lower: Sequence[End],
    row_upper: Sequence[End],
    lower: Sequence[End],
    upper: Sequence[End],
) -> ExactOptimal | ExactInfeasible | ExactUnbounded:
    """Solve a linear program exactly. Shapes: rows (k), variables (n)."""
    n, k = len(lower), len(rows)
    if not (len(upper) == n and len(row_lower) == k and len(row_upper) == k):
        raise ValueError("Expected one end per variable and per row on either side.")
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if low is not None and high is not None and low > high:
            raise ValueError(f"Expected lower <= upper. Got an empty range for variable {i}.")
    for low, high in zip(row_lower, row_upper, strict=True):
        if low is not None and high is not None and low > high:
            raise ValueError("Expected row_lower <= row_upper. Got an empty range for a row.")
    tableau = _Tableau(rows, [*lower, *row_lower], [*upper, *row_upper], n)
    refutation = tableau.restore()
    if refutation is not None:
        return ExactInfeasible(refutation)
    slopes = tableau.climb(objective)
    x = tuple(tableau.value[:n])
    if slopes is None:
        return ExactUnbounded(x)
    value = sum((c * x[i] for i, c in objective), ZERO)
    return ExactOptimal(x, value, tuple(slopes.get(n + r, ZERO) for r in range(k)))


def priced_bound(
    multipliers: Sequence[tuple[SparseRow, Fraction, Fraction]],
    lower: Sequence[Fraction],
    upper: Sequence[Fraction],
    objective: SparseRow = (),
) -> Fraction:
    """Bound c.x from above by multipliers (row, bound, m >= 0) for rows `row . x <= bound`; residuals are priced.

    sum_r m_r a_r + sum_i max(e_i lower_i, e_i upper_i),  e = c - A'm. Any m >= 0 gives a valid bound.
    """
    total = ZERO
    residual: dict[int, Fraction] = {}
    for i, c in objective:
        residual[i] = residual.get(i, ZERO) + c
    for row, bound, m in multipliers:
        if m < 0:
            raise ValueError("Expected multipliers >= 0. Got a negative one.")
        total += m * bound
        for i, q in row:
            residual[i] = residual.get(i, ZERO) - m * q
    for i, e in residual.items():
        total += e * (upper[i] if e > 0 else lower[i])
    return total


class _Tableau:
    """Basic variables as sparse linear forms of the nonbasic ones; the latter sit at their ends.

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
        """Reach a feasible dictionary, or return the multipliers of the rows that show there is none."""
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
        """All nonbasic variables push the broken one as far as it goes: that is the proof."""
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
