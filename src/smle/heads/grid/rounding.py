"""From real points to whole ones: nearest points under linear rows, and roundings that keep sums. Nothing is proved.

All functions work on many rows at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["cumulative", "exchanged", "nearest_in_box", "nearest_on_sum", "nearest_under", "remainders", "snapped"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
THETA = 0.4871393  # not a half, where data have ties
_FINE = 2.0**20
_CLOSE = 1e-3  # of a step: tolerance for the sum of real points
_NEWTON, _DAMPED, _ACTIVE, _SWEEPS = 40, 120, 15, 200


def nearest_on_sum(p: Array, lower: Array, upper: Array, total: Array, cost: Array) -> Array:
    """Return the nearest points with a given sum between limits: minimize sum cost (z - p)^2.

    Shapes: p (n, m), total (n,), cost (m,), limits (n, m) or (m,).

    `z = clip(p - mu / cost, lower, upper)`, with mu by Newton's method, in a bracket.
    """
    share = 1.0 / cost
    even = bool((share == share[0]).all())
    mu = (p.sum(axis=1) - total) / share.sum()
    result = p - (mu * share[0])[:, None] if even else p - mu[:, None] * share
    outside = np.flatnonzero(((result < lower) | (result > upper)).any(axis=1))
    if not len(outside):
        return np.asarray(result)
    every = len(outside) == len(p)
    p, total, mu = (p, total, mu) if every else (p[outside], total[outside], mu[outside])
    lower, upper = (side if side.ndim == 1 or every else side[outside] for side in (lower, upper))
    low, high = np.full(len(p), -np.inf), np.full(len(p), np.inf)
    z, free = np.empty_like(p), np.empty(p.shape, dtype=bool)
    for _ in range(_NEWTON):
        np.subtract(p, (mu * share[0])[:, None] if even else mu[:, None] * share, out=z)
        np.maximum(z, lower, out=z)
        np.minimum(z, upper, out=z)
        gap = z.sum(axis=1) - total
        if (np.abs(gap) <= _CLOSE).all():
            break
        low, high = np.where(gap > 0, np.maximum(low, mu), low), np.where(gap < 0, np.minimum(high, mu), high)
        np.greater(z, lower, out=free)
        free &= z < upper
        slope = np.count_nonzero(free, axis=1) * share[0] if even else free @ share
        step = np.where(slope > 0, gap / np.where(slope > 0, slope, 1.0), np.sign(gap) * (1.0 + np.abs(mu)))
        fresh = mu + step
        inside = (fresh > low) & (fresh < high)
        middle = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, fresh)
        mu = np.where(np.abs(gap) <= _CLOSE, mu, np.where(inside, fresh, middle))
    if every:
        return z
    result[outside] = z
    return np.asarray(result)


def nearest_in_box(p: Array, lower: Array, upper: Array, rows: Array, right: Array, equal: Mask, cost: Array) -> Array:
    """Return nearest points between limits with `rows z <= right`, or `==` where `equal`; infinite ones do not bind.

    Minimize sum cost (z - p)^2. Given multipliers, z is a clip. There are few multipliers, found for many points at
    once by Newton's method, damped if a step does not help. Shapes: p, limits (n, m), rows (k, m), right (n, k), cost
    (m,).
    """
    n, k = right.shape
    share = 1.0 / cost
    bound = np.isfinite(right)
    goal = np.where(bound, right, 0.0)
    mu, z = np.zeros((n, k)), np.clip(p, lower, upper)
    scale = np.abs(rows).sum(axis=1)

    def value(z: Array, mu: Array, own: npt.NDArray[np.intp]) -> Array:
        gap = z @ rows.T - goal[own]
        return np.asarray(0.5 * (cost * (z - p[own]) ** 2).sum(axis=1) + (mu * gap).sum(axis=1))

    left, damping, full = np.arange(n), np.full(n, 1e-8), (rows**2) @ share
    for _ in range(_DAMPED):
        gap = z[left] @ rows.T - goal[left]
        on = bound[left] & (equal | (mu[left] > 0) | (gap > 0))
        residual = np.where(on, gap, 0.0)
        wrong = (np.abs(residual) > 1e-6 * scale).any(axis=1)
        left, on, residual = left[wrong], on[wrong], residual[wrong]
        if not len(left):
            break
        free = np.where((z[left] > lower[left]) & (z[left] < upper[left]), share, 0.0)
        J = (rows * free[:, None, :]) @ rows.T
        both = on[:, :, None] & on[:, None, :]
        more = np.where(on, damping[left, None] * full, 1.0)
        J = np.where(both, J, 0.0) + np.eye(k) * more[:, None, :]
        step = np.linalg.solve(J, residual[:, :, None])[:, :, 0]
        fresh = mu[left] + step
        fresh = np.where(equal, fresh, np.maximum(fresh, 0.0))
        point = np.clip(p[left] - (fresh @ rows) * share, lower[left], upper[left])
        before = value(z[left], mu[left], left)
        better = value(point, fresh, left) >= before - 1e-13 * np.abs(before)
        mu[left[better]], z[left[better]] = fresh[better], point[better]
        damping[left] = np.where(better, np.maximum(damping[left] / 8, 1e-12), np.minimum(damping[left] * 30, 1e6))
    return z


def nearest_under(v: Array, N: Array, b: Array) -> Array:
    """Return the nearest points with N z <= b; rows of N have norm 1, b (n, J) may be infinite. Shapes v (n, f).

    Active sets are guessed all at once (primal-dual); if that does not settle, rows are visited in turn (Hildreth).
    """
    excess = v @ N.T - b
    bad = np.flatnonzero((excess > 1e-9).any(axis=1))
    if not len(bad):
        return v
    result, own = v.copy(), excess[bad]
    used = np.flatnonzero(np.isfinite(b[bad]).any(axis=0))
    G, s = N[used] @ N[used].T, np.where(np.isfinite(own[:, used]), own[:, used], -1e30)
    multipliers, settled = _active_sets(G, s)
    open_ = np.flatnonzero(~settled)
    if len(open_):
        multipliers[open_] = _hildreth(G, s[open_])
    result[bad] = v[bad] - multipliers @ N[used]
    return result


def _active_sets(G: Array, s: Array) -> tuple[Array, Mask]:
    n, J = s.shape
    active, multipliers = s > 0, np.zeros((n, J))
    settled, eye = np.zeros(n, dtype=bool), np.eye(J)
    if J > 80:
        return multipliers, settled
    for _ in range(_ACTIVE):
        left = np.flatnonzero(~settled)
        if not len(left):
            break
        on = active[left]
        both = on[:, :, None] & on[:, None, :]
        system = np.where(both, G, 0.0) + eye * np.where(on, 1e-10, 1.0)[:, None, :]
        found = np.linalg.solve(system, np.where(on, s[left], 0.0)[:, :, None])[:, :, 0]
        fresh = found + (s[left] - found @ G) > 1e-9
        same = (fresh == on).all(axis=1)
        multipliers[left[same]] = np.maximum(found[same], 0.0)
        settled[left[same]] = True
        active[left] = fresh
    return multipliers, settled


def _hildreth(G: Array, s: Array) -> Array:
    multipliers = np.zeros_like(s)
    for _ in range(_SWEEPS):
        before = multipliers.copy()
        for j in range(s.shape[1]):
            multipliers[:, j] = np.maximum(0.0, multipliers[:, j] + s[:, j] - multipliers @ G[:, j])
        if np.abs(multipliers - before).max() < 1e-7:
            break
    return multipliers


def snapped(z: Array) -> Array:
    """Round to multiples of 2^-20 of a step, since the last bits of sums depend on the batch."""
    return np.asarray(np.rint(z * _FINE) / _FINE)


def cumulative(z: Array, theta: float = THETA) -> Array:
    """Round so that every sum of neighbors keeps every whole limit that it kept: diff(floor(cumsum(z) + theta))."""
    whole = np.cumsum(z, axis=1)
    whole += theta
    np.floor(whole, out=whole)
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
    """Move single steps from one output to another as long as that brings a row nearer; the sum stays."""
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
