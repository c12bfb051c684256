"""SafeClassifier: labels (several may apply) or one choice (exactly one applies)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from smle.errors import DataError
from smle.estimators.base import SafeEstimator
from smle.estimators.inputs import observed_inputs
from smle.estimators.tasks import Labels, Options
from smle.rules import Choice, Label, Specification
from smle.tables import column_names, encode_numbers

__all__ = ["SafeClassifier"]


@dataclass(eq=False, repr=False)
class SafeClassifier(ClassifierMixin, SafeEstimator):  # type: ignore[misc]
    """A multi-layer perceptron, or any classifier, that provably obeys rules, for labels or one choice.

    * `labels` in the rules: y is a 0/1 table (rows, labels); a label is predicted where its logit is >= 0.
    * one of `choices` in the rules: y holds the names of the options; the largest score wins (`pick: min`: the
      smallest).

    Labels and choices are read off the certified logits and scores; `predict_proba` always agrees with them.
    `fit` ends with a certificate that the exact checker accepted (`certificate_`), or raises NotCertifiedError.

    Arguments are those of `SafeEstimator`; choices are trained on as they are, labels on the nearest allowed ones.
    """

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that several labels are fine."""
        tags = super().__sklearn_tags__()
        inner = None if self.estimator is None else get_tags(self.estimator).classifier_tags
        tags.classifier_tags.multi_label = inner is None or inner.multi_label
        return tags

    # --- using

    @property
    def classes_(self) -> Any:
        """The options in sorted order, in the type that y had in `fit`; of labels a list of 0 and 1 for each."""
        return self._task.classes

    def decision_function(self, X: Any, *, out_of_domain: str | None = None) -> npt.NDArray[np.float64]:
        """Return the certified logits or scores (rows, m), as float64 numbers that hold them exactly.

        Columns are those of `classes_`. For a choice between two options: the advantage of the second (rows,).
        """
        scores = self._outputs(X, out_of_domain).served.astype(np.float64)
        task = self._task
        if isinstance(task, Labels):
            return scores
        scores = scores[:, task.order] * task.sign
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)

    def predict(self, X: Any, *, return_info: bool = False, out_of_domain: str | None = None) -> Any:
        """Return labels as 0/1 (rows, m), or the chosen options (rows,).

        Args:
            X: Table with the rules' input columns.
            return_info: Also return a dict: `active_rules` (names per row), `in_domain` and `clipped_share`.
            out_of_domain: What to do with rows outside the domain: `raise`, `warn` or `clip`; None: as the estimator
                was told.
        """
        found = self._outputs(X, out_of_domain, taps=return_info)
        result = self._task.predictions(found.served)
        return (result, found.information(self.specification_)) if return_info else result

    def predict_proba(self, X: Any, *, out_of_domain: str | None = None) -> npt.NDArray[np.float64]:
        """Return probabilities (rows, m), columns as in `classes_`. `>= 0.5` and argmax always agree with `predict`."""
        outputs = self._outputs(X, out_of_domain).served.astype(np.float64)
        return np.asarray(self._task.probabilities(outputs))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, as scikit-learn defines it: of several labels the share of rows where all are right."""
        check_is_fitted(self, "description_")
        if isinstance(self._task, Options):
            return float(super().score(X, y, sample_weight))
        return float(np.average(self._right(X, y).all(axis=1), weights=sample_weight))

    def label_accuracy(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of single labels that are right, averaged over labels and rows; of a choice its accuracy."""
        check_is_fitted(self, "description_")
        if isinstance(self._task, Options):
            return self.score(X, y, sample_weight)
        return float(np.average(self._right(X, y).mean(axis=1), weights=sample_weight))

    def _right(self, X: Any, y: Any) -> npt.NDArray[np.bool_]:
        return np.asarray(self.predict(X) == encode_numbers(self.specification_, y))

    # --- fitting

    def _task_of(self, spec: Specification, y: Any = None) -> Labels | Options:
        if spec.output_kind not in ("labels", "choice"):
            raise DataError(
                "SafeClassifier predicts labels, or one choice. Expected `labels` or one of `choices` in the rules. "
                "For mixed kinds of outputs use smle.nn.SafeNetwork."
            )
        return Options(spec, y) if spec.output_kind == "choice" else Labels(spec, y)

    def _observed(self, X: Any, y: Any) -> Specification:
        if y is None:
            raise DataError("This SafeClassifier requires y to be passed, but the target y is None.")
        inputs = observed_inputs(X)
        values = np.asarray(y)
        if values.ndim == 2 and values.shape[1] > 1:
            names = column_names(y) or [f"label{i}" for i in range(values.shape[1])]
            return Specification(inputs, tuple(Label(name) for name in names), ())
        flat = column_or_1d(values, warn=True)
        check_classification_targets(flat)
        classes = np.unique(flat)
        if len(classes) < 2:
            raise DataError(f"Expected at least two classes. Got 1 class: {classes.tolist()}.")
        name = (column_names(y) or ["choice"])[0]
        return Specification(inputs, (Choice(name, tuple(str(c) for c in classes.tolist())),), ())
