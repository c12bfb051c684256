"""What the three benchmarks have in common: a task is data, rules and a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from smle.rules import Label, Specification
from studies.harness import Array

TOLERANCE = 1e-6
"""Violations up to this size are not counted in the paper."""


@dataclass(frozen=True, eq=False)
class Task:
    """One learning task under one property.

    * `X` (rows, d), `y` (rows, m) to train on, in the order that the paper splits for early stopping;
      `X_test`, `y_test` to be judged by. Labels are 0 or 1.
    * `broken(X, outputs)`: which rows break the property by more than `TOLERANCE`, in float64.
    * `last_test` (rows, 1): what is added to truth and prediction before they are scored (undoes differencing).
    * `further`: other test sets by name.
    """

    benchmark: str
    key: str
    group: str
    specification: Specification
    X: Array
    y: Array
    X_test: Array
    y_test: Array
    broken: Callable[[Array, Array], Array]
    last_test: Array | None = None
    further: Mapping[str, tuple[Array, Array]] = field(default_factory=dict)

    @property
    def standin(self) -> bool:
        """Whether the data are generated to stand in for the real ones: their names say so."""
        return "Standin" in self.key

    @property
    def has_labels(self) -> bool:
        """Whether outputs are labels (by the sign of a logit) and not numbers."""
        return isinstance(self.specification.outputs[0], Label)

    @property
    def metric(self) -> str:
        """`accuracy` for labels, `r2` for numbers."""
        return "accuracy" if self.has_labels else "r2"

    def score(self, outputs: Array, truth: Array | None = None, *, kind: str = "averaged") -> float:
        """Return the paper's score of outputs (numbers or logits), on the test set unless another truth is given.

        `kind`: how R2 of several outputs is made one.
        """
        wanted = self.y_test if truth is None else truth
        if self.has_labels:
            return accuracy(wanted, outputs)
        if truth is None and self.last_test is not None:
            wanted, outputs = wanted + self.last_test, outputs + self.last_test
        return r2(wanted, outputs, kind)


def r2(truth: Array, predicted: Array, kind: str = "averaged") -> float:
    """Return R2 of several outputs.

    `averaged`: the mean over outputs, as the paper's code has it. `pooled`: one fraction of sums over all outputs, as
    the formula in its supplement has it. A constant output counts 1 if it is met exactly and 0 otherwise.
    """
    error, spread = ((truth - predicted) ** 2).sum(axis=0), ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    constant = (truth == truth[0]).all(axis=0)
    if kind == "pooled":
        if constant.all():
            return float(not error.any())
        return 1.0 - float(error.sum() / spread.sum())
    return float(np.where(constant, error == 0, 1.0 - error / np.where(constant, 1.0, spread)).mean())


def accuracy(truth: Array, logits: Array) -> float:
    """Return the average class accuracy: the share of right labels, averaged over classes."""
    return float(((logits >= 0) == (truth >= 0.5)).mean())
