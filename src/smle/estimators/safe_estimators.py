"""SafeRegressor and SafeClassifier: numbers; labels (several may apply) or one choice (exactly one applies)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from smle.estimators.calibration import rescaled, thresholds_of
from smle.estimators.class_tasks import Options
from smle.estimators.fitted import ClassAnswers, NumberAnswers
from smle.estimators.meta import MetaEstimator
from smle.estimators.networks import NetworkClassifier, NetworkRegressor
from smle.estimators.tasks import Held, TrainingRows
from smle.parameters import dict_of, documented, named, share, stated

__all__ = ["SafeClassifier", "SafeRegressor"]

_TUNED = ("balanced_accuracy", "f1")


@documented
@dataclass(eq=False, repr=False)
class SafeRegressor(NumberAnswers, MetaEstimator):
    r"""A regressor that provably obeys rules: any estimator, followed by a certified head.

    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Its parameters are listed in docs/training.md, and by `help`.

    >>> import numpy as np
    >>> from smle import NetworkRegressor, SafeRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (400, 1))
    >>> y = X[:, 0] * rng.uniform(0.5, 1.5, 400)
    >>> rules = "inputs: {hours: [0, 10]}\noutputs: [cost]\nrules: [{name: affordable, then: 0 <= cost <= 12}]"
    >>> network = NetworkRegressor(loss="quantile", quantile=0.9, max_epochs=30)
    >>> model = SafeRegressor(rules, network, random_state=0).fit(X, y)
    >>> answers = model.predict(X)
    >>> bool(answers.max() <= 12), bool((y <= answers).mean() > 0.7)
    (True, True)
    """

    network = NetworkRegressor

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn whether several outputs are supported."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self._inner_tags().target_tags.multi_output
        return tags


@documented
@dataclass(eq=False, repr=False)
class SafeClassifier(ClassAnswers, MetaEstimator):
    r"""A classifier that provably obeys rules, for labels or one choice: any classifier, followed by a certified head.

    * `labels` in the rules: y is a 0/1 table (rows, labels); a label is predicted if its logit is >= 0.
    * one of `choices` in the rules: y holds the names of the options; the largest score wins (`pick: min`: the
      smallest).

    Labels and choices are read off the certified logits and scores; `predict_proba` always agrees with them. `fit` ends
    with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Its parameters are listed in docs/training.md, and by `help`.

    >>> import numpy as np
    >>> from smle import NetworkClassifier, SafeClassifier
    >>> X = np.random.default_rng(0).uniform(0, 100, (400, 1))
    >>> rules = "inputs: {age: [0, 100]}\nlabels: [adult, minor]\nrules: [{name: one, then: not (adult and minor)}]"
    >>> y = np.hstack([X >= 18, X < 18]).astype(int)
    >>> network = NetworkClassifier(max_epochs=20, class_weight="balanced")
    >>> model = SafeClassifier(rules, network, thresholds={"minor": 0.2}, random_state=0)
    >>> bool(model.fit(X, y).predict(X).all(axis=1).any())
    False
    """

    _: KW_ONLY
    thresholds: float | str | Mapping[str, float] | None = stated(
        None,
        lambda v: v is None or share(v) or named(*_TUNED)(v) or dict_of(share)(v),
        f"None, a number between 0 and 1, a dict of such by label, or {' or '.join(map(repr, _TUNED))}",
        """Predict a label at or above this probability: a number, a dict by label (0.5 for others), or
        `balanced_accuracy` or `f1`, tuned on the rows that a network holds out. Logits are shifted before the head, so
        the proof covers the labels that are predicted. `thresholds_` has the values.""",
    )

    network = NetworkClassifier

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn whether several labels are supported."""
        tags = super().__sklearn_tags__()
        inner = self._inner_tags().classifier_tags
        tags.classifier_tags.multi_label = inner is None or inner.multi_label
        return tags

    @property
    def thresholds_(self) -> dict[str, float] | None:
        """The probability at or above which each label is predicted; None if that is one half for all."""
        found = getattr(self._task, "thresholds", None)
        return None if found is None else dict(zip(self.specification_.targets, found.tolist(), strict=True))

    def _finished(self, front: Any, task: Any, rows: TrainingRows, held: Held | None) -> Any:
        """Shift the logits by the thresholds, before the head reads them."""
        if self.thresholds is None:
            return front
        if isinstance(task, Options):
            raise ValueError(
                f"Expected thresholds to be None for a choice: the best option wins. Got {self.thresholds!r}. To favor "
                "an option, set class_weight of the estimator."
            )
        task.thresholds = thresholds_of(self.thresholds, task, rows.targets, held)
        shift = np.log(1 / task.thresholds - 1)
        return rescaled(front, 1.0, shift) if shift.any() else front

    def _learned(self, front: Any) -> Any:
        if self.thresholds_ is None:
            return front
        least = np.array(list(self.thresholds_.values()))
        return rescaled(front, 1.0, np.log(least / (1 - least)))
