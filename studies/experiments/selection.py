"""How the published code selects properties and series; the text says it in words only.

Synthetic: "selected in order of increasing difficulty (oracle performance) from a pool of similar properties". A
property of the pool can be met, is broken by test rows in distribution, of the interpolation and of the extrapolation
set, and its difficulty, 1 - R2 of the oracle, is at most 1 on each of them; the mean of the three is its grade. Among
grades up to 0.5, six properties are taken that are nearest to 0, 1/5, ..., 5/5 of the largest one. With the seeds 0 to
29 of inputs and outputs this gives the paper's 18 properties of eight inputs. No rectangle of seeds up to 150 gives the
36 others: their pool was another one, which is stored and not described.

The grades are also the order in which the published code trains the properties of a task (`trained_order`); P1 to P6
are in the order of the oracle's R2 on the test set alone. Six of nine tasks differ.

Series: of the 20 longest of each period of M4, those on which `preprocess`, without differencing, has an R2 of at least
0.8 under five quantiles and breaks a property other than the first. One backbone is trained on through all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import nn

from smle.errors import SmleError
from smle.nearest.oracle import nearest_outputs
from studies.experiments import forecasting, synthetic
from studies.experiments.networks import PaperLayers, train_plain
from studies.experiments.presets import settings_of, widths
from studies.experiments.tasks import TOLERANCE, Array

HARDEST = 0.5
"""Properties graded above are not taken."""


@dataclass(frozen=True)
class Candidate:
    """A property of the pool: seeds of its input and output region, its grade, and the oracle's R2 on the test set."""

    seeds: tuple[int, int]
    difficulty: float
    oracle: float


def graded(n: int, task: str, inner: Iterable[int], outer: Iterable[int]) -> list[Candidate]:
    """Grade the properties of all pairs of seeds, easy ones first; what does not belong to a pool is left out."""
    parts = synthetic.synthetic_data(n, synthetic.POWERS[task]).parts
    regions = {seed: [_inside(synthetic.half_spaces(seed, n), X) for X, _ in parts] for seed in inner}
    found = []
    for seed in outer:
        A, a = synthetic.half_spaces(seed, len(synthetic.POWERS[task]))
        broken = [np.clip(y @ A.T - a, 0, None) for _, y in parts]
        try:
            errors = [(_nearest(A, a, y) - y) ** 2 / y.var(axis=0) for _, y in parts]
        except SmleError:  # no output obeys
            continue
        for region, rows in regions.items():
            if all((excess[inside] > TOLERANCE).any() for excess, inside in zip(broken, rows, strict=True)):
                grades = [float((error.T * inside).mean()) for error, inside in zip(errors, rows, strict=True)]
                if max(grades) <= 1:
                    found.append(Candidate((region, seed), float(np.mean(grades)), 1 - grades[0]))
    return sorted(found, key=lambda candidate: candidate.difficulty)


def _inside(region: tuple[Array, Array], X: Array) -> Array:
    return np.asarray((region[1] >= X @ region[0].T).all(axis=1))


def _nearest(A: Array, a: Array, y: Array) -> Array:
    """Return the nearest outputs with A y <= a."""
    wherever = synthetic.SyntheticProperty(1, "", "P", np.ones((1, 1)), np.ones(1), A, a)
    return nearest_outputs(wherever.specification(), np.zeros((len(y), 1)), y)


def chosen(pool: Sequence[Candidate], count: int = 6) -> list[Candidate]:
    """Choose properties whose grades are spread evenly between 0 and the hardest, easy ones first."""
    usable = [candidate for candidate in pool if candidate.difficulty <= HARDEST]
    grades = np.array([candidate.difficulty for candidate in usable])
    places = {int(np.abs(grades - share * grades.max()).argmin()) for share in np.linspace(0, 1, count)}
    if len(places) < count:  # two levels have the same nearest property
        places = set(np.linspace(0, len(usable) - 1, count, dtype=int).tolist())
    return [usable[place] for place in sorted(places)]


@cache
def trained_order(n: int, task: str) -> tuple[int, ...]:
    """Return the numbers of a task's properties, P1 is 1, in the order in which the published code trains them."""
    seeds = synthetic.SEEDS[n, task]
    found = graded(n, task, {inner for inner, _ in seeds}, {outer for _, outer in seeds})
    return tuple(seeds.index(candidate.seeds) + 1 for candidate in found if candidate.seeds in seeds)


@dataclass(frozen=True)
class Suitability:
    """Whether a series is selected: its worst R2 over the quantiles, its largest share of windows that break one."""

    worst: float
    broken: float
    least: float = 0.8

    @property
    def suits(self) -> bool:
        """Whether `preprocess` is good on it, and breaks something."""
        return self.worst >= self.least and self.broken > 0


def suits(key: str, series: Mapping[str, Array], *, seed: int = 0) -> Suitability:
    """Judge a series, for example `Daily-D454`, as the published code does, with a network of its own."""
    n, m = forecasting.INPUTS, forecasting.OUTPUTS
    settings = settings_of("forecasting", "published", inputs=n, outputs=m)
    options = replace(settings.options, patience=20, warmup_epochs=0)
    settings = replace(settings, backbone=PaperLayers(widths("synthetic", n, m)), options=options)
    scores, broken, state = [], [0.0], None
    for quantile in ("1.00", "0.95", "0.90", "0.85", "0.80"):
        task = forecasting.load(f"{key}-{quantile}", series, differenced=False)
        network, _ = train_plain(
            task, settings, nearest_outputs(task.specification, task.X, task.y), seed=seed, start=state
        )
        assert isinstance(network, nn.Sequential)
        state = network[0].state_dict()
        with torch.inference_mode():
            outputs = network(torch.tensor(task.X_test, dtype=torch.float32)).numpy().astype(np.float64)
        scores.append(task.score(outputs))
        if quantile != "1.00":
            broken.append(float(task.broken(task.X_test, outputs).mean()))
    return Suitability(min(scores), max(broken))
