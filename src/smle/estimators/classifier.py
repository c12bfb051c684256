"""SafeClassifier: labels (several may apply) or one choice (exactly one applies)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from smle.errors import DataError
from smle.estimators.bases import ClassifierMixin
from smle.estimators.calibration import rescaled, thresholds_of
from smle.estimators.class_tasks import LabelTask, Options
from smle.estimators.fitted import FittedModel
from smle.estimators.meta import MetaEstimator
from smle.estimators.networks import NetworkClassifier
from smle.estimators.tasks import Held, TrainingRows
from smle.parameters import dict_of, documented, named, share, stated
from smle.rules import Specification
from smle.tables import encode_numbers

__all__ = ["ClassAnswers", "SafeClassifier"]

_TUNED = ("balanced_accuracy", "f1")


class ClassAnswers(ClassifierMixin, FittedModel):
    """Answers of estimators with rules, as labels or one choice."""

    @property
    def classes_(self) -> Any:
        """The options in sorted order, in the type of y in `fit`; for labels, a list of 0 and 1 for each."""
        return self._task.classes

    def decision_function(
        self, X: Any, *, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> npt.NDArray[np.float64]:
        """Return the certified logits or scores (rows, m), exactly, in float64.

        Columns are those of `classes_`. For a choice between two options, return the lead of the second (rows,).
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        return np.asarray(found.aligned(self._task.decisions(found.served.astype(np.float64))))

    @overload
    def predict(
        self, X: Any, *, return_info: Literal[False] = False, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> npt.NDArray[Any]: ...

    @overload
    def predict(
        self, X: Any, *, return_info: Literal[True], out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]: ...

    def predict(
        self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> Any:
        """Return labels as 0/1 (rows, m), or the chosen options (rows,).

        Args:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain` and `clipped_share`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; by default as the
                estimator was told.
            bad_rows: What to do with rows that cannot be read (an unknown category, a missing value, text instead of a
                number): `raise`, or `set aside`: they get NaN where answers are floats, else None, and the other rows
                are answered in place. `set_aside` of the dict has the reason for each such row, by its number from 0.
                `served_` counts them.
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        return found.returned(self._task.predictions(found.served), return_info)

    def predict_proba(
        self, X: Any, *, out_of_domain: str | None = None, bad_rows: str = "raise"
    ) -> npt.NDArray[np.float64]:
        """Return probabilities (rows, m), columns as in `classes_`. They always agree with `predict`.

        A label is on if its probability is at least 0.5, or its threshold; the chosen option has the largest. An option
        that the rules forbid at this input has 0, and the others share the rest as they would without it. A label that
        the rules force or forbid there has 1 or 0. Other relations between labels change decisions, not the
        probabilities of single labels. The proof covers predictions, not probabilities. Rows that are set aside (see
        `predict`) have NaN.
        """
        found = self.answer(X, out_of_domain, bad_rows=bad_rows)
        return np.asarray(found.aligned(self._task.ordered(self.chances(found))))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy as in scikit-learn: for several labels, the share of rows where all are right."""
        check_is_fitted(self, "description_")
        if isinstance(self._task, Options):
            return float(super().score(X, y, sample_weight))
        return float(np.average(self._right(X, y).all(axis=1), weights=sample_weight))

    def label_accuracy(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of single labels that are right, over all labels and rows; for a choice, the accuracy."""
        check_is_fitted(self, "description_")
        if isinstance(self._task, Options):
            return self.score(X, y, sample_weight)
        return float(np.average(self._right(X, y).mean(axis=1), weights=sample_weight))

    def _right(self, X: Any, y: Any) -> npt.NDArray[np.bool_]:
        return np.asarray(self.predict(X) == encode_numbers(self.specification_, y))

    def _plain_task(self, spec: Specification, y: Any = None) -> LabelTask | Options:
        if spec.output_kind not in ("labels", "choice"):
            raise DataError(
                f"{type(self).__name__} predicts labels, or one choice. Expected `labels` or one of `choices` in the "
                "rules. For mixed kinds of outputs use smle.nn.SafeNetwork."
            )
        return (Options if spec.output_kind == "choice" else LabelTask)(spec, y)


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
        `balanced_accuracy` or `f1`, tuned on the rows that a network holds out. Logits are shifted in front of the
        head, so that rules about labels are proved for the labels that are predicted. `thresholds_` has them.""",
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
        """The probability from which each label is predicted, or None for one half."""
        found = getattr(self._task, "thresholds", None)
        return None if found is None else dict(zip(self.specification_.targets, found.tolist(), strict=True))

    def _finished(self, front: Any, task: Any, rows: TrainingRows, held: Held | None) -> Any:
        """Shift the logits by the thresholds, in front of the head."""
        if self.thresholds is None:
            return front
        if isinstance(task, Options):
            raise ValueError(
                "Expected thresholds to be None here: of a choice the best option wins. class_weight of the estimator "
                f"moves the balance. Got {self.thresholds!r}."
            )
        task.thresholds = thresholds_of(self.thresholds, task, rows.targets, held)
        shift = np.log(1 / task.thresholds - 1)
        return rescaled(front, 1.0, shift) if shift.any() else front

    def _learned(self, front: Any) -> Any:
        if self.thresholds_ is None:
            return front
        least = np.array(list(self.thresholds_.values()))
        return rescaled(front, 1.0, np.log(least / (1 - least)))
