"""Random rules that some answer obeys everywhere, and a check of candidates like the head's, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import yaml

from smle.errors import RuleError
from smle.nearest import Proposals
from smle.rules import ClauseArrays, Specification

TINY = 2.0**-126


def random_rules(
    rng: np.random.Generator, *, rules: tuple[int, int] = (2, 12), outputs: tuple[int, int] = (1, 4)
) -> tuple[Specification, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Return rules, the outputs' units (1e-3 to 1e6), and an answer that obeys them, as a function of the inputs."""
    d, m = int(rng.integers(1, 4)), int(rng.integers(outputs[0], outputs[1] + 1))
    unit = 10.0 ** rng.uniform(-3, 6, m)
    offset, slope = rng.normal(0, 1, m), rng.normal(0, 1, (m, d)) * (rng.random() < 0.5)

    def literal(holds: bool) -> str:
        width = 1 if m == 1 or rng.random() < 0.5 else int(rng.integers(2, m + 1))
        used, w = rng.choice(m, width, replace=False), rng.normal(0, 1, width)
        room = rng.exponential(0.5) + 0.05
        if not holds and rng.random() < 0.5:
            room = -room
        left = " + ".join(f"{w[i] / unit[c]:.9g} * y{c}" for i, c in enumerate(used))
        moving = "".join(f" + {v:.9g} * x{j}" for j, v in enumerate(w @ slope[used]) if v)
        return f"{left} {'<' if rng.random() < 0.2 else '<='} {w @ offset[used] + room:.9g}{moving}"

    while True:
        stated = []
        for r in range(int(rng.integers(rules[0], rules[1] + 1))):
            count = 1 if rng.random() < 0.6 else int(rng.integers(2, 4))
            rule = {"name": f"r{r}", "then": " or ".join(literal(i == 0) for i in range(count))}
            if rng.random() < 0.6:
                rule["when"] = f"x{rng.integers(d)} {rng.choice(['<=', '>='])} {rng.uniform(0.2, 0.8):.3g}"
            stated.append(rule)
        inputs, names = {f"x{j}": [0, 1] for j in range(d)}, [f"y{i}" for i in range(m)]
        try:
            spec = Specification.from_yaml(yaml.safe_dump({"inputs": inputs, "outputs": names, "rules": stated}) + "\n")
        except RuleError:  # an alternative that is always true
            continue
        return spec, unit, lambda X: (offset + X @ slope.T) * unit


def thresholds(clauses: ClauseArrays, reach: np.ndarray) -> np.ndarray:
    """Return what a checked sum may be at most, for outputs up to `reach` and inputs up to 1."""
    size = np.abs(clauses.g) @ reach + np.abs(clauses.s).sum(axis=1) + np.abs(clauses.h)
    error = 2.0**-52 * size * (2 + clauses.g.shape[1] + clauses.s.shape[1])
    error[((clauses.g != 0).sum(axis=1) == 1) & ~clauses.s.any(axis=1)] = 0.0
    below = np.minimum(np.nextafter(clauses.h - error, -np.inf), clauses.h - error - TINY)
    return np.where(clauses.strict, below, clauses.h - error)


def rounded(y: np.ndarray) -> np.ndarray:
    """Return what is served: float32 numbers, 0 where they are nearer to 0 than normal ones."""
    result = y.astype(np.float32).astype(np.float64)
    result[np.abs(result) < TINY] = 0.0
    return result


def passes(clauses: ClauseArrays, checked: np.ndarray, active: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return whether answers satisfy all active clauses and exclusions, (n,)."""
    count = len(clauses.rule)
    holds = y @ clauses.g.T + X @ clauses.s.T <= checked
    ok = np.isfinite(y).all(axis=1)
    for c in range(count):
        ok &= ~active[:, c] | holds[:, clauses.clause == c].any(axis=1)
    for e, (_, pairs) in enumerate(clauses.exclusions):
        both = (y[:, pairs[:, 0]] >= 0) & (y[:, pairs[:, 1]] >= 0)
        ok &= ~active[:, count + e] | ~both.any(axis=1)
    return ok


def served(
    proposals: Proposals,
    clauses: ClauseArrays,
    checked: np.ndarray,
    active: np.ndarray,
    X: np.ndarray,
    t: np.ndarray,
    safe: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return answers, and which candidate serves each row: 0 the model's own, -1 the safe answer."""
    y, step = t.copy(), np.zeros(len(t), dtype=int)
    rows = np.flatnonzero(~passes(clauses, checked, active, X, t))
    y[rows], step[rows] = safe[rows], -1
    candidates = proposals.further(*proposals.first(active[rows], X[rows], t[rows]), safe[rows])
    open_, number = None, 0
    while len(rows):
        try:
            candidate = rounded(candidates.send(open_)[0])
        except StopIteration:
            break
        number += 1
        good = passes(clauses, checked, active[rows], X[rows], candidate)
        y[rows[good]], step[rows[good]] = candidate[good], number
        rows, open_ = rows[~good], ~good
    return y, step
