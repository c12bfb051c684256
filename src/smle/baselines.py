"""Baselines for safe models: a quick plain model, and the nearest allowed targets, answers or truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge

from smle.errors import DataError
from smle.nearest.oracle import nearest_outputs
from smle.rules import Specification, label_columns
from smle.rules.membership import broken
from smle.tables import encode_inputs, encode_numbers, outputs_of

__all__ = ["QuickModel", "nearest_allowed", "violation_rate"]

Array = npt.NDArray[np.float64]
_TREES, _LEAF, _TRIED = 20, 5, 10  # trees, rows per leaf, inputs tried per split
_WORK = 30_000  # rows times inputs tried, fewer for many outputs: some tenths of a second
_MANY = 100  # no trees for more outputs than this


@dataclass(frozen=True, eq=False)
class QuickModel:
    """A plain model that fits in a fraction of a second: ridge regression, and randomized trees on its residuals.

    A stand-in where no baseline was trained. It knows no rules.
    """

    labels: npt.NDArray[np.bool_]
    shift: Array
    scale: Array
    linear: Any
    trees: Any
    unit: Array

    @classmethod
    def fit(
        cls, spec: Specification, X: npt.NDArray[Any], targets: Array, *, weight: Array | None = None, seed: int = 0
    ) -> QuickModel:
        """Fit encoded inputs (n, d) and targets (n, m): numbers, labels as 0 or 1, scores of options.

        Of many rows, it learns from a random sample.
        """
        outputs, tried = targets.shape[1], min(X.shape[1], _TRIED)
        rows = np.random.default_rng(seed).permutation(len(X))[: max(100, int(_WORK / tried / (1 + outputs / 10)))]
        X, targets, weight = X[rows].astype(np.float64), targets[rows], None if weight is None else weight[rows]
        shift, scale = X.mean(axis=0), X.std(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        X = (X - shift) / scale
        linear = Ridge(alpha=1.0).fit(X, targets, sample_weight=weight)
        rest = targets - linear.predict(X).reshape(targets.shape)
        unit = rest.std(axis=0)  # a split serves all outputs, so none may count more because of its unit
        trees = None
        if outputs <= _MANY:
            rest = rest / np.where(unit > 0, unit, 1.0)
            trees = ExtraTreesRegressor(_TREES, min_samples_leaf=_LEAF, max_features=tried, random_state=seed)
            trees.fit(X, rest[:, 0] if outputs == 1 else rest, sample_weight=weight)
        return cls(label_columns(spec), shift, scale, linear, trees, unit)

    def raw_outputs(self, X: npt.NDArray[Any]) -> Array:
        """Return outputs (n, m) as a network does: numbers, logits of labels, scores of options."""
        X = (X.astype(np.float64) - self.shift) / self.scale
        shape = (len(X), len(self.labels))
        result = self.linear.predict(X).reshape(shape)
        if self.trees is not None:
            result = result + self.trees.predict(X).reshape(shape) * self.unit
        chance = np.clip(result, 1e-6, 1 - 1e-6)
        return np.asarray(np.where(self.labels, np.log(chance / (1 - chance)), result))


def nearest_allowed(spec: Specification, X: Any, y: Any) -> Array:
    """Return the nearest outputs (rows, m) that the rules allow, by an optimization per row.

    For training targets this is the paper's pre-processing, for predictions its post-processing, for the truth its
    oracle: the least squared error of any model that obeys. Errors are measured in the units of the outputs. If these
    differ, another answer may have a better R2, such as the oracle of `compare_models`.
    """
    return nearest_outputs(spec, encode_inputs(spec, X), encode_numbers(spec, y))


def violation_rate(spec: Specification, X: Any, y: Any) -> float:
    """Return the share of rows that break a rule, judged without tolerance.

    y holds raw outputs (rows, m), or answers as from `predict`: labels as integers 0 and 1, or as booleans; names of
    options.

    Regions are read as the guard reads them: a constant that one input is compared with means its nearest float, in the
    format of the inputs, so x = 0.7 in float32 is not below 0.7. Everything else is the exact value of the floats.
    """
    inputs = encode_inputs(spec, X)
    if len(inputs) != len(y):
        raise DataError(f"Expected as many outputs as inputs, {len(inputs)} rows. Got {len(y)}.")
    outputs = outputs_of(spec, y, len(inputs))
    return float(broken(spec, inputs, outputs).any(axis=1).mean()) if len(inputs) else 0.0
