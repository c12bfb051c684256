"""Synthetic regression: estimate (sum_j x_j)^k for k in K under random linear properties `Q x <= q => R y <= r`.

Data and properties are those of the paper, drawn anew from its seeds: 9 tasks (n inputs, powers K), 6 properties each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smle.rules import Specification, linear_rule
from studies.experiments.tasks import TOLERANCE, Array, Flags, Task

POWERS = {"easy": (1, 2), "medium": (3, 4), "hard": (1, 2, 3, 4)}

SEEDS: dict[tuple[int, str], tuple[tuple[int, int], ...]] = {
    (2, "easy"): ((48, 74), (48, 35), (39, 84), (39, 104), (54, 82), (40, 82)),
    (2, "medium"): ((48, 19), (39, 19), (47, 19), (57, 19), (54, 47), (40, 47)),
    (2, "hard"): ((47, 24), (29, 24), (8, 38), (19, 24), (40, 6), (19, 37)),
    (4, "easy"): ((5, 11), (10, 12), (10, 0), (24, 27), (26, 18), (26, 27)),
    (4, "medium"): ((29, 19), (5, 11), (6, 8), (5, 0), (26, 20), (9, 13)),
    (4, "hard"): ((5, 19), (5, 6), (6, 27), (6, 10), (9, 6), (9, 10)),
    (8, "easy"): ((20, 29), (9, 6), (6, 17), (12, 2), (2, 18), (21, 16)),
    (8, "medium"): ((6, 19), (6, 29), (20, 16), (6, 26), (9, 23), (6, 2)),
    (8, "hard"): ((20, 22), (6, 21), (9, 11), (2, 10), (27, 7), (2, 27)),
}
"""Seeds of input region and output region of P1..P6, by inputs and task; harder ones come later."""


@dataclass(frozen=True, eq=False)
class SyntheticData:
    """Inputs in [-1, 1]^n, targets standardized with the training part; interpolation and extrapolation apart.

    `parts`: the 1,000 test rows alone, (X, y) in distribution, of the interpolation and of the extrapolation set.
    """

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    interpolation: tuple[Array, Array]
    extrapolation: tuple[Array, Array]
    parts: tuple[tuple[Array, Array], ...]


@dataclass(frozen=True, eq=False)
class SyntheticProperty:
    """One property of one task: Q x <= q => R y <= r where |x_j| <= 2."""

    inputs: int
    task: str
    name: str
    Q: Array
    q: Array
    R: Array
    r: Array

    @property
    def key(self) -> str:
        """A short name, unique among the 54."""
        return f"n{self.inputs}-{self.task}-{self.name}"

    def specification(self) -> Specification:
        """Return the property as rules over x0.., y0..; the domain is the box |x_j| <= 2 of the paper."""
        names = [f"x{j}" for j in range(self.inputs)]
        outputs = [f"y{j}" for j in range(self.R.shape[1])]
        rule = linear_rule(self.Q, self.q, self.R, self.r, inputs=names, outputs=outputs, name=self.name)
        return Specification.build(inputs=dict.fromkeys(names, (-2, 2)), outputs=outputs, rules=[rule])

    def broken(self, X: Array, outputs: Array) -> Flags:
        """Return which rows break the property by more than the paper's tolerance."""
        inside = (self.q >= X @ self.Q.T).all(axis=1)
        return np.asarray(inside & (outputs @ self.R.T - self.r > TOLERANCE).any(axis=1))


def properties() -> list[SyntheticProperty]:
    """Draw the paper's 54 properties, bit for bit."""
    found = []
    for (n, task), seeds in SEEDS.items():
        for number, (inside, outside) in enumerate(seeds, start=1):
            m = len(POWERS[task])
            region, requirement = half_spaces(inside, n), half_spaces(outside, m)
            found.append(SyntheticProperty(n, task, f"P{number}", *region, *requirement))
    return found


def half_spaces(seed: int, columns: int) -> tuple[Array, Array]:
    """Draw log2(columns) + 2 half-spaces `A x <= a`, entries uniform in [-1, 1] with two decimals."""
    state = np.random.RandomState(seed)
    rows = columns.bit_length() + 1
    A = state.uniform(-1, 1, (columns, rows)).T
    return A.round(2), state.uniform(-1, 1, rows).round(2)


def synthetic_data(n: int, powers: tuple[int, ...]) -> SyntheticData:
    """Draw the paper's data, bit for bit."""
    state = np.random.RandomState(0)
    X = state.uniform(-1, 1, (5000, n))
    X_test = state.uniform(-1, 1, (1000, n))
    raw, raw_test = (np.stack([part.sum(axis=1) ** k for k in powers], axis=1) for part in (X, X_test))
    mean, deviation = raw.mean(axis=0), raw.std(axis=0)
    y, y_test = (raw - mean) / deviation, (raw_test - mean) / deviation

    def parts(x: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        size = np.abs(x)
        return (size < 0.1 ** (1 / n)).all(axis=1), (size > 0.9 ** (1 / n)).any(axis=1)

    (inner, outer), (inner_test, outer_test) = parts(X), parts(X_test)
    keep, keep_test = ~(inner | outer), ~(inner_test | outer_test)
    everything, truth = np.concatenate([X, X_test]), np.concatenate([y, y_test])
    inner_all, outer_all = np.concatenate([inner, inner_test]), np.concatenate([outer, outer_test])
    return SyntheticData(
        X[keep],
        y[keep],
        X_test[keep_test],
        y_test[keep_test],
        (everything[inner_all], truth[inner_all]),
        (everything[outer_all], truth[outer_all]),
        tuple((X_test[rows], y_test[rows]) for rows in (keep_test, inner_test, outer_test)),
    )


def load(key: str) -> Task:
    """Return a task by its key, for example `n8-hard-P6`.

    Raises:
        KeyError: If there is no such task.
    """
    prop = {item.key: item for item in properties()}[key]
    data = synthetic_data(prop.inputs, POWERS[prop.task])
    further = {"interpolation": data.interpolation, "extrapolation": data.extrapolation}
    return Task(
        "synthetic", key, prop.name, prop.specification(), data.X, data.y, data.X_test, data.y_test, prop.broken,
        further=further,
    )  # fmt: skip
