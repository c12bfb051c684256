"""The vertices of small polytopes. A convex function is largest at one, so no linear program is needed."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

__all__ = ["vertices"]

Array = npt.NDArray[np.float64]

_MOST = 60_000  # systems of equations to try
_SLACK = 1e-9  # tolerance for "inside", relative to the size of a row's terms


def vertices(low: Array, high: Array, A: Array, a: Array) -> Array | None:
    """Return the vertices (v, d) of {x in [low, high] : A x <= a}, or None if there are too many systems or no vertex.

    At a vertex some rows are tight; as many inputs lie between their ends, and the others are at an end.
    """
    d, rows = len(low), len(A)
    if sum(comb(rows, k) * comb(d, k) * 2 ** (d - k) for k in range(min(rows, d) + 1)) > _MOST:
        return None
    sides = {n: (np.arange(2**n)[:, None] >> np.arange(n)) & 1 for n in range(d + 1)}
    found = [np.where(sides[d] == 1, high, low)]
    for k in range(1, min(rows, d) + 1):
        for inner in combinations(range(d), k):
            outer = [i for i in range(d) if i not in inner]
            corners = np.where(sides[len(outer)] == 1, high[outer], low[outer])
            for tight in combinations(range(rows), k):
                matrix = A[np.ix_(tight, inner)]
                scale = np.abs(matrix).max()
                if not scale > 0 or abs(np.linalg.det(matrix / scale)) < 1e-12:
                    continue
                x = np.empty((len(corners), d))
                x[:, outer] = corners
                x[:, inner] = np.linalg.solve(matrix, (a[list(tight)] - corners @ A[np.ix_(tight, outer)].T).T).T
                found.append(x)
    points = np.concatenate(found)
    reach = np.maximum(np.abs(low), np.abs(high))
    slack, edge = _SLACK * (np.abs(A) @ reach + np.abs(a)), _SLACK * np.maximum(reach, 1e-300)
    inside = ((points >= low - edge) & (points <= high + edge)).all(axis=1) & (points @ A.T <= a + slack).all(axis=1)
    points = np.clip(points[inside], low, high)
    return points if len(points) else None
