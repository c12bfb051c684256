"""Small generated data that stand in for the real ones, so that everything can be tried without any download."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from studies.experiments.arff import LabelTable
from studies.experiments.tasks import Array

SERIES = ("S1", "S2")
LABEL_TABLES = ("Standin",)

_LENGTH, _ROWS, _FEATURES, _LABELS = 400, 240, 10, 6


def series() -> Mapping[str, Array]:
    """Return random walks with a season of 24 steps."""
    state = np.random.RandomState(0)
    time = np.arange(_LENGTH)
    walks = {name: np.cumsum(state.normal(0, 0.3, _LENGTH)) for name in SERIES}
    return {name: 100 + walk + 5 * np.sin(2 * np.pi * time / 24) for name, walk in walks.items()}


def label_table() -> LabelTable:
    """Return labels drawn from a random linear model of random features."""
    state = np.random.RandomState(0)
    X = state.normal(size=(_ROWS, _FEATURES))
    logits = X @ state.normal(size=(_FEATURES, _LABELS)) + state.normal(-1.0, 0.5, _LABELS)
    y = (state.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    names = tuple(f"feature{j}" for j in range(_FEATURES))
    return LabelTable(X, y, names, tuple(f"label{j}" for j in range(_LABELS)))
