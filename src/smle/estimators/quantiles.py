"""SafeQuantileRegressor: several quantiles of one number, which never cross and obey its rules."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.metrics import d2_pinball_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline

from smle.errors import DataError
from smle.estimators.calibration import sorted_answers
from smle.estimators.fitted import NumberAnswers
from smle.estimators.meta import MetaEstimator
from smle.estimators.networks import NetworkEstimator, NetworkRegressor
from smle.estimators.tasks import Held, Quantiles, TrainingRows, quantile_names, target_of
from smle.parameters import documented, list_of, share, stated
from smle.rules import Number, Rule, Specification
from smle.rules.expressions import Name, Node, to_text
from smle.serving.fronts import StoredModel

__all__ = ["SafeQuantileRegressor", "quantile_rules"]

Array = npt.NDArray[np.float64]
_PARTS = ("name", "when", "then")
_ORDER = "quantiles in order"


@documented
@dataclass(eq=False, repr=False)
class SafeQuantileRegressor(NumberAnswers, MetaEstimator):
    r"""Quantiles of one number, by a network or any quantile estimator, that never cross and obey rules.

    The rules are about one output, such as `demand`. They are applied to each quantile, `demand_q5`, `demand_q50` and
    so on, with one more rule that keeps these in order; the certificate covers all of them. Answers of an estimator are
    sorted, and answers that break a rule move to the nearest allowed ones. Rules may also name the quantiles
    themselves, to say for example how wide the interval may be.

    `predict` returns the quantiles (rows, quantiles). A copy of the estimator is fitted for each of them: it needs a
    parameter `quantile` or `alpha`, as in scikit-learn, LightGBM and XGBoost, or is a pipeline that ends with such an
    estimator. A `NetworkRegressor` learns all at once, with the pinball loss; its `loss` and `quantile` are set here.

    Its parameters are listed in docs/training.md, and by `help`.

    >>> import numpy as np
    >>> from smle import NetworkRegressor, SafeQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (400, 1))
    >>> y = X[:, 0] * rng.uniform(0.5, 1.5, 400)
    >>> rules = "inputs: {hours: [0, 10]}\noutputs: [cost]\nrules: [{name: affordable, then: 0 <= cost <= 12}]"
    >>> network = NetworkRegressor(max_epochs=30)
    >>> model = SafeQuantileRegressor(rules, network, quantiles=(0.1, 0.9), random_state=0).fit(X, y)
    >>> lower, upper = model.predict(X).T
    >>> bool((lower <= upper).all()), bool(upper.max() <= 12)
    (True, True)
    """

    _: KW_ONLY
    quantiles: tuple[float, ...] = stated(
        (0.05, 0.5, 0.95), list_of(share), "numbers between 0 and 1", "The quantiles: two or more, in increasing order."
    )

    network = NetworkRegressor

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return D2, the share of the pinball loss of constant quantiles that the model saves, averaged over them."""
        answers, truth = self.predict(X), np.asarray(y, dtype=np.float64).ravel()
        scores = [
            d2_pinball_score(truth, answers[:, k], alpha=q, sample_weight=sample_weight)
            for k, q in enumerate(self.quantiles)
        ]
        return float(np.mean(scores))

    def _given(self) -> Specification:
        return quantile_rules(super()._given(), self.quantiles)

    def _plain_task(self, spec: Specification, y: Any = None) -> Quantiles:
        return Quantiles(spec, self.quantiles)

    def _finished(self, front: Any, task: Any, rows: TrainingRows, held: Held | None) -> Any:
        """Sort the quantiles of an estimator: this never raises a loss, unlike moving to the nearest ordered ones."""
        return sorted_answers(front, len(self.quantiles)) if isinstance(front, StoredModel) else front

    def _inner_estimator(self) -> Any:
        inner = super()._inner_estimator()
        if isinstance(inner, NetworkEstimator):
            return inner.set_params(loss="quantile", quantile=tuple(self.quantiles))
        return _EachQuantile(inner, self.quantiles)


def quantile_rules(spec: Specification, quantiles: tuple[float, ...]) -> Specification:
    """State rules about one number for each of its quantiles, and add one that keeps the quantiles in order.

    Rules that already name the quantiles stay; only the order is added, unless it is there. Raises ValueError unless
    there are two or more increasing quantiles between 0 and 1, and DataError unless the rules are about one number.
    """
    levels = np.asarray(quantiles, dtype=np.float64)
    if levels.ndim != 1 or len(levels) < 2 or not (np.diff([0.0, *levels, 1.0]) > 0).all():
        raise ValueError(f"Expected two or more quantiles between 0 and 1, in increasing order. Got {quantiles!r}.")
    names = [item.name for item in spec.outputs]
    target = target_of(names[0]) if len(names) == len(levels) else names[0]
    wanted = quantile_names(target, levels)
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
    """Return a specification with these rules: (name, when, then)."""
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


def _renamed(node: Any, old: str, new: str) -> Any:
    """Replace a name in the tree of a rule."""
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
        """Fit the copies; return them as one estimator with several outputs, which can be stored."""
        joined = MultiOutputRegressor(self.estimator)
        joined.estimators_ = [at_quantile(self.estimator, level).fit(X, y, **params) for level in self.quantiles]
        return joined


def at_quantile(estimator: Any, level: float) -> Any:
    """Return a copy of an estimator that predicts a quantile. Raises ValueError if it has no parameter for that."""
    made = clone(estimator)
    last = made.steps[-1][1] if isinstance(made, Pipeline) else made
    name, known = type(last).__name__, last.get_params(deep=False)
    loss = {"loss": "quantile"} if "loss" in known else {}
    if name.startswith("LGBM"):
        last.set_params(objective="quantile", alpha=level)
    elif name.startswith("XGB"):
        last.set_params(objective="reg:quantileerror", quantile_alpha=level)
    elif "quantile" in known:
        last.set_params(quantile=level, **loss)
    elif loss and "alpha" in known:
        last.set_params(alpha=level, **loss)
    else:
        raise ValueError(
            f"Expected an estimator of quantiles, with a parameter `quantile` or `alpha`, such as "
            f"HistGradientBoostingRegressor, GradientBoostingRegressor, QuantileRegressor or LGBMRegressor. Got {name}."
        )
    return made
