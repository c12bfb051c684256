"""SafeQuantileRegressor: several quantiles of one number, which never cross and obey its rules."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin, clone
from sklearn.metrics import d2_pinball_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline

from smle.errors import DataError
from smle.estimators.base import SafeEstimator
from smle.estimators.calibration import sorted_answers
from smle.estimators.inputs import observed_inputs, spread
from smle.estimators.tasks import Held, Numbers, Rows
from smle.export.stored import StoredModel
from smle.rules import Number, Rule, Specification
from smle.rules.expressions import Name, Node, to_text
from smle.tables import column_names

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SafeQuantileRegressor", "quantile_rules"]

Array = npt.NDArray[np.float64]
_PARTS = ("name", "when", "then")
_ORDER = "quantiles in order"


@dataclass(eq=False, repr=False)
class SafeQuantileRegressor(RegressorMixin, SafeEstimator):  # type: ignore[misc]
    r"""Quantiles of one number, by a perceptron or any quantile estimator, that never cross and obey rules.

    The rules are about one output, such as `demand`. They are stated for each quantile, `demand_q5`, `demand_q50` and
    so on, with one more rule, that these are in order; the certificate is about all of them together. Answers of an
    estimator are sorted, and answers that break a rule moved to the nearest allowed ones. Rules that already name the
    quantiles may say more, for example about the width of the interval.

    Args:
        quantiles: Two or more, in increasing order.
        estimator: Fitted once for each quantile: any with a parameter `quantile` or `alpha`, of scikit-learn, LightGBM
            or XGBoost, or a pipeline that ends with one. None: one network for all, with the pinball loss.

    Further parameters are those of `SafeEstimator`. Nothing is compared (`compare`).

    >>> import numpy as np
    >>> from smle import SafeQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (400, 1))
    >>> y = X[:, 0] * rng.uniform(0.5, 1.5, 400)
    >>> rules = "inputs: {hours: [0, 10]}\noutputs: [cost]\nrules: [{name: affordable, then: 0 <= cost <= 12}]"
    >>> model = SafeQuantileRegressor(rules, quantiles=(0.1, 0.9), max_epochs=30, random_state=0).fit(X, y)
    >>> lower, upper = model.predict(X).T
    >>> bool((lower <= upper).all()), bool(upper.max() <= 12)
    (True, True)
    """

    quantiles: tuple[float, ...] = (0.05, 0.5, 0.95)

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None) -> Any:
        """Return the quantiles (rows, quantiles), as float64 numbers that hold the certified float32 values exactly.

        Args:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain`, and how each was served.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; None: as the estimator
                was told.
        """
        found = self._outputs(X, out_of_domain, taps=return_info)
        result = found.served.astype(np.float64)
        return (result, found.information(self.specification_)) if return_info else result

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of the pinball loss of constant quantiles that is explained, mean of the quantiles."""
        answers, truth = self.predict(X), np.asarray(y, dtype=np.float64).ravel()
        scores = [
            d2_pinball_score(truth, answers[:, k], alpha=q, sample_weight=sample_weight)
            for k, q in enumerate(self.quantiles)
        ]
        return float(np.mean(scores))

    def _given(self) -> Specification | None:
        given = super()._given()
        return None if given is None else quantile_rules(given, self.quantiles)

    def _observed(self, X: Any, y: Any) -> Specification:
        if y is None:
            raise DataError("This SafeQuantileRegressor requires y to be passed, but the target y is None.")
        name = (column_names(y) or ["y"])[0]
        return quantile_rules(Specification(observed_inputs(X), (Number(name),), ()), self.quantiles)

    def _task_of(self, spec: Specification, y: Any = None) -> Quantiles:
        return Quantiles(spec, self.quantiles)

    def _finished(self, front: Any, rows: Rows, held: Held | None) -> Any:
        """Sort the quantiles of an estimator: no loss is larger than before, which cannot be said of nearest ones."""
        return sorted_answers(front, len(self.quantiles)) if isinstance(front, StoredModel) else front

    def _inner_estimator(self) -> Any:
        return _EachQuantile(self.estimator, self.quantiles)


class Quantiles(Numbers):
    """Quantiles of one number; the loss is the pinball loss of each."""

    is_scored = False

    def __init__(self, spec: Specification, quantiles: tuple[float, ...]) -> None:
        super().__init__(spec)
        self.levels = np.asarray(quantiles, dtype=np.float64)

    def encode(self, y: Any) -> Array:
        """Return the number itself, once for each quantile."""
        number = Number(_target(self.spec.outputs[0].name))
        single = Specification(self.spec.inputs, (number,), (), self.spec.constants)
        return np.repeat(Numbers(single).encode(y), len(self.levels), axis=1)

    def for_estimator(self, targets: Array) -> npt.NDArray[Any]:
        """Return the number as a vector."""
        return targets[:, 0]

    def typical(self, targets: Array) -> Array:
        """Return the quantiles of all rows."""
        return np.quantile(targets[:, 0], self.levels)

    def default(self, targets: Array) -> tuple[Array, Array]:
        """Return the quantiles of all rows, and the standard deviation."""
        return self.typical(targets), spread(targets)

    def units(self, targets: Array) -> tuple[Array, Array]:
        """Return the quantiles of all rows, and the standard deviation."""
        return self.default(targets)

    def loss(self, targets: Array) -> Any:
        """Return the pinball loss in units of the spread."""
        import torch

        scale, levels = (torch.as_tensor(part, dtype=torch.float32) for part in (spread(targets), self.levels))

        def loss(predicted: Tensor, wanted: Tensor) -> Tensor:
            gap = (wanted - predicted) / scale.to(predicted.device)
            level = levels.to(predicted.device)
            return torch.maximum(level * gap, (level - 1) * gap)

        return loss


def quantile_rules(spec: Specification, quantiles: tuple[float, ...]) -> Specification:
    """Return rules about quantiles of the one output: each rule for each of them, and that they are in order.

    Rules that name the quantiles already stay as they are; the order is added unless it is there.

    Raises:
        ValueError: If quantiles are not two or more numbers between 0 and 1 in increasing order.
        DataError: If the rules are about something else than one number.
    """
    levels = np.asarray(quantiles, dtype=np.float64)
    if levels.ndim != 1 or len(levels) < 2 or not (np.diff([0.0, *levels, 1.0]) > 0).all():
        raise ValueError(f"Expected two or more quantiles between 0 and 1, in increasing order. Got {quantiles!r}.")
    ending = [f"_q{100 * level:.6g}".replace(".", "_") for level in levels]
    names = [item.name for item in spec.outputs]
    target = _target(names[0]) if len(names) == len(levels) else names[0]
    wanted = [target + end for end in ending]
    if spec.output_kind != "numbers" or (len(names) > 1 and names != wanted):
        raise DataError(
            "SafeQuantileRegressor predicts quantiles of one number. Expected one name in `outputs`, or its quantiles "
            f"({', '.join(wanted)}). Got {', '.join(names)}."
        )
    hollow = replace(spec, outputs=tuple(Number(name) for name in wanted), rules=())
    steps = spec.outputs if len(names) > 1 else tuple(replace(spec.outputs[0], name=name) for name in wanted)
    order = _stated(hollow, [(_ORDER, None, " and ".join(f"`{low}` <= `{high}`" for low, high in pairwise(wanted)))])
    if len(names) > 1:
        (last,) = order.rules
        if any((rule.regions, rule.requirement) == (last.regions, last.requirement) for rule in spec.rules):
            return spec
        return replace(spec, rules=(*spec.rules, last))
    stated = [
        (f"{rule.name}, {100 * level:.6g} %", rule.when, to_text(_renamed(_tree(rule), target, name)))
        for rule in spec.rules
        for level, name in zip(levels, wanted, strict=True)
    ]
    made = _stated(hollow, stated)
    return replace(made, outputs=steps, rules=(*made.rules, *order.rules))


def _stated(hollow: Specification, rules: list[tuple[str, str | None, str]]) -> Specification:
    """Return a specification with these rules: name, when, then."""
    lines = [
        "  - " + json.dumps({k: v for k, v in zip(_PARTS, rule, strict=True) if v}, ensure_ascii=False) + "\n"
        for rule in rules
    ]
    return (
        Specification.from_yaml(hollow.to_yaml().replace("rules: []", "rules:") + "".join(lines)) if lines else hollow
    )


def _tree(rule: Rule) -> Node:
    then = rule.trees[1]
    if then is None:
        raise DataError(f"Rule '{rule.name}' has no text that could be stated for each quantile. Write it as a text.")
    return then


def _target(name: str) -> str:
    return name.rsplit("_q", 1)[0]


def _renamed(node: Any, old: str, new: str) -> Any:
    """Return a tree of a rule in which a name is replaced."""
    if isinstance(node, Name):
        return Name(new) if node.name == old else node
    if isinstance(node, tuple):
        return tuple(_renamed(part, old, new) for part in node)
    if not is_dataclass(node):
        return node
    parts = {item.name: getattr(node, item.name) for item in fields(node) if item.init}
    return type(node)(**{name: _renamed(part, old, new) for name, part in parts.items()})  # type: ignore[misc]


@dataclass(frozen=True)
class _EachQuantile:
    """Fits a copy of an estimator for each quantile of one target."""

    estimator: Any
    quantiles: tuple[float, ...]

    def fit(self, X: Any, y: Any, **params: Any) -> Any:
        """Return them as one estimator of several outputs, whose stored form is known."""
        joined = MultiOutputRegressor(self.estimator)
        joined.estimators_ = [at_quantile(self.estimator, level).fit(X, y, **params) for level in self.quantiles]
        return joined


def at_quantile(estimator: Any, level: float) -> Any:
    """Return a copy of an estimator that predicts a quantile.

    Raises:
        ValueError: If it has no parameter for that.
    """
    made = clone(estimator)
    last = made.steps[-1][1] if isinstance(made, Pipeline) else made
    known = last.get_params(deep=False)
    if type(last).__name__.startswith("LGBM"):
        return _set(made, last, objective="quantile", alpha=level)
    if type(last).__name__.startswith("XGB"):
        return _set(made, last, objective="reg:quantileerror", quantile_alpha=level)
    loss = {"loss": "quantile"} if "loss" in known else {}
    if "quantile" in known:
        return _set(made, last, quantile=level, **loss)
    if loss and "alpha" in known:
        return _set(made, last, alpha=level, **loss)
    raise ValueError(
        f"Expected an estimator of quantiles, with a parameter `quantile` or `alpha`, such as "
        f"HistGradientBoostingRegressor, GradientBoostingRegressor, QuantileRegressor or LGBMRegressor. Got "
        f"{type(last).__name__}."
    )


def _set(made: Any, last: Any, **parameters: Any) -> Any:
    last.set_params(**parameters)
    return made
