"""The corrector for limits: coordinates in which what the rules allow is a box.

In a cell whose clauses, under weights lambda, are half-spaces along independent directions `low <= G y <= high`, write
the outputs in the coordinates

    t = C y,   C = (rows of G; a basis of the rest, the outputs themselves where G does not mention them)

Clipping t to a box with `low + margin <= t_k <= high - margin` for the rows of G keeps exactly the outputs that satisfy
them, and moves others within the span of G alone. So the embedding is t, shifted and scaled to [-1, 1], and the head is
`C^-1`. The weights lambda are fitted: one linear program per clause, the least mean violation over given outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from smle.guarantees import PlainClause
from smle.solvers import LinearProgram, Status, solve

__all__ = ["Block", "Limits", "fit_weights", "half_spaces", "limits"]

Array = npt.NDArray[np.float64]
HalfSpace = tuple[Array, float]
FIRST_MARGIN, DOUBLINGS = 2.0**-22, 14  # of margins that cover rounding, in units of the largest number of a head
_LP_ROWS = 2000
_ROOM = 1e-3  # price of room, against violations
_SPARE = 1.0  # the box reaches beyond the outputs seen by this share of their range, on either side
_SAME = 1e-9  # unit vectors nearer than this are one direction
_INDEPENDENT = 1e-3  # distance of a unit vector from the span of others; below it float32 would lose too much
_CANCELED = 0.1  # a mixture of literals that is shorter than this share of them has lost what they ask


class Block(NamedTuple):
    """A way to correct outputs y: W clip(M y + c) + b, clipped to [-1, 1]. Shapes (u, m), (u,), (m, u), (m,)."""

    M: Array
    c: Array
    W: Array
    b: Array

    def __call__(self, y: Array) -> Array:
        """Return the corrected outputs (N, m), in float64."""
        z = np.clip(y @ self.M.T + self.c, -1.0, 1.0)
        return np.asarray(z @ self.W.T + self.b)


@dataclass(frozen=True, eq=False)
class Limits:
    """t = C y with the box lower <= t <= upper of what was seen; the rules ask low <= t <= high.

    Shapes: C (m, m), the arrays (m,); low and high are infinite where nothing is asked: behind the first `asked`
    coordinates. `left` counts what is asked along none of them.
    """

    C: Array
    lower: Array
    upper: Array
    low: Array
    high: Array
    asked: int
    left: int

    @property
    def units(self) -> int:
        """Width of the embedding."""
        return len(self.C)

    def blocks(self) -> Iterator[Block]:
        """Yield corrections that keep the rules with growing margins."""
        inverse, box = np.linalg.inv(self.C), self.boxed(0.0)
        margin = 0.0 if box is None else FIRST_MARGIN * float(np.abs(box).max())
        for _ in range(DOUBLINGS):
            box = self.boxed(margin)
            if box is None:
                return
            middle, half = (box[1] + box[0]) / 2, (box[1] - box[0]) / 2
            yield Block(self.C / half[:, None], -middle / half, inverse * half, inverse @ middle)
            margin *= 2

    def boxed(self, margin: float) -> tuple[Array, Array] | None:
        """Return the box that keeps the rules with a margin, None if it is empty.

        Where a rule excludes nearly all that was seen, a quarter of that range remains beside its limit.
        """
        low, high = self.low + margin, self.high - margin
        quarter = (self.upper - self.lower) / 4
        lower = np.minimum(np.maximum(self.lower, low), np.maximum(high - quarter, low))
        upper = np.maximum(np.minimum(self.upper, high), np.minimum(low + quarter, high))
        return (lower, upper) if (lower < upper).all() else None


def limits(halves: Iterable[HalfSpace], seen: Array) -> Limits:
    """Return coordinates of which the first are limited by half-spaces. Shape: seen (N, m)."""
    rows, low, high, left = _directions(halves, seen.shape[1])
    C = _completed(rows)
    t = seen @ C.T
    lower, upper = t.min(axis=0), t.max(axis=0)
    spare = _SPARE * (upper - lower) + 1e-3 * (float(np.abs(t).max()) or 1.0)
    more = np.full(len(C) - len(rows), np.inf)
    return Limits(
        C, lower - spare, upper + spare, np.append(low, -more), np.append(high, more), asked=len(rows), left=left
    )


def half_spaces(clauses: Iterable[PlainClause], seen: Array) -> Iterator[HalfSpace]:
    """Yield half-spaces g.y <= h, ||g|| = 1, that imply the clauses: plain limits first, then alternatives.

    Of alternatives the combination of literals that is obeyed best is asked, and nothing if one is asked already.
    """
    known: list[HalfSpace] = []
    for clause in sorted(clauses, key=lambda clause: len(clause.literals)):
        g, h = np.zeros((len(clause.literals), seen.shape[1])), np.zeros(len(clause.literals))
        for j, literal in enumerate(clause.literals):
            g[j, literal.outputs], h[j] = literal.g / literal.norm, literal.h / literal.norm
        if any(limit <= h[j] and np.linalg.norm(row - g[j]) < _SAME for row, limit in known for j in range(len(g))):
            continue
        excess = seen @ g.T - h
        weights = fit_weights(excess)
        if np.linalg.norm(weights @ g) < _CANCELED:
            weights = np.eye(len(g))[np.argmin(np.maximum(excess, 0).mean(axis=0))]
        norm = float(np.linalg.norm(weights @ g))
        known.append((weights @ g / norm, float(weights @ h) / norm))
        yield known[-1]


def _directions(halves: Iterable[HalfSpace], m: int) -> tuple[Array, Array, Array, int]:
    """Return independent rows (k, m) with limits low, high (k,), and how many half-spaces lie along none."""
    rows, low, high = np.zeros((0, m)), np.zeros(0), np.zeros(0)
    left = 0
    for g, h in halves:
        same = np.flatnonzero(np.linalg.norm(rows - g, axis=1) < _SAME)
        opposite = np.flatnonzero(np.linalg.norm(rows + g, axis=1) < _SAME)
        high[same], low[opposite] = np.minimum(high[same], h), np.maximum(low[opposite], -h)
        if len(same) or len(opposite):
            continue
        within = rows.T @ np.linalg.lstsq(rows.T, g, rcond=None)[0]
        if np.linalg.norm(g - within) < _INDEPENDENT:
            left += 1
            continue
        rows, low, high = np.vstack([rows, g]), np.append(low, -np.inf), np.append(high, h)
    return rows, low, high, left


def _completed(rows: Array) -> Array:
    """Return an invertible matrix (m, m) that begins with the rows (k, m); outputs they leave out stay as they are."""
    m = rows.shape[1]
    used = np.flatnonzero(rows.any(axis=0))
    basis = np.zeros((len(used) - len(rows), m))
    if len(basis):
        basis[:, used] = np.linalg.svd(rows[:, used])[2][len(rows) :]
    return np.vstack([rows, basis, np.delete(np.eye(m), used, axis=0)])


def fit_weights(excess: Array) -> Array:
    """Return the weights on the simplex (J,) that minimize the mean of max(0, excess . weights) over rows (N, J).

    A linear program in the weights and one violation per row; at most 2,000 rows, evenly spaced, take part. Among
    equals, weights that leave more room on average.
    """
    rows = excess[:: max(1, -(-len(excess) // _LP_ROWS))]
    N, J = rows.shape
    if J == 1:
        return np.ones(1)
    scale = float(np.abs(rows).max()) or 1.0
    A = np.vstack([np.hstack([rows / scale, -np.eye(N)]), np.concatenate([np.ones(J), np.zeros(N)])])
    problem = LinearProgram(
        np.concatenate([_ROOM * rows.mean(axis=0) / scale, np.full(N, 1.0 / N)]),
        A,
        np.append(np.full(N, -np.inf), 1.0),
        np.append(np.zeros(N), 1.0),
        np.zeros(J + N),
        np.full(J + N, np.inf),
    )
    found = solve(problem)
    if found.status is not Status.OPTIMAL or found.x is None:
        return np.full(J, 1.0 / J)  # any weights are safe; these treat the literals alike
    positive = np.maximum(found.x[:J], 0.0)
    weights: Array = positive / positive.sum()
    return weights
