"""From real points to whole ones: nearest points under linear rows, and roundings that keep sums. Nothing is proved.

All functions work on many rows at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["cumulative", "exchanged", "floors", "nearest_in_box", "nearest_on_sum", "of", "remainders", "snapped"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
THETA = 0.4871393  # not 0.5, because data have ties there
_FINE = 2.0**20
_CLOSE = 1e-3  # steps by which the sum of real points may be off
_NEWTON, _DAMPED = 40, 120


def of(values: npt.NDArray[Any], rows: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return some rows of values; a single row serves for all."""
    return values if len(values) == 1 else values[rows]


def nearest_on_sum(p: Array, lower: Array, upper: Array, total: Array, cost: Array) -> Array:
    """Return the nearest points with a given sum between limits: minimize sum cost (z - p)^2.

    Shapes: p (n, m), total (n,), cost (m,), limits (n, m); a single total or row of limits serves for all.

    `z = clip(p - mu / cost, lower, upper)`, with mu by Newton's method, in a bracket.
    """
    share = 1.0 / cost
    even = bool((share == share[0]).all())
    mu = (p.sum(axis=1) - total) / share.sum()
    result = p - (mu * share[0])[:, None] if even else p - mu[:, None] * share
    outside = ((result < lower) | (result > upper)).any(axis=1).nonzero()[0]
    if not len(outside):
        return np.asarray(result)
    every = len(outside) == len(p)
    if not every:
        p, mu = p[outside], mu[outside]
        lower, upper, total = of(lower, outside), of(upper, outside), of(total, outside)
    low, high = np.full(len(p), -np.inf), np.full(len(p), np.inf)
    z, free, ones = np.empty_like(p), np.empty(p.shape, dtype=bool), np.ones(len(share))
    for _ in range(_NEWTON):
        np.subtract(p, (mu * share[0])[:, None] if even else mu[:, None] * share, out=z)
        np.maximum(z, lower, out=z)
        np.minimum(z, upper, out=z)
        gap = z.sum(axis=1) - total
        close = np.abs(gap) <= _CLOSE
        if close.all():
            break
        low, high = np.where(gap > 0, np.maximum(low, mu), low), np.where(gap < 0, np.minimum(high, mu), high)
        np.greater(z, lower, out=free)
        free &= z < upper
        slope = free.dot(ones) * share[0] if even else free @ share
        flat = slope <= 0
        fresh = mu + gap / np.where(flat, 1.0, slope)
        if flat.any():
            fresh = np.where(flat, mu + np.sign(gap) * (1.0 + np.abs(mu)), fresh)
        beyond = (fresh <= low) | (fresh >= high)
        if beyond.any():
            fresh = np.where(beyond & np.isfinite(low) & np.isfinite(high), (low + high) / 2, fresh)
        mu = np.where(close, mu, fresh)
    if every:
        return z
    result[outside] = z
    return np.asarray(result)


def nearest_in_box(p: Array, lower: Array, upper: Array, rows: Array, right: Array, equal: Mask, cost: Array) -> Array:
    """Return nearest points between limits with `rows z <= right`, or `==` where `equal`; infinite ones do not bind.

    Minimize sum cost (z - p)^2. Given multipliers, z is a clip. The multipliers are few, and Newton's method finds them
    for many points at once, damped where a step does not help. Shapes: p, limits (n, m), rows (k, m), right (n, k),
    cost (m,); a single row of limits or of right sides serves for all.
    """
    n, k = len(p), len(rows)
    share, half, bound = 1.0 / cost, cost / 2, np.isfinite(right)
    goal = np.where(bound, right, 0.0)
    scale, full, every = 1e-6 * np.abs(rows).sum(axis=1), (rows**2) @ share, bool(equal.all() and bound.all())

    def value(z: Array, mu: Array) -> tuple[Array, Array]:
        """Return by how much rows are exceeded, and the dual value."""
        gap, apart = z @ rows.T - goal, z - p
        return gap, (apart * apart) @ half + (mu * gap).sum(axis=1)

    z, mu, damping = np.minimum(np.maximum(p, lower), upper), np.zeros((n, k)), np.full((n, 1), 1e-8)
    gap, worth = value(z, mu)
    result, left = z, np.arange(n)
    for _ in range(_DAMPED):
        on = bound if every else bound & (equal | (mu > 0) | (gap > 0))
        residual = gap if every else np.where(on, gap, 0.0)
        wrong = (np.abs(residual) > scale).any(axis=1)
        if not wrong.all():
            result[left] = z
            own = wrong.nonzero()[0]
            if not len(own):
                return result
            left, p, z, mu, gap, worth, damping, residual = (
                part[own] for part in (left, p, z, mu, gap, worth, damping, residual)
            )
            lower, upper, bound, goal, on = (of(part, own) for part in (lower, upper, bound, goal, on))
        J = (rows * np.where((z > lower) & (z < upper), share, 0.0)[:, None, :]) @ rows.T
        if not every:
            J *= on[:, :, None] & on[:, None, :]
        J.reshape(len(J), k * k)[:, :: k + 1] += damping * full if every else np.where(on, damping * full, 1.0)
        fresh = mu + np.linalg.solve(J, residual[:, :, None])[:, :, 0]
        if not every:
            fresh = np.where(equal, fresh, np.maximum(fresh, 0.0))
        point = np.minimum(np.maximum(p - (fresh @ rows) * share, lower), upper)
        over, after = value(point, fresh)
        better = after >= worth - 1e-13 * np.abs(worth)
        stiffer, damping = np.minimum(damping * 30, 1e6), np.maximum(damping / 8, 1e-12)
        if not better.all():
            same = ~better
            damping[same] = stiffer[same]
            point[same], fresh[same], over[same], after[same] = z[same], mu[same], gap[same], worth[same]
        z, mu, gap, worth = point, fresh, over, after
    result[left] = z
    return result


def snapped(z: Array) -> Array:
    """Round to multiples of 2^-20 of a step, since the last bits of sums depend on the batch."""
    return np.asarray(np.rint(z * _FINE) / _FINE)


def floors(z: Array) -> Array:
    """Return cumulative sums as whole numbers; their differences keep each whole limit that sums of neighbors kept."""
    return np.asarray(np.floor(np.cumsum(z, axis=1) + THETA))


def cumulative(z: Array) -> Array:
    """Round so that every sum of neighbors keeps every whole limit that it kept: diff(floor(cumsum(z) + theta))."""
    whole = floors(z)
    result = np.empty_like(whole)
    result[:, 0] = whole[:, 0]
    np.subtract(whole[:, 1:], whole[:, :-1], out=result[:, 1:])
    return result


def remainders(z: Array, p: Array, upper: Array, total: Array, cost: Array) -> Array:
    """Round down, then add what is missing from the sum where that costs least. Shapes (n, m), (n,)."""
    base = np.floor(z + 1e-7)
    price = np.where(base + 1 <= upper, cost * (2 * (base - p) + 1), np.inf)
    missing = np.rint(total - base.sum(axis=1))
    rank = np.argsort(np.argsort(price, axis=1), axis=1)
    return np.asarray(base + (rank < missing[:, None]))


def exchanged(k: Array, p: Array, lower: Array, upper: Array, cost: Array, rounds: int = 4) -> Array:
    """Move single steps from one output to another, up to `rounds` times, if that brings a row nearer; sums stay."""
    k, rows = k.copy(), np.arange(len(k))
    for _ in range(rounds):
        more = np.where(k + 1 <= upper, cost * (2 * (k - p) + 1), np.inf)
        less = np.where(k - 1 >= lower, cost * (1 - 2 * (k - p)), np.inf)
        up, down = more.argmin(axis=1), less.argmin(axis=1)
        gain = more[rows, up] + less[rows, down] < -1e-9
        if not gain.any():
            break
        k[rows[gain], up[gain]] += 1
        k[rows[gain], down[gain]] -= 1
    return k
